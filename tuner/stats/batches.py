"""Batches of completions: how a leg's throughput is cut, when it is looked at, and what its interval is.

A batch lasts from one c-th completion to the next: every slot does one request's work in it, so that
waves of slots in step, and the prefill that comes with each request, are in every batch alike. On a
server that runs fewer at once the waves have that many requests, and a batch is whole waves.

Notation::

    c        slots
    n        whole batches since the window opened
    B        cosine terms of the interval; its degrees of freedom (tuner.stats.intervals.serial_rate)

The constants were chosen by simulation (``scripts/bench_stopping`` prints its table): with them the
nominal 95 % interval covers the truth in 92 to 98 % of the legs, whatever the noise, the lengths, the
concurrency and the server's own cap.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from tuner.model.metric import Estimate
from tuner.stats.intervals import serial_rate

FEWEST_REPORTED = 3
"""Batches of an interval; with fewer it is wider than the value."""

_LOOK_GROWTH = 1.25
_FEW_SLOTS = 4
_FIRST_SHARE, _FIRST_SHARE_OF_FEW, _LATER_SHARE = 0.9775, 0.98, 0.985


def required_batches(concurrency: int) -> int:
    """Return how many batches, or requests of a lone slot, a leg must have before it may stop."""
    return 8 if concurrency <= _FEW_SLOTS else 6


def next_look(samples: int) -> int:
    """Return at how many samples to look again after a look at ``samples`` was not enough.

    Looking after every sample stops at the first chance dip of the variance, and such intervals cover
    too little (Chow and Robbins, Ann. Math. Stat. 36, 1965, is right only for many samples). Looks
    that are a quarter apart are few and nearly independent.
    """
    return max(samples + 1, math.ceil(samples * _LOOK_GROWTH))


def look_share(looks: int, concurrency: int) -> float:
    """Return the quantile of t after ``looks`` looks that were not enough.

    More than 97.5 % pays for the choice of the moment; how much more was found by simulation. With many
    slots the first look nearly always suffices, so that there was little to choose.
    """
    if looks:
        return _LATER_SHARE
    return _FIRST_SHARE_OF_FEW if concurrency <= _FEW_SLOTS else _FIRST_SHARE


def terms_of(batches: int, concurrency: int) -> int:
    """Return B: half of the batches, the slow half, or all where a batch is one request and shares nothing."""
    return batches - 1 if concurrency == 1 else min(batches - 1, max(2, batches // 2))


def batch_size(concurrency: int, running: int) -> int:
    """Return the completions of a batch: c, or the multiple of ``running`` next to it.

    Args:
        concurrency: c.
        running: most requests that the server was seen to answer at once; that nearly all of c were
            seen together says that it answers all of them.
    """
    if running < 1 or running > 0.9 * concurrency:
        return concurrency
    return running * max(1, round(concurrency / running))


def edges_s(opened_s: float, ends_s: Sequence[float], size: int) -> list[float]:
    """Return where batches begin and end, the first being ``opened_s``.

    Args:
        opened_s: when the window opened.
        ends_s: ends of complete requests after that, ascending.
        size: completions of a batch.
    """
    return [opened_s, *ends_s[size - 1 :: size]]


def batches_throughput(
    totals: Sequence[float], edges: Sequence[float], concurrency: int, *, share: float
) -> Estimate | None:
    """Return the tokens of all batches / their time, with the interval of :func:`serial_rate`.

    Args:
        totals: tokens of all streams delivered by each edge; shape (n + 1,).
        edges: of the batches, seconds, ascending; shape (n + 1,).
        concurrency: c.
        share: of t.

    Returns:
        None without a batch; no interval with fewer than three.
    """
    pairs = range(len(edges) - 1)
    seconds = [edges[i + 1] - edges[i] for i in pairs]
    # Completions in one instant can make a batch without length; it has no tokens either.
    tokens = [totals[i + 1] - totals[i] for i in pairs if seconds[i] > 0]
    seconds = [length for length in seconds if length > 0]
    n = len(tokens)
    if n == 0:
        return None
    estimate = serial_rate(tokens, seconds, terms=max(1, terms_of(n, concurrency)), share=share)
    if estimate is None or n >= FEWEST_REPORTED:
        return estimate
    return Estimate(value=estimate.value, low=None, high=None, samples=n)
