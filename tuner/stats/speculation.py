"""What speculation did: tokens per verification step, where drafts were rejected, the time of a step.

Notation::

    h_i      verification steps of a request in which i draft tokens were accepted, i = 0, 1, …
    S        all verification steps, the sum of h_i
    D        draft tokens proposed in one step
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest

from tuner.model.account import Speculation
from tuner.model.metric import Estimate
from tuner.model.record import Counters, RequestRecord


def speculation(
    records: Sequence[RequestRecord],
    single: Estimate | None,
    *,
    before: Counters | None = None,
    after: Counters | None = None,
) -> Speculation | None:
    """Say what speculation did over a leg; None: neither counters nor replies tell.

    Lengths and steps come from the counters where there are any, and cover the whole leg; where drafts were
    rejected comes from the replies.

    Args:
        records: complete requests inside the window.
        single: their decode speed.
        before: the server's totals at the beginning of the leg; None: of a class of prompts there are none.
        after: at its end.
    """
    counted = [(r.tokens, r.verify_steps) for r in records if r.tokens is not None and r.verify_steps]
    replied_steps = sum(steps for _, steps in counted)
    length = acceptance_length(before, after)
    if length is None and replied_steps:
        length = sum(tokens for tokens, _ in counted) / replied_steps
    if length is None:
        return None
    steps = _growth(before, after, "verify_steps")
    histogram = summed([r.accepted for r in records])
    return Speculation(
        acceptance_length=length,
        accepted_at=accepted_at(histogram),
        verify_steps=round(steps) if steps is not None else replied_steps or None,
        draft_share=draft_share(length, histogram, None if after is None else after.drafts_a_step),
        step_time_s=step_time_s(length, single),
    )


def acceptance_length(before: Counters | None, after: Counters | None) -> float | None:
    """Return generated tokens per verification step between two readings of the counters.

    The bonus token counts. None when the engine does not report both totals, when no
    step was verified in between, or when a total fell (the server is another one).
    """
    generated = _growth(before, after, "generated_tokens")
    steps = _growth(before, after, "verify_steps")
    if generated is None or steps is None or steps <= 0 or generated < 0:
        return None
    return generated / steps


def summed(histograms: Sequence[Sequence[int]]) -> tuple[int, ...]:
    """Return the sum of the requests' h_i."""
    return tuple(sum(counts) for counts in zip_longest(*histograms, fillvalue=0))


def accepted_at(histogram: Sequence[int]) -> tuple[float, ...]:
    """Return, for each draft position from 0, the share of steps that accepted it and all before it.

    Position i was accepted in every step that accepted more than i drafts: sum over j > i of h_j / S.
    """
    steps = sum(histogram)
    if steps <= 0:
        return ()
    return tuple(sum(histogram[position + 1 :]) / steps for position in range(len(histogram) - 1))


def draft_share(length: float, histogram: Sequence[int], drafts: float | None) -> float | None:
    """Return accepted / proposed draft tokens; None when D is not known.

    The accepted ones of a step are the mean of the histogram, or without one the acceptance length less the
    bonus token.
    """
    if not drafts or drafts <= 0:
        return None
    steps = sum(histogram)
    accepted = sum(i * count for i, count in enumerate(histogram)) / steps if steps else length - 1
    return min(1.0, max(0.0, accepted / drafts))


def step_time_s(acceptance: float | None, throughput: Estimate | None) -> float | None:
    """Return the seconds one verification step of one request takes; None when either is unknown."""
    if acceptance is None or throughput is None or throughput.value <= 0:
        return None
    return acceptance / throughput.value


def _growth(before: Counters | None, after: Counters | None, field: str) -> float | None:
    first, last = getattr(before, field, None), getattr(after, field, None)
    return None if first is None or last is None else last - first
