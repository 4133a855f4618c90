"""Who may use a host just now."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """Who asks for a host.

    Attributes:
        owner: ``user@machine``, for the one who is refused.
        study: name of the study.
        directory: absolute folder of the study's results. Together with ``machine`` it says which
            study this is: a lease of the same study is ours to take over, because the study's own
            lock holds that no other process drives it.
        machine: id and host name of the machine tuner runs on: machines that were cloned share the id.
        pid: of the driver.
        since_s: when the driver began, Unix time.
        host: how the study calls the host; empty before it is known which one is asked for.
    """

    owner: str
    study: str
    directory: str
    machine: str
    pid: int
    since_s: float
    host: str = ""

    def is_same_study(self, other: Holder) -> bool:
        """Whether both are runs of one study, of which only one lives at a time."""
        return (self.machine, self.directory) == (other.machine, other.directory)

    def is_same_run(self, other: Holder) -> bool:
        """Whether both are one run of one study; it may use several hosts."""
        return self.is_same_study(other) and (self.pid, self.since_s) == (other.pid, other.since_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """A lease as it lies on the host; ``left_s`` is negative once it has run out."""

    holder: Holder
    left_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseTerms:
    """How long a lease lasts without being renewed, and how often it is renewed; seconds.

    After ``lasts_s`` the host restores itself, even if the tuner's machine is gone.
    """

    lasts_s: float = 900.0
    renew_s: float = 60.0
