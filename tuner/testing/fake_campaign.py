"""A campaign on scripted hosts, in memory: study, evidence, observer and people's orders."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from tuner.errors import EvidenceError
from tuner.execution.inline import InlineExecutor
from tuner.model.order import Answer, Order
from tuner.model.outcome import Outcome
from tuner.model.space import Assignment, IntParameter, SearchSpace
from tuner.model.study import ProcessHostSpec, StudySpec, TrialRow
from tuner.model.trial import Command, TrialEvent, TrialRequest, TrialResult
from tuner.model.workload import Workload
from tuner.ports import Executor, Proposal
from tuner.runtime.campaign import Campaign
from tuner.testing.fake_clock import FakeClock
from tuner.testing.fake_engine import FakeEngine
from tuner.testing.fake_host import FakeHost, Script
from tuner.testing.fake_optimizer import FakeOptimizer

ENGINE = FakeEngine()
SPACE = SearchSpace(
    name="fake",
    engine="fake",
    parameters=(IntParameter(name="batch", low=1, high=8), IntParameter(name="draft", low=0, high=4)),
)


def spec(*, hosts: int = 1, trials: int = 6, space: SearchSpace = SPACE) -> StudySpec:
    """Build a study of the fake engine."""
    base = Command(argv=("serve", "--batch", "8", "--draft", "0"))
    return StudySpec(
        name="s",
        engine="fake",
        space=space,
        base=base,
        baseline=ENGINE.settings_of(base),
        hosts=tuple(ProcessHostSpec(name=f"host{i}", state_dir=f"/state/{i}") for i in range(hosts)),
        workload=Workload(ladder=(1, 4), level_min_s=1.0, level_max_s=2.0, soak_s=1.0, load_timeout_s=60.0),
        trials=trials,
        seed=1,
        sampler="auto",
        directory="/studies/s",
    )


@dataclass
class Notes:
    """Evidence and observer in one: what the campaign told."""

    begun: list[int] = field(default_factory=list)
    finished: list[tuple[int, Outcome]] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    parallel: int = 0
    most_parallel: int = 0
    events: list[tuple[int, TrialEvent]] = field(default_factory=list)
    on_event: Callable[[TrialEvent], None] = lambda _event: None
    on_proposal: Callable[[], None] = lambda: None
    commands: dict[int, Command] = field(default_factory=dict)
    orders: FakeOrders | None = None

    def keep(self, number: int, event: TrialEvent) -> None:
        """Keep an event of a trial, and let the test act on it."""
        self.events.append((number, event))
        self.on_event(event)

    def begin_trial(self, request: TrialRequest) -> None:
        """A trial begins."""
        self.begun.append(request.number)
        self.commands[request.number] = request.command
        self.parallel += 1
        self.most_parallel = max(self.most_parallel, self.parallel)


class Evidence:
    """Keeps nothing; fails from the ``fails_at``-th event on, as a full disk would."""

    def __init__(self, notes: Notes, fails_at: int | None = None) -> None:
        self._notes = notes
        self._left = fails_at

    def begin(self, request: TrialRequest, host: str) -> None:
        """A trial begins."""
        assert host
        self._notes.begin_trial(request)

    def add(self, number: int, event: TrialEvent) -> None:
        """Keep an event, or fail."""
        assert number in self._notes.begun
        if self._left is not None:
            self._left -= 1
            if self._left <= 0:
                raise EvidenceError("the disk is full")
        self._notes.keep(number, event)

    def note(self, number: int, event: TrialEvent) -> None:
        """Keep what happened after a trial."""
        assert number in self._notes.begun
        self._notes.keep(number, event)

    def finish(self, number: int, outcome: Outcome) -> None:
        """A trial is over."""
        self._notes.parallel -= 1
        self._notes.finished.append((number, outcome))


class Observer:
    """Tells its notes what people would read."""

    def __init__(self, notes: Notes) -> None:
        self._notes = notes

    def starting(self, what: str) -> None:
        """Pass over."""

    def begin(self, spec: StudySpec, rows: tuple[TrialRow, ...]) -> None:
        """Pass over."""

    def proposed(self, host: str, proposal: Proposal) -> None:
        """Let the test act on it."""
        assert host
        assert proposal.assignment
        self._notes.on_proposal()

    def event(self, host: str, number: int, event: TrialEvent) -> None:
        """Pass over."""

    def told(self, result: TrialResult, rows: tuple[TrialRow, ...]) -> None:
        """Pass over."""

    def corrected(self, text: str, rows: tuple[TrialRow, ...]) -> None:
        """Keep the line."""
        assert rows
        self._notes.remarks.append(text)

    def remark(self, text: str) -> None:
        """Keep the line."""
        self._notes.remarks.append(text)


class FakeOrders:
    """The Orders port in memory: :meth:`give` is the person's side.

    Attributes:
        answers: of every order that was answered, by its id.
    """

    def __init__(self) -> None:
        self.answers: dict[str, Answer] = {}
        self._lying: list[Order] = []
        self._given = asyncio.Event()

    def give(self, order: Order) -> None:
        """Give an order."""
        self._lying.append(order)
        self._given.set()

    async def next(self) -> Order:
        """Wait for the oldest order."""
        while not self._lying:
            self._given.clear()
            await self._given.wait()
        return self._lying[0]

    def answer(self, order: Order, answer: Answer) -> None:
        """Keep the answer; the order does not come again."""
        self._lying.remove(order)
        self.answers[order.order] = answer


def campaign(
    study: StudySpec,
    executor: Executor,
    notes: Notes,
    optimizer: FakeOptimizer,
    *,
    fails_at: int | None = None,
    clock: FakeClock | None = None,
) -> Campaign:
    """Build a campaign that tells ``notes`` everything."""
    return Campaign(
        spec=study,
        engine=ENGINE,
        optimizer=optimizer,
        executor=executor,
        evidence=Evidence(notes, fails_at),
        observer=Observer(notes),
        clock=clock or FakeClock(),
        orders=notes.orders,
    )


def inline(study: StudySpec, script: Script) -> tuple[InlineExecutor, list[FakeHost]]:
    """Build an executor of scripted hosts, and the hosts."""
    clock = FakeClock()
    hosts = [FakeHost(ENGINE, script, name=host.name, clock=clock) for host in study.hosts]
    return InlineExecutor({host.name: host.ports() for host in hosts}, {"fake": ENGINE}), hosts


def optimizer_of(study: StudySpec) -> FakeOptimizer:
    """Build an optimizer that walks the space."""
    batches, drafts = (parameter.values() for parameter in study.space.parameters)
    points = (Assignment.of({"batch": batch, "draft": draft}) for draft in drafts for batch in batches)
    return FakeOptimizer(points, baseline=study.baseline, canonical=ENGINE.canonical)
