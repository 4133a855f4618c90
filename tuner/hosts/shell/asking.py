"""Runs the constant scripts on a host, and tells what failed there."""

from __future__ import annotations

from tuner.errors import HostFault, HostKeyRefused, LoginRefused, TransportFault
from tuner.ports import HostTransport


class Shell:
    """The POSIX shell of one host.

    Args:
        transport: reaches the host.
        place: how messages name what the scripts work on.
    """

    def __init__(self, transport: HostTransport, place: str) -> None:
        self._transport = transport
        self._place = place

    async def run(self, script: str, *arguments: str, stdin: bytes = b"", timeout_s: float = 30.0) -> str:
        """Run a script that may run twice, and return what it printed.

        Raises:
            HostFault: it failed, for a reason it gave.
            TransportFault: what it did is not known.
        """
        try:
            result = await self._transport.run(
                ("sh", "-c", script, "tuner", *arguments), stdin=stdin, timeout_s=timeout_s
            )
        except (HostKeyRefused, LoginRefused):
            raise
        except TransportFault as error:
            # The transport names the command, which here is a page of shell.
            reason = str(error).replace(script, "...").splitlines()
            msg = f"{self._place}: the host's state is not known: {reason[-1] if reason else 'no result'}"
            raise TransportFault(msg) from error
        if result.status != 0:
            said = (result.stderr.strip() or result.stdout.strip() or f"status {result.status}").splitlines()
            msg = f"{self._place}: the host's shell could not do it: {said[0]}"
            raise HostFault(msg)
        return result.stdout
