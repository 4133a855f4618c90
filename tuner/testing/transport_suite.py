"""What every transport must do; inherited over each of them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from tuner.errors import TransportFault
from tuner.model.host import CommandResult
from tuner.ports import HostTransport


class TransportSuite:
    """Inherit as ``class TestMine(TransportSuite)``; ``tmp_path`` must be a folder of the host as well."""

    def transport(self) -> HostTransport:
        """Return the transport under test."""
        raise NotImplementedError

    def _run(self, argv: Sequence[str], *, timeout_s: float = 30.0) -> CommandResult:
        return asyncio.run(self.transport().run(argv, timeout_s=timeout_s))

    def test_status_and_both_outputs_come_back_apart(self) -> None:
        """A status other than 0 is a value."""
        result = self._run(("sh", "-c", "echo out; echo err >&2; exit 7"))
        assert result == CommandResult(status=7, stdout="out\n", stderr="err\n")

    @pytest.mark.parametrize(
        "argument", ["", "two words", '{"a": 1}', "$HOME", "it's", "a;b|c&d", "*", "line\nline", "-n", "é", "\\", "`x`"]
    )
    def test_an_argument_arrives_as_it_was_given(self, argument: str) -> None:
        """No shell reads it on the way, or it was quoted for that shell."""
        result = self._run(("printf", "<%s>", argument, "end"))
        assert result.stdout == f"<{argument}><end>"

    def test_a_missing_program_is_status_127(self) -> None:
        """As a shell says it."""
        assert self._run(("no-such-program-at-all",)).status == 127

    def test_a_death_by_signal_is_status_128_and_its_number(self) -> None:
        """As a shell says it."""
        assert self._run(("sh", "-c", "kill -9 $$")).status == 137

    def test_standard_input_is_empty(self) -> None:
        """A command that reads it does not hang."""
        assert self._run(("cat",), timeout_s=20.0) == CommandResult(status=0, stdout="", stderr="")

    def test_megabytes_of_output_come_back_whole(self) -> None:
        """Both outputs at once, more than any pipe holds."""
        script = "head -c 3000000 /dev/zero | tr '\\0' x; head -c 3000000 /dev/zero | tr '\\0' y >&2"
        result = self._run(("sh", "-c", script))
        assert (len(result.stdout), len(result.stderr)) == (3_000_000, 3_000_000)
        assert (set(result.stdout), set(result.stderr)) == ({"x"}, {"y"})

    def test_bytes_that_are_not_utf8_are_replaced(self) -> None:
        """Text is text."""
        assert self._run(("printf", "a\\377b")).stdout == "a\ufffdb"

    def test_a_command_that_takes_too_long_is_unknown_and_ends_with_its_children(self, tmp_path: Path) -> None:
        """Nobody is left to change the host behind our back."""
        pids = tmp_path / "pids"
        script = f"sleep 300 & echo $! $$ > '{pids}'; wait"
        with pytest.raises(TransportFault, match="sh"):
            self._run(("sh", "-c", script), timeout_s=2.5)
        found = pids.read_text().split()
        assert len(found) == 2
        deadline_s = time.monotonic() + 20.0
        while any(self._is_running(pid) for pid in found):
            assert time.monotonic() < deadline_s

    def _is_running(self, pid: str) -> bool:
        # A zombie that nobody waits for is dead all the same.
        fields = self._run(("cat", f"/proc/{pid}/stat")).stdout.rpartition(")")[2].split()
        return bool(fields) and fields[0] not in {"Z", "X"}

    def test_a_child_left_behind_with_the_output_open_delays_nothing(self, tmp_path: Path) -> None:
        """The command has ended; its result is known."""
        pid_file = tmp_path / "pid"
        result = self._run(("sh", "-c", f"sleep 300 & echo $! > '{pid_file}'; echo done"), timeout_s=20.0)
        self._run(("kill", "-9", pid_file.read_text().strip()))
        assert result == CommandResult(status=0, stdout="done\n", stderr="")

    def test_bytes_written_are_the_bytes_read(self, tmp_path: Path) -> None:
        """Also in a folder that was not there."""
        path = str(tmp_path / "new" / "folder" / "file")
        content = bytes(range(256)) * 50

        async def scenario() -> bytes:
            transport = self.transport()
            await transport.write_file(path, content)
            return await transport.read_file(path)

        assert asyncio.run(scenario()) == content

    def test_a_file_is_replaced_as_a_whole_with_the_mode_asked_for(self, tmp_path: Path) -> None:
        """A reader of the old one keeps it, and nothing lies beside the new one."""
        path = tmp_path / "file"

        async def write(content: bytes, mode: int) -> None:
            await self.transport().write_file(str(path), content, mode=mode)

        asyncio.run(write(b"old", 0o600))
        with path.open("rb") as old:
            asyncio.run(write(b"new", 0o640))
            assert old.read() == b"old"
        assert path.read_bytes() == b"new"
        assert path.stat().st_mode & 0o777 == 0o640
        assert list(tmp_path.iterdir()) == [path]

    def test_a_file_that_cannot_be_read_is_named(self, tmp_path: Path) -> None:
        """With the reason."""
        path = str(tmp_path / "missing")
        with pytest.raises(TransportFault, match=r"missing.*No such file"):
            asyncio.run(self.transport().read_file(path))

    def test_a_file_that_cannot_be_written_is_named(self, tmp_path: Path) -> None:
        """A file stands where its folder should be."""
        (tmp_path / "file").write_text("")
        with pytest.raises(TransportFault, match="below"):
            asyncio.run(self.transport().write_file(str(tmp_path / "file" / "below"), b""))
