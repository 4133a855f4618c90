"""95 % confidence intervals of means, of ratios of sums, and of rates from batch means.

Notation::

    n        samples
    x_i, y_i sample i (a request's tokens and seconds, or a batch's rate)
    s        sample standard deviation, n - 1 in the denominator
    t        quantile of Student's t at 97.5 % with n - 1 degrees of freedom

Every function wants independent samples: requests at concurrency 1, time batches that
are longer than one request's decode elsewhere. Chunks of one request are not independent;
an interval made of them covers the truth half as often as it says.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from scipy.special import stdtrit

from tuner.model.metric import Estimate

_UPPER = 0.975


def t_quantile(degrees: int) -> float:
    """Return the 97.5 % quantile of Student's t with ``degrees`` >= 1 degrees of freedom."""
    return float(stdtrit(degrees, _UPPER))


def mean_interval(samples: Sequence[float]) -> Estimate | None:
    """Return the mean with mean ± t·s/√n; no interval for one sample, None for no sample."""
    n = len(samples)
    if n == 0:
        return None
    mean = math.fsum(samples) / n
    if n == 1:
        return Estimate(value=mean, low=None, high=None, samples=1)
    deviation = math.sqrt(math.fsum((x - mean) ** 2 for x in samples) / (n - 1))
    half = t_quantile(n - 1) * deviation / math.sqrt(n)
    return Estimate(value=mean, low=mean - half, high=mean + half, samples=n)


def ratio_of_sums(numerators: Sequence[float], denominators: Sequence[float]) -> Estimate | None:
    """Return R = Σx/Σy with its delta-method interval.

    With d_i = x_i - R·y_i the standard error of R is √(Σd²/(n-1)/n) / mean(y)
    (Cochran, Sampling Techniques, section 6.3, without the finite-population factor).

    Args:
        numerators: x_i, shape (n,); tokens.
        denominators: y_i > 0, shape (n,); seconds.

    Returns:
        None without samples; an estimate without interval for one.
    """
    n = len(numerators)
    if n != len(denominators):
        raise ValueError(f"{n} numerators but {len(denominators)} denominators")
    if n == 0:
        return None
    total = math.fsum(denominators)
    ratio = math.fsum(numerators) / total
    if n == 1:
        return Estimate(value=ratio, low=None, high=None, samples=1)
    squares = math.fsum((x - ratio * y) ** 2 for x, y in zip(numerators, denominators, strict=True))
    half = t_quantile(n - 1) * math.sqrt(squares / (n - 1) / n) / (total / n)
    return Estimate(value=ratio, low=ratio - half, high=ratio + half, samples=n)


def batch_means(totals: Sequence[float], batch_s: float) -> Estimate | None:
    """Return the rate of ``totals`` counted in equal batches of ``batch_s`` seconds."""
    return mean_interval([total / batch_s for total in totals])
