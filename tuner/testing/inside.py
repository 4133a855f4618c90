"""A transport into a test host that leaves the network out: quick, and there while sshd is not."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from tuner.errors import TransportFault
from tuner.model.host import CommandResult
from tuner.testing.rig import Rig

_SIGNAL_STATUS = 128  # added to a signal's number, as shells and ssh report it


class InsideTransport:
    """``ports.HostTransport`` for a :class:`tuner.testing.rig.Rig`, as root."""

    def __init__(self, rig: Rig) -> None:
        self._rig = rig

    async def run(
        self,
        argv: Sequence[str],
        *,
        stdin: bytes = b"",
        timeout_s: float = 30.0,  # noqa: ARG002 - the rig has its own
        repeat: bool = True,  # noqa: ARG002 - there is no connection to lose
    ) -> CommandResult:
        """Run ``argv``."""
        done = await asyncio.to_thread(self._rig.run, *argv, stdin=stdin.decode())
        status = done.returncode if done.returncode >= 0 else _SIGNAL_STATUS - done.returncode
        return CommandResult(status=status, stdout=done.stdout, stderr=done.stderr)

    async def read_file(self, path: str) -> bytes:
        """Read a small file."""
        result = await self.run(("cat", path))
        if result.status != 0:
            msg = f"{path}: cannot be read: {result.stderr}"
            raise TransportFault(msg)
        return result.stdout.encode()

    async def write_file(self, path: str, content: bytes, *, mode: int = 0o600) -> None:
        """Replace a file."""
        await asyncio.to_thread(self._rig.write, path, content.decode(), mode=mode)

    async def close(self) -> None:
        """Do nothing."""
