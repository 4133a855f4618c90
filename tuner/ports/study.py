"""What runs a study: proposals, workers, evidence, the screen."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Protocol

from tuner.model.order import Answer, Order
from tuner.model.outcome import Infeasible, Interrupted, Outcome
from tuner.model.repeat import Repeat
from tuner.model.ruling import Correction
from tuner.model.space import Assignment, Value
from tuner.model.study import StudySpec, TrialRow
from tuner.model.trial import TrialEvent, TrialRequest, TrialResult


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """A trial that exists in the study's database as RUNNING and must be told exactly once.

    Attributes:
        repeat: set where it measures another trial once more.
    """

    number: int
    assignment: Assignment
    baseline: bool
    repeat: Repeat | None = None


class Optimizer(Protocol):
    """The study: proposes assignments, remembers outcomes. The driver is its only caller."""

    def settle(self) -> tuple[int, ...]:
        """After a crash of the driver: tell RUNNING trials Interrupted, queue their assignments.

        Returns their numbers. The lock on the study guarantees that no other driver lives.
        """

    def propose(self, host: str) -> Proposal | None:
        """Take the next assignment: queued ones first, then the sampler's.

        Never one that is running or has counted already. None: the space is exhausted.
        """

    def repeat(self, repeat: Repeat, host: str) -> Proposal:
        """Begin to measure a finished trial once more, as a trial of its own that is no part of the search.

        However it ends, its assignment is not queued again; what it measured changes the trial it repeats.

        Raises:
            ValueError: there is no such trial, it is a repeat itself, or it is not Measured.
        """

    def canonical(self, values: Mapping[str, Value]) -> Assignment:
        """Return the canonical form of an assignment of the study's space.

        Raises:
            AssignmentRejected: the engine's rules or the space forbid it; the message is the rule.
        """

    def enqueue(self, assignment: Assignment, *, again: bool = False) -> None:
        """Queue an assignment to be proposed next, unless it waits or runs; ``again``: even if it has counted.

        Raises:
            AssignmentRejected: see :meth:`canonical`.
        """

    def tell(self, result: TrialResult) -> None:
        """Record a trial's end. Faulted and Interrupted trials queue their assignment again."""

    def rule(self, number: int, outcome: Infeasible | Interrupted) -> None:
        """Keep how a person ended a running trial: it is told so later, by :meth:`settle` if the driver dies first.

        Raises:
            ValueError: the trial does not run.
        """

    def correct(self, number: int, outcome: Outcome, correction: Correction) -> None:
        """Change how a finished trial ended; the correction is kept with it.

        What does not count any more is queued again; what counts after all leaves the queue.

        Raises:
            ValueError: the trial is not finished, or did not end as the correction says.
        """

    def rows(self) -> tuple[TrialRow, ...]:
        """Every trial, by number; with what its repeats make of it: see ``tuner.stats.repeats``."""

    def close(self) -> None:
        """Release the database."""


class Executor(Protocol):
    """Runs trials on hosts, one at a time on each."""

    async def open(self) -> None:
        """Start the workers, and take their hosts: see :class:`Tenancy`.

        Raises:
            PreflightError: they cannot be started, or a host cannot be taken; what was taken is given back.
        """

    async def release(self, host: str) -> None:
        """Restore a host that is set aside and give it back; it is taken again by its next trial.

        Raises:
            HostFault: it could not be restored; its dead-man will, or a person must look.
        """

    async def probe(self, host: str) -> None:
        """Hold that a host that was set aside can be used again.

        Raises:
            HostFault, PreflightError: it cannot, and why.
        """

    def run(self, host: str, request: TrialRequest) -> AsyncIterator[TrialEvent]:
        """Run a trial; the last event is TrialFinished.

        Raises:
            ExecutorFault: the worker died; a later call gets a new worker.
        """

    async def stop(self, host: str) -> None:
        """Ask the host's trial to end now: it cleans up and finishes as Interrupted."""

    async def close(self) -> None:
        """Restore the hosts and give them back, then stop the workers.

        Raises:
            HostFault: a host is not what it was before; the workers are stopped all the same.
        """

    def hurry(self) -> bool:
        """Restore, but do not wait for the originals to answer; False: there is nothing to restore."""


class Orders(Protocol):
    """What people ask of a study while it runs."""

    async def next(self) -> Order:
        """Wait for the next order; it stays with whoever gave it until :meth:`answer`.

        May be cancelled: no order is lost. One that was not answered comes again, to the next run if need be.

        Raises:
            EvidenceError: the place where orders lie cannot be used.
        """

    def answer(self, order: Order, answer: Answer) -> None:
        """Say what became of an order; it does not come again.

        Raises:
            EvidenceError: it cannot be said.
        """


class EvidenceStore(Protocol):
    """Keeps what happened in a trial, as it happens."""

    def begin(self, request: TrialRequest, host: str) -> None:
        """Open a trial's folder and write its manifest."""

    def add(self, number: int, event: TrialEvent) -> None:
        """Keep one event; what was added survives a kill of the driver."""

    def finish(self, number: int, outcome: Outcome) -> None:
        """Close the trial's files."""

    def note(self, number: int, event: TrialEvent) -> None:
        """Keep what happened to a trial after its end; one without evidence here is passed over."""


class RunObserver(Protocol):
    """Watches a run as it happens: the screen. Called from the driver's event loop; never blocks for long."""

    def starting(self, what: str) -> None:
        """Say what the run is waiting for before its first trial (workers, hosts, database)."""

    def begin(self, spec: StudySpec, rows: tuple[TrialRow, ...]) -> None:
        """The run begins; ``rows`` are what an earlier run of the same study left."""

    def proposed(self, host: str, proposal: Proposal) -> None:
        """``host`` takes the next trial."""

    def event(self, host: str, number: int, event: TrialEvent) -> None:
        """Something happened in trial ``number``."""

    def told(self, result: TrialResult, rows: tuple[TrialRow, ...]) -> None:
        """A trial's end is in the database; ``rows`` are all trials, this one included."""

    def corrected(self, text: str, rows: tuple[TrialRow, ...]) -> None:
        """A person changed how a finished trial ended; ``rows`` are all trials as they are now."""

    def remark(self, text: str) -> None:
        """Something about the run as a whole: a host set aside, an interrupt taken."""
