"""A server under the shell supervisor, and everything that must not leak into it, out of it or stay behind."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path

import pytest

from tuner.errors import HostFault
from tuner.hosts import files
from tuner.hosts.clock import SystemClock
from tuner.hosts.local import LocalTransport
from tuner.hosts.shell.service import ShellServiceManager
from tuner.model.host import Activity, CommandResult, ServiceState
from tuner.model.trial import Command
from tuner.ports import HostTransport

PATIENCE_S = 20.0
KEY = "planted-s3cret"
HOSTILE = (
    *("", "two words", '{"a": 1}', "$HOME", "it's", "a;b|c&d", "*", "line\nline\n", "-n", "é\u4e16", "\\", "\\0101"),
    *("`x`", "%s%b", "\t ", "\x01\x7f", "-e", "~", "!"),
    *(chr(code) * 2 for code in range(0x80, 0x100)),
)
# Prints its arguments, and what it was started with, as Python sees them.
SHOW = """
import json, os, signal, sys, time
print(json.dumps({
    "argv": sys.argv[1:], "env": dict(os.environ), "cwd": os.getcwd(), "umask": os.umask(0o077),
    "ignored": [int(n) for n in signal.valid_signals() if signal.getsignal(n) is signal.SIG_IGN],
    "stdin": os.read(0, 1).decode(), "leader": os.getsid(0),
}), flush=True)
print("done", flush=True)
time.sleep(300)
"""


def python(program: str, *arguments: str, env: tuple[tuple[str, str], ...] = ()) -> Command:
    return Command(argv=(sys.executable, "-S", "-c", program, *arguments), env=env)


def tools(folder: Path, shell: str, *, without: Sequence[str] = ()) -> dict[str, str]:
    """An environment in which ``sh`` is another shell; ``busybox`` brings all its own programs and no others."""
    program = shutil.which(shell)
    if program is None:
        pytest.skip(f"{shell} is not installed")
    programs = folder / f"programs-{shell}"
    programs.mkdir(exist_ok=True)
    if shell == "busybox":
        subprocess.run((program, "--install", "-s", str(programs)), check=True)
        return {**os.environ, "PATH": str(programs)}
    (programs / "sh").symlink_to(program)
    if not without:
        return {**os.environ, "PATH": f"{programs}:{os.environ['PATH']}"}
    for name in ("cat", "grep", "head", "mkdir", "mv", "od", "rm", "rmdir", "setsid", "sleep", "tail", "tr", "kill"):
        found = shutil.which(name)
        assert found is not None
        (programs / name).symlink_to(found)
    return {**os.environ, "PATH": str(programs)}


@pytest.fixture(params=["dash", "bash", "busybox"])
def transport(request: pytest.FixtureRequest, tmp_path: Path) -> LocalTransport:
    return LocalTransport(tools(tmp_path, request.param))


@pytest.fixture
def dash(tmp_path: Path) -> LocalTransport:
    return LocalTransport(tools(tmp_path, "dash"))


def with_manager(
    transport: HostTransport,
    tmp_path: Path,
    scenario: Callable[[ShellServiceManager], Awaitable[None]],
    *,
    restart: bool = False,
) -> None:
    async def run() -> None:
        manager = ShellServiceManager(
            transport, str(tmp_path / "host"), SystemClock(), restart=restart, restart_delay_s=0.1
        )
        try:
            await scenario(manager)
        finally:
            await manager.stop(grace_s=0.0)
            assert await manager.leftovers() == ()

    asyncio.run(run())


async def log_until(manager: ShellServiceManager, text: str) -> str:
    deadline_s = time.monotonic() + PATIENCE_S
    read, cursor = "", None
    while text not in read:
        assert time.monotonic() < deadline_s, f"still {read!r}"
        chunk = await manager.read_log(cursor)
        read, cursor = read + chunk.text, chunk.cursor
        await asyncio.sleep(0.02)
    return read


async def until(manager: ShellServiceManager, holds: Callable[[ServiceState], bool]) -> ServiceState:
    deadline_s = time.monotonic() + PATIENCE_S
    while not holds(state := await manager.state()):
        assert time.monotonic() < deadline_s, f"still {state}"
        await asyncio.sleep(0.01)
    return state


def is_running(pid: int) -> bool:
    found = files.process_stat(pid)
    return found is not None and not found.is_zombie


def supervisor_of(pid: int) -> int:
    found = files.process_stat(pid)
    assert found is not None
    return found.parent_pid


# ---------------------------------------------------------------------------- what the server gets


def test_a_server_gets_its_words_and_variables_and_nothing_of_ours(transport: LocalTransport, tmp_path: Path) -> None:
    variables = tuple((f"V{number}", word) for number, word in enumerate(HOSTILE))

    async def scenario(manager: ShellServiceManager) -> None:
        await manager.start(python(SHOW, *HOSTILE, env=variables))
        seen = json.loads((await log_until(manager, "done")).splitlines()[0])
        assert tuple(seen["argv"]) == HOSTILE
        assert {name: seen["env"].get(name) for name, _ in variables} == dict(variables)
        assert not [name for name in seen["env"] if name.startswith("t_")]
        assert Path(seen["cwd"]) == Path.cwd()
        umask = os.umask(0o022)
        os.umask(umask)
        assert seen["umask"] == umask
        assert seen["stdin"] == ""
        # A shell's background command ignores these for ever; SGLang's processes use SIGQUIT to tell of a crash.
        assert not {int(signal.SIGINT), int(signal.SIGQUIT), int(signal.SIGHUP)} & set(seen["ignored"])

    with_manager(transport, tmp_path, scenario)


def test_a_name_that_our_scripts_use_is_the_servers_to_set(transport: LocalTransport, tmp_path: Path) -> None:
    variables = (("PATH", "/nowhere"), ("IFS", "x"), ("HOME", "/h"), ("LC_ALL", "C"), ("line", "1"), ("state", "2"))

    async def scenario(manager: ShellServiceManager) -> None:
        await manager.start(python(SHOW, "a x b", env=variables))
        seen = json.loads((await log_until(manager, "done")).splitlines()[0])
        assert seen["argv"] == ["a x b"]
        assert {name: seen["env"].get(name) for name, _ in variables if name != "IFS"} == dict(
            pair for pair in variables if pair[0] != "IFS"
        )

    with_manager(transport, tmp_path, scenario)


def test_keys_stand_in_no_command_line_and_on_the_disk_for_the_owner_only(dash: LocalTransport, tmp_path: Path) -> None:
    async def scenario(manager: ShellServiceManager) -> None:
        os.umask(old := os.umask(0o022))
        assert old & 0o077 != 0o077
        await manager.start(python(SHOW, env=(("API_KEY", KEY),)))
        await log_until(manager, "done")
        lines = [files.command_line(found.key.pid) for found in files.processes()]
        assert not [line for line in lines if KEY in line]
        (folder,) = (tmp_path / "host").glob("start-*")
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        assert {path.name: stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()} == {
            "log": 0o600,
            "status": 0o600,
        }
        await manager.stop(grace_s=5.0)
        await manager.forget()
        assert list((tmp_path / "host").iterdir()) == []

    with_manager(dash, tmp_path, scenario)


# ---------------------------------------------------------------------------- starts


def test_an_exit_with_127_is_not_a_program_that_is_missing(transport: LocalTransport, tmp_path: Path) -> None:
    async def scenario(manager: ShellServiceManager) -> None:
        await manager.start(python("import sys; sys.exit(127)"))
        state = await until(manager, lambda state: state.activity is not Activity.RUNNING)
        assert (state.activity, state.exit_status, state.exit_signal) == (Activity.FAILED, 127, None)

    with_manager(transport, tmp_path, scenario)


def test_a_program_that_may_not_be_executed_is_the_hosts_fault(transport: LocalTransport, tmp_path: Path) -> None:
    program = tmp_path / "program"
    program.write_text("#!/no/such/interpreter\n")
    program.chmod(0o755)
    plain = tmp_path / "plain"
    plain.write_text("text")

    async def scenario(manager: ShellServiceManager) -> None:
        for path in (program, plain, tmp_path / "missing"):
            with pytest.raises(HostFault, match=f"program {path} could not be executed: ."):
                await manager.start(Command(argv=(str(path),)))
        identity = await manager.start(python("import time; time.sleep(300)"))
        assert (await manager.state()).identity == identity

    with_manager(transport, tmp_path, scenario)


class Repeating:
    """A connection that is lost after each command was sent, so that all run twice, some at once."""

    def __init__(self, inner: HostTransport, *, at_once: bool) -> None:
        self._inner, self._at_once = inner, at_once

    async def run(
        self, argv: Sequence[str], *, stdin: bytes = b"", timeout_s: float = 30.0, repeat: bool = True
    ) -> CommandResult:
        assert repeat
        runs = [self._inner.run(argv, stdin=stdin, timeout_s=timeout_s) for _ in range(2)]
        if self._at_once:
            return (await asyncio.gather(*runs))[1]
        await runs[0]
        return await runs[1]

    async def read_file(self, path: str) -> bytes:
        return await self._inner.read_file(path)

    async def write_file(self, path: str, content: bytes, *, mode: int = 0o600) -> None:
        await self._inner.write_file(path, content, mode=mode)

    async def close(self) -> None:
        await self._inner.close()


@pytest.mark.parametrize("at_once", [False, True])
def test_a_start_that_is_asked_for_twice_starts_one_server(dash: LocalTransport, tmp_path: Path, at_once: bool) -> None:
    count = tmp_path / "count"

    async def scenario(manager: ShellServiceManager) -> None:
        program = "import sys, time; open(sys.argv[1], 'a').write('x'); print('up', flush=True); time.sleep(300)"
        for round_number in range(1, 4):
            identity = await manager.start(python(program, str(count)))
            await log_until(manager, "up")
            assert (await manager.state()).identity == identity
            assert count.read_text() == "x" * round_number
            await manager.stop(grace_s=5.0)
            assert (await manager.state()).activity is Activity.INACTIVE

    with_manager(Repeating(dash, at_once=at_once), tmp_path, scenario)


def test_an_order_that_is_cut_short_starts_nothing(dash: LocalTransport, tmp_path: Path) -> None:
    class Cutting(Repeating):
        async def run(
            self, argv: Sequence[str], *, stdin: bytes = b"", timeout_s: float = 30.0, repeat: bool = True
        ) -> CommandResult:
            return await self._inner.run(argv, stdin=stdin[: len(stdin) // 2], timeout_s=timeout_s, repeat=repeat)

    async def scenario(manager: ShellServiceManager) -> None:
        with pytest.raises(HostFault, match="did not arrive whole"):
            await manager.start(python("import time; time.sleep(300)"))
        assert await manager.leftovers() == ()
        assert list((tmp_path / "host").iterdir()) == []

    with_manager(Cutting(dash, at_once=False), tmp_path, scenario)


# ---------------------------------------------------------------------------- ends

FAMILY = """
import os, subprocess, sys, time
sleeper = [sys.executable, "-S", "-c", "import time; time.sleep(300)"]
subprocess.Popen(sleeper)                                # a child
subprocess.Popen(sleeper, start_new_session=True)        # one with a session of its own
subprocess.Popen(sleeper, env={})                        # one without our mark
if os.fork() == 0:                                       # one that lost its parent
    os.setsid()
    if os.fork():
        os._exit(0)
    time.sleep(300)
os.wait()
print("up", flush=True)
time.sleep(float(sys.argv[1]))
os._exit(3)
"""


def test_members_are_all_of_the_server_and_none_outlives_it(transport: LocalTransport, tmp_path: Path) -> None:
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

    with_manager(transport, tmp_path, scenario)


def test_what_a_dead_server_leaves_is_ended_before_the_next_starts(transport: LocalTransport, tmp_path: Path) -> None:
    async def scenario(manager: ShellServiceManager) -> None:
        await manager.start(python(FAMILY, "0.5"))
        await log_until(manager, "up")
        members = await manager.members()
        await until(manager, lambda state: state.activity is Activity.FAILED)
        await manager.start(python("import time; time.sleep(300)"))
        assert not any(map(is_running, members))

    with_manager(transport, tmp_path, scenario)


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
    transport: LocalTransport, tmp_path: Path
) -> None:
    async def scenario(manager: ShellServiceManager) -> None:
        for end in ("stop", "kill"):
            await manager.start(python(FAMILY, "300"))
            await log_until(manager, "up")
            members = await manager.members()
            later = ShellServiceManager(transport, str(tmp_path / "host"), SystemClock())
            assert (await later.state()).activity is Activity.INACTIVE
            assert members <= {entry.pid for entry in await later.leftovers()}
            assert await manager.leftovers() == ()
            with pytest.raises(HostFault, match="a server runs already"):
                await later.start(python("import time; time.sleep(300)"))
            await (later.stop(grace_s=5.0) if end == "stop" else later.kill_leftovers())
            assert await later.leftovers() == ()
            assert not any(map(is_running, members))

    with_manager(transport, tmp_path, scenario)


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


def test_a_killed_supervisor_is_told_and_its_server_ends(transport: LocalTransport, tmp_path: Path) -> None:
    async def scenario(manager: ShellServiceManager) -> None:
        identity = await manager.start(python(FAMILY, "300"))
        await log_until(manager, "up")
        members = await manager.members()
        os.kill(supervisor_of(identity.main_pid), signal.SIGKILL)
        with pytest.raises(HostFault, match="supervisor"):
            await manager.state()
        deadline_s = time.monotonic() + PATIENCE_S
        while any(map(is_running, members)):
            assert time.monotonic() < deadline_s
            await asyncio.sleep(0.05)
        await manager.stop(grace_s=1.0)
        state = await manager.state()
        assert (state.activity, state.identity, state.stop_requested) == (Activity.INACTIVE, identity, True)
        await manager.start(python("import time; time.sleep(300)"))

    with_manager(transport, tmp_path, scenario)


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


# ---------------------------------------------------------------------------- log


def test_a_long_log_arrives_whole_in_pieces_of_a_megabyte(transport: LocalTransport, tmp_path: Path) -> None:
    # Three bytes each: every border falls inside a character.
    program = "import sys; sys.stdout.buffer.write('\u4e16'.encode() * 1000000 + b'\\xff\\xe4 end'); sys.stdout.flush()"

    async def scenario(manager: ShellServiceManager) -> None:
        await manager.start(python(program))
        await until(manager, lambda state: state.activity is Activity.FAILED)
        read, cursor, pieces = "", None, 0
        while (chunk := await manager.read_log(cursor)).text:
            assert len(chunk.text.encode()) <= 1024 * 1024 + 6
            read, cursor, pieces = read + chunk.text, chunk.cursor, pieces + 1
        assert read == "\u4e16" * 1000000 + "\ufffd\ufffd end"
        assert pieces == 3

    with_manager(transport, tmp_path, scenario)


def test_a_character_that_is_half_written_is_waited_for(transport: LocalTransport, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    program = (
        "import os, sys, time; os.write(1, b'a\\xc3')\n"
        "while not os.path.exists(sys.argv[1]): time.sleep(0.01)\n"
        "os.write(1, b'\\xa9b\\xc3'); time.sleep(300)"
    )

    async def scenario(manager: ShellServiceManager) -> None:
        await manager.start(python(program, str(gate)))
        assert await log_until(manager, "a") == "a"
        gate.touch()
        assert await log_until(manager, "b") == "aéb"
        await manager.stop(grace_s=5.0)
        assert (await manager.read_log(None)).text == "aéb\ufffd"

    with_manager(transport, tmp_path, scenario)


def test_a_host_without_base64_sends_its_log_all_the_same(tmp_path: Path) -> None:
    async def scenario(manager: ShellServiceManager) -> None:
        await manager.start(python("print('é one\\n two', flush=True); import time; time.sleep(300)"))
        assert await log_until(manager, "two") == "é one\n two\n"

    with_manager(LocalTransport(tools(tmp_path, "dash", without=("base64",))), tmp_path, scenario)


# ---------------------------------------------------------------------------- a full disk


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    if os.getuid() != 0:
        pytest.skip("only root can mount a small disk")
    place = tmp_path / "disk"
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(place)], check=True)
    yield place
    subprocess.run(["umount", str(place)], check=True)


def test_a_full_disk_refuses_a_start_and_no_server_runs(dash: LocalTransport, small_disk: Path) -> None:
    async def scenario(manager: ShellServiceManager) -> None:
        fill(small_disk)
        with pytest.raises(HostFault, match=str(small_disk)):
            await manager.start(python("import time; time.sleep(300)"))
        await manager.stop(grace_s=0.0)
        assert await manager.leftovers() == ()

    with_manager(dash, small_disk, scenario)


def test_a_server_on_a_disk_that_is_full_can_be_stopped_and_its_death_is_told(
    dash: LocalTransport, small_disk: Path
) -> None:
    async def scenario(manager: ShellServiceManager) -> None:
        await manager.start(python("import time; print('up', flush=True); time.sleep(300)"))
        await log_until(manager, "up")
        fill(small_disk)
        await manager.stop(grace_s=1.0)
        assert (await manager.state()).activity is Activity.INACTIVE
        (small_disk / "ballast").unlink()
        await manager.forget()
        identity = await manager.start(python("import time; print('up', flush=True); time.sleep(300)"))
        await log_until(manager, "up")
        fill(small_disk)
        os.kill(identity.main_pid, signal.SIGKILL)
        with pytest.raises(HostFault, match="disk"):
            await until(manager, lambda state: state.activity is not Activity.RUNNING)

    with_manager(dash, small_disk, scenario)


def fill(place: Path) -> None:
    with (place / "ballast").open("wb", buffering=0) as ballast:
        try:
            while True:
                ballast.write(b"x" * 4096)
        except OSError:
            return
