"""What limited a server that was measured: facts of its own, never more than they say."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tuner.model.record import LegResult
from tuner.model.space import Value
from tuner.model.trial import Capacity

_STEPS = "speculative_num_steps"
_NOTEWORTHY = 0.05
"""Differences of throughput below it are within what two runs of one server differ by."""
_BUSY_CLIENT = 0.9
"""Share of a core from which on the load's own process may be what is slow."""


def limits(
    legs: Sequence[LegResult], soak: LegResult | None, capacity: Capacity | None, settings: Mapping[str, Value]
) -> tuple[str, ...]:
    """Say what held the throughput down, and whether it was steady.

    Args:
        legs: of the ladder, in its order.
        soak: the highest level held; None: it was not.
        capacity: as the server said.
        settings: that were asked for.
    """
    lines = [*_peak(legs), *_slots(legs, capacity), *_acceptance(legs, settings), *_client(legs)]
    return (*lines, *_steadiness(legs, soak))


def _peak(legs: Sequence[LegResult]) -> list[str]:
    found = [(leg.concurrency, leg.aggregate_throughput.value) for leg in legs if leg.aggregate_throughput is not None]
    if len(found) < 2:
        return []
    (before_at, before), (top_at, top) = found[-2:]
    peak_at, peak = max(found, key=lambda item: item[1])
    if peak_at != top_at:
        if top >= peak * (1 - _NOTEWORTHY):
            return [f"full at concurrency {peak_at}: up to {top_at} the throughput stays where it is"]
        return [f"best at concurrency {peak_at}; at {top_at} it is {100 * (1 - top / peak):.0f} % lower"]
    if before <= 0 or top <= before * (1 + _NOTEWORTHY):
        return [f"full at concurrency {before_at}: from there to {top_at} hardly any more comes out"]
    growth = 100 * (top / before - 1)
    more = "a longer ladder in [workload] would show more"
    return [f"not full yet: from {before_at} to {top_at} requests the throughput still grows by {growth:.0f} %; {more}"]


def _slots(legs: Sequence[LegResult], capacity: Capacity | None) -> list[str]:
    if capacity is None or capacity.max_running_requests is None or not legs:
        return []
    most = capacity.max_running_requests
    waiting = [leg.concurrency for leg in legs if leg.concurrency > most]
    if not waiting:
        return []
    where = ", ".join(map(str, waiting))
    return [f"the server runs {most} requests at once (max_running_requests): at {where} the rest wait in its queue"]


def _acceptance(legs: Sequence[LegResult], settings: Mapping[str, Value]) -> list[str]:
    speculation = legs[0].speculation if legs else None
    if speculation is None or speculation.acceptance_length is None:
        return []
    steps = settings.get(_STEPS)
    most = f" of at most {steps + 1}" if isinstance(steps, int) and steps > 0 else ""
    if not most:
        return []
    return [f"one step gives a lone request {speculation.acceptance_length:.1f} tokens{most}"]


def _client(legs: Sequence[LegResult]) -> list[str]:
    busy = [leg.concurrency for leg in legs if leg.client is not None and leg.client.cpu_share > _BUSY_CLIENT]
    if not busy:
        return []
    return [f"the load's own process was busy at concurrency {', '.join(map(str, busy))}: the server may do more"]


def _steadiness(legs: Sequence[LegResult], soak: LegResult | None) -> list[str]:
    wide = [leg.concurrency for leg in legs if not leg.converged]
    lines = []
    if wide:
        lines.append(
            f"the intervals at concurrency {', '.join(map(str, wide))} are wider than wanted: "
            "level_max_s was over before they were narrow"
        )
    if soak is None:
        return [*lines, "the highest level was not held after the ladder: soak_s is 0, or the evidence is gone"]
    held = f"held at concurrency {soak.concurrency} for {soak.window_s:.0f} s"
    return [*lines, f"steady: {held}" if soak.converged else f"not steady: {held}, and its throughput still drifted"]
