"""Commands over a real sshd: sizes, many at once, cancelled, cut off."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tuner.errors import TransportFault
from tuner.hosts.files import process_stat
from tuner.hosts.ssh.connection import Patience
from tuner.hosts.ssh.transport import SshTransport
from tuner.model.host import CommandResult
from tuner.testing.simulated_host import wait_until
from tuner.testing.sshd import Sshd, sshd_program

pytestmark = pytest.mark.skipif(sshd_program() is None, reason="openssh-server is not installed")

QUICK = Patience(reconnect_s=20.0, connect_s=5.0, ask_s=0.3, silence_s=1.2)


@pytest.fixture
def sshd(tmp_path: Path) -> Iterator[Sshd]:
    with Sshd(tmp_path / "sshd") as sshd:
        yield sshd


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def text_of(path: Path) -> str:
    return path.read_text() if path.exists() else ""


def halves(folder: Path) -> list[Path]:
    return list(folder.glob(".tuner.*"))


async def until(is_so: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + 20.0
    while not is_so():
        assert time.monotonic() < deadline_s
        await asyncio.sleep(0.005)


async def line_in(path: Path) -> str:
    await until(lambda: text_of(path).endswith("\n"))
    return text_of(path)


def is_running(pid: int) -> bool:
    stat = process_stat(pid)
    return stat is not None and not stat.is_zombie


def test_more_input_and_output_than_any_window_holds_come_through_at_once(sshd: Sshd) -> None:
    async def scenario() -> tuple[CommandResult, CommandResult]:
        transport = SshTransport(sshd.login)
        counted = await transport.run(("wc", "-c"), stdin=b"x" * 1_000_000)
        there_and_back = await transport.run(("cat",), stdin=b"y" * 5_000_000)
        await transport.close()
        return counted, there_and_back

    counted, there_and_back = asyncio.run(scenario())
    assert counted.stdout.strip() == "1000000"
    assert there_and_back.stdout == "y" * 5_000_000


def test_input_that_nobody_reads_is_no_error(sshd: Sshd) -> None:
    async def scenario() -> CommandResult:
        transport = SshTransport(sshd.login)
        result = await transport.run(("true",), stdin=b"x" * 5_000_000)
        await transport.close()
        return result

    assert asyncio.run(scenario()).status == 0


def test_twenty_megabytes_of_output_come_back_whole(sshd: Sshd) -> None:
    async def scenario() -> CommandResult:
        transport = SshTransport(sshd.login)
        result = await transport.run(("sh", "-c", "head -c 20000000 /dev/zero | tr '\\0' x"))
        await transport.close()
        return result

    assert len(asyncio.run(scenario()).stdout) == 20_000_000


def test_eight_commands_run_at_once_and_more_wait_for_their_turn(sshd: Sshd) -> None:
    async def scenario() -> tuple[list[str], float]:
        transport = SshTransport(sshd.login)
        await transport.run(("true",))
        began_s = time.monotonic()
        results = await asyncio.gather(*(transport.run(("sh", "-c", f"sleep 1; echo {n}")) for n in range(16)))
        took_s = time.monotonic() - began_s
        await transport.close()
        return [result.stdout.strip() for result in results], took_s

    said, took_s = asyncio.run(scenario())
    assert said == [str(n) for n in range(16)]
    assert 2.0 <= took_s < 8.0


def test_a_cancelled_command_has_ended_on_the_host_when_the_cancellation_is_through(sshd: Sshd, tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"

    async def scenario() -> None:
        transport = SshTransport(sshd.login)
        script = 'sleep 300 & echo "$$ $!" >"$1"; wait'
        running = asyncio.ensure_future(transport.run(("sh", "-c", script, "sh", str(pid_file))))
        pids = (await line_in(pid_file)).split()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert not any(is_running(int(pid)) for pid in pids)
        assert (await transport.run(("echo", "still there"))).stdout == "still there\n"
        await transport.close()

    asyncio.run(scenario())


def test_all_of_eight_commands_can_be_cancelled_together(sshd: Sshd, tmp_path: Path) -> None:
    async def scenario() -> None:
        transport = SshTransport(sshd.login)
        script = 'echo $$ >"$1"; exec sleep 300'
        files = [tmp_path / f"pid{n}" for n in range(8)]
        running = [asyncio.ensure_future(transport.run(("sh", "-c", script, "sh", str(file)))) for file in files]
        pids = [int(await line_in(file)) for file in files]
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        assert all(task.cancelled() for task in running)
        # They end side by side; on a busy machine some have their orders, but not yet their end.
        await asyncio.to_thread(wait_until, lambda: not any(map(is_running, pids)), within_s=30.0, what=str(pids))
        await transport.close()

    asyncio.run(scenario())


def test_a_host_that_allows_few_sessions_runs_the_commands_one_after_another(tmp_path: Path) -> None:
    async def scenario(sshd: Sshd) -> list[str]:
        transport = SshTransport(sshd.login)
        results = await asyncio.gather(*(transport.run(("sh", "-c", f"sleep 0.2; echo {n}")) for n in range(8)))
        await transport.close()
        return [result.stdout.strip() for result in results]

    with Sshd(tmp_path / "sshd", options="MaxSessions 2\n") as sshd:
        assert asyncio.run(scenario(sshd)) == [str(n) for n in range(8)]


def test_what_login_scripts_print_is_not_taken_for_the_commands_own(tmp_path: Path) -> None:
    noise = tmp_path / "noise"
    noise.write_text("echo noise; echo more noise >&2\n")
    # The command that sshd runs in place of ours, with ours in its environment: a noisy login shell.
    forced = f'ForceCommand . {noise}; eval "$SSH_ORIGINAL_COMMAND"\n'

    async def scenario(sshd: Sshd) -> CommandResult:
        transport = SshTransport(sshd.login)
        result = await transport.run(("sh", "-c", "echo out; echo err >&2"))
        await transport.close()
        return result

    with Sshd(tmp_path / "sshd", options=forced) as sshd:
        assert asyncio.run(scenario(sshd)) == CommandResult(status=0, stdout="out\n", stderr="err\n")


def test_a_login_shell_that_runs_nothing_is_named_with_what_it_said(tmp_path: Path) -> None:
    with Sshd(tmp_path / "sshd", options="ForceCommand echo This account is not available.\n") as sshd:
        transport = SshTransport(sshd.login)

        async def scenario() -> None:
            try:
                await transport.run(("true",))
            finally:
                await transport.close()

        with pytest.raises(TransportFault, match=r"runs no commands.*This account is not available"):
            asyncio.run(scenario())


@pytest.mark.parametrize(
    ("argv", "reason"), [(("echo", "a\0b"), "NUL byte"), (("echo", "x" * 140_000), "standard input")]
)
def test_words_that_no_host_takes_are_refused_before_anything_is_sent(
    sshd: Sshd, argv: tuple[str, ...], reason: str
) -> None:
    with pytest.raises(TransportFault, match=reason):
        asyncio.run(SshTransport(sshd.login).run(argv))
    assert "Accepted" not in sshd.log.read_text()


def test_nothing_of_a_connection_is_left_when_it_is_closed(sshd: Sshd) -> None:
    async def scenario() -> None:
        transport = SshTransport(sshd.login)
        await asyncio.gather(*(transport.run(("true",)) for _ in range(10)))
        await transport.close()

    files_before, threads_before = open_files(), threading.active_count()
    for _ in range(3):
        asyncio.run(scenario())
    deadline_s = time.monotonic() + 5.0
    while threading.active_count() > threads_before:
        assert time.monotonic() < deadline_s, threading.enumerate()
        time.sleep(0.01)
    assert open_files() == files_before


def test_a_file_whose_upload_breaks_off_is_not_put_in_place(sshd: Sshd, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("old")

    async def scenario() -> None:
        transport = SshTransport(sshd.login, patience=replace(QUICK, reconnect_s=0.0))
        writing = asyncio.ensure_future(transport.write_file(str(path), b"x" * 50_000_000))
        await until(lambda: bool(halves(tmp_path)))
        sshd.kill_sessions()
        with pytest.raises(TransportFault):
            await writing
        await until(lambda: not halves(tmp_path))
        await transport.close()

    asyncio.run(scenario())
    assert path.read_text() == "old"
