"""What makes a gain doubtful: a trial behind it that was disturbed, or measured too briefly."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from tuner.model.metric import Objective
from tuner.model.metric_text import metric_of
from tuner.model.outcome import measured_by
from tuner.model.record import LegTrust
from tuner.model.study import TrialRow
from tuner.report.front import Heading, baseline_row, best_gain, estimates
from tuner.report.metric_words import metric_words
from tuner.stats.objectives import level_of

LATE_S = 0.05
"""A load client whose loop runs later than this (99th percentile) is at its limit; see tuner.load.client."""


def doubts(rows: Iterable[TrialRow], heading: Heading) -> tuple[str, ...]:
    """Say in a line each which comparison with the baseline is weak, and why."""
    every = tuple(rows)
    today = baseline_row(every)
    if today is None:
        return ()
    lines = []
    for gain in best_gain(every, heading.objectives):
        trials = {"today's": today} | {
            f"trial {row.number}'s": row for row in every if row.number == gain.trial and row.number != today.number
        }
        reasons = [reason for whose, row in trials.items() for reason in _reasons(whose, row, gain.objective)]
        if reasons and len(trials) > 1:  # else today's is the best, and nothing is compared
            lines.append(f"weak comparison of {metric_words(gain.objective.name)}: {', '.join(reasons)}")
    return tuple(lines)


def _reasons(whose: str, row: TrialRow, objective: Objective) -> Iterator[str]:
    leg = _leg(row, objective)
    if leg is None or len(row.starts) > 1:  # several starts: their spread says how sure the value is
        return
    if not leg.converged:
        (estimate,) = estimates(row, (objective,)) or (None,)
        width = None if estimate is None else estimate.half_width
        yield f"{whose} interval was not reached" + ("" if width is None else f" (±{100 * width:.1f} %)")
    lag_s = None if leg.client is None else leg.client.lag_p99_s
    if lag_s is not None and lag_s > LATE_S:
        yield f"{whose} load client lagged {lag_s:.2f} s"


def _leg(row: TrialRow, objective: Objective) -> LegTrust | None:
    """Return the leg from which a trial's value comes; None: the database does not have it."""
    measured = measured_by(row.outcome)
    if measured is None or not row.trust:
        return None
    level = level_of(metric_of(objective.name), [leg.concurrency for leg in row.trust], measured.peak_concurrency)
    return next((leg for leg in row.trust if leg.concurrency == level), None)
