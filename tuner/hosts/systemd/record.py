"""What a tenancy and the manager of its servers let each other know during a stay."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class StayRecord:
    """Written by both, read by both.

    Attributes:
        lease: of the tenancy's latest lease, a word of its own; another one each time the host is taken.
            The manager stops nothing that it lost under the same lease.
        invocations: of the manager's servers, all of them: none of these is the original.
    """

    lease: str = ""
    invocations: set[str] = field(default_factory=set)
