"""Batches of completions: their edges, how often they are looked at, and their interval."""

from __future__ import annotations

import itertools

import pytest

from tuner.stats.batches import (
    batch_size,
    batches_throughput,
    edges_s,
    look_share,
    next_look,
    required_batches,
    terms_of,
)


def test_few_streams_need_more_batches() -> None:
    assert [required_batches(c) for c in (1, 2, 4, 5, 64)] == [8, 8, 8, 6, 6]


def test_looks_become_rarer_as_a_leg_goes_on() -> None:
    looks = list(itertools.accumulate(range(8), lambda samples, _: next_look(samples), initial=6))
    assert looks == [6, 8, 10, 13, 17, 22, 28, 35, 44]
    assert next_look(1) == 2


def test_later_looks_are_stricter() -> None:
    assert 0.975 < look_share(0, 16) < look_share(1, 16) == look_share(5, 16)
    assert look_share(0, 16) < look_share(0, 4) < look_share(1, 4)


def test_a_batch_is_cut_at_every_so_manyth_completion() -> None:
    assert edges_s(1.0, [2.0, 3.0, 4.0, 5.0, 6.0], 2) == [1.0, 3.0, 5.0]
    assert edges_s(1.0, [2.0], 2) == [1.0]
    assert edges_s(1.0, [2.0, 3.0], 1) == [1.0, 2.0, 3.0]


@pytest.mark.parametrize(
    ("concurrency", "running", "size"),
    [(64, 64, 64), (64, 63, 64), (64, 21, 63), (16, 6, 18), (64, 48, 48), (4, 1, 4), (1, 1, 1), (8, 0, 8)],
)
def test_a_batch_of_a_server_that_queues_is_whole_waves(concurrency: int, running: int, size: int) -> None:
    assert batch_size(concurrency, running) == size


def test_a_lone_slot_s_batches_share_nothing_and_give_all_their_terms() -> None:
    assert [terms_of(n, 1) for n in (2, 8, 20)] == [1, 7, 19]
    assert [terms_of(n, 16) for n in (2, 3, 6, 8, 20)] == [1, 2, 3, 4, 10]


def test_the_throughput_is_of_all_batches_and_its_interval_needs_three() -> None:
    two = batches_throughput([0.0, 10.0, 22.0], [1.0, 2.0, 3.0], 4, share=0.975)
    assert two is not None
    assert (two.value, two.low, two.samples) == (11.0, None, 2)
    three = batches_throughput([0.0, 10.0, 22.0, 33.0], [1.0, 2.0, 3.0, 4.0], 4, share=0.975)
    assert three is not None
    assert (three.value, three.samples) == (11.0, 3)
    assert three.low is not None
    assert batches_throughput([5.0], [1.0], 4, share=0.975) is None


def test_completions_in_one_instant_make_no_batch() -> None:
    estimate = batches_throughput([0.0, 10.0, 10.0, 22.0], [1.0, 2.0, 2.0, 3.0], 1, share=0.975)
    assert estimate is not None
    assert (estimate.value, estimate.samples) == (11.0, 2)
