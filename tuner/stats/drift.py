"""Whether a host gives the same as before: the level of its baseline over time.

Notation, for one objective on one host::

    n        times the baseline was measured there, ascending
    x_k      when, as a share of the time from the first to the last: 0 to 1
    y_k      value / mean of the values; e_k its standard error on the same scale
    w_k      1 / e_k^2
    b        slope of the line through the points by weighted least squares: the relative change from first to last
    X        sum of w_k (y_k - line)^2, the chi-squared of the line

The standard error of b from the e_k alone is sqrt(1 / sum of w_k (x_k - x)^2). Where the points scatter more
than their own intervals allow, it is multiplied by Birge's ratio sqrt(X / (n - 2)) (R. T. Birge, The calculation
of errors by the method of least squares, Phys. Rev. 40 (1932) 207; the Particle Data Group's scale factor).
Between two points nothing can scatter: there the spread between starts elsewhere must be in the e_k.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from tuner.model.metric import Estimate

_NORMAL = 1.959964


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """The baseline, measured once.

    Attributes:
        at_s: Unix time.
        value: in the objective's unit.
        error: its standard error; above 0.
    """

    at_s: float
    value: float
    error: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Drift:
    """A host's level over time.

    Attributes:
        change: b with its 95 % interval, relative: 0.03 is 3 % more at the end than at the begin.
        mean: of the values, in the objective's unit.
        first_s: Unix time of the first level.
        last_s: of the last.
        start: of the line, at ``first_s``, relative to the mean.
    """

    change: Estimate
    mean: float
    first_s: float
    last_s: float
    start: float

    def exceeds(self, limit: float) -> bool:
        """Whether the change is seen at all, and larger than ``limit``."""
        low, high = self.change.low, self.change.high
        is_seen = low is not None and high is not None and not low <= 0 <= high
        return is_seen and abs(self.change.value) > limit

    def level_at(self, at_s: float) -> float:
        """Return the line at a time, relative to the mean; before and after it the ends hold."""
        share = (at_s - self.first_s) / (self.last_s - self.first_s)
        return self.start + self.change.value * min(max(share, 0.0), 1.0)

    def behind(self, at_s: float) -> float:
        """Return how far the level of a time is from the last one, relative: above 0, less is given now."""
        return self.level_at(at_s) / self.level_at(self.last_s) - 1


def drift_of(levels: Sequence[Level]) -> Drift | None:
    """Return the drift; None for fewer than two levels, or all of one moment, or of nothing."""
    n = len(levels)
    ordered = sorted(levels, key=lambda level: level.at_s)
    mean = math.fsum(level.value for level in ordered) / n if n else 0.0
    if n < 2 or mean <= 0 or ordered[-1].at_s <= ordered[0].at_s:
        return None
    first_s, last_s = ordered[0].at_s, ordered[-1].at_s
    times = [(level.at_s - first_s) / (last_s - first_s) for level in ordered]
    values = [level.value / mean for level in ordered]
    weights = [(mean / level.error) ** 2 for level in ordered]
    total = math.fsum(weights)
    x = math.fsum(w * t for w, t in zip(weights, times, strict=True)) / total
    y = math.fsum(w * v for w, v in zip(weights, values, strict=True)) / total
    spread = math.fsum(w * (t - x) ** 2 for w, t in zip(weights, times, strict=True))
    slope = math.fsum(w * (t - x) * (v - y) for w, t, v in zip(weights, times, values, strict=True)) / spread
    error = math.sqrt(1 / spread)
    if n > 2:
        left = math.fsum(w * (v - y - slope * (t - x)) ** 2 for w, t, v in zip(weights, times, values, strict=True))
        error *= max(1.0, math.sqrt(left / (n - 2)))
    half = _NORMAL * error
    change = Estimate(value=slope, low=slope - half, high=slope + half, samples=n)
    return Drift(change=change, mean=mean, first_s=first_s, last_s=last_s, start=y - slope * x)
