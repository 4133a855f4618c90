"""Commands and files of the machine tuner itself runs on."""

from __future__ import annotations

import asyncio
import os
import signal
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import BinaryIO

from tuner.errors import TransportFault
from tuner.hosts import files
from tuner.model.host import CommandResult

NOT_FOUND_STATUS = 127
NOT_EXECUTABLE_STATUS = 126
_SIGNAL_STATUS = 128  # added to a signal's number, as shells and ssh report it


class LocalTransport:
    """``ports.HostTransport`` for this machine.

    A missing program is status 127 and a signal 128 + its number, as a shell on a remote host would
    say. Output goes through unnamed files and not pipes: a child that stays behind with our output
    open delays nothing, and no amount of output blocks the command.

    Args:
        env: the commands' environment; None: this process's.
    """

    def __init__(self, env: Mapping[str, str] | None = None) -> None:
        self._env = None if env is None else dict(env)

    async def run(
        self,
        argv: Sequence[str],
        *,
        stdin: bytes = b"",
        timeout_s: float = 30.0,
        repeat: bool = True,  # noqa: ARG002 - there is no connection to lose
    ) -> CommandResult:
        """Run ``argv`` in a session of its own; cancelled or timed out, its process group is killed."""
        with tempfile.TemporaryFile() as given, tempfile.TemporaryFile() as stdout, tempfile.TemporaryFile() as stderr:
            given.write(stdin)
            given.seek(0)
            try:
                process = await asyncio.create_subprocess_exec(
                    *argv,
                    stdin=given,
                    stdout=stdout,
                    stderr=stderr,
                    env=self._env,
                    start_new_session=True,
                )
            except FileNotFoundError:
                return CommandResult(status=NOT_FOUND_STATUS, stdout="", stderr=f"{argv[0]}: not found")
            except PermissionError:
                return CommandResult(status=NOT_EXECUTABLE_STATUS, stdout="", stderr=f"{argv[0]}: not executable")
            except OSError as error:
                msg = f"{argv[0]}: cannot be started: {error}"
                raise TransportFault(msg) from error
            try:
                status = await asyncio.wait_for(process.wait(), timeout_s)
            except TimeoutError as error:
                fate = "killed" if await _kill(process) else "and it runs still, as another user: look for it"
                msg = f"{' '.join(argv)}: no result after {timeout_s:g} s, {fate}"
                raise TransportFault(msg) from error
            finally:
                if process.returncode is None:
                    await _kill(process)
            return CommandResult(
                status=status if status >= 0 else _SIGNAL_STATUS - status, stdout=_text(stdout), stderr=_text(stderr)
            )

    async def read_file(self, path: str) -> bytes:
        """Read a small file."""
        try:
            return Path(path).read_bytes()  # noqa: ASYNC240 - small and local
        except OSError as error:
            msg = f"{path}: cannot be read: {error.strerror or error}"
            raise TransportFault(msg) from error

    async def write_file(self, path: str, content: bytes, *, mode: int = 0o600) -> None:
        """Replace a file atomically, making its folder."""
        target = Path(path)
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            files.replace_file(target, content, mode=mode)
        except OSError as error:
            msg = f"{path}: cannot be written: {error.strerror or error}"
            raise TransportFault(msg) from error

    async def close(self) -> None:
        """Nothing to close."""


async def _kill(process: asyncio.subprocess.Process) -> bool:
    """Kill a process group and wait for its end; False: it is another user's (sudo's), and is not waited for."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    except PermissionError:
        return False
    await process.wait()
    return True


def _text(file: BinaryIO) -> str:
    file.seek(0)
    return file.read().decode(errors="replace")
