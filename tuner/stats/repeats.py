"""What the trials of a study say once those that measure another again are taken together with it.

The database keeps what every start measured; nothing here is stored. So whatever is killed when, a start counts
once. A configuration's starts are its own trial and the repeats of it that were measured. A repeat after a drift
replaces what was measured before. A configuration that died in a repeat is not safe: it counts as infeasible.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from tuner.model.metric import Direction, Estimate, Objective
from tuner.model.outcome import Infeasible, Measured, Outcome
from tuner.model.repeat import Purpose
from tuner.model.study import TrialRow
from tuner.stats.drift import Drift, Level, drift_of
from tuner.stats.membership import membership
from tuner.stats.pareto import front
from tuner.stats.starts import StartSpread, combined, discordant, middle, standard_error, start_spread, uncertainty

_LEAST_ERROR = 1e-6
"""Of a level, relative: a value without an interval and without repeats to judge it by still weighs something."""


def own_outcome(row: TrialRow) -> Outcome | None:
    """Return how a trial's own start ended."""
    return row.outcome if row.own is None else row.own


def values_of(outcome: Measured, objectives: Sequence[Objective]) -> tuple[Estimate, ...]:
    """Return one estimate per objective."""
    return tuple(outcome.estimate(objective.name) for objective in objectives)


def settled(rows: Sequence[TrialRow], objectives: Sequence[Objective]) -> tuple[TrialRow, ...]:
    """Return the trials with what their repeats make of them.

    Args:
        rows: every trial of a study by number, each as its own start ended.
        objectives: of the study.
    """
    repeats = _repeats_of(rows)
    if not repeats:
        return tuple(rows)
    spread = _pools(rows, repeats, objectives)
    return tuple(
        _settle(row, repeats[row.number], spread, objectives) if row.number in repeats else row for row in rows
    )


def _repeats_of(rows: Iterable[TrialRow]) -> dict[int, list[TrialRow]]:
    """Return the repeats that came to a result, by the trial they measure again."""
    found: dict[int, list[TrialRow]] = {}
    for row in rows:
        if row.repeat is not None and isinstance(row.outcome, (Measured, Infeasible)):
            found.setdefault(row.repeat.of, []).append(row)
    return found


def _starts(row: TrialRow, repeats: Sequence[TrialRow]) -> list[TrialRow]:
    """Return the starts that speak for a configuration now, oldest first."""
    every = [row, *(each for each in repeats if isinstance(each.outcome, Measured))]
    replaced = [index for index, each in enumerate(every) if each.repeat and each.repeat.purpose is Purpose.DRIFT]
    return every[replaced[-1] :] if replaced else every


def _measured(row: TrialRow) -> Measured:
    outcome = own_outcome(row)
    assert isinstance(outcome, Measured)
    return outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pool:
    """What the starts of one objective differ; ``discordant`` are the trials that differ too much for it."""

    spread: StartSpread | None
    discordant: frozenset[int]


def _pools(
    rows: Sequence[TrialRow], repeats: Mapping[int, Sequence[TrialRow]], objectives: Sequence[Objective]
) -> tuple[_Pool, ...]:
    """Return one per objective."""
    groups = {
        row.number: [values_of(_measured(start), objectives) for start in _starts(row, repeats[row.number])]
        for row in rows
        if row.number in repeats and isinstance(own_outcome(row), Measured)
    }
    numbers, pools = tuple(groups), []
    for index in range(len(objectives)):
        values = [[start[index].value for start in group] for group in groups.values()]
        odd = discordant(values)
        spread = start_spread([group for place, group in enumerate(values) if place not in odd])
        pools.append(_Pool(spread=spread, discordant=frozenset(numbers[place] for place in odd)))
    return tuple(pools)


def _settle(
    row: TrialRow, repeats: Sequence[TrialRow], pools: Sequence[_Pool], objectives: Sequence[Objective]
) -> TrialRow:
    if not isinstance(row.outcome, Measured):
        return row  # a person said otherwise
    dead = next((each for each in repeats if isinstance(each.outcome, Infeasible)), None)
    if dead is not None:
        assert isinstance(dead.outcome, Infeasible)
        return replace(row, outcome=_died_again(row, dead, dead.outcome), own=row.outcome, values=None)
    starts = _starts(row, repeats)
    outcomes = [_measured(start) for start in starts]
    by_objective = list(zip(*(values_of(outcome, objectives) for outcome in outcomes), strict=True))
    estimates = [
        middle(values, maximize=objective.direction is Direction.MAXIMIZE)
        if row.number in pool.discordant
        else combined(values, pool.spread)
        for values, pool, objective in zip(by_objective, pools, objectives, strict=True)
    ]
    named = {objective.name: estimate for objective, estimate in zip(objectives, estimates, strict=True)}
    peaks = Counter(outcome.peak_concurrency for outcome in outcomes)
    outcome = replace(row.outcome.with_estimates(named), peak_concurrency=peaks.most_common(1)[0][0])
    return replace(
        row,
        outcome=outcome,
        own=row.outcome,
        values=tuple(estimate.value for estimate in estimates),
        starts=tuple(start.number for start in starts),
    )


def _died_again(row: TrialRow, dead: TrialRow, outcome: Infeasible) -> Infeasible:
    end = "died" if outcome.measured is None else "broke a limit of the study"
    text = f"trial {row.number} was measured, but a fresh start of the same configuration {end}: trial {dead.number}"
    verdict = replace(outcome.verdict, advice=f"{text}. {outcome.verdict.advice}".strip())
    return replace(outcome, verdict=verdict)


# ---------------------------------------------------------------------------- the front, and how sure it is


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """Where a measured configuration stands.

    Attributes:
        row: its trial, settled.
        is_member: its value is on the front.
        chance: probability that it belongs to the front.
        repeats: fresh starts in its value besides the first.
        is_discordant: its starts differ far more than those of other configurations.
    """

    row: TrialRow
    is_member: bool
    chance: float
    repeats: int
    is_discordant: bool = False


Point: TypeAlias = tuple[float, ...]


def standings(rows: Sequence[TrialRow], objectives: Sequence[Objective]) -> tuple[Standing, ...]:
    """Return where every measured configuration stands, by number.

    Args:
        rows: settled.
        objectives: of the study.
    """
    every = [row for row in rows if row.repeat is None and isinstance(row.outcome, Measured) and row.values is not None]
    pools = _pools(rows, _repeats_of(rows), objectives)
    odd = frozenset[int]().union(*(pool.discordant for pool in pools))
    by_number = {row.number: row for row in rows}
    points = [_upwards(row.values or (), objectives) for row in every]
    members = set(front(points))
    chances = membership(points, _errors(every, by_number, pools, objectives))
    return tuple(
        Standing(
            row=row,
            is_member=index in members,
            chance=chances[index],
            repeats=max(0, len(row.starts) - 1),
            is_discordant=row.number in odd,
        )
        for index, row in enumerate(every)
    )


def _upwards(values: Sequence[float], objectives: Sequence[Objective]) -> Point:
    return tuple(
        value if objective.direction is Direction.MAXIMIZE else -value
        for value, objective in zip(values, objectives, strict=True)
    )


def _errors(
    every: Sequence[TrialRow],
    by_number: Mapping[int, TrialRow],
    pools: Sequence[_Pool],
    objectives: Sequence[Objective],
) -> list[list[float]]:
    """Return standard errors; where nothing is known of one, the largest of the others, relative, is taken."""
    table: list[list[float]] = []
    for row in every:
        assert isinstance(row.outcome, Measured)
        starts = [values_of(_measured(by_number[number]), objectives) for number in row.starts or (row.number,)]
        table.append(
            [
                (
                    _half(value) / 2
                    if row.number in pools[index].discordant
                    else uncertainty(value, [start[index] for start in starts], pools[index].spread)
                )
                for index, value in enumerate(values_of(row.outcome, objectives))
            ]
        )
    for index in range(len(objectives)):
        known = [
            errors[index] / abs(row.values[index])
            for row, errors in zip(every, table, strict=True)
            if row.values and row.values[index]
        ]
        worst = max(known, default=0.0)
        for row, errors in zip(every, table, strict=True):
            if errors[index] == 0 and row.values:
                errors[index] = worst * abs(row.values[index])
    return table


def _half(value: Estimate) -> float:
    return 0.0 if value.low is None or value.high is None else (value.high - value.low) / 2


# ---------------------------------------------------------------------------- the level of a host


def drifts(rows: Sequence[TrialRow], objectives: Sequence[Objective]) -> dict[str, tuple[Drift | None, ...]]:
    """Return each host's drift, one per objective, from all starts of the baseline there.

    Args:
        rows: settled or not.
        objectives: of the study.

    Returns:
        Nothing for a host on which the baseline was measured less than twice.
    """
    spread = _spread_without_baseline(rows, objectives)
    by_host: dict[str, list[TrialRow]] = {}
    for row in rows:
        if (
            row.baseline
            and isinstance(own_outcome(row), Measured)
            and row.host is not None
            and row.finished_s is not None
        ):
            by_host.setdefault(row.host, []).append(row)
    found = {}
    for host, starts in sorted(by_host.items()):
        by_objective = zip(*(values_of(_measured(start), objectives) for start in starts), strict=True)
        found[host] = tuple(
            drift_of(
                [
                    Level(at_s=start.finished_s or 0.0, value=value.value, error=_error(value, between))
                    for start, value in zip(starts, values, strict=True)
                ]
            )
            for values, between in zip(by_objective, spread, strict=True)
        )
    return {host: each for host, each in found.items() if any(drift is not None for drift in each)}


def _error(value: Estimate, spread: StartSpread | None) -> float:
    least = _LEAST_ERROR * abs(value.value) or _LEAST_ERROR
    return max(standard_error(value) or 0.0, 0.0 if spread is None else spread.relative * abs(value.value), least)


def _spread_without_baseline(
    rows: Sequence[TrialRow], objectives: Sequence[Objective]
) -> tuple[StartSpread | None, ...]:
    """Return the spread between starts of everything but the baseline, which a drift would make wide."""
    base = {row.number for row in rows if row.baseline}
    repeats = {number: each for number, each in _repeats_of(rows).items() if number not in base}
    return tuple(pool.spread for pool in _pools(rows, repeats, objectives))


def host_differences(rows: Sequence[TrialRow], objectives: Sequence[Objective]) -> dict[str, tuple[float, ...]]:
    """Return how far each host's baseline is from the mean over hosts, relative, one per objective.

    Nothing where the baseline was measured on fewer than two hosts.
    """
    values: dict[str, list[tuple[Estimate, ...]]] = {}
    for row in rows:
        outcome = own_outcome(row)
        if row.baseline and row.host is not None and isinstance(outcome, Measured):
            values.setdefault(row.host, []).append(values_of(outcome, objectives))
    if len(values) < 2:
        return {}
    means = {
        host: [statistics.fmean(each[index].value for each in found) for index in range(len(objectives))]
        for host, found in sorted(values.items())
    }
    middle = [statistics.fmean(each[index] for each in means.values()) for index in range(len(objectives))]
    return {
        host: tuple(value / centre - 1 if centre else 0.0 for value, centre in zip(each, middle, strict=True))
        for host, each in means.items()
    }
