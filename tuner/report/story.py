"""The story of one trial: what was asked, what ran, what became of it, and what that means. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tuner.model.outcome import Cause, Faulted, Infeasible, Interrupted, Measured, Outcome, TrialState, Verdict
from tuner.model.record import LegResult
from tuner.model.repeat import Repeat
from tuner.model.ruling import Correction
from tuner.model.space import Value
from tuner.model.study import TrialRow
from tuner.model.trial import Capacity
from tuner.report.cause_words import CAUSES
from tuner.report.diagnosis import EvidenceLine
from tuner.report.evidence import Evidence, Happening
from tuner.report.limits import limits
from tuner.report.meaning import meaning
from tuner.report.steps import Start, starts_of

_NOT_RUN = "not run: "
"""Begin of the error of a queued trial that was not needed any more."""
_AGAIN = "nothing: these settings run again, and the search learns nothing from this trial"


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One tuned setting; None where it does not apply, or is not known.

    Attributes:
        asked: of this trial.
        today: what trial 0 runs.
        ran: read back from the server.
    """

    name: str
    asked: Value | None
    today: Value | None
    ran: Value | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Story:
    """A trial for a reader.

    Attributes:
        status: ``measured``, ``infeasible``, ``faulted``, ``interrupted``, ``running``, ``waiting``, ``cut off``.
        took_s: so far, while it runs; None: not known.
        what: happened, in one sentence.
        fault: whose it is, and why; empty: nothing went wrong.
        means: for the settings; of a measured trial, what limited it.
        corrections: what people said of it after its end, oldest first.
        before: trials before it with the same settings.
        after: trials after it with the same settings.
        following: the next trial of the same host; None: none yet.
        log: path of the whole log; None: there is none.
        gaps: what of the evidence is missing.
        repeat: set where it measures another trial once more.
        own: how its own start ended, where repeats made something else of ``outcome``.
        starts_combined: the trials that ``outcome`` is made of, where there are several.
    """

    study: str
    simulated: bool
    engine: str
    number: int
    host: str | None
    baseline: bool
    status: str
    outcome: Outcome | None
    took_s: float | None
    settings: tuple[Setting, ...]
    has_run: bool
    capacity: Capacity | None
    version: str | None
    starts: tuple[Start, ...]
    what: str
    fault: str
    evidence: tuple[EvidenceLine, ...]
    advice: str
    means: tuple[str, ...]
    corrections: tuple[Correction, ...]
    before: tuple[TrialRow, ...]
    after: tuple[TrialRow, ...]
    following: TrialRow | None
    log: str | None
    gaps: tuple[str, ...]
    repeat: Repeat | None = None
    own: Outcome | None = None
    starts_combined: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What a story needs to know besides its trial.

    Attributes:
        parameters: names of the tuned settings, in the order of the space.
        rows: all trials.
        is_driven: somebody runs the study now.
        now_s: Unix seconds.
        log: path of the trial's log; None: there is none.
        evidence: the verdict's lines with their places in the log.
    """

    study: str
    engine: str
    simulated: bool
    parameters: tuple[str, ...]
    rows: tuple[TrialRow, ...]
    is_driven: bool
    now_s: float
    log: str | None
    evidence: tuple[EvidenceLine, ...] = ()


def tell(row: TrialRow, found: Evidence | None, around: Surroundings) -> Story:
    """Tell a trial.

    Args:
        row: the trial as the database knows it.
        found: what lies in its folder; None: nothing.
        around: the rest of the study.
    """
    found = found or Evidence()
    status = status_of(row, is_driven=around.is_driven)
    starts = starts_of(found.happenings, around.now_s if status == "running" else None)
    verdict = verdict_of(row.outcome)
    effective = found.effective
    same = tuple(other for other in around.rows if other.assignment == row.assignment)
    later = (other for other in around.rows if other.number > row.number)
    return Story(
        study=around.study,
        simulated=around.simulated,
        engine=around.engine,
        number=row.number,
        host=row.host,
        baseline=row.baseline,
        status=status,
        outcome=row.outcome,
        took_s=row.duration_s if row.outcome is not None else _so_far(found.happenings, around.now_s, status),
        settings=_settings(row, found, around),
        has_run=effective is not None,
        capacity=effective.capacity if effective is not None else row.capacity,
        version=effective.version if effective is not None else None,
        starts=starts,
        what=_what(row.outcome, status, starts),
        fault=_fault(row, starts, same),
        evidence=around.evidence,
        advice="" if verdict is None else verdict.advice,
        means=_means(row, starts, around.parameters),
        corrections=row.corrections,
        before=tuple(other for other in same if other.number < row.number),
        after=tuple(other for other in same if other.number > row.number),
        following=next((other for other in later if row.host is not None and other.host == row.host), None),
        log=around.log,
        gaps=found.gaps,
        repeat=row.repeat,
        own=row.own,
        starts_combined=row.starts if len(row.starts) > 1 else (),
    )


def status_of(row: TrialRow, *, is_driven: bool) -> str:
    """Say in a word where a trial is."""
    if row.outcome is not None:
        return type(row.outcome).__name__.lower()
    if row.host is None:
        return "waiting"
    return "running" if is_driven else "cut off"


def verdict_of(outcome: Outcome | None) -> Verdict | None:
    """Return the verdict on a trial's server; None: there is none."""
    return outcome.verdict if isinstance(outcome, (Infeasible, Faulted)) else None


def _settings(row: TrialRow, found: Evidence, around: Surroundings) -> tuple[Setting, ...]:
    base = next((other.assignment for other in around.rows if other.baseline), None)
    today = base if base is not None else around.rows[0].assignment
    ran = {} if found.effective is None else dict(found.effective.settings)
    names = [*around.parameters, *(name for name in row.assignment if name not in around.parameters)]
    return tuple(
        Setting(name=name, asked=row.assignment.get(name), today=today.get(name), ran=ran.get(name)) for name in names
    )


def _so_far(happenings: Sequence[Happening], now_s: float, status: str) -> float | None:
    if not happenings or status != "running":
        return None
    return max(0.0, now_s - happenings[0].at_s)


# ---------------------------------------------------------------------------- what it comes to


def _what(  # noqa: PLR0911  a table, one row an outcome
    outcome: Outcome | None, status: str, starts: Sequence[Start]
) -> str:
    match outcome:
        case Measured():
            return "every level was measured, on one server from its begin to its end"
        case Infeasible() as end:
            return CAUSES[end.verdict.cause].what
        case Faulted(verdict=None) as end:
            return " ".join(end.error.split())
        case Faulted() as end:
            assert end.verdict is not None
            return CAUSES[end.verdict.cause].what
        case Interrupted(why=""):
            return "the run was stopped while the trial was under way"
        case Interrupted(state=TrialState.PROPOSED, why=why):
            return f"it never began: {why}"
        case Interrupted(why=why):
            return f"a person ended it, to have it run again: {why}"
        case None:
            return {
                "waiting": "it is queued and has not begun",
                "running": "it is under way" if starts else "it has just begun",
                "cut off": "the run that it belongs to is gone: the next run begins it anew",
            }[status]


_SAID_BY = {
    Cause.RULED: "a person said so",
    Cause.OUTSIDE_LIMITS: "it was measured, and breaks a limit of the study",
}
"""Who finds a configuration at fault where no log does."""


def _fault(  # noqa: PLR0911  a table of rules, first match wins
    row: TrialRow, starts: Sequence[Start], same: Sequence[TrialRow]
) -> str:
    match row.outcome:
        case Infeasible(verdict=verdict) if verdict.cause in _SAID_BY:
            return f"the configuration's: {_SAID_BY[verdict.cause]}"
        case Infeasible(verdict=verdict) if verdict.config_fault:
            return "the configuration's: what the log says names it, and the host was clean; it is not tried again"
        case Infeasible():
            earlier = sum(other.number < row.number for other in same)
            count = sum(start.number is not None for start in starts)
            before = ", and had come to no good end before" if earlier else ""
            return (
                f"the configuration's: it died in the same state again on a clean host "
                f"({count} {'start' if count == 1 else 'starts'} in this trial{before}); it is not tried again"
            )
        case Faulted(error=error) if error.startswith(_NOT_RUN):
            return "nobody's: it was taken out of the queue"
        case Faulted(error=error) if error.startswith("bug in tuner"):
            return "tuner's own: please report it"
        case Faulted(set_aside=True):
            return "the host's: other configurations died of the same before; it was set aside"
        case Faulted(verdict=verdict) if verdict is not None and verdict.cause is Cause.RULED:
            return "not the configuration's: a person said so"
        case Faulted():
            return "not the configuration's: the host, the network or tuner failed it"
        case Interrupted(why=why):
            return "nobody's: " + ("a person wanted it run again" if why else "the run was stopped")
        case _:
            return ""


def _means(row: TrialRow, starts: Sequence[Start], parameters: tuple[str, ...]) -> tuple[str, ...]:
    match row.outcome:
        case Measured():
            return limits(*_last_legs(starts), row.capacity, row.assignment)
        case Infeasible(verdict=verdict) if not verdict.config_fault:
            return ("these settings are ruled out together; which of them it is, nothing says",)
        case Infeasible(verdict=verdict):
            return meaning(verdict, row.assignment, parameters)
        case Faulted(error=error) if error.startswith(_NOT_RUN):
            return ()
        case Faulted() | Interrupted():
            return (_AGAIN,)
        case None:
            return ()


def _last_legs(starts: Sequence[Start]) -> tuple[list[LegResult], LegResult | None]:
    steps = starts[-1].steps if starts else ()
    ladder = [step.leg for step in steps if step.leg is not None and step.state is TrialState.MEASURING]
    held = [step.leg for step in steps if step.leg is not None and step.state is TrialState.SOAKING]
    return ladder, held[-1] if held else None
