"""Connections that are cut, fall silent, or come back as another host: over a real sshd."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tuner.errors import HostKeyRefused, TransportFault
from tuner.hosts.files import process_stat
from tuner.hosts.ssh.connection import Patience
from tuner.hosts.ssh.transport import SshTransport
from tuner.testing.sshd import Sshd, sshd_program

pytestmark = pytest.mark.skipif(sshd_program() is None, reason="openssh-server is not installed")

QUICK = Patience(reconnect_s=20.0, connect_s=5.0, ask_s=0.3, silence_s=1.2)
COUNTING = 'echo $$ >>"$1"; sleep "$2"; echo done'
"""Writes a line each time it runs."""


@pytest.fixture
def sshd(tmp_path: Path) -> Iterator[Sshd]:
    with Sshd(tmp_path / "sshd") as sshd:
        yield sshd


def runs_in(file: Path) -> list[int]:
    return [int(line) for line in file.read_text().splitlines()] if file.exists() else []


async def until(is_so: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + 20.0
    while not is_so():
        assert time.monotonic() < deadline_s
        await asyncio.sleep(0.01)


async def until_runs(file: Path, times: int) -> list[int]:
    await until(lambda: len(runs_in(file)) >= times)
    return runs_in(file)


def is_running(pid: int) -> bool:
    stat = process_stat(pid)
    return stat is not None and not stat.is_zombie


def test_a_command_whose_connection_is_cut_is_ended_and_run_again(sshd: Sshd, tmp_path: Path) -> None:
    runs = tmp_path / "runs"

    async def scenario() -> None:
        transport = SshTransport(sshd.login, patience=QUICK)
        running = asyncio.ensure_future(transport.run(("sh", "-c", COUNTING, "sh", str(runs), "3")))
        (first,) = await until_runs(runs, 1)
        sshd.kill_sessions()
        sshd.restart()
        await until_runs(runs, 2)
        assert not is_running(first)
        assert (await running).stdout == "done\n"
        ((began_s, ended_s),) = transport.outages
        assert ended_s is not None
        assert began_s < ended_s < began_s + 10.0
        await transport.close()

    asyncio.run(scenario())


def test_a_command_that_must_not_run_twice_has_no_known_result(sshd: Sshd, tmp_path: Path) -> None:
    runs = tmp_path / "runs"

    async def scenario() -> None:
        transport = SshTransport(sshd.login, patience=QUICK)
        running = asyncio.ensure_future(transport.run(("sh", "-c", COUNTING, "sh", str(runs), "1"), repeat=False))
        await until_runs(runs, 1)
        sshd.kill_sessions()
        with pytest.raises(TransportFault, match="result is not known"):
            await running
        assert (await transport.run(("echo", "back"))).stdout == "back\n"
        await transport.close()

    asyncio.run(scenario())
    assert len(runs.read_text().splitlines()) == 1


def test_a_command_that_must_not_run_twice_runs_once_after_an_idle_connection_was_cut(
    sshd: Sshd, tmp_path: Path
) -> None:
    runs = tmp_path / "runs"

    async def scenario() -> None:
        transport = SshTransport(sshd.login, patience=QUICK)
        await transport.run(("true",))
        sshd.kill_sessions()
        await asyncio.sleep(0.5)
        await transport.run(("sh", "-c", COUNTING, "sh", str(runs), "0"), repeat=False)
        await transport.close()

    asyncio.run(scenario())
    assert len(runs.read_text().splitlines()) == 1


def test_eight_commands_come_through_a_cut_over_one_new_connection(sshd: Sshd, tmp_path: Path) -> None:
    async def scenario() -> None:
        transport = SshTransport(sshd.login, patience=QUICK)
        files = [tmp_path / f"runs{n}" for n in range(8)]
        running = [asyncio.ensure_future(transport.run(("sh", "-c", COUNTING, "sh", str(file), "1"))) for file in files]
        for file in files:
            await until_runs(file, 1)
        sshd.kill_sessions()
        assert [result.stdout for result in await asyncio.gather(*running)] == ["done\n"] * 8
        assert len(transport.outages) == 1
        await transport.close()

    asyncio.run(scenario())
    assert sshd.log.read_text().count("Accepted publickey") == 2


def test_a_host_that_stalls_without_being_lost_was_out_of_reach_meanwhile(sshd: Sshd) -> None:
    async def scenario() -> None:
        transport = SshTransport(sshd.login, patience=replace(QUICK, ask_s=0.2, stall_s=0.5, silence_s=10.0))
        await transport.run(("true",))
        sshd.freeze()
        await until(lambda: bool(transport.outages))
        assert transport.outages[0][1] is None
        await asyncio.sleep(0.5)
        sshd.thaw()
        assert (await transport.run(("echo", "back"))).stdout == "back\n"
        await until(lambda: transport.outages[0][1] is not None)
        ((began_s, ended_s),) = transport.outages
        assert ended_s is not None
        assert 0.8 < ended_s - began_s < 5.0
        await transport.close()
        assert len(transport.outages) == 1

    asyncio.run(scenario())
    assert sshd.log.read_text().count("Accepted publickey") == 1


def test_much_output_delays_no_sign_of_life(sshd: Sshd) -> None:
    async def scenario() -> None:
        transport = SshTransport(sshd.login, patience=replace(QUICK, ask_s=0.05, stall_s=0.5, silence_s=10.0))
        assert len((await transport.run(("head", "-c", "30000000", "/dev/zero"))).stdout) == 30_000_000
        assert transport.outages == ()
        await transport.close()

    asyncio.run(scenario())


def test_a_host_that_falls_silent_is_lost_after_a_while_and_found_again(sshd: Sshd) -> None:
    """As a black hole of the network: nothing is closed, nothing answers."""

    async def scenario() -> None:
        transport = SshTransport(sshd.login, patience=QUICK)
        await transport.run(("true",))
        running = asyncio.ensure_future(transport.run(("sh", "-c", "sleep 1; echo done")))
        await asyncio.sleep(0.3)
        sshd.freeze()
        frozen_s = time.monotonic()
        await until(lambda: bool(transport.outages))
        assert 0.5 < time.monotonic() - frozen_s < 4.0
        assert transport.outages[0][1] is None
        await asyncio.sleep(1.0)
        sshd.thaw()
        assert (await running).stdout == "done\n"
        assert transport.outages[0][1] is not None
        await transport.close()

    asyncio.run(scenario())


def test_a_silence_that_is_short_changes_nothing(sshd: Sshd, tmp_path: Path) -> None:
    runs = tmp_path / "runs"

    async def scenario() -> None:
        transport = SshTransport(sshd.login, patience=Patience(ask_s=0.3, silence_s=5.0))
        running = asyncio.ensure_future(transport.run(("sh", "-c", COUNTING, "sh", str(runs), "1")))
        await until_runs(runs, 1)
        sshd.freeze()
        await asyncio.sleep(1.0)
        sshd.thaw()
        assert (await running).stdout == "done\n"
        assert transport.outages == ()
        await transport.close()

    asyncio.run(scenario())
    assert len(runs.read_text().splitlines()) == 1


def test_a_host_that_does_not_come_back_is_given_up(sshd: Sshd) -> None:
    async def scenario() -> None:
        transport = SshTransport(sshd.login, patience=Patience(reconnect_s=1.5, connect_s=1.0))
        await transport.run(("true",))
        sshd.stop()
        sshd.kill_sessions()
        began_s = time.monotonic()
        with pytest.raises(TransportFault, match=r"not back after 1.5 s"):
            await transport.run(("true",))
        assert time.monotonic() - began_s < 6.0
        sshd.start()
        await transport.run(("true",))
        assert len(transport.outages) == 1
        await transport.close()

    asyncio.run(scenario())


def test_a_host_that_was_never_reached_is_not_waited_for(sshd: Sshd) -> None:
    sshd.stop()
    began_s = time.monotonic()
    with pytest.raises(TransportFault, match=r"cannot be reached: Connection refused"):
        asyncio.run(SshTransport(sshd.login).run(("true",)))
    assert time.monotonic() - began_s < 5.0


def test_a_host_that_comes_back_with_another_key_is_refused_at_once(sshd: Sshd) -> None:
    async def scenario() -> None:
        transport = SshTransport(sshd.login, patience=QUICK)
        await transport.run(("true",))
        sshd.change_host_key()
        sshd.restart()
        sshd.kill_sessions()
        began_s = time.monotonic()
        with pytest.raises(HostKeyRefused, match="somebody may be listening in"):
            await transport.run(("true",))
        assert time.monotonic() - began_s < 5.0
        await transport.close()

    asyncio.run(scenario())


def test_opening_is_cancelled_at_once_although_the_host_does_not_answer(sshd: Sshd) -> None:
    async def scenario() -> float:
        sshd.freeze()
        opening = asyncio.ensure_future(SshTransport(sshd.login, patience=Patience(connect_s=3.0)).run(("true",)))
        await asyncio.sleep(0.5)
        began_s = time.monotonic()
        opening.cancel()
        with pytest.raises(asyncio.CancelledError):
            await opening
        took_s = time.monotonic() - began_s
        sshd.thaw()
        await asyncio.sleep(1.0)  # what was being opened is closed in its thread
        return took_s

    assert asyncio.run(scenario()) < 0.5
