"""How values are written for a reader: settings, rates, times, outcomes."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, tzinfo

from tuner.model.outcome import Cause, Faulted, Infeasible, Interrupted, Measured, Outcome, TrialState
from tuner.model.repeat import Purpose, Repeat
from tuner.model.space import Assignment

SEPARATOR = " · "
NOT_MEASURED = "-"
_UPPER = {"oom": "OOM", "kv": "KV", "cuda": "CUDA"}


def settings(assignment: Assignment, names: Mapping[str, str]) -> str:
    """Write an assignment in the order and with the short names of ``names``."""
    ordered = [name for name in names if name in assignment] + [name for name in assignment if name not in names]
    return SEPARATOR.join(f"{names.get(name, name)} {assignment[name]}" for name in ordered)


def rate(value: float | None) -> str:
    """Write a throughput in tok/s without its unit; a dash when it was not measured."""
    if value is None:
        return NOT_MEASURED
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"


def gain(value: float, base: float | None) -> str:
    """Write how far ``value`` is from ``base`` in percent; a dash when there is no base."""
    if base is None or base == 0:
        return NOT_MEASURED
    return f"{100 * (value / base - 1):+.0f}%"


def counted(number: int, what: str) -> str:
    """Write ``1 round`` or ``24 rounds``."""
    return f"{number:,} {what}" if number == 1 else f"{number:,} {what}s"


def duration(seconds: float) -> str:
    """Write a duration as ``4 s``, ``2 min 41 s`` or ``3 h 2 min``."""
    whole = max(0, int(seconds))
    minutes, rest = divmod(whole, 60)
    hours, minutes = divmod(minutes, 60)
    parts = ((hours, "h"), (minutes, "min"), (rest if not hours else 0, "s"))
    return " ".join(f"{count} {unit}" for count, unit in parts if count) or "0 s"


def time_of_day(at_s: float, zone: tzinfo | None = None) -> str:
    """Write a Unix time as ``12:03:44`` in ``zone``, the machine's own by default."""
    return f"{datetime.fromtimestamp(at_s, tz=zone).astimezone(zone):%H:%M:%S}"


def repeat_words(repeat: Repeat) -> str:
    """Write what a trial measures again, and why."""
    return {
        Purpose.LEVEL: f"the baseline, trial {repeat.of}, again",
        Purpose.CONFIRMATION: f"confirms trial {repeat.of}",
        Purpose.DRIFT: f"trial {repeat.of} again after a drift",
    }[repeat.purpose]


def state_words(state: TrialState, level: int | None = None) -> str:
    """Write a state: ``warming up``, ``measuring 16``."""
    words = state.value.replace("_", " ")
    return words if level is None or state is TrialState.DONE else f"{words} {level}"


def outcome_words(outcome: Outcome) -> str:
    """Write an outcome in one line."""
    if isinstance(outcome, Measured):
        single, together = outcome.single_request_throughput.value, outcome.aggregate_throughput.value
        text = f"single request {rate(single)} tok/s, aggregate {rate(together)} tok/s at {outcome.peak_concurrency}"
        return ", ".join([text, *(f"{name} {estimate.value:.4g}" for name, estimate in outcome.others)])
    if isinstance(outcome, Infeasible) and outcome.measured is not None:
        return f"outside the study's limits: {'; '.join(outcome.verdict.evidence)} ({outcome_words(outcome.measured)})"
    if isinstance(outcome, Infeasible):
        cause = " ".join(_UPPER.get(word, word) for word in outcome.verdict.cause.value.split("_"))
        said = f" ({outcome.verdict.evidence[0]})" if outcome.verdict.cause is Cause.RULED else ""
        return f"infeasible: {cause} while {state_words(outcome.state, outcome.level)}{said}"
    if isinstance(outcome, Faulted):
        return f"host fault while {state_words(outcome.state)}, will run again: {' '.join(outcome.error.split())}"
    assert isinstance(outcome, Interrupted)
    if not outcome.why:
        return f"interrupted while {state_words(outcome.state)}, will run again"
    # What never began was taken out of the queue.
    again = "" if outcome.state is TrialState.PROPOSED else ", will run again"
    return f"interrupted while {state_words(outcome.state)} ({outcome.why}){again}"
