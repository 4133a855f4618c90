"""The Optimizer port in memory: a queue, then a list of candidates in order."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

from tuner.model.outcome import Faulted, Infeasible, Interrupted, Measured, TrialState
from tuner.model.space import Assignment
from tuner.model.study import TrialRow
from tuner.model.trial import TrialResult
from tuner.ports import Proposal


@dataclass(slots=True)
class FakeStudy:
    """What outlives a driver: the rows. Hand it to the next FakeOptimizer to resume."""

    rows: list[TrialRow] = field(default_factory=list)


class FakeOptimizer:
    """Proposes the baseline, then whatever is queued, then the candidates in order.

    Args:
        candidates: canonical assignments; those that were tried are skipped.
        baseline: canonical; queued as trial 0 of an empty study.
        study: of an earlier driver; None begins a new one.
        canonical: an engine's rules for what is queued; None takes everything as it is.
    """

    def __init__(
        self,
        candidates: Iterable[Assignment],
        *,
        baseline: Assignment,
        study: FakeStudy | None = None,
        canonical: Callable[[Assignment], Assignment] | None = None,
    ) -> None:
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
        for row in running:
            self.study.rows[row.number] = replace(row, outcome=Interrupted(state=TrialState.PROPOSED))
            self._queue(row.assignment)
        return tuple(row.number for row in running)

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

    def enqueue(self, assignment: Assignment) -> None:
        """Queue an assignment unless it counted, runs or waits."""
        chosen = assignment if self._canonical is None else self._canonical(assignment)
        if chosen not in self._taken():
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
        values = None
        if isinstance(outcome, Measured):
            values = (outcome.single_request_throughput.value, outcome.aggregate_throughput.value)
        self.study.rows[result.number] = replace(
            row,
            outcome=outcome,
            host=result.host,
            values=values,
            capacity=None if result.effective is None else result.effective.capacity,
            duration_s=result.duration_s,
        )
        if isinstance(outcome, Faulted | Interrupted):
            self._queue(result.assignment)

    def rows(self) -> tuple[TrialRow, ...]:
        """Every trial, by number."""
        return tuple(self.study.rows)

    def close(self) -> None:
        """Remember that it was closed."""
        self.closed = True

    def _taken(self) -> set[Assignment]:
        return {
            row.assignment
            for row in self.study.rows
            if row.outcome is None or isinstance(row.outcome, Measured | Infeasible)
        }

    def _queue(self, assignment: Assignment) -> None:
        if assignment not in self._taken():
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
