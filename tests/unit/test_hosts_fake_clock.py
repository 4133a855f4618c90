"""The clock that jumps, and the one that does not."""

from __future__ import annotations

import asyncio
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tuner.hosts.clock import SystemClock
from tuner.testing.fake_clock import EPOCH_S, FakeClock


def test_a_night_takes_no_time() -> None:
    clock = FakeClock()

    async def night() -> float:
        await clock.sleep(8 * 3600)
        return clock.monotonic_s()

    began_s = time.monotonic()
    assert asyncio.run(night()) == 8 * 3600
    assert time.monotonic() - began_s < 60
    assert clock.now_s() == EPOCH_S + 8 * 3600


@settings(max_examples=50)
@given(st.lists(st.lists(st.integers(1, 50), max_size=6), max_size=6))
def test_everybody_wakes_exactly_when_due_and_in_order(naps: list[list[int]]) -> None:
    clock = FakeClock()
    woken: list[tuple[float, float]] = []

    async def sleeper(mine: list[int]) -> None:
        due_s = 0.0
        for nap in mine:
            due_s += nap
            await clock.sleep(nap)
            woken.append((clock.monotonic_s(), due_s))

    async def all_of_them() -> None:
        await asyncio.gather(*map(sleeper, naps))

    asyncio.run(all_of_them())
    assert len(woken) == sum(map(len, naps))
    assert all(now_s == due_s for now_s, due_s in woken)
    assert woken == sorted(woken)


def test_time_stands_while_somebody_works() -> None:
    clock = FakeClock()

    async def worker() -> float:
        for _ in range(500):
            await asyncio.sleep(0)
        return clock.monotonic_s()

    async def main() -> float:
        sleeper = asyncio.ensure_future(clock.sleep(1.0))
        at_s = await worker()
        await sleeper
        return at_s

    assert asyncio.run(main()) == 0.0


def test_a_cancelled_sleeper_does_not_move_the_clock() -> None:
    clock = FakeClock()

    async def main() -> None:
        long = asyncio.ensure_future(clock.sleep(1000))
        await clock.sleep(1)
        long.cancel()
        with pytest.raises(asyncio.CancelledError):
            await long
        await clock.sleep(1)

    asyncio.run(main())
    assert clock.monotonic_s() == 2


def test_time_goes_on_in_a_second_event_loop() -> None:
    clock = FakeClock(start_s=5.0)

    async def leave_somebody_asleep() -> None:
        forgotten = asyncio.ensure_future(clock.sleep(1000))
        await clock.sleep(1)
        assert not forgotten.done()

    asyncio.run(leave_somebody_asleep())
    asyncio.run(clock.sleep(2))
    assert clock.monotonic_s() == 8.0


def test_advance_wakes_whoever_slept_less_long() -> None:
    clock = FakeClock()

    async def main() -> list[float]:
        sleepers = [asyncio.ensure_future(clock.sleep(seconds)) for seconds in (1, 2, 3)]
        await asyncio.sleep(0)
        clock.advance(2)
        at_s = []
        for sleeper in sleepers[:2]:
            await sleeper
            at_s.append(clock.monotonic_s())
        await sleepers[2]
        return [*at_s, clock.monotonic_s()]

    assert asyncio.run(main()) == [2, 2, 3]


def test_a_sleep_of_nothing_only_yields() -> None:
    clock = FakeClock()
    asyncio.run(clock.sleep(0))
    asyncio.run(clock.sleep(-1))
    assert clock.monotonic_s() == 0


def test_the_system_clock_sleeps_for_real_and_never_backwards() -> None:
    clock = SystemClock()
    began_s = clock.monotonic_s()
    asyncio.run(clock.sleep(0.02))
    slept_s = clock.monotonic_s() - began_s
    asyncio.run(clock.sleep(-5))
    assert slept_s >= 0.02
    assert abs(clock.now_s() - time.time()) < 60
