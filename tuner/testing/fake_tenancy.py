"""A host that belongs to somebody, in memory: its lease, its dead-man and its owner's server.

Time is the clock's: a lease that runs out restores the host at the next look, as the dead-man would have.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tuner.errors import HostFault, LeaseHeld, LeaseLost, RestoreFailed, TransportFault
from tuner.model.host import Entered, Original
from tuner.model.lease import Holder, LeaseTerms
from tuner.model.trial import Command
from tuner.ports import Clock

ORIGINAL = Command(argv=("/usr/bin/server", "--port", "30000"))
TERMS = LeaseTerms()


@dataclass(slots=True, kw_only=True)
class _Held:
    holder: Holder
    was_running: bool
    expires_s: float


@dataclass(slots=True, kw_only=True)
class FakeOwnedHost:
    """A host of somebody's.

    Attributes:
        clock: whose time it is.
        original: the owner's server.
        runs: ``original``, ``trial`` or ``nothing``.
        has_drop_in: a trial is deployed.
        secrets: of the server's environment.
        differs: what :meth:`FakeTenancy.leave` will find changed.
        reachable: False: every call is a TransportFault.
        calls: what was asked of its tenancies, in order.
    """

    clock: Clock
    original: Command = ORIGINAL
    runs: str = "original"
    has_drop_in: bool = False
    secrets: tuple[str, ...] = ()
    differs: tuple[str, ...] = ()
    reachable: bool = True
    calls: list[str] = field(default_factory=list)
    _held: _Held | None = None

    def tenancy(self, holder: Holder, terms: LeaseTerms = TERMS) -> FakeTenancy:
        """Return one tuner's use of the host."""
        return FakeTenancy(self, holder, terms)

    def deploy(self) -> None:
        """Start a trial."""
        self.runs, self.has_drop_in = "trial", True

    def reboot(self) -> None:
        """Lose what lies under /run; an enabled original is up."""
        self._held, self.has_drop_in, self.runs = None, False, "original"

    def held(self) -> _Held | None:
        """Return the lease, once the dead-man has done what was due."""
        held = self._held
        if held is not None and self.clock.monotonic_s() >= held.expires_s:
            self.put_back(held.was_running)
            self._held = None
        return self._held

    def hold(self, held: _Held | None) -> None:
        """Replace the lease."""
        self._held = held

    def put_back(self, was_running: bool) -> None:
        """Remove a trial and start or stop the original."""
        self.has_drop_in = False
        if not was_running:
            self.runs = "nothing"
        elif self.runs != "original":
            self.runs = "original"


class FakeTenancy:
    """``ports.Tenancy`` of a :class:`FakeOwnedHost`."""

    def __init__(self, host: FakeOwnedHost, holder: Holder, terms: LeaseTerms) -> None:
        self._host = host
        self._holder = holder
        self._terms = terms
        self._mine: _Held | None = None

    async def enter(self) -> Entered:
        """Take the lease."""
        self._called("enter")
        held = self._host.held()
        remarks: list[str] = []
        was_running = self._host.runs == "original"
        if held is not None and held is self._mine:
            self._extend(held)
            return Entered(secrets=self._host.secrets)
        if held is not None:
            if not held.holder.is_same_study(self._holder):
                msg = f"the host is in use by {held.holder.owner} (study {held.holder.study}): wait for it"
                raise LeaseHeld(msg)
            if held.holder.is_same_run(self._holder) and held.holder.host != self._holder.host:
                msg = f"it is the same server as that of host {held.holder.host}: remove one of the two"
                raise LeaseHeld(msg)
            was_running = held.was_running
            remarks.append(f"the lease of an earlier run of this study (process {held.holder.pid}) was taken over")
        if self._host.has_drop_in:
            self._host.has_drop_in = False
            remarks.append("the drop-in of a run that was killed was removed")
        self._mine = _Held(holder=self._holder, was_running=was_running, expires_s=0.0)
        self._extend(self._mine)
        self._host.hold(self._mine)
        return Entered(secrets=self._host.secrets, remarks=tuple(remarks))

    async def renew(self) -> None:
        """Push the end of the lease away."""
        self._called("renew")
        held = self._host.held()
        if held is None or held is not self._mine:
            msg = "our lease is gone" if held is None else f"our lease was taken over by {held.holder.owner}"
            raise LeaseLost(msg)
        self._extend(held)

    async def restore(self) -> Original:
        """Put back what was there."""
        self._called("restore")
        held = self._host.held()
        if held is None:
            was_running = self._host.runs == "original" if self._mine is None else self._mine.was_running
            return Original(command=self._host.original, was_running=was_running)
        if held is not self._mine:
            msg = f"the host is leased to {held.holder.owner} now: nothing was restored"
            raise LeaseLost(msg)
        self._host.put_back(held.was_running)
        return Original(command=self._host.original, was_running=held.was_running)

    async def leave(self) -> None:
        """Give the lease back."""
        self._called("leave")
        held, mine = self._host.held(), self._mine
        if held is not None and held is not mine:
            return
        if held is not None and self._host.has_drop_in:
            msg = "the trial's drop-in is still there: restore it first"
            raise HostFault(msg)
        self._host.hold(None)
        self._mine = None
        if mine is None:
            return
        found = list(self._host.differs)
        if (self._host.runs != "nothing") != mine.was_running:
            found.append("it does not run, and did before" if mine.was_running else "it runs, and did not before")
        if found:
            msg = f"the host is not what it was before: {'; '.join(found)}"
            raise RestoreFailed(msg)

    def _called(self, name: str) -> None:
        self._host.calls.append(name)
        if not self._host.reachable:
            msg = "the host does not answer"
            raise TransportFault(msg)

    def _extend(self, held: _Held) -> None:
        held.expires_s = self._host.clock.monotonic_s() + self._terms.lasts_s
