"""Whether the kernel's word on killed processes can be read by the user we are."""

from __future__ import annotations

from tuner.hosts.checks.row import Row, ok, warning
from tuner.hosts.kernel import KernelLook, hidden_text, look_at_kernel, remedy
from tuner.ports import HostTransport

CHECK = "kernel log"
_BY = {"journal": "journalctl -k", "dmesg": "dmesg"}


async def read_kernel(transport: HostTransport) -> KernelLook:
    """Look at the kernel's log.

    Raises:
        TransportFault: the host is not reached.
    """
    return await look_at_kernel(transport, age_s=0.0)


def kernel_row(look: KernelLook) -> Row:
    """Decide whether a kill for want of host memory will be told from another kill."""
    if look.source:
        return ok(CHECK, f"readable by {look.user}, by {_BY[look.source]}")
    return warning(CHECK, hidden_text(look), remedy(look))
