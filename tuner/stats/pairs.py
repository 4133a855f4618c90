"""Two settings compared prompt by prompt: what a prompt costs drops out of their difference.

Acceptance, and with it decode speed, differs from prompt to prompt by several percent, and a setting's
mean over a few prompts carries that noise. Every leg sends the same prompts in the same order, so each
has a partner in the other setting's leg.

Notation::

    n        pairs
    x_i, y_i decode speed of one prompt under one setting and the other, tok/s
    z_i      log(y_i / x_i)
    s        sample standard deviation of z, n - 1 in the denominator
    t        quantile of Student's t at 97.5 % with n - 1 degrees of freedom

The ratio is exp(mean(z)), its 95 % interval exp(mean(z) ± t·s/√n): the paired t-interval (Student,
Biometrika 6, 1908) of logarithms, because speeds differ by factors. To tell settings apart by 1 % with
4 % between prompts and 1 % within one, it takes about 10 pairs or 130 requests of each setting.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence

from tuner.model.metric import Estimate
from tuner.model.record import RequestRecord, RequestStatus
from tuner.stats.intervals import mean_interval
from tuner.stats.latency import decode_s, decode_tokens

Speeds = Sequence[tuple[str, float]]
"""Prompt and decode speed of each request of a leg, in the order of their ends."""


def speeds_by_prompt(records: Iterable[RequestRecord]) -> tuple[tuple[str, float], ...]:
    """Return prompt and decode speed of each request that is OK and has one."""
    speeds = []
    for record in records:
        tokens, lasted_s = decode_tokens(record), decode_s(record)
        if record.status is RequestStatus.OK and tokens and lasted_s is not None:
            speeds.append((record.prompt_id, tokens / lasted_s))
    return tuple(speeds)


def pairs(one: Speeds, other: Speeds) -> list[tuple[float, float]]:
    """Return the speeds of the requests that both have: the k-th of a prompt with the k-th of the same prompt."""
    partners = dict(_numbered(other))
    return [(speed, partners[key]) for key, speed in _numbered(one) if key in partners]


def paired_ratio(one: Speeds, other: Speeds) -> Estimate | None:
    """Return by what factor ``other`` is faster than ``one`` on the prompts of both, with its 95 % interval.

    Returns:
        ``samples`` is the number of pairs. None without a pair; no interval for one pair. An interval
        that leaves out 1 tells the settings apart.
    """
    logs = mean_interval([math.log(after / before) for before, after in pairs(one, other)])
    if logs is None:
        return None
    return Estimate(
        value=math.exp(logs.value),
        low=None if logs.low is None else math.exp(logs.low),
        high=None if logs.high is None else math.exp(logs.high),
        samples=logs.samples,
    )


def _numbered(speeds: Speeds) -> list[tuple[tuple[str, int], float]]:
    seen: Counter[str] = Counter()
    numbered = []
    for prompt_id, speed in speeds:
        numbered.append(((prompt_id, seen[prompt_id]), speed))
        seen[prompt_id] += 1
    return numbered
