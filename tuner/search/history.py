"""What a sampler may know: the counted trials, what runs, and what is spoken for."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tuner.model.outcome import BESIDE_STATIC_SHARE, Infeasible, Measured, MemoryDirection
from tuner.model.space import Assignment
from tuner.model.study import TrialRow


@dataclass(frozen=True, slots=True, kw_only=True)
class Experience:
    """One counted trial.

    Attributes:
        values: one per objective, in the study's order; None when infeasible.
        outside: the same of a trial that was measured and breaks a constraint of the study; else None.
        violation: above 0 when infeasible, else 0.
        direction: which way a death from memory points; None when it does not say.
        shortfall_bytes: how much memory was missing on one GPU; None when it does not say.
        viable_fraction: the smallest share of memory that the server itself called enough; None likewise.
        is_beside_static_share: it died for want of what the static share leaves over.
    """

    assignment: Assignment
    values: tuple[float, ...] | None
    violation: float = 0.0
    direction: MemoryDirection | None = None
    shortfall_bytes: int | None = None
    viable_fraction: float | None = None
    is_beside_static_share: bool = False
    outside: tuple[float, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """The study as a sampler sees it: without what measures another trial again.

    Attributes:
        counted: by trial number; faulted and interrupted trials are not in it.
        running: assignments that hosts work on.
        taken: counted, running and waiting assignments; none of them may be proposed again.
    """

    counted: tuple[Experience, ...]
    running: tuple[Assignment, ...]
    taken: frozenset[Assignment]

    @classmethod
    def of(cls, rows: Iterable[TrialRow], objectives: Sequence[str] = ()) -> History:
        """Read the history out of the study's rows; ``objectives`` are their names, in the study's order."""
        counted: list[Experience] = []
        running: list[Assignment] = []
        waiting: list[Assignment] = []
        for row in rows:
            if row.repeat is not None:
                continue  # its configuration is that of another trial
            match row.outcome:
                case Measured():
                    counted.append(Experience(assignment=row.assignment, values=row.values))
                case Infeasible(violation=violation, verdict=verdict, measured=measured):
                    counted.append(
                        Experience(
                            assignment=row.assignment,
                            values=None,
                            violation=violation,
                            direction=verdict.direction,
                            shortfall_bytes=verdict.shortfall_bytes,
                            viable_fraction=verdict.viable_fraction,
                            is_beside_static_share=verdict.cause in BESIDE_STATIC_SHARE,
                            outside=None
                            if measured is None
                            else tuple(measured.estimate(name).value for name in objectives),
                        )
                    )
                case None if row.host is None:
                    waiting.append(row.assignment)
                case None:
                    running.append(row.assignment)
                case _:
                    pass
        taken = {experience.assignment for experience in counted}.union(running, waiting)
        return cls(counted=tuple(counted), running=tuple(running), taken=frozenset(taken))
