"""What a service manager knows of the server it started last."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tuner.hosts.systemd.look import Look
from tuner.model.host import Activity, ServiceState
from tuner.model.trial import ServiceIdentity


@dataclass(slots=True)
class Run:
    """What is known of the last start.

    Attributes:
        number: of starts; a log's cursor of another one begins anew.
        lease: under which it was started.
        cursor: of the journal, before the start.
        identity: of the invocation seen last.
        ending: exit status and signal of the main process that ended last.
        result: systemd's word for the failure of the main process that ended last; None: it did not fail.
        final: how it ended; None: it runs, as far as we know.
        is_ending: our stop was asked for, whether or not it got through.
        is_lost: it was told that the unit is no longer ours, and no stop has come since.
    """

    number: int
    lease: str
    boot_id: str
    cursor: str
    identity: ServiceIdentity
    ending: tuple[int | None, int | None] = (None, None)
    restarts: int = 0
    result: str | None = None
    stop_requested: bool = False
    final: ServiceState | None = None
    is_ending: bool = False
    is_lost: bool = False
    is_forgotten: bool = False

    def note(self, look: Look) -> None:
        """Remember what a unit that is inactive may be forgotten by systemd with."""
        if look.identity is None:
            return
        self.identity = look.identity
        self.restarts = look.restarts
        self.ending = look.ending or self.ending
        self.result = look.failure or self.result  # a start that follows begins with success again

    def state(self, activity: Activity) -> ServiceState:
        """Return what is known of it, as a state."""
        status, ended_by = self.ending
        return ServiceState(
            activity=activity,
            identity=self.identity,
            restarts=self.restarts,
            exit_status=status,
            exit_signal=ended_by,
            stop_requested=self.stop_requested,
            result=self.result,
        )

    def dead(self) -> ServiceState:
        """Return the state of a server that died by itself."""
        return replace(self.state(Activity.FAILED), stop_requested=False)

    def stopped(self, *, requested: bool = True) -> ServiceState:
        """Return the state of a server that was stopped and is gone."""
        return replace(self.state(Activity.INACTIVE), stop_requested=requested)
