"""The story of a trial, line by line."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from datetime import tzinfo

from tuner.model.metric import Estimate
from tuner.model.names import short_names
from tuner.model.outcome import Faulted, Infeasible, TrialState
from tuner.model.plain import Json, plain, plain_fields
from tuner.model.record import LegResult
from tuner.model.space import Value
from tuner.model.study import TrialRow
from tuner.report.limits import LIMIT_WORDS
from tuner.report.steps import Start, Step
from tuner.report.story import Story, status_of
from tuner.screen.verdict import evidence_lines, labelled, printable, sentence
from tuner.screen.words import (
    NOT_MEASURED,
    counted,
    duration,
    outcome_words,
    rate,
    repeat_words,
    settings,
    state_words,
    time_of_day,
)

_STATE = 14
_TIMED = (TrialState.MEASURING, TrialState.SOAKING)

_WHY_UNKNOWN = {
    "measured": "what ran was read back, but the trial's result.json is gone",
    "running": "what runs is not read back yet",
    "waiting": "",
}
"""Why the configuration that ran is not shown."""


def story_lines(story: Story, *, zone: tzinfo | None = None) -> list[str]:
    """Write a story; times of day in ``zone``, the machine's own by default."""
    names = short_names(tuple(setting.name for setting in story.settings))
    lines = [_title(story), *_ending(story), "", *_asked(story)]
    for start in story.starts:
        lines += ["", _start_title(start, story), *(_step(step, zone) for step in start.steps)]
    if story.evidence and not story.corrections:  # a person's word is the evidence then
        lines += ["", "   line  evidence", *evidence_lines(story.evidence)]
    if story.fault:
        lines += ["", *labelled("fault", [story.fault])]
    people = [f"{each.ruling}; before: {outcome_words(each.before)}" for each in story.corrections]
    lines += ["", *labelled("people", people)] if people else []
    if story.means:
        label = "limits" if story.status == "measured" else "settings"
        lines += ["", *labelled(label, story.means)]
    if story.advice:
        lines += labelled("to do", [story.advice])
    lines += ["", *labelled("next", list(_next(story, names)))]
    lines += labelled("log", [story.log or "there is none (yet)"])
    lines += labelled("missing", story.gaps)
    return [printable(line) for line in lines]


def _title(story: Story) -> str:
    badge = " (SIMULATED)" if story.simulated else ""
    where = f" on {story.host}" if story.host else ""
    base = ", the base command as it stands" if story.baseline else ""
    took = "" if story.took_s is None else f" {'for' if story.outcome is None else 'after'} {duration(story.took_s)}"
    again = "" if story.repeat is None else f", {repeat_words(story.repeat)}"
    return f"{story.study}{badge}, trial {story.number}{where}{again or base}: {story.status}{took}"


def _ending(story: Story) -> Iterator[str]:
    cause = ""
    if isinstance(story.outcome, (Infeasible, Faulted)):
        verdict = story.outcome.verdict
        level = story.outcome.level if isinstance(story.outcome, Infeasible) else None
        name = "" if verdict is None else f"{verdict.cause.value}, "
        cause = f" ({name}while {state_words(story.outcome.state, level)})"
    is_word_for_word = isinstance(story.outcome, Faulted) and story.outcome.verdict is None  # it may begin with a name
    yield f"{story.what if is_word_for_word else sentence(story.what)}{cause}"
    if story.outcome is not None and not cause and story.status != "interrupted":
        yield sentence(outcome_words(story.outcome))
    if story.starts_combined:
        numbers = ", ".join(str(number) for number in story.starts_combined)
        yield f"That is over {counted(len(story.starts_combined), 'start')} of the same: trials {numbers}"
    if story.own is not None:
        yield f"Its own start alone: {outcome_words(story.own)}"
    if isinstance(story.outcome, Faulted) and story.outcome.verdict is not None:
        yield " ".join(story.outcome.error.split())


def _asked(story: Story) -> Iterator[str]:
    rows = [("setting", "asked", "trial 0", "ran")]
    rows += [
        (
            setting.name,
            _value(setting.asked),
            _value(setting.today),
            _value(setting.ran) if story.has_run else "?",
        )
        for setting in story.settings
    ]
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    for row in rows:
        first, *rest = (
            f"{cell:<{width}}" if index == 0 else f"{cell:>{width}}"
            for index, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        yield "  ".join([first, *rest])
    unknown = _WHY_UNKNOWN.get(story.status, "what ran was not read back: no server came so far")
    if not story.has_run and unknown:
        yield unknown
    said = [
        f"engine {story.version}" if story.version else "",
        _capacity("max_total_num_tokens", None if story.capacity is None else story.capacity.max_total_num_tokens),
        _capacity("max_running_requests", None if story.capacity is None else story.capacity.max_running_requests),
    ]
    if any(said):
        yield f"the server said: {', '.join(text for text in said if text)}"


def _value(value: Value | None) -> str:
    return NOT_MEASURED if value is None else str(value)


def _capacity(name: str, value: int | None) -> str:
    return "" if value is None else f"{name} {value:,}"


def _start_title(start: Start, story: Story) -> str:
    if start.number is None:
        return "before any start"
    starts = sum(other.number is not None for other in story.starts)
    of_all = f" of {starts}" if starts > 1 else ""
    is_last = start is story.starts[-1]
    died = "" if is_last else f": its server died while {state_words(start.came_to, start.level)}"
    return f"start {start.number}{of_all}{died}"


def _step(step: Step, zone: tzinfo | None) -> str:
    took = "" if step.took_s is None else f"{step.took_s:.1f} s"
    when = f"  {time_of_day(step.at_s, zone)}  {took:>8}  "
    if step.state is None:
        return f"{when}remark: {step.text}"
    words = state_words(step.state, step.level if step.state in _TIMED else None)
    leg = "" if step.leg is None else _leg(step.leg, is_held=step.state is TrialState.SOAKING)
    said = "; ".join(text for text in (step.text, leg) if text)
    return f"{when}{words:<{_STATE}}{said}".rstrip()


def _leg(leg: LegResult, *, is_held: bool) -> str:
    parts = [
        f"{_estimate(leg.single_request_throughput)} tok/s each",
        f"{_estimate(leg.aggregate_throughput)} together",
    ]
    if leg.speculation is not None and leg.speculation.acceptance_length is not None:
        parts.append(f"{leg.speculation.acceptance_length:.1f} tokens a step")
    if leg.limit in LIMIT_WORDS:
        parts.append(f"limited by {LIMIT_WORDS[leg.limit]}")
    if leg.failed:
        parts.append(f"{leg.failed} of {counted(leg.offered, 'request')} FAILED")
    if not leg.converged:
        parts.append("still drifting" if is_held else "interval still wide")
    return ", ".join(parts)


def _estimate(estimate: Estimate | None) -> str:
    if estimate is None:
        return NOT_MEASURED
    if estimate.low is None or estimate.high is None:
        return rate(estimate.value)
    return f"{rate(estimate.value)} ±{rate((estimate.high - estimate.low) / 2)}"


def _next(story: Story, names: dict[str, str]) -> Iterator[str]:
    for row in story.before:
        yield f"the same settings before: trial {row.number}, {_became(row)}"
    for row in story.after:
        again = "" if row.repeat is None else f" ({repeat_words(row.repeat)})"
        yield f"the same settings again: trial {row.number}{again}, {_became(row)}"
    if story.following is not None and story.following not in story.after:
        row = story.following
        yield f"then on {row.host}: trial {row.number}, {settings(row.assignment, names)}: {_became(row)}"
    if story.following is None and not story.after:
        yield _nothing_yet(story)


def _became(row: TrialRow) -> str:
    return outcome_words(row.outcome) if row.outcome is not None else status_of(row, is_driven=True)


def _nothing_yet(story: Story) -> str:
    return {
        "running": "when it has ended, the search decides",
        "waiting": "it begins when a host is free",
        "cut off": "python -m tuner run --study " + story.study,
    }.get(story.status, "no trial has followed on its host")


def story_json(story: Story) -> str:
    """Write a story for a program; None is what is not known."""
    content: dict[str, Json] = plain_fields(story)
    content |= {name: [_other(row) for row in rows] for name, rows in _others(story)}
    content["following"] = None if story.following is None else _other(story.following)
    if story.outcome is not None:
        content["outcome"] = {"kind": type(story.outcome).__name__.lower(), **plain_fields(story.outcome)}
    return json.dumps(content, indent=2, allow_nan=False)


def _others(story: Story) -> Sequence[tuple[str, tuple[TrialRow, ...]]]:
    return (("before", story.before), ("after", story.after))


def _other(row: TrialRow) -> Json:
    return {
        "trial": row.number,
        "host": row.host,
        "assignment": plain(row.assignment),
        "became": _became(row),
    }
