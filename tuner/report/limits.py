"""What limited a server that was measured: facts of its own, never more than they say."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tuner.model.account import Limit
from tuner.model.record import LegResult
from tuner.model.space import Value
from tuner.model.trial import Capacity

_STEPS = "speculative_num_steps"
LIMIT_WORDS = {
    Limit.CLIENT: "the client",
    Limit.REQUEST_CAP: "the request cap",
    Limit.KV_POOL: "the KV pool",
    Limit.COMPUTE: "compute",
}
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
    named = _named(legs)
    lines = [*_peak(legs), *named, *([] if named else _slots(legs, capacity)), *_acceptance(legs, settings)]
    lines += [*_classes(legs), *_tokens(legs), *_energy(legs), *_client(legs)]
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
    if legs[-1].limit in (Limit.REQUEST_CAP, Limit.KV_POOL):  # more requests would wait, and no more be served
        return [f"from {before_at} to {top_at} requests the throughput still grew by {growth:.0f} %"]
    more = "a longer ladder in [workload] would show more"
    return [f"not full yet: from {before_at} to {top_at} requests the throughput still grows by {growth:.0f} %; {more}"]


def _named(legs: Sequence[LegResult]) -> list[str]:
    """Say from which concurrency on what kept the aggregate down; of levels with room nothing."""
    lines: list[str] = []
    last: Limit | None = None
    for leg in legs:
        if leg.limit is not last and leg.limit in LIMIT_WORDS:
            start = "aggregate limited by" if not lines else "then by"
            lines.append(f"{start} {LIMIT_WORDS[leg.limit]} from concurrency {leg.concurrency} on{_pressure(leg)}")
        last = leg.limit
    return lines


def _pressure(leg: LegResult) -> str:
    """Say what the limit was read from."""
    server = leg.server
    if server is None or leg.limit not in (Limit.REQUEST_CAP, Limit.KV_POOL):
        return ""
    facts = [
        "" if server.running is None else f"{server.running:.0f} ran",
        "" if server.queued is None else f"{server.queued:.0f} waited",
        "" if server.kv_usage is None else f"its cache was {100 * server.kv_usage:.0f} % full",
        f"{server.retractions:.0f} were retracted" if server.retractions else "",
    ]
    said = ", ".join(fact for fact in facts if fact)
    return f": {said}" if said else ""


def _classes(legs: Sequence[LegResult]) -> list[str]:
    """Say what each class of prompts got alone, where there is more than one."""
    found = legs[0].classes if legs else ()
    told = []
    for each in found:
        if each.single_request_throughput is None:
            continue
        length = None if each.speculation is None else each.speculation.acceptance_length
        accepted = "" if length is None else f" ({length:.2f} tokens a step)"
        told.append(f"{each.name} {each.single_request_throughput.value:.0f} tok/s{accepted}")
    return [f"by class of prompts, alone: {', '.join(told)}"] if len(told) > 1 else []


def _tokens(legs: Sequence[LegResult]) -> list[str]:
    """Say whether the replies' tokens were held against the server's counters; legs that differ are void, not here."""
    measured = [leg for leg in legs if leg.aggregate_throughput is not None]
    unchecked = [leg.concurrency for leg in measured if leg.tokens is None]
    if not unchecked:
        worst = max((abs(leg.tokens.difference) for leg in measured if leg.tokens is not None), default=None)
        return (
            [] if worst is None else [f"tokens: the replies and the server's counters agree within {100 * worst:.1f} %"]
        )
    if len(unchecked) == len(measured):
        return ["tokens: the replies were not checked against the server's counters: it has none, or they are off"]
    return [f"tokens at concurrency {', '.join(map(str, unchecked))}: not checked against the server's counters"]


def _energy(legs: Sequence[LegResult]) -> list[str]:
    """Say what a token costs at the level where it costs least."""
    told = [(leg.gpu, leg.concurrency) for leg in legs if leg.gpu is not None and leg.gpu.joules_per_token is not None]
    if not told:
        return []
    gpu, concurrency = min(told, key=lambda each: each[0].joules_per_token or 0.0)
    return [f"{gpu.joules_per_token:.2f} J a token at concurrency {concurrency}, the GPUs drawing {gpu.power_w:.0f} W"]


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
    by_position = ""
    if speculation.accepted_at:
        shares = ", ".join(f"{100 * share:.0f} %" for share in speculation.accepted_at)
        by_position = f"; accepted by draft position: {shares}"
    return [f"one step gives a lone request {speculation.acceptance_length:.1f} tokens{most}{by_position}"]


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
