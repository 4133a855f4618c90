"""How servers under the shell supervisor end, with all of theirs and nothing else."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from tuner.errors import HostFault
from tuner.hosts import files
from tuner.hosts.clock import SystemClock
from tuner.hosts.local import LocalTransport
from tuner.hosts.shell.service import ShellServiceManager
from tuner.model.host import Activity, CommandResult
from tuner.testing.shell_server import (
    FAMILY,
    PATIENCE_S,
    is_running,
    log_until,
    python,
    supervisor_of,
    until,
    with_manager,
)


def test_members_are_all_of_the_server_and_none_outlives_it(each_shell: LocalTransport, tmp_path: Path) -> None:
    async def scenario(manager: ShellServiceManager) -> None:
        identity = await manager.start(python(FAMILY, "300"))
        await log_until(manager, "up")
        members = await manager.members()
        assert identity.main_pid in members
        assert supervisor_of(identity.main_pid) not in members
        assert len(members) == 5
        await manager.stop(grace_s=10.0)
        assert not any(map(is_running, members))
        assert await manager.members() == frozenset()

    with_manager(each_shell, tmp_path, scenario)


def test_what_a_dead_server_leaves_is_ended_before_the_next_starts(each_shell: LocalTransport, tmp_path: Path) -> None:
    async def scenario(manager: ShellServiceManager) -> None:
        await manager.start(python(FAMILY, "0.5"))
        await log_until(manager, "up")
        members = await manager.members()
        await until(manager, lambda state: state.activity is Activity.FAILED)
        await manager.start(python("import time; time.sleep(300)"))
        assert not any(map(is_running, members))

    with_manager(each_shell, tmp_path, scenario)


def test_foreign_processes_are_never_touched(dash: LocalTransport, tmp_path: Path) -> None:
    sleeper = (sys.executable, "-S", "-c", "import time; time.sleep(300)")
    near = {**os.environ, "TUNER_SERVICE": "another:m:0000:x"}
    with subprocess.Popen(sleeper) as foreign, subprocess.Popen(sleeper, env=near) as other:

        async def scenario(manager: ShellServiceManager) -> None:
            await manager.start(python("import time; time.sleep(300)"))
            await manager.stop(grace_s=0.0)
            await manager.kill_leftovers()
            assert foreign.poll() is None
            assert other.poll() is None

        try:
            with_manager(dash, tmp_path, scenario)
        finally:
            foreign.kill()
            other.kill()


def test_the_server_of_an_earlier_manager_is_a_leftover_and_can_be_ended(
    each_shell: LocalTransport, tmp_path: Path
) -> None:
    async def scenario(manager: ShellServiceManager) -> None:
        for end in ("stop", "kill"):
            await manager.start(python(FAMILY, "300"))
            await log_until(manager, "up")
            members = await manager.members()
            later = ShellServiceManager(each_shell, str(tmp_path / "host"), SystemClock())
            assert (await later.state()).activity is Activity.INACTIVE
            assert members <= {entry.pid for entry in await later.leftovers()}
            assert await manager.leftovers() == ()
            with pytest.raises(HostFault, match="a server runs already"):
                await later.start(python("import time; time.sleep(300)"))
            await (later.stop(grace_s=5.0) if end == "stop" else later.kill_leftovers())
            assert await later.leftovers() == ()
            assert not any(map(is_running, members))

    with_manager(each_shell, tmp_path, scenario)


def test_killing_leftovers_spares_the_server_that_runs(dash: LocalTransport, tmp_path: Path) -> None:
    async def scenario(manager: ShellServiceManager) -> None:
        identity = await manager.start(python("print('up', flush=True); import time; time.sleep(300)"))
        await log_until(manager, "up")
        mark = files.environment(identity.main_pid)["TUNER_SERVICE"].split(":")[0]
        sleeper = (sys.executable, "-S", "-c", "import time; time.sleep(300)")
        with subprocess.Popen(sleeper, env={"TUNER_SERVICE": f"{mark}:m:earlier:x"}) as old:  # noqa: ASYNC220
            assert [entry.pid for entry in await manager.leftovers()] == [old.pid]
            await manager.kill_leftovers()
            assert old.wait() == -signal.SIGKILL
        state = await manager.state()
        assert (state.activity, state.identity) == (Activity.RUNNING, identity)

    with_manager(dash, tmp_path, scenario)


class Contained(LocalTransport):
    """Another container on the same kernel, whose processes it sees, with a disk of its own."""

    def __init__(self, disk: Path) -> None:
        super().__init__()
        self._disk = disk

    async def run(
        self, argv: Sequence[str], *, stdin: bytes = b"", timeout_s: float = 30.0, repeat: bool = True
    ) -> CommandResult:
        within = 'mount -t tmpfs tmpfs "$0" && exec "$@"'
        words = ("unshare", "--mount", "sh", "-c", within, str(self._disk), *argv)
        return await super().run(words, stdin=stdin, timeout_s=timeout_s, repeat=repeat)


def test_the_server_of_another_container_with_a_folder_of_the_same_name_is_not_ours(
    dash: LocalTransport, tmp_path: Path
) -> None:
    async def scenario(manager: ShellServiceManager) -> None:
        await manager.start(python("import time; time.sleep(300)"))
        other = ShellServiceManager(Contained(tmp_path), str(tmp_path / "host"), SystemClock())
        assert await other.leftovers() == ()
        await other.kill_leftovers()
        await other.stop(grace_s=0.0)
        assert (await manager.state()).activity is Activity.RUNNING

    with_manager(dash, tmp_path, scenario)


def test_a_killed_supervisor_is_told_and_its_server_ends(each_shell: LocalTransport, tmp_path: Path) -> None:
    async def scenario(manager: ShellServiceManager) -> None:
        identity = await manager.start(python(FAMILY, "300"))
        await log_until(manager, "up")
        members = await manager.members()
        supervisor = supervisor_of(identity.main_pid)
        os.kill(supervisor, signal.SIGKILL)
        deadline_s = time.monotonic() + PATIENCE_S
        while is_running(supervisor):  # a kill returns before its victim is dead
            assert time.monotonic() < deadline_s
            await asyncio.sleep(0.01)
        with pytest.raises(HostFault, match="supervisor"):
            await manager.state()
        while any(map(is_running, members)):
            assert time.monotonic() < deadline_s
            await asyncio.sleep(0.05)
        await manager.stop(grace_s=1.0)
        state = await manager.state()
        assert (state.activity, state.identity, state.stop_requested) == (Activity.INACTIVE, identity, True)
        await manager.start(python("import time; time.sleep(300)"))

    with_manager(each_shell, tmp_path, scenario)


def test_a_death_is_seen_within_a_third_of_a_second(dash: LocalTransport, tmp_path: Path) -> None:
    async def scenario(manager: ShellServiceManager) -> None:
        waits = []
        for _ in range(3):
            identity = await manager.start(python("import time; time.sleep(300)"))
            os.kill(identity.main_pid, signal.SIGSEGV)
            began_s = time.monotonic()
            state = await until(manager, lambda state: state.activity is Activity.FAILED)
            waits.append(time.monotonic() - began_s)
            assert state.exit_signal == signal.SIGSEGV
        assert min(waits) < 0.3

    with_manager(dash, tmp_path, scenario)
