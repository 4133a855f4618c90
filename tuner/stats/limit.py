"""Names what kept the aggregate throughput of a leg from being higher. Pure."""

from __future__ import annotations

from tuner.model.account import Limit, ServerLoad
from tuner.model.record import LegResult

BUSY_CLIENT = 0.6
"""Share of a core from which on the client's own time shows in what it measures."""
_QUEUE = 0.5  # requests that wait on average; below it they only pass through on their way to the prefill
_AT_CAP = 0.95  # share of the request cap: looks between two requests see one slot empty
_FULL = 0.9  # share of the KV pool: what is left is reserved for tokens to come
_NEARLY_FULL = 0.7  # a scheduler also holds requests back for what the running ones will still generate
_GROWTH = 0.05  # below it the throughput of the next level is that of this one


def limit(leg: LegResult, below: LegResult | None, max_running: int | None) -> Limit | None:
    """Return what limited a leg; None: nothing that is known says.

    In this order: a client without time left; requests that wait, because as many run as may
    (request cap) or because the cache has no room (KV pool, also shown by retractions); all run at
    once, and more than at the level below bring no more (compute) or still did (load).

    Args:
        leg: measured.
        below: the ladder's level before it; None: it is the first.
        max_running: requests that the server runs at once; None: not known.
    """
    if leg.client is not None and leg.client.cpu_share > BUSY_CLIENT:
        return Limit.CLIENT
    held_back = _held_back(leg, leg.server or ServerLoad(), max_running)
    if held_back is not None:
        return held_back
    if leg.aggregate_throughput is None:
        return None
    if below is None:
        return Limit.LOAD if leg.concurrency == 1 else None
    if below.aggregate_throughput is None:
        return None
    grows = leg.aggregate_throughput.value > below.aggregate_throughput.value * (1 + _GROWTH)
    return Limit.LOAD if grows else Limit.COMPUTE


def _held_back(leg: LegResult, server: ServerLoad, max_running: int | None) -> Limit | None:
    """Return why requests had to wait; None: they did not."""
    is_at_cap = max_running is not None and server.running is not None and server.running >= _AT_CAP * max_running
    if server.retractions:
        return Limit.KV_POOL
    if server.queued is None:
        return Limit.REQUEST_CAP if max_running is not None and leg.concurrency > max_running else None
    if server.queued < _QUEUE:
        return None
    usage = server.kv_usage
    if is_at_cap:
        return Limit.REQUEST_CAP
    if usage is not None and usage >= (_FULL if max_running is None else _NEARLY_FULL):
        return Limit.KV_POOL
    # Nobody says how many may run: fewer than were sent did, and the cache had room.
    return Limit.REQUEST_CAP if max_running is None and usage is not None else None
