"""Intervals: hand-computed values, coverage by simulation, and laws that hold for all inputs."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tuner.stats.intervals import batch_means, mean_interval, ratio_of_sums, serial_rate, t_quantile

POSITIVE = st.floats(min_value=0.1, max_value=1e4)


def test_the_t_quantile_is_the_one_of_the_printed_tables() -> None:
    assert t_quantile(1) == pytest.approx(12.706, abs=1e-3)
    assert t_quantile(5) == pytest.approx(2.571, abs=1e-3)
    assert t_quantile(1000) == pytest.approx(1.962, abs=1e-3)


def test_a_mean_interval_matches_the_calculation_by_hand() -> None:
    estimate = mean_interval([1.0, 2.0, 3.0])
    assert estimate is not None
    assert estimate.value == 2.0
    assert estimate.low == pytest.approx(2.0 - 4.302653 / 3**0.5, abs=1e-5)
    assert estimate.high == pytest.approx(2.0 + 4.302653 / 3**0.5, abs=1e-5)
    assert estimate.samples == 3


def test_one_sample_has_a_value_and_no_interval_and_none_has_nothing() -> None:
    one = mean_interval([5.0])
    assert one is not None
    assert (one.value, one.low, one.high, one.half_width) == (5.0, None, None, None)
    assert mean_interval([]) is None
    assert ratio_of_sums([], []) is None
    single = ratio_of_sums([6.0], [2.0])
    assert single is not None
    assert (single.value, single.low) == (3.0, None)


def test_a_ratio_of_sums_weighs_long_requests_more_than_a_mean_of_rates() -> None:
    estimate = ratio_of_sums([100.0, 900.0], [1.0, 3.0])
    assert estimate is not None
    assert estimate.value == pytest.approx(250.0)


def test_a_ratio_refuses_lists_of_different_length() -> None:
    with pytest.raises(ValueError, match="2 numerators but 1"):
        ratio_of_sums([1.0, 2.0], [1.0])


def test_batch_means_are_rates() -> None:
    estimate = batch_means([10.0, 12.0, 14.0], 2.0)
    assert estimate is not None
    assert estimate.value == 6.0
    assert estimate.samples == 3


def test_all_cosine_terms_together_are_the_interval_of_independent_batches() -> None:
    tokens, seconds = [512.0, 480.0, 530.0, 505.0, 498.0], [2.0, 1.9, 2.1, 2.0, 2.05]
    serial, plain = serial_rate(tokens, seconds, terms=4), ratio_of_sums(tokens, seconds)
    assert serial is not None
    assert plain is not None
    assert serial.value == plain.value
    assert serial.half_width == pytest.approx(plain.half_width)
    assert serial.samples == 5


def test_the_slow_terms_see_a_trend_and_not_what_alternates() -> None:
    ones = [1.0] * 8
    rising = serial_rate([100.0 + i for i in range(8)], ones, terms=4)
    swinging = serial_rate([100.0 + 3.5 * (-1) ** i for i in range(8)], ones, terms=4)
    assert rising is not None
    assert swinging is not None
    assert (rising.half_width or 0) > 2 * (swinging.half_width or 0)


def test_a_higher_quantile_widens_an_interval() -> None:
    plain = serial_rate([9.0, 10.0, 11.0, 10.5], [1.0] * 4, terms=2)
    paid = serial_rate([9.0, 10.0, 11.0, 10.5], [1.0] * 4, terms=2, share=0.985)
    assert plain is not None
    assert paid is not None
    assert (paid.half_width or 0) / (plain.half_width or 1) == pytest.approx(t_quantile(2, 0.985) / t_quantile(2))


def test_serial_batches_that_do_not_fit_are_refused() -> None:
    assert serial_rate([], [], terms=1) is None
    with pytest.raises(ValueError, match="3 totals but 2"):
        serial_rate([1.0, 2.0, 3.0], [1.0, 1.0], terms=1)
    with pytest.raises(ValueError, match="3 cosine terms of 3 batches"):
        serial_rate([1.0, 2.0, 3.0], [1.0, 1.0, 1.0], terms=3)


@pytest.mark.parametrize("noise", [0.01, 0.05])
def test_the_interval_of_requests_covers_the_truth_about_as_often_as_it_says(noise: float) -> None:
    source = random.Random(20)
    covered = 0
    for _ in range(600):
        tokens = [511.0] * 8
        seconds = [511 / 277 * source.gauss(1, noise) for _ in tokens]
        estimate = ratio_of_sums(tokens, seconds)
        assert estimate is not None
        assert estimate.low is not None
        assert estimate.high is not None
        covered += estimate.low <= 277 <= estimate.high
    assert 0.92 <= covered / 600 <= 0.98


@given(st.lists(st.tuples(POSITIVE, POSITIVE), min_size=2, max_size=30), st.floats(min_value=0.01, max_value=100))
def test_a_ratio_lies_between_the_extreme_rates_and_scales_with_the_unit(
    pairs: list[tuple[float, float]], factor: float
) -> None:
    tokens, seconds = [x for x, _ in pairs], [y for _, y in pairs]
    estimate = ratio_of_sums(tokens, seconds)
    scaled = ratio_of_sums(tokens, [y * factor for y in seconds])
    assert estimate is not None
    assert scaled is not None
    rates = [x / y for x, y in pairs]
    assert min(rates) * (1 - 1e-9) <= estimate.value <= max(rates) * (1 + 1e-9)
    assert scaled.value == pytest.approx(estimate.value / factor)
    assert scaled.half_width == pytest.approx(estimate.half_width, abs=1e-9)


@given(st.lists(POSITIVE, min_size=2, max_size=30))
def test_an_interval_contains_its_mean(samples: list[float]) -> None:
    estimate = mean_interval(samples)
    assert estimate is not None
    assert estimate.low is not None
    assert estimate.high is not None
    assert estimate.low <= estimate.value <= estimate.high
