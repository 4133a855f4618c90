"""Carries out what people ask of a study: decides, tells the optimizer, and says what is left to do.

Used by the driver of a run, and by a command where no run is under way: then nothing flies.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from tuner.errors import AssignmentRejected
from tuner.model.order import AbortOrder, Answer, Order, TryOrder, VerdictOrder
from tuner.model.outcome import Faulted, Infeasible, Interrupted, Measured, Outcome, TrialState
from tuner.model.repeat import Repeat
from tuner.model.ruling import Correction, Word, corrected, ended_by
from tuner.model.space import Assignment, SearchSpace, Value
from tuner.model.study import TrialRow
from tuner.model.trial import StateEntered, TrialEvent, TrialFinished
from tuner.ports import Optimizer


@dataclass(slots=True, kw_only=True)
class Flight:
    """A trial under way, as its driver sees it.

    Attributes:
        began_s: Unix time.
        repeat: set where it measures another trial once more.
        ruled: how a person ended it; None: nobody did.
        ending: set with ``ruled``.
    """

    number: int
    host: str
    ladder: tuple[int, ...]
    began_s: float
    repeat: Repeat | None = None
    state: TrialState = TrialState.PROPOSED
    level: int | None = None
    ruled: Infeasible | Interrupted | None = None
    ending: asyncio.Event = field(default_factory=asyncio.Event)

    def heard(self, event: TrialEvent) -> TrialEvent:
        """Follow an event; return it as it is to be kept: where a person ended the trial, with that end."""
        if isinstance(event, StateEntered):
            self.state, self.level = event.state, event.level
            if self.ruled is not None and event.state is TrialState.DONE:
                return replace(event, detail=type(self.ruled).__name__.lower())
        if isinstance(event, TrialFinished) and self.ruled is not None:
            return replace(event, result=replace(event.result, outcome=self.ruled))
        return event


@dataclass(frozen=True, slots=True, kw_only=True)
class Deed:
    """What became of an order.

    Attributes:
        answer: for whoever gave it.
        remark: for readers of the run and of the trial's evidence; empty: nothing happened.
        trial: that it is about, if it is about one that began.
        flight: that it ended; None: none.
        is_correction: a finished trial ended otherwise now.
    """

    answer: Answer
    remark: str = ""
    trial: int | None = None
    flight: Flight | None = None
    is_correction: bool = False


@dataclass(slots=True, kw_only=True)
class Steering:
    """Takes orders for one study.

    Attributes:
        trials: how many are to count; None: not known.
        flights: what runs now, by number; the driver's own.
        stop_limits_s: how long the server of a host may take to stop, by host; a host without is not spoken of.
    """

    study: str
    space: SearchSpace
    baseline: Assignment
    trials: int | None
    optimizer: Optimizer
    flights: Mapping[int, Flight] = field(default_factory=dict)
    stop_limits_s: Mapping[str, float] = field(default_factory=dict)

    def obey(self, order: Order) -> Deed:
        """Carry out an order, except for the stop of a server; an order that was carried out before changes nothing.

        Raises:
            LedgerError, EvidenceError: the study's database cannot be used.
        """
        match order:
            case TryOrder():
                return self._try(order)
            case AbortOrder():
                return self._abort(order)
            case VerdictOrder():
                return self._correct(order)

    # -- try ---------------------------------------------------------------------------

    def _try(self, order: TryOrder) -> Deed:
        wanted = {**filled(self.space, self.baseline), **order.values}
        try:
            assignment = self.optimizer.canonical(wanted)
        except AssignmentRejected as error:
            return _refused(f"study {self.study} cannot run {_shown(wanted)}: {error}")
        rows = self.optimizer.rows()
        for row in rows:
            if row.assignment == assignment and row.outcome is None and row.repeat is None:
                where = f"place {_place(rows, row)} of the queue" if row.host is None else self._runs(row)
                return _done(f"{self._words(assignment)} is trial {row.number} already: {where}")
        known = _counted(rows, assignment)
        if known is not None and not order.again:
            was = f"{self._words(assignment)} was trial {known.number}"
            return _refused(f"{was}: {ended(known.outcome)}; --again runs it once more")
        self.optimizer.enqueue(assignment, again=order.again)
        rows = self.optimizer.rows()
        own = (row for row in reversed(rows) if row.repeat is None)
        row = next(row for row in own if row.outcome is None and row.assignment == assignment)
        words = self._words(assignment)
        text = f"queued as trial {row.number}, place {_place(rows, row)} of the queue: {words}{self._budget(rows)}"
        return Deed(answer=Answer(done=True, text=text), remark=f"{order.who} asks to try {words}: trial {row.number}")

    def _words(self, assignment: Assignment) -> str:
        """Write settings in the order of the space."""
        names = (parameter.name for parameter in self.space.parameters)
        return " ".join(f"{name}={assignment[name]}" for name in names if name in assignment)

    def _runs(self, row: TrialRow) -> str:
        if row.number in self.flights:
            return f"running on {row.host}"
        return f"it was cut off on {row.host}, and runs again with the next run"

    def _budget(self, rows: Sequence[TrialRow]) -> str:
        """Say that nothing more will be run in this study's budget, where that is so."""
        if self.trials is None:
            return ""
        spent = sum(row.counts for row in rows)
        running = sum(flight.repeat is None for flight in self.flights.values())
        if spent + running < self.trials:
            return ""
        return (
            f"; the {self.trials} trials of the study are done or running, "
            f"so it waits for a run with more: --trials {spent + running + 1}"
        )

    # -- abort -------------------------------------------------------------------------

    def _abort(self, order: AbortOrder) -> Deed:
        flight = self._meant(order)
        if isinstance(flight, str):
            return _refused(flight)
        if flight.ruled is not None:
            return _refused(f"trial {flight.number} is being ended already: {ended(flight.ruled)}")
        outcome = ended_by(order.ruling, state=flight.state, level=flight.level, ladder=flight.ladder)
        self.optimizer.rule(flight.number, outcome)
        flight.ruled = outcome
        flight.ending.set()
        limit_s = self.stop_limits_s.get(flight.host)
        limit = "" if limit_s is None else f", which has {limit_s:g} s for that"
        text = (
            f"trial {flight.number} on {flight.host} is {_becomes(outcome, flight.repeat)}; "
            f"its server is being stopped{limit}, then the host is cleaned as always before its next trial"
        )
        return Deed(answer=Answer(done=True, text=text), remark=str(order.ruling), trial=flight.number, flight=flight)

    def _meant(self, order: AbortOrder) -> Flight | str:
        """Return the trial that is to end; a text says why there is none."""
        flying = list(self.flights.values())
        if order.trial is not None and order.trial not in self.flights:
            return f"trial {order.trial} {self._lies(order.trial)}{_list(flying)}"
        found = [
            flight for flight in flying if order.host in (None, flight.host) and order.trial in (None, flight.number)
        ]
        if not found:
            where = "" if order.host is None else f" on host {order.host}"
            return f"study {self.study}: no trial runs{where}{_list(flying)}"
        meant = [flight for flight in found if flight.began_s <= order.ruling.at_s]
        if not meant:
            return f"what ran when the order was given has ended since{_list(flying)}"
        if len(meant) > 1:
            return f"{len(meant)} trials run{_list(meant)}: say which with --trial or --host"
        return meant[0]

    def _lies(self, number: int) -> str:
        """Say why a trial cannot be ended."""
        rows = self.optimizer.rows()
        if not 0 <= number < len(rows):
            return "does not exist"
        outcome = rows[number].outcome
        if outcome is not None:
            return f"has ended ({ended(outcome)}); correct that with: python -m tuner verdict {number}"
        return "waits" if rows[number].host is None else "does not run any more"

    # -- verdict -----------------------------------------------------------------------

    def _now(self, number: int) -> TrialRow:
        return self.optimizer.rows()[number]

    def _correct(self, order: VerdictOrder) -> Deed:
        rows = self.optimizer.rows()
        if not 0 <= order.trial < len(rows):
            last = f"the last one is {len(rows) - 1}" if rows else "it has none yet"
            return _refused(f"study {self.study} has no trial {order.trial}; {last}")
        row = rows[order.trial]
        if any(each.ruling.order == order.order for each in row.corrections):
            return _done(f"trial {order.trial} is {_becomes(row.outcome, row.repeat)}")
        if row.outcome is None:
            remedy = f"end it with: python -m tuner abort --trial {order.trial}" if order.trial in self.flights else ""
            state = "waits" if row.host is None else "has not ended"
            return _refused(f"trial {order.trial} {state}" + (f"; {remedy}" if remedy else ""))
        outcome = corrected(order.ruling, row.outcome, row.corrections)
        if isinstance(outcome, str):
            return _refused(f"trial {order.trial}: {outcome}{_condemned(row, rows)}")
        self.optimizer.correct(order.trial, outcome, Correction(ruling=order.ruling, before=row.outcome))
        text = f"trial {order.trial}, {ended(row.outcome)}, is {_becomes(outcome, row.repeat)} now"
        if row.repeat is not None:
            text += f"; trial {row.repeat.of}, which it measured again, is {ended(self._now(row.repeat.of).outcome)}"
        elif order.ruling.word is Word.RETRY:
            text += self._budget(self.optimizer.rows())
        remark = f"trial {order.trial} was {ended(row.outcome)}; now {order.ruling}"
        return Deed(answer=Answer(done=True, text=text), remark=remark, trial=order.trial, is_correction=True)


def _condemned(row: TrialRow, rows: Sequence[TrialRow]) -> str:
    """Name the repeat that made a trial infeasible, where one did."""
    if row.own is None or not isinstance(row.outcome, Infeasible):
        return ""
    dead = (each for each in rows if each.repeat is not None and each.repeat.of == row.number)
    number = next(each.number for each in dead if isinstance(each.outcome, Infeasible))
    return f"; its repeat, trial {number}, died: if that was not its fault, say so of {number}"


def filled(space: SearchSpace, baseline: Assignment) -> dict[str, Value]:
    """Give every parameter of a space a value: the baseline's, or its first where it does not apply there."""
    return {parameter.name: baseline.get(parameter.name, parameter.values()[0]) for parameter in space.parameters}


def _shown(values: Mapping[str, Value]) -> str:
    """Write settings as they are given."""
    return " ".join(f"{name}={value}" for name, value in values.items())


def ended(outcome: Outcome | None) -> str:
    """Say in a few words how a trial ended."""
    match outcome:
        case Measured():
            single, together = outcome.single_request_throughput.value, outcome.aggregate_throughput.value
            return f"measured, single request {single:.1f} tok/s, aggregate {together:.1f} tok/s"
        case Infeasible(measured=Measured()):
            return f"outside the study's limits: {'; '.join(outcome.verdict.evidence)}"
        case Infeasible():
            return f"infeasible, {outcome.verdict.cause.value} while {outcome.state.value.replace('_', ' ')}"
        case Faulted():
            return "a fault of its host"
        case Interrupted():
            return "interrupted"
        case None:
            return "not ended"


def _becomes(outcome: Outcome | None, repeat: Repeat | None = None) -> str:
    match outcome:
        case Infeasible():
            level = "" if outcome.level is None else f" {outcome.level}"
            where = f"{outcome.state.value.replace('_', ' ')}{level}"
            return f"infeasible (as if it had died while {where}: violation {outcome.violation:.3g})"
        case Interrupted():
            again = "its configuration is queued again" if repeat is None else "it is run again where that is needed"
            return f"not counted, and {again}"
        case _:
            return ended(outcome)


def _counted(rows: Sequence[TrialRow], assignment: Assignment) -> TrialRow | None:
    same = (row for row in reversed(rows) if row.assignment == assignment)
    return next((row for row in same if row.counts), None)


def _place(rows: Sequence[TrialRow], row: TrialRow) -> str:
    waiting = [other.number for other in rows if other.outcome is None and other.host is None]
    place = waiting.index(row.number) + 1
    return f"{place} (next)" if place == 1 else str(place)


def _list(flights: Sequence[Flight]) -> str:
    if not flights:
        return ""
    return "; now " + ", ".join(f"trial {flight.number} on {flight.host}" for flight in flights)


def _done(text: str) -> Deed:
    return Deed(answer=Answer(done=True, text=text))


def _refused(text: str) -> Deed:
    return Deed(answer=Answer(done=False, text=text))
