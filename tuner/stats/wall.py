"""Throughput as many tools report it, and how many requests a second came back; to compare, and to plan by."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import pairwise

from tuner.model.metric import Estimate
from tuner.model.record import RequestRecord
from tuner.stats.intervals import batch_means
from tuner.stats.window import COMPLETE, MIN_REPORTED_BATCHES, Window, median_decode_s

_MOST_BATCHES = 30


def wall_throughput(records: Sequence[RequestRecord]) -> float | None:
    """Return the tokens of complete requests / the time from the first sending to the last of their ends, tok/s.

    With the ramp in it, and at the end the slots that wait for nothing: 5 to 19 % too low for a server that
    is kept busy. None when no complete request was counted.
    """
    counted = [record for record in records if record.status in COMPLETE and record.tokens is not None]
    if not counted:
        return None
    lasted_s = max(record.ended_s for record in counted) - min(record.sent_s for record in records)
    return sum(record.tokens or 0 for record in counted) / lasted_s if lasted_s > 0 else None


def requests_per_s(records: Sequence[RequestRecord], window: Window) -> Estimate | None:
    """Return the complete requests that ended in ``window`` / its length.

    Its interval is that of equal parts of the window, each at least one median decode long; none
    with fewer than three. None without a window, or when no request ever completed.
    """
    complete = [record for record in records if record.status in COMPLETE]
    if window.length_s <= 0 or not complete:
        return None
    lasted_s = median_decode_s(complete)
    parts = 1 if not lasted_s else max(1, min(_MOST_BATCHES, int(window.length_s / lasted_s)))
    part_s = window.length_s / parts
    ends_s = sorted(record.ended_s for record in complete)
    by_edge = [bisect_right(ends_s, window.start_s + part_s * index) for index in range(parts)]
    by_edge.append(bisect_right(ends_s, window.end_s))
    estimate = batch_means([after - before for before, after in pairwise(by_edge)], part_s)
    if estimate is None or parts >= MIN_REPORTED_BATCHES:
        return estimate
    return Estimate(value=estimate.value, low=None, high=None, samples=parts)
