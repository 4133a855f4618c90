"""Whether the client was the bottleneck: judged by its own share of a core and by what its numbers show."""

from __future__ import annotations

import asyncio
import gc

import pytest

from tuner.load.health import STRICT_LIMITS, TOLERANT_LIMITS, ClientWatch, watching
from tuner.load.stream import ReadCounts
from tuner.model.account import ClientHealth, Stamps
from tuner.model.record import RequestRecord, RequestStatus


def record(chunks: int, merged: int) -> RequestRecord:
    return RequestRecord(
        concurrency=1,
        slot=0,
        prompt_id="p",
        sent_s=0.0,
        first_s=1.0,
        last_s=2.0,
        ended_s=2.0,
        tokens=chunks,
        first_chunk_tokens=1,
        prompt_tokens=1,
        chunk_s=tuple(1.0 + n for n in range(chunks)),
        chunk_tokens=(1,) * chunks,
        status=RequestStatus.OK,
        in_window=True,
        merged=merged,
    )


@pytest.mark.parametrize(
    ("cpu_share", "lag_p99_s", "merged_share", "is_bound"),
    [
        (0.7, 0.002, 0.0, True),
        (0.7, 0.0005, 0.02, True),
        (0.7, 0.0005, 0.005, False),
        (0.7, None, None, False),
        (0.3, 0.5, 0.5, False),
    ],
    ids=["busy and late", "busy and merging", "busy and in time", "busy, else unknown", "a busy machine"],
)
def test_a_strict_client_is_bound_when_it_has_no_time_left_and_its_numbers_show_it(
    cpu_share: float, lag_p99_s: float | None, merged_share: float | None, is_bound: bool
) -> None:
    health = ClientHealth(cpu_share=cpu_share, lag_p99_s=lag_p99_s, merged_share=merged_share, stamps=Stamps.KERNEL)
    assert (STRICT_LIMITS.why_bound(health) is not None) is is_bound


def test_the_reason_says_what_was_seen() -> None:
    health = ClientHealth(cpu_share=0.81, lag_p99_s=0.07, merged_share=0.025, stamps=Stamps.KERNEL)
    assert STRICT_LIMITS.why_bound(health) == (
        "its loop ran 70 ms late (p99) and 2.5% of the chunks were read together with a later one at 81% of a core"
    )


@pytest.mark.parametrize(("stamps", "is_bound"), [(Stamps.USER, True), (Stamps.KERNEL, False)], ids=["user", "kernel"])
def test_a_late_client_falsifies_stamps_of_its_own_whoever_was_to_blame(stamps: Stamps, is_bound: bool) -> None:
    health = ClientHealth(cpu_share=0.1, lag_p99_s=0.02, stamps=stamps)
    why = STRICT_LIMITS.why_bound(health)
    assert (why == "its loop ran 20 ms late (p99), and the stamps are its own") is is_bound
    assert TOLERANT_LIMITS.why_bound(health) is None


def test_a_tolerant_client_bears_what_a_strict_one_does_not() -> None:
    assert TOLERANT_LIMITS.why_bound(ClientHealth(cpu_share=0.85, lag_p99_s=0.07, merged_share=0.5)) is None
    assert TOLERANT_LIMITS.why_bound(ClientHealth(cpu_share=0.95, lag_p99_s=0.07)) is not None


def test_shares_are_of_the_reads_and_the_chunks() -> None:
    health = ClientWatch().health(ReadCounts(reads=200, stamped=200, late=10), [record(30, 1), record(10, 1)])
    assert (health.late_share, health.merged_share, health.stamps) == (0.05, 0.05, Stamps.KERNEL)
    assert health.lag_p99_s is None


def test_without_stamps_of_the_kernel_nothing_says_what_is_late() -> None:
    health = ClientWatch().health(ReadCounts(reads=200), [])
    assert (health.late_share, health.merged_share, health.stamps) == (None, None, Stamps.USER)


def test_a_leg_whose_wall_clock_was_set_now_and_then_still_has_the_kernel_s_stamps() -> None:
    assert ClientWatch().health(ReadCounts(reads=1000, stamped=900), []).stamps is Stamps.KERNEL
    assert ClientWatch().health(ReadCounts(reads=1000, stamped=400), []).stamps is Stamps.USER


def test_watching_leaves_the_collector_as_it_was() -> None:
    async def run() -> None:
        async with watching() as watch:
            assert gc.get_freeze_count() > 0
            await asyncio.sleep(0.1)
            assert watch.health(ReadCounts(), []).lag_p99_s is not None

    asyncio.run(run())
    assert gc.get_freeze_count() == 0
