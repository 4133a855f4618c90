"""How sure a front is: what was confirmed, what was luck, and whether the hosts stayed what they were."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from tuner.model.metric import Direction, Objective
from tuner.model.outcome import Infeasible, Measured
from tuner.model.study import TrialRow
from tuner.report.front import Heading, estimates, front_rows
from tuner.report.metric_words import metric_words, value_words, with_unit
from tuner.stats.drift import Drift
from tuner.stats.repeats import Standing, drifts, host_differences, own_outcome, standings

SURE = 0.5
"""A member of the front with a smaller probability of belonging to it is named."""


def chances(rows: Sequence[TrialRow], heading: Heading) -> dict[int, float]:
    """Return each measured trial's probability of belonging to the front."""
    return {each.row.number: each.chance for each in standings(rows, heading.objectives)}


def confidence_lines(rows: Sequence[TrialRow], heading: Heading) -> tuple[str, ...]:
    """Say in plain words how sure the front is; nothing where nothing was measured again."""
    if all(row.repeat is None or row.outcome is None for row in rows):
        return ()
    return (
        *_confirmed(standings(rows, heading.objectives)),
        *_fallen(rows, heading),
        *_died(rows),
        *_levels(rows, heading),
        *_hosts(rows, heading),
    )


def _confirmed(found: Sequence[Standing]) -> Iterator[str]:
    members = [each for each in found if each.is_member]
    sure = sum(each.repeats > 0 for each in members)
    starts = sum(1 + each.repeats for each in members)
    yield f"front: {sure} of {_count(len(members), 'member')} measured again on fresh starts, {starts} starts in all"
    doubtful = [each for each in members if each.chance < SURE]
    if doubtful:
        named = ", ".join(f"trial {each.row.number} ({100 * each.chance:.0f} %)" for each in doubtful)
        yield f"may as well not belong to the front: {named}"
    near = [each for each in found if not each.is_member and each.chance >= SURE]
    if near:
        named = ", ".join(f"trial {each.row.number} ({100 * each.chance:.0f} %)" for each in near)
        yield f"may as well belong to the front: {named}"


def _fallen(rows: Sequence[TrialRow], heading: Heading) -> Iterator[str]:
    """Name what would be on the front had nothing been measured again."""
    first = [row for row in (_own(row, heading.objectives) for row in rows) if row.repeat is None]
    now = {row.number for row in front_rows(rows, heading.objectives)}
    by_number = {row.number: row for row in rows}
    for row in front_rows(first, heading.objectives):
        measured = by_number[row.number]
        if row.number in now or not measured.starts or row.values is None or measured.values is None:
            continue
        moved = ", ".join(
            f"{_name(objective)} {value_words(before, objective.unit)}, together {with_unit(after, objective.unit)}"
            for objective, before, after in zip(heading.objectives, row.values, measured.values, strict=True)
        )
        yield f"trial {row.number} led by luck and is off the front: first {moved}"


def _own(row: TrialRow, objectives: Sequence[Objective]) -> TrialRow:
    outcome = own_outcome(row)
    bare = replace(row, outcome=outcome, own=None, starts=())
    values = estimates(bare, objectives)
    return replace(bare, values=None if values is None else tuple(value.value for value in values))


def _died(rows: Sequence[TrialRow]) -> Iterator[str]:
    for row in rows:
        if row.repeat is not None or not isinstance(row.outcome, Infeasible) or not isinstance(row.own, Measured):
            continue
        dead = next(
            each.number
            for each in rows
            if each.repeat is not None and each.repeat.of == row.number and isinstance(each.outcome, Infeasible)
        )
        cause = row.outcome.verdict.cause.value.replace("_", " ")
        end = f"died ({cause})"
        if row.outcome.measured is not None:
            end = f"was outside the study's limits ({'; '.join(row.outcome.verdict.evidence)})"
        yield (
            f"trial {row.number} is not safe and off the front: it was measured, "
            f"but a fresh start of it, trial {dead}, {end}"
        )


def _levels(rows: Sequence[TrialRow], heading: Heading) -> Iterator[str]:
    for host, found in drifts(rows, heading.objectives).items():
        parts = [
            f"{_name(objective)} {_change(drift)}"
            for objective, drift in zip(heading.objectives, found, strict=True)
            if drift is not None
        ]
        levels = max(drift.change.samples for drift in found if drift is not None)
        yield f"{host}, the baseline from first to last of {levels} times: {', '.join(parts)}"


def _change(drift: Drift) -> str:
    change = drift.change
    if change.low is None or change.high is None:
        return f"{100 * change.value:+.1f} %"
    return f"{100 * change.value:+.1f} % ({100 * change.low:+.1f} to {100 * change.high:+.1f} %)"


def _hosts(rows: Sequence[TrialRow], heading: Heading) -> Iterator[str]:
    found = host_differences(rows, heading.objectives)
    if not found:
        return
    for index, objective in enumerate(heading.objectives):
        parts = ", ".join(f"{host} {100 * each[index]:+.1f} %" for host, each in found.items())
        better = "" if objective.direction is Direction.MAXIMIZE else " (less is better)"
        yield f"the baseline's {_name(objective)} by host, against their mean: {parts}{better}"


def _name(objective: Objective) -> str:
    return metric_words(objective.name)


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
