"""Whether a lease that lies on a host may be replaced: pure, and the words for who is refused."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from datetime import UTC, datetime

from tuner.errors import LeaseHeld
from tuner.model.lease import Holder, Lease

HOLDER = "holder.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """A lease as it lies on the host.

    Attributes:
        text: the content of ``holder.json``; empty: there is none.
        holder: None: there is none, or it cannot be read.
        left_s: negative once it has run out.
        exists: the folder is there.
    """

    text: str = ""
    holder: Holder | None = None
    left_s: float = -1.0
    exists: bool = False

    @property
    def lease(self) -> Lease | None:
        """The lease, for a reader; None: there is none."""
        return None if self.holder is None else Lease(holder=self.holder, left_s=self.left_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """What may be done about the lease that was seen.

    Attributes:
        must_have_run_out: still, when it is replaced: its holder may renew it meanwhile.
        remark: for the reader; empty where nobody's lease is replaced.
    """

    must_have_run_out: bool
    remark: str


def grant(seen: Seen, asking: Holder, place: str) -> Grant:
    """Decide whether who is asking may have the lease.

    Args:
        seen: the lease as it lies there.
        asking: who wants it.
        place: what the lease is on, for the message.

    Raises:
        LeaseHeld: somebody else has it.
    """
    if not seen.text:
        remark = (
            f"{place}: a lease without a holder was taken over: its tuner died as it began, or it had just run out"
            if seen.exists
            else ""
        )
        return Grant(must_have_run_out=False, remark=remark)
    holder = seen.holder
    is_twice = holder is not None and holder.is_same_run(asking) and holder.host != asking.host
    if holder is not None and holder.is_same_study(asking) and not is_twice:
        remark = f"{place}: the lease of an earlier run of this study (process {holder.pid}) was taken over"
        return Grant(must_have_run_out=False, remark=remark)
    owner = whose(seen.holder)
    if seen.left_s <= 0:
        return Grant(must_have_run_out=True, remark=f"{place}: the lease of {owner} had run out and was taken over")
    if holder is not None and is_twice:
        msg = (
            f"{place} of host {asking.host} is the same server as that of host {holder.host}, which this run uses "
            "already: remove one of the two from [[hosts]]"
        )
        raise LeaseHeld(msg)
    msg = (
        f"{place} is in use by {owner}; the lease ends in {_span(seen.left_s)} unless it is renewed: "
        "end that run, or wait for it, then run the same command again"
    )
    raise LeaseHeld(msg)


def write_holder(holder: Holder, token: str) -> str:
    """Return the content of ``holder.json``, one line; the token makes it differ from every other one."""
    return json.dumps({**asdict(holder), "token": token})


def read_holder(text: str) -> Holder | None:
    """Return what ``holder.json`` says; None: nothing that this version understands."""
    try:
        said = json.loads(text)
        return Holder(
            owner=str(said["owner"]),
            study=str(said["study"]),
            directory=str(said["directory"]),
            machine=str(said["machine"]),
            pid=int(said["pid"]),
            since_s=float(said["since_s"]),
            host=str(said.get("host", "")),
        )
    except (ValueError, TypeError, KeyError):
        return None


def whose(holder: Holder | None) -> str:
    """Name the holder of a lease, for the one who is refused."""
    if holder is None:
        return f"somebody whose {HOLDER} cannot be read"
    since = datetime.fromtimestamp(holder.since_s, UTC).strftime("%Y-%m-%d %H:%M UTC")
    return f"{holder.owner} (study {holder.study} in {holder.directory}, process {holder.pid}, since {since})"


def _span(seconds: float) -> str:
    if seconds < 120:
        return f"{max(1, round(seconds))} s"
    if seconds < 7200:
        return f"{round(seconds / 60)} min"
    return f"{round(seconds / 3600)} h"
