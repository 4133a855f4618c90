"""Who listens on a port of a host, seen from the host itself."""

from __future__ import annotations

from tuner.hosts.checks.port import LOOK, parse_proc, parse_ss
from tuner.ports import HostTransport


async def listening_on(transport: HostTransport, port: int) -> tuple[str, ...]:
    """Return the addresses that somebody listens on at ``port``, each once.

    Raises:
        TransportFault: the host is not reached.
    """
    result = await transport.run(("sh", "-c", LOOK, "sh", str(port)), timeout_s=20.0)
    source, _, text = result.stdout.partition("\n")
    found = parse_ss(text) if source == "ss" else parse_proc(text, port)
    return tuple(dict.fromkeys(listener.address for listener in found))
