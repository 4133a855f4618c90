"""What the GPUs did while a leg ran, from looks at them."""

from __future__ import annotations

from collections.abc import Sequence

from tuner.model.account import GpuUse
from tuner.model.host import GpuReading
from tuner.model.metric import Estimate


def gpu_use(looks: Sequence[Sequence[GpuReading]], throughput: Estimate | None) -> GpuUse | None:
    """Return mean power, clock and energy a token; None: the GPUs tell neither.

    The first look is left out where there is another one: it was taken before the first request had come.
    Power counts only from looks in which every GPU says its own, because it is summed.

    Args:
        looks: one reading a GPU each, in the order of time.
        throughput: of all requests, tok/s; None: not measured.
    """
    under_load = looks[1:] or looks
    powers = []
    for readings in under_load:
        known = [reading.power_w for reading in readings if reading.power_w is not None]
        if known and len(known) == len(readings):
            powers.append(sum(known))
    clocks = [r.sm_clock_hz for readings in under_load for r in readings if r.sm_clock_hz is not None]
    power_w = sum(powers) / len(powers) if powers else None
    use = GpuUse(
        power_w=power_w,
        sm_clock_hz=sum(clocks) / len(clocks) if clocks else None,
        joules_per_token=power_w / throughput.value
        if power_w is not None and throughput and throughput.value
        else None,
    )
    return None if use == GpuUse() else use
