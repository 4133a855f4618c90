"""Whether somebody else uses the host."""

from __future__ import annotations

from tuner.errors import HostFault, LeaseHeld, TransportFault
from tuner.hosts.checks.row import Row, failed, ok
from tuner.hosts.systemd.holding import Seen, grant, whose
from tuner.hosts.systemd.lease import LeaseFolder
from tuner.model.lease import Holder


async def read_lease(folder: LeaseFolder) -> Seen | HostFault:
    """Look at the lease; nothing is written. What the host has against it is a value.

    Raises:
        TransportFault: the host is not reached.
    """
    try:
        return await folder.look()
    except TransportFault:
        raise
    except HostFault as error:
        return error


def lease_row(seen: Seen | HostFault, asking: Holder, place: str) -> Row:
    """Decide whether ``asking`` would get the host.

    Args:
        seen: the lease.
        asking: who runs the study.
        place: what the lease is on, for the reader.
    """
    check = "lease"
    if isinstance(seen, HostFault):
        reason, _, remedy = str(seen).rpartition(": ")
        return failed(check, reason or str(seen), remedy or "a run takes the lease before it changes anything")
    if not seen.exists:
        return ok(check, f"nobody holds {place}")
    try:
        grant(seen, asking, place)
    except LeaseHeld as error:
        reason, _, remedy = str(error).rpartition(": ")
        return failed(check, reason, remedy)
    return ok(check, f"{place} {_held(seen, asking)}")


def _held(seen: Seen, asking: Holder) -> str:
    """Say whose the lease is that a run would take over; here it is only looked at."""
    if not seen.text:
        return "has a lease without a holder: a run takes it over"
    if seen.left_s <= 0:
        return f"was leased by {whose(seen.holder)}, whose time has run out: a run takes it over"
    return f"is leased by a run of this study, pid {asking.pid if seen.holder is None else seen.holder.pid}"
