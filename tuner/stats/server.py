"""How full a server was during a leg, from readings of its counters."""

from __future__ import annotations

from collections.abc import Sequence

from tuner.model.account import ServerLoad
from tuner.model.record import Counters, RequestRecord
from tuner.stats.window import Window

INTENDED_CACHED_SHARE = 0.05
"""Above it the prefix cache served more of a leg's prompts than prompts made unique have in common."""


def server_load(
    before: Counters | None,
    after: Counters | None,
    looks: Sequence[tuple[float, Counters]],
    records: Sequence[RequestRecord],
    window: Window,
) -> ServerLoad | None:
    """Say how full the server was; None: it tells nothing.

    Args:
        before: totals at its beginning.
        after: totals at its end.
        looks: when the counters were read while it ran, and what they said.
        records: complete requests of the leg.
        window: its steady window; without any look inside it all looks count.
    """
    inside = [look for at_s, look in looks if window.start_s <= at_s <= window.end_s] or [look for _, look in looks]
    waited_s, waits = _growth(before, after, "queue_time_s"), _growth(before, after, "queue_waits")
    load = ServerLoad(
        running=_mean([look.running for look in inside]),
        queued=_mean([look.queued for look in inside]),
        queue_time_s=waited_s / waits if waited_s is not None and waits else None,
        kv_usage=max((look.kv_usage for look in inside if look.kv_usage is not None), default=None),
        retractions=_growth(before, after, "retractions"),
        cached_share=cached_share(before, after, records),
    )
    return None if load == ServerLoad() else load


def cached_share(before: Counters | None, after: Counters | None, records: Sequence[RequestRecord]) -> float | None:
    """Return the share of prompt tokens that the prefix cache had; the replies' word counts before the counters'."""
    told = [(r.cached_tokens, r.prompt_tokens) for r in records if r.cached_tokens is not None and r.prompt_tokens]
    if told:
        return sum(cached for cached, _ in told) / sum(prompt for _, prompt in told)
    cached, prompt = _growth(before, after, "cached_tokens"), _growth(before, after, "prompt_tokens")
    return cached / prompt if cached is not None and prompt else None


def _growth(before: Counters | None, after: Counters | None, field: str) -> float | None:
    """Return what a total grew by; None: it is not known, or it fell."""
    if before is None or after is None:
        return None
    first, last = getattr(before, field), getattr(after, field)
    return last - first if first is not None and last is not None and last >= first else None


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None
