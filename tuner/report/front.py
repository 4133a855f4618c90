"""Which trials are on the front, and what they gain over the running configuration."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tuner.model.metric import OBJECTIVES, Direction, Estimate, Objective
from tuner.model.outcome import Infeasible, Measured, measured_by
from tuner.model.study import StudySpec, TrialRow
from tuner.stats.pareto import front


@dataclass(frozen=True, slots=True, kw_only=True)
class Heading:
    """What every table and plot of a study must say besides its rows.

    Attributes:
        parameters: names, in the order of the space file.
        simulated: the results come from the simulated GPU host.
    """

    study: str
    engine: str
    parameters: tuple[str, ...]
    simulated: bool
    objectives: tuple[Objective, ...] = OBJECTIVES

    @classmethod
    def of(cls, spec: StudySpec) -> Heading:
        """Read it out of a study."""
        return cls(
            study=spec.name,
            engine=spec.engine,
            parameters=tuple(parameter.name for parameter in spec.space.parameters),
            simulated=spec.simulated,
            objectives=spec.objectives,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Gain:
    """The best of one objective against the baseline.

    Attributes:
        percent: above 0 is better than the baseline, whatever the objective's direction;
            None when the baseline measured 0.
        percent_low: the least that the two 95 % intervals allow, in percent; None where one is missing.
        percent_high: the most, likewise.
        trial: where the best was measured.
    """

    objective: Objective
    baseline: float
    best: float
    percent: float | None
    trial: int
    percent_low: float | None = None
    percent_high: float | None = None


def measured_rows(rows: Iterable[TrialRow]) -> tuple[TrialRow, ...]:
    """Return the trials of the search that have values."""
    return tuple(
        row for row in rows if row.repeat is None and isinstance(row.outcome, Measured) and row.values is not None
    )


def infeasible_rows(rows: Iterable[TrialRow]) -> tuple[TrialRow, ...]:
    """Return the trials of the search whose configuration was at fault."""
    return tuple(row for row in rows if row.repeat is None and isinstance(row.outcome, Infeasible))


def front_rows(rows: Iterable[TrialRow], objectives: Sequence[Objective] = OBJECTIVES) -> tuple[TrialRow, ...]:
    """Return the measured trials that no other dominates, by the first objective, best last."""
    candidates = measured_rows(rows)
    points = [_upwards(row, objectives) for row in candidates]
    chosen = sorted(front(points), key=lambda index: (points[index], -candidates[index].number))
    return tuple(candidates[index] for index in chosen)


def _upwards(row: TrialRow, objectives: Sequence[Objective]) -> tuple[float, ...]:
    assert row.values is not None
    return tuple(
        value if objective.direction is Direction.MAXIMIZE else -value
        for value, objective in zip(row.values, objectives, strict=True)
    )


def baseline_row(rows: Iterable[TrialRow]) -> TrialRow | None:
    """Return the measured trial of the command line as it stands; None when there is none yet.

    A baseline that was repeated after a fault has another number than 0: the mark counts. One that is outside the
    study's limits is what the others are compared with all the same.
    """
    return next((row for row in rows if row.baseline and row.repeat is None and measured_by(row.outcome)), None)


def best_gain(rows: Iterable[TrialRow], objectives: Sequence[Objective] = OBJECTIVES) -> tuple[Gain, ...]:
    """Return the best of each objective against the baseline; empty when the baseline has no values.

    The two bests may be two trials: nothing here says that one configuration reaches both.
    """
    every = tuple(rows)
    candidates, baseline = measured_rows(every), baseline_row(every)
    today = None if baseline is None else estimates(baseline, objectives)
    if baseline is None or today is None or not candidates:
        return ()
    gains: list[Gain] = []
    for index, objective in enumerate(objectives):
        sign = 1 if objective.direction is Direction.MAXIMIZE else -1
        best = max(candidates, key=lambda row: _upwards(row, objectives)[index])
        assert best.values is not None
        before, after = today[index].value, best.values[index]
        low, high = _span(baseline, best, objective)
        gains.append(
            Gain(
                objective=objective,
                baseline=before,
                best=after,
                percent=None if before == 0 else sign * (after - before) / abs(before) * 100,
                trial=best.number,
                percent_low=low,
                percent_high=high,
            )
        )
    return tuple(gains)


def _span(baseline: TrialRow, best: TrialRow, objective: Objective) -> tuple[float | None, float | None]:
    """Return the ends of a gain, percent: each end of one interval against the far end of the other."""
    (before,) = estimates(baseline, (objective,)) or (None,)
    (after,) = estimates(best, (objective,)) or (None,)
    if before is None or before.low is None or before.high is None:
        return None, None
    if after is None or after.low is None or after.high is None:
        return None, None
    if before.low <= 0:  # an interval that says nothing: any gain would fit
        return None, None
    lowest, highest = (after.low / before.high - 1) * 100, (after.high / before.low - 1) * 100
    return (lowest, highest) if objective.direction is Direction.MAXIMIZE else (-highest, -lowest)


def estimates(row: TrialRow, objectives: Sequence[Objective] = OBJECTIVES) -> tuple[Estimate, ...] | None:
    """Return a trial's values with their intervals, also outside the study's limits; None unless it is measured."""
    measured = measured_by(row.outcome)
    return None if measured is None else tuple(measured.estimate(objective.name) for objective in objectives)


def causes(rows: Iterable[TrialRow]) -> tuple[tuple[str, int], ...]:
    """Count why configurations were infeasible, the most frequent first."""
    counts: dict[str, int] = {}
    for row in infeasible_rows(rows):
        assert isinstance(row.outcome, Infeasible)
        cause = row.outcome.verdict.cause.value
        counts[cause] = counts.get(cause, 0) + 1
    return tuple(sorted(counts.items(), key=lambda item: (-item[1], item[0])))
