"""Two settings on the same prompts: which requests are partners, and what pairing is worth."""

from __future__ import annotations

import math
import random
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tuner.model.record import RequestRecord, RequestStatus
from tuner.stats.intervals import t_quantile
from tuner.stats.pairs import paired_ratio, pairs, speeds_by_prompt

PROMPT_NOISE, RESIDUAL = 0.04, 0.01
SPEEDS = st.lists(st.tuples(st.sampled_from("abc"), st.floats(1.0, 1e4)), min_size=1, max_size=20)


def legs(source: random.Random, requests: int, ratio: float = 1.0) -> tuple[list[tuple[str, float]], ...]:
    """Two legs over the same prompts; the second setting is ``ratio`` times as fast."""
    prompts = [(f"p{number}", source.gauss(0.0, PROMPT_NOISE)) for number in range(requests)]
    return tuple(
        [(name, 280.0 * factor * math.exp(hardness + source.gauss(0.0, RESIDUAL))) for name, hardness in prompts]
        for factor in (1.0, ratio)
    )


def test_partners_are_the_requests_of_the_same_prompt_and_turn() -> None:
    one = [("a", 10.0), ("b", 20.0), ("a", 11.0), ("c", 30.0)]
    other = [("b", 22.0), ("a", 12.0), ("a", 13.0), ("a", 14.0)]
    assert pairs(one, other) == [(10.0, 12.0), (20.0, 22.0), (11.0, 13.0)]


def test_the_ratio_is_the_geometric_mean_of_the_prompts_ratios() -> None:
    ratio = paired_ratio([("a", 10.0), ("b", 100.0)], [("a", 20.0), ("b", 50.0)])
    assert ratio is not None
    assert ratio.value == pytest.approx(1.0)
    assert ratio.samples == 2


def test_one_pair_has_a_ratio_without_interval_and_strangers_have_none() -> None:
    ratio = paired_ratio([("a", 10.0)], [("a", 12.0)])
    assert ratio is not None
    assert (ratio.value, ratio.low, ratio.high) == (pytest.approx(1.2), None, None)
    assert paired_ratio([("a", 10.0)], [("b", 12.0)]) is None
    assert paired_ratio([], []) is None


@given(SPEEDS, SPEEDS)
def test_the_other_way_round_the_ratio_is_its_inverse(
    one: list[tuple[str, float]], other: list[tuple[str, float]]
) -> None:
    there, back = paired_ratio(one, other), paired_ratio(other, one)
    assert (there is None) == (back is None)
    if there is not None and back is not None:
        assert there.value * back.value == pytest.approx(1.0)


def test_the_interval_covers_the_true_ratio_as_often_as_it_says() -> None:
    source = random.Random(7)
    covered = 0
    for _ in range(1000):
        ratio = paired_ratio(*legs(source, 10, ratio=1.03))
        assert ratio is not None
        assert ratio.low is not None
        assert ratio.high is not None
        covered += ratio.low <= 1.03 <= ratio.high
    assert 0.93 <= covered / 1000 <= 0.97


def test_ten_pairs_tell_as_much_as_some_hundred_and_thirty_requests_that_are_not_paired() -> None:
    source = random.Random(8)
    paired, unpaired = [], []
    for _ in range(300):
        ratio = paired_ratio(*legs(source, 10))
        assert ratio is not None
        paired.append(ratio.half_width or 1.0)
        one, other = legs(source, 132)[0], legs(source, 132)[1]  # of different prompts
        variance = sum(statistics.variance(math.log(speed) for _, speed in leg) for leg in (one, other))
        unpaired.append(t_quantile(2 * 131) * math.sqrt(variance / 132))
    assert statistics.mean(paired) == pytest.approx(0.01, rel=0.1)
    assert statistics.mean(unpaired) == pytest.approx(statistics.mean(paired), rel=0.1)


def test_only_whole_requests_with_a_decode_phase_have_a_speed() -> None:
    whole = RequestRecord(
        concurrency=1,
        slot=0,
        prompt_id="a",
        sent_s=0.0,
        first_s=1.0,
        last_s=3.0,
        ended_s=3.0,
        tokens=9,
        first_chunk_tokens=1,
        prompt_tokens=None,
        chunk_s=(1.0, 3.0),
        chunk_tokens=(1, 8),
        status=RequestStatus.OK,
        in_window=True,
    )
    assert speeds_by_prompt([whole]) == (("a", 4.0),)
