"""Whether a server under load has come to rest: no trend in the throughput of equal batches.

Notation::

    n        batches of equal length
    y_i      throughput of batch i, i = 0 .. n - 1
    b        slope of the least-squares line through them, s_b its standard error
    d        b * n / mean(y): what the line gains or loses over the window, relative
    t        quantile of Student's t at 97.5 % with n - 2 degrees of freedom

Batches that are shorter than a request resemble their neighbours, so s_b is rather too small: what is
taken for a drift at times is none, and is held longer, up to the leg's limit.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from tuner.model.metric import Estimate
from tuner.stats.intervals import t_quantile

BATCHES = 8
"""Parts of a window: enough for a line, and each still long."""

_FEWEST = 4  # with fewer, t is so large that everything would be steady


def drift(throughputs: Sequence[float]) -> Estimate | None:
    """Return d with its 95 % interval d ± t·s_b·n/mean(y).

    Args:
        throughputs: y_i, shape (n,), tok/s.

    Returns:
        None for fewer than four batches, or where nothing was delivered.
    """
    n = len(throughputs)
    mean = math.fsum(throughputs) / n if n else 0.0
    if n < _FEWEST or mean <= 0:
        return None
    middle = (n - 1) / 2
    spread = math.fsum((i - middle) ** 2 for i in range(n))
    slope = math.fsum((i - middle) * (y - mean) for i, y in enumerate(throughputs)) / spread
    squares = math.fsum((y - mean - slope * (i - middle)) ** 2 for i, y in enumerate(throughputs))
    scale = n / mean
    value = slope * scale
    half = t_quantile(n - 2) * math.sqrt(squares / (n - 2) / spread) * scale
    return Estimate(value=value, low=value - half, high=value + half, samples=n)


def is_steady(throughputs: Sequence[float], interval: float) -> bool:
    """Whether no trend is seen that is larger than ``interval``, relative, over the window.

    A trend is seen where the interval of the drift leaves out zero; with too few batches to tell,
    nothing is called steady.
    """
    seen = drift(throughputs)
    if seen is None or seen.low is None or seen.high is None:
        return False
    is_noise = seen.low <= 0 <= seen.high
    return is_noise or abs(seen.value) <= interval


def is_warm(speeds: Sequence[float], interval: float) -> bool:
    """Whether a server has warmed up: its newest requests are as fast as those before.

    The last two differ by no more than ``interval``, relative, or the last eight show no trend; the
    first request of a cold server (graphs, kernels and caches are made for it) is many times slower.

    Args:
        speeds: decode speed of each request so far, tok/s, in the order of their ends.
        interval: the wanted half width of the legs to come.
    """
    if len(speeds) < 2:
        return False
    before, last = speeds[-2:]
    is_alike = abs(last - before) <= interval * last
    return is_alike or (len(speeds) >= BATCHES and is_steady(speeds[-BATCHES:], interval))
