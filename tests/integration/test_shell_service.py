"""What a server under the shell supervisor gets, and how it is started: once, or not at all."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import stat
from collections.abc import Sequence
from pathlib import Path

import pytest

from tuner.errors import HostFault
from tuner.hosts import files
from tuner.hosts.local import LocalTransport
from tuner.hosts.shell.service import ShellServiceManager
from tuner.model.host import Activity, CommandResult
from tuner.model.trial import Command
from tuner.ports import HostTransport
from tuner.testing.shell_server import log_until, python, until, with_manager

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


def test_a_server_gets_its_words_and_variables_and_nothing_of_ours(each_shell: LocalTransport, tmp_path: Path) -> None:
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

    with_manager(each_shell, tmp_path, scenario)


def test_a_name_that_our_scripts_use_is_the_servers_to_set(each_shell: LocalTransport, tmp_path: Path) -> None:
    variables = (("PATH", "/nowhere"), ("IFS", "x"), ("HOME", "/h"), ("LC_ALL", "C"), ("line", "1"), ("state", "2"))

    async def scenario(manager: ShellServiceManager) -> None:
        await manager.start(python(SHOW, "a x b", env=variables))
        seen = json.loads((await log_until(manager, "done")).splitlines()[0])
        assert seen["argv"] == ["a x b"]
        assert {name: seen["env"].get(name) for name, _ in variables if name != "IFS"} == dict(
            pair for pair in variables if pair[0] != "IFS"
        )

    with_manager(each_shell, tmp_path, scenario)


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


def test_an_exit_with_127_is_not_a_program_that_is_missing(each_shell: LocalTransport, tmp_path: Path) -> None:
    async def scenario(manager: ShellServiceManager) -> None:
        await manager.start(python("import sys; sys.exit(127)"))
        state = await until(manager, lambda state: state.activity is not Activity.RUNNING)
        assert (state.activity, state.exit_status, state.exit_signal) == (Activity.FAILED, 127, None)

    with_manager(each_shell, tmp_path, scenario)


def test_a_program_that_may_not_be_executed_is_the_hosts_fault(each_shell: LocalTransport, tmp_path: Path) -> None:
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

    with_manager(each_shell, tmp_path, scenario)


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
