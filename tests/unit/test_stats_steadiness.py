"""When a server under load has come to rest."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tuner.stats.steadiness import BATCHES, drift, is_steady, is_warm

RATES = st.lists(st.floats(min_value=1.0, max_value=1e5), min_size=4, max_size=30)


def test_a_flat_line_is_steady() -> None:
    assert is_steady([100.0] * BATCHES, 0.02)


def test_a_line_that_falls_by_more_than_the_interval_drifts() -> None:
    falling = [100.0 - i for i in range(BATCHES)]
    seen = drift(falling)
    assert seen is not None
    assert seen.value == pytest.approx(-8 / 96.5)
    assert not is_steady(falling, 0.05)
    assert is_steady(falling, 0.10)


def test_a_server_that_still_warms_up_drifts() -> None:
    assert not is_steady([60.0, 75.0, 85.0, 92.0, 96.0, 98.0, 99.0, 100.0], 0.05)


def test_noise_around_a_constant_is_mostly_steady() -> None:
    source = random.Random(1)
    runs = [[source.gauss(1000.0, 30.0) for _ in range(BATCHES)] for _ in range(400)]
    assert sum(is_steady(run, 0.0) for run in runs) / len(runs) == pytest.approx(0.95, abs=0.03)


def test_a_trend_is_seen_through_noise() -> None:
    source = random.Random(2)
    runs = [[1000.0 - 40.0 * i + source.gauss(0.0, 10.0) for i in range(BATCHES)] for _ in range(100)]
    assert not any(is_steady(run, 0.05) for run in runs)


@pytest.mark.parametrize("rates", [[], [5.0], [5.0, 5.0, 5.0], [0.0] * BATCHES])
def test_what_cannot_be_told_is_not_called_steady(rates: list[float]) -> None:
    assert drift(rates) is None
    assert not is_steady(rates, 1.0)


@pytest.mark.parametrize(
    ("speeds", "warm"),
    [
        ([], False),
        ([100.0], False),
        ([100.0, 101.0], True),
        ([20.0, 100.0], False),
        ([20.0, 100.0, 101.0], True),
        ([100.0, 140.0, 180.0, 220.0], False),
        ([20.0] + [100.0, 106.0] * 4, True),
    ],
    ids=["none", "one", "two alike", "first cold", "then warm", "still rising", "noisy prompts"],
)
def test_a_server_is_warm_once_its_requests_are_as_fast_as_those_before(speeds: list[float], *, warm: bool) -> None:
    assert is_warm(speeds, 0.02) is warm


@given(RATES, st.floats(min_value=0.01, max_value=100.0))
def test_the_drift_is_relative(rates: list[float], factor: float) -> None:
    seen, scaled = drift(rates), drift([rate * factor for rate in rates])
    assert seen is not None
    assert scaled is not None
    assert scaled.value == pytest.approx(seen.value, rel=1e-6, abs=1e-9)


@given(RATES)
def test_a_run_backwards_drifts_the_other_way(rates: list[float]) -> None:
    there, back = drift(rates), drift(rates[::-1])
    assert there is not None
    assert back is not None
    assert back.value == pytest.approx(-there.value, rel=1e-6, abs=1e-9)
