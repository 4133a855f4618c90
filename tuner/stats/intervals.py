"""95 % confidence intervals of means, of ratios of sums, and of rates of serial batches.

Notation::

    n        samples
    x_i, y_i sample i (a request's tokens and seconds, or a batch's)
    s        sample standard deviation, n - 1 in the denominator
    t        quantile of Student's t, at 97.5 % unless said otherwise, with n - 1 degrees of freedom
    R        the ratio sum(x) / sum(y), and d_i = x_i - R*y_i what sample i adds to its error

All but :func:`serial_rate` want independent samples: requests at concurrency 1. Chunks of one
request are not independent; an interval made of them covers the truth half as often as it says.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

from scipy.special import stdtrit

from tuner.model.metric import Estimate

_UPPER = 0.975


@functools.cache
def t_quantile(degrees: int, share: float = _UPPER) -> float:
    """Return the ``share``-quantile of Student's t with ``degrees`` >= 1 degrees of freedom."""
    return float(stdtrit(degrees, share))


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


def ratio_of_sums(
    numerators: Sequence[float], denominators: Sequence[float], *, share: float = _UPPER
) -> Estimate | None:
    """Return R = Σx/Σy with its delta-method interval.

    With d_i = x_i - R·y_i the standard error of R is √(Σd²/(n-1)/n) / mean(y)
    (Cochran, Sampling Techniques, section 6.3, without the finite-population factor).

    Args:
        numerators: x_i, shape (n,); tokens.
        denominators: y_i > 0, shape (n,); seconds.
        share: of t; more than 97.5 % pays for looks at the same samples before.

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
    half = t_quantile(n - 1, share) * math.sqrt(squares / (n - 1) / n) / (total / n)
    return Estimate(value=ratio, low=ratio - half, high=ratio + half, samples=n)


def batch_means(totals: Sequence[float], batch_s: float) -> Estimate | None:
    """Return the rate of ``totals`` counted in equal batches of ``batch_s`` seconds."""
    return mean_interval([total / batch_s for total in totals])


def serial_rate(
    totals: Sequence[float], seconds: Sequence[float], *, terms: int, share: float = _UPPER
) -> Estimate | None:
    """Return R = Σx/Σy of neighbouring batches, with an interval that allows for what neighbours share.

    The requests that straddle an edge make neighbours alike (with equal lengths their correlation is
    near 1/4), and a batch of long requests is followed by one of short ones. Both change the variance
    of the mean, so it is taken from the slow part of the batches alone: the variance at frequency zero
    is the mean square of the first B cosine terms ::

        L_b = sqrt(2/n) * sum over i = 1..n of d_i * cos(pi * b * (i - 1/2) / n),   b = 1 .. B

    and R ± t·√(mean(L²)/n)/mean(y) with B degrees of freedom (equal-weighted cosines: Müller, J. of
    Econometrics 141, 2007; Lazarus, Lewis, Stock and Watson, J. of Business & Economic Statistics 36,
    2018). With B = n - 1 it is :func:`ratio_of_sums`.

    Args:
        totals: x_i, shape (n,), in the order of time; tokens.
        seconds: y_i > 0, shape (n,).
        terms: B, from 1 to n - 1.
        share: of t; more than 97.5 % pays for looks at the same batches before.

    Returns:
        None without batches; an estimate without interval for one.
    """
    n = len(totals)
    if n < 2:
        return ratio_of_sums(totals, seconds)
    if n != len(seconds):
        raise ValueError(f"{n} totals but {len(seconds)} durations")
    if not 1 <= terms < n:
        raise ValueError(f"{terms} cosine terms of {n} batches: 1 to {n - 1} are possible")
    duration = math.fsum(seconds)
    rate = math.fsum(totals) / duration
    errors = [x - rate * y for x, y in zip(totals, seconds, strict=True)]
    slow = [
        math.sqrt(2 / n) * math.fsum(d * math.cos(math.pi * b * (i + 0.5) / n) for i, d in enumerate(errors))
        for b in range(1, terms + 1)
    ]
    variance = math.fsum(part**2 for part in slow) / terms
    half = t_quantile(terms, share) * math.sqrt(variance / n) / (duration / n)
    return Estimate(value=rate, low=rate - half, high=rate + half, samples=n)
