"""The Optimizer port in memory: a queue, then a list of candidates in order."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

from tuner.model.metric import OBJECTIVES, Objective
from tuner.model.outcome import Faulted, Infeasible, Interrupted, Measured, Outcome, TrialState
from tuner.model.repeat import Repeat
from tuner.model.ruling import Correction
from tuner.model.space import Assignment, Value
from tuner.model.study import TrialRow
from tuner.model.trial import TrialResult
from tuner.ports import Proposal
from tuner.stats.repeats import settled


@dataclass(slots=True)
class FakeStudy:
    """What outlives a driver: the rows. Hand it to the next FakeOptimizer to resume."""

    rows: list[TrialRow] = field(default_factory=list)
    ruled: dict[int, Infeasible | Interrupted] = field(default_factory=dict)


class FakeOptimizer:
    """Proposes the baseline, then whatever is queued, then the candidates in order.

    Args:
        candidates: canonical assignments; those that were tried are skipped.
        baseline: canonical; queued as trial 0 of an empty study.
        study: of an earlier driver; None begins a new one.
        canonical: an engine's rules for what is queued; None takes everything as it is.
        objectives: of the study.
    """

    def __init__(
        self,
        candidates: Iterable[Assignment],
        *,
        baseline: Assignment,
        study: FakeStudy | None = None,
        canonical: Callable[[Assignment], Assignment] | None = None,
        objectives: tuple[Objective, ...] = OBJECTIVES,
    ) -> None:
        self.objectives = objectives
        self.study = FakeStudy() if study is None else study
        self.closed = False
        self._candidates = tuple(candidates)
        self._baseline = baseline
        self._canonical = canonical
        if not self.study.rows:
            self._append(baseline)

    def settle(self) -> tuple[int, ...]:
        """Interrupt what runs, queue it again, and return its numbers."""
        running = [row for row in self.study.rows if row.outcome is None and row.host is not None]
        interrupted = []
        for row in running:
            outcome = self.study.ruled.get(row.number, Interrupted(state=TrialState.PROPOSED))
            self.study.rows[row.number] = replace(row, outcome=outcome)
            if isinstance(outcome, Interrupted):
                interrupted.append(row.number)
                if row.repeat is None:
                    self._queue(row.assignment)
        return tuple(interrupted)

    def propose(self, host: str) -> Proposal | None:
        """Take the first of the queue, else the first candidate that is not taken."""
        waiting = [row for row in self.study.rows if row.outcome is None and row.host is None]
        if waiting:
            row = waiting[0]
        else:
            taken = self._taken()
            fresh = next((candidate for candidate in self._candidates if candidate not in taken), None)
            if fresh is None:
                return None
            row = self._append(fresh)
        self.study.rows[row.number] = replace(row, host=host)
        return Proposal(number=row.number, assignment=row.assignment, baseline=row.baseline)

    def repeat(self, repeat: Repeat, host: str) -> Proposal:
        """Begin to measure a finished trial once more.

        Raises:
            ValueError: it was not measured.
        """
        rows = self.rows()
        row = rows[repeat.of] if 0 <= repeat.of < len(rows) else None
        if row is None or row.repeat is not None or not isinstance(row.outcome, Measured):
            raise ValueError(f"trial {repeat.of}: was not measured, so it cannot be repeated")
        begun = replace(self._append(row.assignment), host=host, baseline=row.baseline, repeat=repeat)
        self.study.rows[begun.number] = begun
        return Proposal(number=begun.number, assignment=row.assignment, baseline=row.baseline, repeat=repeat)

    def canonical(self, values: Mapping[str, Value]) -> Assignment:
        """Apply the engine's rules."""
        assignment = Assignment.of(values)
        return assignment if self._canonical is None else self._canonical(assignment)

    def enqueue(self, assignment: Assignment, *, again: bool = False) -> None:
        """Queue an assignment unless it runs or waits, or has counted."""
        chosen = self.canonical(assignment)
        is_open = any(row.outcome is None and row.assignment == chosen for row in self._own())
        if not is_open and (again or chosen not in self._taken()):
            self._append(chosen)

    def tell(self, result: TrialResult) -> None:
        """Record an end.

        Raises:
            ValueError: the trial is not running, or it was another assignment.
        """
        known = 0 <= result.number < len(self.study.rows)
        row = self.study.rows[result.number] if known else None
        if row is None or row.outcome is not None or row.host is None or row.assignment != result.assignment:
            raise ValueError(f"study {result.study}, trial {result.number}: told, but that trial does not run")
        outcome = result.outcome
        self.study.rows[result.number] = replace(
            row,
            outcome=outcome,
            host=result.host,
            values=self._values(outcome),
            capacity=None if result.effective is None else result.effective.capacity,
            duration_s=result.duration_s,
            finished_s=result.finished_s,
        )
        if isinstance(outcome, Faulted | Interrupted) and row.repeat is None:
            self._queue(result.assignment)

    def rule(self, number: int, outcome: Infeasible | Interrupted) -> None:
        """Keep how a person ended a running trial.

        Raises:
            ValueError: it does not run.
        """
        known = 0 <= number < len(self.study.rows)
        if not known or self.study.rows[number].outcome is not None or self.study.rows[number].host is None:
            raise ValueError(f"trial {number}: does not run")
        self.study.ruled[number] = outcome

    def correct(self, number: int, outcome: Outcome, correction: Correction) -> None:
        """Change how a finished trial ended.

        Raises:
            ValueError: it did not end as the correction says.
        """
        row = self.rows()[number] if 0 <= number < len(self.study.rows) else None
        if row is None or row.outcome != correction.before:
            raise ValueError(f"trial {number}: has not ended as {correction.before}")
        before = correction if row.own is None else replace(correction, before=row.own)
        self.study.rows[number] = replace(
            self.study.rows[number],
            outcome=outcome,
            values=self._values(outcome),
            corrections=(*row.corrections, before),
        )
        if row.repeat is not None:
            return
        if isinstance(outcome, Faulted | Interrupted):
            self.enqueue(row.assignment, again=True)
            return
        for other in self.study.rows:
            if other.outcome is None and other.host is None and other.assignment == row.assignment:
                dropped = Interrupted(state=TrialState.PROPOSED, why="not run")
                self.study.rows[other.number] = replace(other, outcome=dropped)

    def rows(self) -> tuple[TrialRow, ...]:
        """Every trial, by number."""
        return settled(self.study.rows, self.objectives)

    def close(self) -> None:
        """Remember that it was closed."""
        self.closed = True

    def _taken(self) -> set[Assignment]:
        return {
            row.assignment
            for row in self._own()
            if row.outcome is None or isinstance(row.outcome, Measured | Infeasible)
        }

    def _own(self) -> list[TrialRow]:
        return [row for row in self.study.rows if row.repeat is None]

    def _queue(self, assignment: Assignment) -> None:
        if not any(row.outcome is None and row.assignment == assignment for row in self._own()):
            self._append(assignment)

    def _append(self, assignment: Assignment) -> TrialRow:
        row = TrialRow(
            number=len(self.study.rows),
            assignment=assignment,
            outcome=None,
            host=None,
            baseline=assignment == self._baseline,
            values=None,
            capacity=None,
            duration_s=None,
        )
        self.study.rows.append(row)
        return row

    def _values(self, outcome: Outcome) -> tuple[float, ...] | None:
        if not isinstance(outcome, Measured):
            return None
        return tuple(outcome.estimate(objective.name).value for objective in self.objectives)
