"""Servers and leases on a host that is reached over a real sshd and has no systemd to help."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from tuner.errors import HostFault, LeaseHeld, LeaseLost
from tuner.hosts import files
from tuner.hosts.clock import SystemClock
from tuner.hosts.local import LocalTransport
from tuner.hosts.shell.service import ShellServiceManager
from tuner.hosts.shell.tenancy import ShellTenancy
from tuner.hosts.ssh.transport import SshTransport
from tuner.model.host import Activity, Original
from tuner.model.lease import Holder, LeaseTerms
from tuner.model.trial import Command
from tuner.testing.sshd import Sshd, sshd_program

SLEEPER = Command(argv=(sys.executable, "-S", "-c", "import time; print('up', flush=True); time.sleep(300)"))
STUBBORN = Command(
    argv=(
        sys.executable,
        "-S",
        "-c",
        "import signal, time; signal.signal(15, signal.SIG_IGN); print('up', flush=True); time.sleep(300)",
    )
)
PATIENCE_S = 40.0
LONG = LeaseTerms(lasts_s=900.0, renew_s=60.0)
SHORT = LeaseTerms(lasts_s=3.0, renew_s=1.0)
NOTHING = Original(command=None, was_running=False)


def holder(study: str = "one") -> Holder:
    return Holder(
        owner="me@desk", study=study, directory=f"/studies/{study}", machine="m", pid=os.getpid(), since_s=1e9
    )


@pytest.fixture
def sshd(tmp_path: Path) -> Iterator[Sshd]:
    if sshd_program() is None:
        pytest.skip("sshd is not installed: install openssh-server")
    with Sshd(tmp_path / "sshd") as host:
        yield host


def over_ssh(sshd: Sshd, scenario: Callable[[SshTransport], Awaitable[None]]) -> None:
    async def run() -> None:
        transport = SshTransport(sshd.login)
        try:
            await scenario(transport)
        finally:
            await transport.close()

    asyncio.run(run())


async def has_ended(pid: int) -> None:
    deadline_s = time.monotonic() + PATIENCE_S
    while (found := files.process_stat(pid)) is not None and not found.is_zombie:
        assert time.monotonic() < deadline_s, f"{pid} still runs"
        await asyncio.sleep(0.05)


async def told(manager: ShellServiceManager) -> None:
    """Look until the server no longer runs; its death comes before the end of what it left."""
    deadline_s = time.monotonic() + PATIENCE_S
    while (await manager.state()).activity is Activity.RUNNING:
        assert time.monotonic() < deadline_s
        await asyncio.sleep(0.05)


async def up(manager: ShellServiceManager) -> None:
    deadline_s = time.monotonic() + PATIENCE_S
    while "up" not in (await manager.read_log(None)).text:
        assert time.monotonic() < deadline_s
        await asyncio.sleep(0.02)


def test_a_server_outlives_the_connection_that_started_it(sshd: Sshd, tmp_path: Path) -> None:
    async def scenario(transport: SshTransport) -> None:
        manager = ShellServiceManager(transport, str(tmp_path / "host"), SystemClock())
        identity = await manager.start(SLEEPER)
        await up(manager)
        sshd.kill_sessions()
        state = await manager.state()
        assert (state.activity, state.identity) == (Activity.RUNNING, identity)
        await transport.close()
        sshd.restart()
        assert (await manager.state()).identity == identity
        assert (await manager.read_log(None)).text == "up\n"
        await manager.stop(grace_s=5.0)
        await has_ended(identity.main_pid)

    over_ssh(sshd, scenario)


def test_connections_that_die_while_a_server_starts_leave_one_server(sshd: Sshd, tmp_path: Path) -> None:
    count = tmp_path / "count"
    program = "import sys, time; open(sys.argv[1], 'a').write('x'); time.sleep(300)"
    command = Command(argv=(sys.executable, "-S", "-c", program, str(count)))

    async def scenario(transport: SshTransport) -> None:
        started = 0
        for delay_s in (0.02, 0.05, 0.1):
            manager = ShellServiceManager(transport, str(tmp_path / "host"), SystemClock())
            await transport.run(("true",))
            starting = asyncio.ensure_future(manager.start(command))
            await asyncio.sleep(delay_s)
            sshd.kill_sessions()
            # Killed between two steps the host may have done nothing: that is told, and nothing runs.
            try:
                identity = await starting
            except HostFault:
                await manager.stop(grace_s=1.0)
                assert await manager.leftovers() == ()
                continue
            started += 1
            assert (await manager.state()).identity == identity
            assert len(await manager.members()) == 1
            await manager.stop(grace_s=5.0)
            await has_ended(identity.main_pid)
        assert len(count.read_text() if count.exists() else "") <= 3
        assert started > 0

    over_ssh(sshd, scenario)


def test_a_host_that_hears_nothing_more_stops_the_server_and_gives_the_lease_back(sshd: Sshd, tmp_path: Path) -> None:
    directory = tmp_path / "host"

    async def scenario(transport: SshTransport) -> None:
        tenancy = ShellTenancy(transport, str(directory), holder(), SHORT, SystemClock())
        await tenancy.enter()
        manager = ShellServiceManager(transport, str(directory), SystemClock(), lease=tenancy.lease_folder)
        identity = await manager.start(SLEEPER)
        await up(manager)
        for _ in range(5):  # renewed, it lives longer than the lease
            await asyncio.sleep(1.0)
            await tenancy.renew()
        assert (await manager.state()).activity is Activity.RUNNING
        sshd.freeze()
        await has_ended(identity.main_pid)
        sshd.thaw()
        with pytest.raises(LeaseLost, match="not renewed"):
            await told(manager)
        deadline_s = time.monotonic() + PATIENCE_S
        while list(directory.glob("lease-*")):
            assert time.monotonic() < deadline_s
            await asyncio.sleep(0.05)
        with pytest.raises(LeaseLost):
            await tenancy.renew()
        (folder,) = directory.glob("start-*")
        assert not {"log", "order"} & {path.name for path in folder.iterdir()}
        assert await manager.leftovers() == ()
        assert (await tenancy.enter()).remarks == ()
        await manager.stop(grace_s=0.0)
        await manager.start(SLEEPER)
        assert await tenancy.restore() == NOTHING
        await tenancy.leave()
        assert not directory.exists()

    over_ssh(sshd, scenario)


def test_a_server_that_ignores_sigterm_is_killed_by_its_dead_man(tmp_path: Path) -> None:
    async def scenario() -> None:
        transport, directory = LocalTransport(), str(tmp_path / "host")
        tenancy = ShellTenancy(transport, directory, holder(), SHORT, SystemClock())
        await tenancy.enter()
        manager = ShellServiceManager(transport, directory, SystemClock(), lease=tenancy.lease_folder)
        identity = await manager.start(STUBBORN)
        await up(manager)
        await has_ended(identity.main_pid)
        await manager.stop(grace_s=1.0)
        assert (await manager.state()).stop_requested

    asyncio.run(scenario())


def test_a_server_whose_lease_was_deleted_is_stopped(tmp_path: Path) -> None:
    async def scenario() -> None:
        transport, directory = LocalTransport(), str(tmp_path / "host")
        tenancy = ShellTenancy(transport, directory, holder(), LONG, SystemClock())
        await tenancy.enter()
        manager = ShellServiceManager(transport, directory, SystemClock(), lease=tenancy.lease_folder)
        identity = await manager.start(SLEEPER)
        await transport.run(("rm", "-r", tenancy.lease_folder()))
        await has_ended(identity.main_pid)
        await manager.stop(grace_s=1.0)

    asyncio.run(scenario())


def test_nothing_starts_without_a_lease_where_one_is_asked_for(tmp_path: Path) -> None:
    async def scenario() -> None:
        tenancy = ShellTenancy(LocalTransport(), str(tmp_path / "host"), holder(), LONG, SystemClock())
        manager = ShellServiceManager(
            LocalTransport(), str(tmp_path / "host"), SystemClock(), lease=tenancy.lease_folder
        )
        with pytest.raises(LeaseLost, match="not ours"):
            await manager.start(SLEEPER)
        assert not (tmp_path / "host").exists()

    asyncio.run(scenario())


def test_a_second_tuner_is_refused_by_name_and_the_same_study_takes_over(tmp_path: Path) -> None:
    async def scenario() -> None:
        transport, directory = LocalTransport(), str(tmp_path / "host")
        first = ShellTenancy(transport, directory, holder(), LONG, SystemClock())
        other = ShellTenancy(transport, directory, holder("two"), LONG, SystemClock())
        again = ShellTenancy(transport, directory, holder(), LONG, SystemClock())
        await first.enter()
        manager = ShellServiceManager(transport, directory, SystemClock(), lease=first.lease_folder)
        identity = await manager.start(SLEEPER)
        with pytest.raises(LeaseHeld, match="me@desk"):
            await other.enter()
        assert await other.restore() == NOTHING
        await other.leave()
        assert (await manager.state()).activity is Activity.RUNNING
        assert len((await again.enter()).remarks) == 1
        with pytest.raises(LeaseLost):
            await first.renew()
        with pytest.raises(LeaseLost, match="nothing was stopped"):
            await first.restore()
        await first.leave()
        await again.renew()
        assert await again.restore() == NOTHING
        await has_ended(identity.main_pid)
        await again.leave()
        assert not (tmp_path / "host").exists()

    asyncio.run(scenario())


def test_of_many_tuners_at_once_one_gets_the_host(tmp_path: Path) -> None:
    async def scenario() -> None:
        for round_number in range(5):
            directory = str(tmp_path / f"host-{round_number}")
            asking = [
                ShellTenancy(LocalTransport(), directory, holder(f"s{number}"), LONG, SystemClock())
                for number in range(4)
            ]
            results = await asyncio.gather(*(tenancy.enter() for tenancy in asking), return_exceptions=True)
            assert sum(isinstance(result, LeaseHeld) for result in results) == 3
            assert sum(not isinstance(result, BaseException) for result in results) == 1

    asyncio.run(scenario())


def test_a_folder_that_was_there_before_is_there_afterwards(tmp_path: Path) -> None:
    directory = tmp_path / "host"
    directory.mkdir()
    (directory / "theirs").write_text("keep")

    async def scenario() -> None:
        tenancy = ShellTenancy(LocalTransport(), str(directory), holder(), LONG, SystemClock())
        await tenancy.enter()
        manager = ShellServiceManager(LocalTransport(), str(directory), SystemClock(), lease=tenancy.lease_folder)
        await manager.start(SLEEPER)
        await tenancy.restore()
        await tenancy.leave()
        assert [path.name for path in directory.iterdir()] == ["theirs"]

    asyncio.run(scenario())
