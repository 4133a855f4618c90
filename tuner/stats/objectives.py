"""The values of a study's objectives and constraints, from the legs of a trial; and what they make of it.

A metric is of one level of the ladder: of the one that its text names, else of the quantity's own
(:class:`tuner.model.metric.Level`). None means not measured, and never becomes a value.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from tuner.model.account import Spread
from tuner.model.metric import Bound, Constraint, Direction, Estimate, Level, Metric
from tuner.model.outcome import Cause, Faulted, Infeasible, Measured, TrialState, Verdict, limit_violation
from tuner.model.record import LegResult, RequestRecord, RequestStatus
from tuner.stats.latency import e2e_s, tpot_s, ttft_s

_NORMAL: Final = 1.959964


@dataclass(frozen=True, slots=True, kw_only=True)
class GoodShare:
    """How many requests of a leg's window kept their bounds."""

    kept: int
    offered: int

    @property
    def estimate(self) -> Estimate:
        """The share, with Wilson's 95 % interval (E. B. Wilson, JASA 22 (1927) 209)."""
        n, share, z = self.offered, self.kept / self.offered, _NORMAL
        scale = 1 + z * z / n
        centre = (share + z * z / (2 * n)) / scale
        half = z * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n)) / scale
        return Estimate(
            value=share, low=max(0.0, min(share, centre - half)), high=min(1.0, max(share, centre + half)), samples=n
        )


GoodShares = Mapping[tuple[tuple[Bound, ...], int], GoodShare]
"""By the bounds asked for and the leg's concurrency."""

_LATENCY: Final[Mapping[str, Callable[[RequestRecord], float | None]]] = {
    "ttft_s": ttft_s,
    "tpot_s": tpot_s,
    "e2e_s": e2e_s,
}


def good_share(records: Iterable[RequestRecord], bounds: Sequence[Bound]) -> GoodShare | None:
    """Count the requests of the window that kept all bounds; None: the window had none.

    A request without a latency that is bounded (no second token, say) has not kept its bound, unless it is complete
    and had no decode phase to be slow in.
    """
    inside = [record for record in records if record.in_window and record.status is RequestStatus.OK]
    if not inside:
        return None
    return GoodShare(kept=sum(_keeps(record, bounds) for record in inside), offered=len(inside))


def _keeps(record: RequestRecord, bounds: Sequence[Bound]) -> bool:
    for bound in bounds:
        value = _LATENCY[bound.quantity](record)
        if value is None and bound.quantity == "tpot_s":
            continue  # it came in one chunk
        if value is None or value > bound.most:
            return False
    return True


def bounds_of(metrics: Iterable[Metric]) -> tuple[tuple[Bound, ...], ...]:
    """Return the sets of bounds that requests are to be counted within."""
    return tuple(dict.fromkeys(metric.bounds for metric in metrics if metric.bounds))


# ---------------------------------------------------------------------------- one metric


def estimate_of(metric: Metric, legs: Sequence[LegResult], shares: GoodShares) -> Estimate | None:
    """Return a metric's value; None: it was not measured.

    Args:
        metric: to be valued.
        legs: of the ladder, ascending.
        shares: of the legs' requests within :func:`bounds_of` the metrics.
    """
    found = [(leg, _of_leg(metric, leg, shares)) for leg in _chosen(metric, legs)]
    values = [value for _, value in found if value is not None]
    if not values:
        return None
    best = max if metric.kind.direction is Direction.MAXIMIZE else min
    return best(values, key=lambda value: value.value)


def level_of(metric: Metric, ladder: Sequence[int], peak: int) -> int | None:
    """Return the concurrency that a metric is of; None: the best one, whichever that is."""
    if metric.at is not None:
        return metric.at
    return {Level.LONE: ladder[0], Level.PEAK: peak, Level.HIGHEST: ladder[-1], Level.BEST: None}[metric.kind.level]


def _chosen(metric: Metric, legs: Sequence[LegResult]) -> Sequence[LegResult]:
    if not legs:
        return ()
    measured = [leg for leg in legs if leg.aggregate_throughput is not None]
    peak = max(measured, key=lambda leg: leg.aggregate_throughput.value if leg.aggregate_throughput else 0.0, default=0)
    at = level_of(metric, [leg.concurrency for leg in legs], peak.concurrency if isinstance(peak, LegResult) else 0)
    return legs if at is None else [leg for leg in legs if leg.concurrency == at]


def _of_leg(metric: Metric, leg: LegResult, shares: GoodShares) -> Estimate | None:
    if metric.statistic is not None:
        spread: Spread | None = getattr(leg, metric.quantity)
        if spread is None:
            return None
        value: float = getattr(spread, metric.statistic)
        return Estimate(value=value, low=None, high=None, samples=spread.samples)
    match metric.quantity:
        case "joules_per_token":
            joules = None if leg.gpu is None else leg.gpu.joules_per_token
            return None if joules is None else Estimate(value=joules, low=None, high=None, samples=1)
        case "good_share" | "goodput":
            share = shares.get((metric.bounds, leg.concurrency))
            if share is None:
                return None
            return share.estimate if metric.quantity == "good_share" else _goodput(share, leg)
        case _:
            plain: Estimate | None = getattr(leg, metric.quantity)
            return plain


def _goodput(share: GoodShare, leg: LegResult) -> Estimate | None:
    """Return share x requests a second; the relative half widths add as independent ones do."""
    rate = leg.requests_per_s
    if rate is None:
        return None
    part = share.estimate
    value = part.value * rate.value
    if rate.low is None or rate.high is None or part.low is None or part.high is None:
        return Estimate(value=value, low=None, high=None, samples=share.offered)
    below = math.hypot((part.value - part.low) * rate.value, (rate.value - rate.low) * part.value)
    above = math.hypot((part.high - part.value) * rate.value, (rate.high - rate.value) * part.value)
    return Estimate(value=value, low=max(0.0, value - below), high=value + above, samples=share.offered)


# ---------------------------------------------------------------------------- what they make of a trial


def graded(
    measured: Measured,
    *,
    metrics: Sequence[Metric],
    constraints: Sequence[Constraint],
    legs: Sequence[LegResult],
    shares: GoodShares,
) -> Measured | Infeasible | Faulted:
    """Return a measured trial with the values of all metrics; Infeasible where it breaks a constraint.

    A metric that was not measured makes it Faulted: whoever looked for it cannot tell whether the configuration is
    good, and the sampler must not be told a number.

    Args:
        measured: as its host judged it.
        metrics: of the objectives and the constraints.
        constraints: to be kept.
        legs: of the ladder, ascending.
        shares: see :func:`estimate_of`.
    """
    found: dict[str, Estimate] = {}
    for metric in metrics:
        value = estimate_of(metric, legs, shares)
        if value is None or not math.isfinite(value.value):
            return Faulted(error=f"{metric.text} was not measured: {_why(metric)}", state=TrialState.JUDGING)
        found[metric.text] = value
    complete = measured.with_estimates(found)
    broken = [(each, complete.estimate(each.metric.text).value) for each in constraints]
    broken = [(each, value) for each, value in broken if each.exceedance(value) > 0]
    if not broken:
        return complete
    verdict = Verdict(
        cause=Cause.OUTSIDE_LIMITS,
        config_fault=True,
        evidence=tuple(each.words(value) for each, value in broken),
        advice="the server is healthy, but outside the study's [[constraints]]",
    )
    return Infeasible(
        verdict=verdict,
        state=TrialState.JUDGING,
        level=None,
        violation=limit_violation(math.fsum(each.exceedance(value) for each, value in broken)),
        measured=complete,
    )


def _why(metric: Metric) -> str:
    if metric.quantity == "joules_per_token":
        return "the host did not say what power its GPUs drew; take it out of the study, or measure where nvidia-smi is"
    if metric.at is not None:
        return f"no request was complete in the window at {metric.at}; lengthen level_max_s, or name another level"
    return "no request was complete in the window of its level; lengthen level_max_s in [workload]"
