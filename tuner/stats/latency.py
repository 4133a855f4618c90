"""Latencies and decode speeds of requests.

Percentiles interpolate linearly between the two closest ranks (Hyndman and Fan's type 7,
numpy's default): of n sorted values the q-quantile sits at rank q·(n - 1), counted from 0.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import pairwise

from tuner.model.account import Spread
from tuner.model.metric import Estimate
from tuner.model.record import RequestRecord
from tuner.stats.intervals import ratio_of_sums


def percentile(values: Sequence[float], share: float) -> float | None:
    """Return the ``share``-quantile (0.99 for the 99th percentile); None without values."""
    if not 0 <= share <= 1:
        raise ValueError(f"share {share} is not in [0, 1]")
    if not values:
        return None
    ordered = sorted(values)
    rank = share * (len(ordered) - 1)
    below = math.floor(rank)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (rank - below)


def spread(values: Sequence[float]) -> Spread | None:
    """Return mean and percentiles of ``values``; None without any."""
    if not values:
        return None
    ordered = sorted(values)  # once: sorting what is sorted costs next to nothing
    p50, p90, p95, p99 = (percentile(ordered, share) or 0.0 for share in (0.5, 0.9, 0.95, 0.99))
    return Spread(mean=math.fsum(values) / len(values), p50=p50, p90=p90, p95=p95, p99=p99, samples=len(values))


def ttft_s(record: RequestRecord) -> float | None:
    """Return the time from sending to the first chunk with content; None when none came."""
    return None if record.first_s is None else record.first_s - record.sent_s


def e2e_s(record: RequestRecord) -> float | None:
    """Return the time from sending to the last chunk with content; None when none came."""
    return None if record.last_s is None else record.last_s - record.sent_s


def tpot_s(record: RequestRecord) -> float | None:
    """Return the seconds a token takes after the first chunk; None without a decode phase or a count."""
    tokens, lasted_s = decode_tokens(record), decode_s(record)
    return lasted_s / tokens if lasted_s is not None and tokens else None


def gaps_s(record: RequestRecord) -> list[float]:
    """Return the gaps between its chunks: what a reader sees, whatever number of tokens a chunk has."""
    return [after - before for before, after in pairwise(record.chunk_s)]


def decode_s(record: RequestRecord) -> float | None:
    """Return the time from first to last chunk; None when fewer than two moments are known."""
    if record.first_s is None or record.last_s is None or record.last_s <= record.first_s:
        return None
    return record.last_s - record.first_s


def decode_tokens(record: RequestRecord) -> float | None:
    """Return the tokens that arrived after the first chunk; None when not counted.

    Where the server counts only at the end, the first chunk is taken for an even share
    of all tokens: its own count is not known, and one token would be wrong by the
    acceptance length.
    """
    if record.tokens is None or not record.chunk_s:
        return None
    if record.first_chunk_tokens is not None:
        return float(record.tokens - record.first_chunk_tokens)
    return record.tokens * (1 - 1 / len(record.chunk_s))


def decode_throughput(records: Iterable[RequestRecord]) -> Estimate | None:
    """Return 1 / TPOT over ``records``, tok/s: the ratio of sums, its interval from requests.

    Requests without a decode phase (one chunk, or no count) say nothing and are left out.
    """
    tokens: list[float] = []
    seconds: list[float] = []
    for record in records:
        counted, lasted = decode_tokens(record), decode_s(record)
        if counted is not None and lasted is not None:
            tokens.append(counted)
            seconds.append(lasted)
    return ratio_of_sums(tokens, seconds)
