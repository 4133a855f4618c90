"""What is known of a run, as state: fed with the run's events, read by the renderers.

``now_s`` is the reader's monotonic clock: how long something takes is counted from when it
was heard of, so that no step of a wall clock, here or on the host, bends it. ``at_s`` is Unix
time and only shown.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from tuner.model.metric import OBJECTIVES
from tuner.model.names import short_names
from tuner.model.outcome import Faulted, Infeasible, Measured, Outcome, TrialState
from tuner.model.repeat import Repeat
from tuner.model.space import Assignment
from tuner.model.study import StudySpec, TrialRow
from tuner.model.trial import LegFinished, LegProgress, Remark, StateEntered, TrialEvent, TrialFinished, TrialResult
from tuner.ports import Proposal
from tuner.report.front import baseline_row, front_rows
from tuner.screen.words import rate

_REMARKS_KEPT = 3
_DURATIONS_AVERAGED = 8
"""Recent trials tell better how long the next will take: the sampler moves on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LevelView:
    """One level of a trial's ladder.

    Attributes:
        throughput: tok/s; at level 1 what the lone request gets, above the aggregate. None: none yet.
        done: the leg is finished; otherwise the number is still moving.
    """

    throughput: float | None
    done: bool


@dataclass(slots=True, kw_only=True)
class HostView:
    """One host and its current, or else its last, trial. Times are monotonic seconds.

    Attributes:
        number: of the trial; None before the first.
        ended: outcome of the trial; None while it runs.
        levels: the ladder as far as it is filled in.
    """

    name: str
    number: int | None = None
    assignment: Assignment | None = None
    baseline: bool = False
    repeat: Repeat | None = None
    started_s: float = 0.0
    state: TrialState | None = None
    state_since_s: float = 0.0
    level: int | None = None
    detail: str = ""
    ended: Outcome | None = None
    levels: dict[int, LevelView] = field(default_factory=dict)

    @property
    def running(self) -> bool:
        """Whether a trial is under way."""
        return self.number is not None and self.ended is None


@dataclass(slots=True, kw_only=True)
class RunView:
    """The whole run. Methods named like those of RunObserver take what it is told.

    Attributes:
        ended: the run is over; its front is shown elsewhere.
        confirmed: confirmations that came to a result.
        unconfirmed: those that are to follow as the front is now; known from the first repeat on.
    """

    spec: StudySpec | None = None
    waiting: str = ""
    ended: bool = False
    started_s: float = 0.0
    rows: tuple[TrialRow, ...] = ()
    confirmed: int = 0
    unconfirmed: int = 0
    hosts: dict[str, HostView] = field(default_factory=dict)
    remarks: deque[tuple[float, str]] = field(default_factory=lambda: deque(maxlen=_REMARKS_KEPT))

    # ------------------------------------------------------------------ feeding

    def starting(self, what: str) -> None:
        """The run waits for ``what``."""
        self.waiting = what

    def begin(self, spec: StudySpec, rows: tuple[TrialRow, ...], now_s: float) -> None:
        """The first trial is about to be proposed."""
        self.spec, self.started_s, self.waiting = spec, now_s, ""
        self._take(rows)
        self.hosts = {host.name: HostView(name=host.name) for host in spec.hosts}

    def proposed(self, host: str, proposal: Proposal, now_s: float) -> None:
        """A host takes a trial."""
        self.hosts[host] = HostView(
            name=host,
            number=proposal.number,
            assignment=proposal.assignment,
            baseline=proposal.baseline,
            repeat=proposal.repeat,
            started_s=now_s,
            state=TrialState.PROPOSED,
            state_since_s=now_s,
        )

    def event(self, host: str, number: int, event: TrialEvent, now_s: float) -> None:
        """A trial moved on; events of a trial that is no longer the host's are stale and dropped."""
        view = self.hosts.get(host)
        if view is None or view.number != number:
            return
        if isinstance(event, StateEntered):
            if event.state in (TrialState.CLEANING, TrialState.DEPLOYING):
                view.levels.clear()  # a second server start measures everything again
            if (event.state, event.level) != (view.state, view.level):
                view.state_since_s = now_s
            view.state, view.level, view.detail = event.state, event.level, event.detail
        elif isinstance(event, LegProgress):
            if view.state is TrialState.SOAKING:  # the ladder keeps what the level itself measured
                known = event.aggregate_throughput is not None
                view.detail = f"{rate(event.aggregate_throughput)} tok/s" if known else ""
            else:
                view.levels[event.concurrency] = LevelView(throughput=event.aggregate_throughput, done=False)
        elif isinstance(event, LegFinished) and event.kind == "ladder":
            view.levels[event.leg.concurrency] = LevelView(throughput=leg_throughput(event), done=True)
        elif isinstance(event, Remark):
            self.remark(f"{host} trial {number}: {event.text}", event.at_s)
        elif isinstance(event, TrialFinished):
            view.ended = event.result.outcome

    def told(self, result: TrialResult, rows: tuple[TrialRow, ...]) -> None:
        """A trial's end is in the database."""
        self._take(rows)
        view = self.hosts.get(result.host)
        if view is not None and view.number == result.number:
            view.ended = result.outcome

    def corrected(self, text: str, rows: tuple[TrialRow, ...], at_s: float) -> None:
        """A person changed how a finished trial ended."""
        self._take(rows)
        self.remark(text, at_s)

    def remark(self, text: str, at_s: float) -> None:
        """Something worth a line."""
        self.remarks.append((at_s, " ".join(text.split())))

    def _take(self, rows: tuple[TrialRow, ...]) -> None:
        self.rows = rows
        if self.spec is not None and any(row.repeat is not None for row in rows):
            from tuner.runtime.repeats import Repeats  # noqa: PLC0415  pulls in NumPy, only where it is needed

            spec = self.spec
            repeats = Repeats(terms=spec.repeats, trials=spec.trials, objectives=spec.objectives)
            found = repeats.progress(rows)
            self.confirmed, self.unconfirmed = found.done, found.left

    # ------------------------------------------------------------------ reading

    @property
    def measured(self) -> int:
        """Trials measured so far, those of earlier runs included."""
        return sum(row.counts and isinstance(row.outcome, Measured) for row in self.rows)

    @property
    def infeasible(self) -> int:
        """Trials shown infeasible so far."""
        return sum(row.counts and isinstance(row.outcome, Infeasible) for row in self.rows)

    @property
    def faults(self) -> int:
        """Trials that were the host's fault; they do not count."""
        return sum(isinstance(row.outcome, Faulted) for row in self.rows)

    @property
    def done(self) -> int:
        """Trials that count towards the budget."""
        return self.measured + self.infeasible

    @property
    def left(self) -> int:
        """Trials that are still to count, the running ones included."""
        return 0 if self.spec is None else max(0, self.spec.trials - self.done)

    @property
    def names(self) -> dict[str, str]:
        """Short names of the tuned parameters, in the order of the space."""
        return {} if self.spec is None else short_names([parameter.name for parameter in self.spec.space.parameters])

    def front(self) -> tuple[TrialRow, ...]:
        """The Pareto front so far, fastest single request first."""
        return tuple(reversed(front_rows(self.rows, OBJECTIVES if self.spec is None else self.spec.objectives)))

    def base(self) -> TrialRow | None:
        """Trial 0, with which all others are compared; None until it is measured."""
        return baseline_row(self.rows)

    def time_left_s(self, now_s: float) -> float | None:
        """Estimate how long the run still takes; None before a trial has told how long one takes."""
        durations = [row.duration_s for row in self.rows if row.counts and row.duration_s is not None][
            -_DURATIONS_AVERAGED:
        ]
        if not durations or not self.hosts:
            return None
        mean_s = sum(durations) / len(durations)
        spent_s = sum(min(mean_s, now_s - host.started_s) for host in tuple(self.hosts.values()) if host.running)
        left = self.left + self.unconfirmed
        return max(0.0, (mean_s * left - spent_s) / min(len(self.hosts), max(1, left)))


def leg_throughput(event: LegFinished) -> float | None:
    """Return what a leg is shown as: the lone request's speed at level 1, the aggregate above."""
    leg = event.leg
    estimate = leg.single_request_throughput if leg.concurrency == 1 else leg.aggregate_throughput
    return None if estimate is None else estimate.value
