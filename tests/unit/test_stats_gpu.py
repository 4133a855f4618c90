"""Power, clocks and energy a token over a leg."""

from __future__ import annotations

import pytest

from tuner.model.host import GpuReading
from tuner.model.metric import Estimate
from tuner.stats.gpu import gpu_use

SPEED = Estimate(value=1000.0, low=None, high=None, samples=1)


def look(*powers_w: float | None, clock_hz: float | None = 1.5e9) -> tuple[GpuReading, ...]:
    return tuple(
        GpuReading(index=i, memory_used_bytes=1, memory_total_bytes=2, sm_clock_hz=clock_hz, power_w=power_w)
        for i, power_w in enumerate(powers_w)
    )


def test_power_is_summed_over_the_gpus_and_joules_are_those_of_a_token() -> None:
    use = gpu_use([look(70.0, 70.0), look(400.0, 300.0), look(420.0, 320.0)], SPEED)
    assert use is not None
    assert use.power_w == pytest.approx(720.0)  # without the look before the first request
    assert use.joules_per_token == pytest.approx(0.72)
    assert use.sm_clock_hz == pytest.approx(1.5e9)


def test_a_leg_of_one_look_has_that() -> None:
    use = gpu_use([look(400.0)], SPEED)
    assert use is not None
    assert use.power_w == 400.0


def test_power_that_one_gpu_does_not_say_is_not_known_and_not_less() -> None:
    use = gpu_use([look(400.0, None)], SPEED)
    assert use is not None
    assert (use.power_w, use.joules_per_token) == (None, None)
    assert use.sm_clock_hz == pytest.approx(1.5e9)


def test_without_throughput_there_is_no_energy_a_token() -> None:
    use = gpu_use([look(400.0)], None)
    assert use is not None
    assert use.joules_per_token is None


def test_gpus_that_tell_nothing_and_hosts_without_any_have_no_use() -> None:
    assert gpu_use([], SPEED) is None
    assert gpu_use([()], SPEED) is None
    assert gpu_use([look(None, clock_hz=None)], SPEED) is None
