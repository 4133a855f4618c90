"""Decides when slots begin to send, and when a leg is over; pure."""

from __future__ import annotations

from collections.abc import Mapping

from tuner.model.metric import Estimate
from tuner.ports import Leg
from tuner.stats.batches import required_batches


def start_delay_s(slot: int, concurrency: int, request_s: float) -> float:
    """Return how long after the first slot this one starts: spread over one request time.

    Slots that start together stay in step, and the leg then measures their waves.
    """
    return request_s * slot / concurrency


def request_s(lasted_s: Mapping[int, float], concurrency: int) -> float | None:
    """Return how long a request will take at ``concurrency``: on a line through the two closest legs below.

    A request takes longer the more run beside it, until the server runs no more at once. Slots that are
    spread over a shorter time begin in a bunch and stay in one, and the leg is then measured in waves.

    Args:
        lasted_s: concurrency -> median decode time of the legs so far.
        concurrency: of the leg to come.

    Returns:
        None when nothing was measured.
    """
    if not lasted_s:
        return None
    below = sorted(level for level in lasted_s if level < concurrency)
    if concurrency in lasted_s or not below:
        return lasted_s[min(lasted_s, key=lambda level: abs(level - concurrency))]
    last = below[-1]
    if len(below) == 1:
        return lasted_s[last]
    before = below[-2]
    slope = max(0.0, (lasted_s[last] - lasted_s[before]) / (last - before))
    return lasted_s[last] + slope * (concurrency - last)


def evaluation_period_s(leg: Leg) -> float:
    """Return how often a leg's interval is looked at: often in a short leg, cheaply in a long one."""
    return min(0.5, max(0.05, leg.min_s / 20))


def is_narrow(leg: Leg, single: Estimate | None, aggregate: Estimate | None) -> bool:
    """Whether the leg's own interval is as narrow as wanted, on enough samples.

    A lone request is judged by its decode speed, several by their aggregate.
    """
    estimate = single if leg.concurrency == 1 else aggregate
    if estimate is None or estimate.half_width is None or estimate.samples < required_batches(leg.concurrency):
        return False
    return estimate.half_width <= leg.interval


def is_over(leg: Leg, *, window_s: float, is_narrow: bool, single: Estimate | None, request_timeout_s: float) -> bool:
    """Whether to close the window: wide enough and narrow enough, or its time is up.

    At concurrency 1 the first whole request is waited for: a request longer than the leg
    would else leave nothing measured, and one that hangs would not be seen to fail.
    """
    is_waiting = leg.concurrency == 1 and single is None
    longest_s = leg.max_s + request_timeout_s if is_waiting else leg.max_s
    return window_s >= longest_s or (window_s >= leg.min_s and is_narrow)


def is_hopeless(leg: Leg, *, elapsed_s: float, complete: int, failed: int, request_timeout_s: float) -> bool:
    """Whether a leg whose window has not opened never will: only failures, or nothing for very long."""
    if complete == 0 and failed > 0:
        return elapsed_s >= leg.max_s
    return elapsed_s >= leg.max_s + 2 * request_timeout_s
