"""A host's level over time: seen where it moves, and not where it only scatters."""

from __future__ import annotations

import random

import pytest

from tuner.stats.drift import Level, drift_of


def levels(*values: float, error: float = 1.0) -> list[Level]:
    return [Level(at_s=1000.0 + 600 * index, value=value, error=error) for index, value in enumerate(values)]


def test_a_level_that_falls_steadily_is_a_drift_of_its_whole_way() -> None:
    found = drift_of(levels(104, 102, 100, 98, 96))
    assert found is not None
    assert found.change.value == pytest.approx(-0.08)
    assert found.exceeds(0.05)
    assert not found.exceeds(0.1)
    assert found.level_at(1000.0) == pytest.approx(1.04)
    assert found.behind(1000.0) == pytest.approx(104 / 96 - 1)
    assert found.behind(1000.0 + 4 * 600) == pytest.approx(0)
    assert found.behind(9e9) == pytest.approx(0), "after the last level nothing is known but the last level"


def test_two_levels_give_a_drift_with_the_error_of_their_difference() -> None:
    """By hand: 90 and 110 with errors of 1: (110 - 90) / 100 ± 1.96 * sqrt(2) / 100."""
    found = drift_of(levels(90, 110))
    assert found is not None
    assert found.change.value == pytest.approx(0.2)
    assert found.change.high is not None
    assert found.change.high - 0.2 == pytest.approx(1.959964 * 2**0.5 / 100)


def test_a_change_within_the_errors_is_not_seen_however_low_the_limit() -> None:
    found = drift_of(levels(100, 103, error=3.0))
    assert found is not None
    assert not found.exceeds(0.0)


def test_scatter_beyond_the_errors_widens_the_interval() -> None:
    """A zigzag of 5 % with errors of 0.1 %: whatever slope it has is no drift."""
    found = drift_of(levels(100, 105, 100, 106, 101, error=0.1))
    assert found is not None
    assert not found.exceeds(0.0)


@pytest.mark.parametrize("few", [[], levels(100), [levels(100)[0]] * 2, levels(0, 0)], ids=["none", "one", "same", "0"])
def test_nothing_is_said_of_less_than_two_moments_or_of_nothing(few: list[Level]) -> None:
    assert drift_of(few) is None


def test_a_level_without_drift_is_rarely_taken_for_one() -> None:
    """A nominal 5 %, on five levels with their true error."""
    rng = random.Random(3)
    seen = 0
    for _ in range(400):
        found = drift_of(levels(*(rng.gauss(100, 2) for _ in range(5)), error=2.0))
        assert found is not None
        seen += found.exceeds(0.0)
    assert seen / 400 < 0.07
