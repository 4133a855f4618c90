"""One value out of several starts: intervals that hold, and the spread between starts."""

from __future__ import annotations

import math
import random

import pytest

from tuner.model.metric import Estimate
from tuner.stats.starts import (
    StartSpread,
    combined,
    discordant,
    middle,
    standard_error,
    start_spread,
    uncertainty,
)
from tuner.testing.results import estimate


def bare(value: float) -> Estimate:
    return Estimate(value=value, low=None, high=None, samples=1)


def test_a_single_start_is_taken_as_it_is() -> None:
    assert combined([estimate(100)], StartSpread(relative=0.5, degrees=3)) == estimate(100)


def test_the_combined_value_is_the_mean_of_the_starts_and_lies_below_the_lucky_one() -> None:
    starts = [estimate(603), estimate(547), estimate(550)]
    found = combined(starts, start_spread([[start.value for start in starts]]))
    assert found.value == pytest.approx(1700 / 3)
    assert found.samples == 3


def test_the_interval_between_starts_is_the_t_interval_of_their_spread() -> None:
    """By hand: 90, 100, 110; s = 0.1, t(2) = 4.3027, half = 4.3027 * 10 / sqrt(3)."""
    found = combined([bare(90), bare(100), bare(110)], start_spread([[90, 100, 110]]))
    assert found.high is not None
    assert found.high - 100 == pytest.approx(4.302653 * 10 / math.sqrt(3), rel=1e-6)


def test_starts_that_agree_by_chance_do_not_claim_more_than_their_own_intervals_allow() -> None:
    starts = [estimate(100, 0.04), estimate(100, 0.04)]
    found = combined(starts, start_spread([[100, 100]]))
    error = standard_error(starts[0])
    assert error is not None
    assert found.half_width == pytest.approx(1.959964 * error / math.sqrt(2) / 100)


def test_several_starts_without_a_known_spread_have_no_interval() -> None:
    assert combined([bare(1), bare(3)], None) == Estimate(value=2, low=None, high=None, samples=2)


def test_the_spread_is_pooled_over_configurations_of_different_speed() -> None:
    found = start_spread([[99, 101], [990, 1010], [5], [0, 0]])
    assert found is not None
    assert found.degrees == 2
    assert found.relative == pytest.approx(0.01 * math.sqrt(2))
    assert start_spread([[1.0], []]) is None


def test_combined_intervals_cover_the_truth_as_often_as_they_say() -> None:
    """Twelve configurations, three starts each, 3 % between starts and 1 % within: pooled t-intervals."""
    rng = random.Random(5)
    inside = total = 0
    for _ in range(150):
        truths = [rng.uniform(100, 2000) for _ in range(12)]
        groups = [[truth * (1 + rng.gauss(0, 0.03)) for _ in range(3)] for truth in truths]
        spread = start_spread(groups)
        for truth, group in zip(truths, groups, strict=True):
            found = combined([estimate(value, 0.01) for value in group], spread)
            assert found.low is not None
            assert found.high is not None
            inside += found.low <= truth <= found.high
            total += 1
    assert 0.93 <= inside / total <= 0.97


def test_the_uncertainty_of_a_lone_start_is_at_least_what_other_starts_differ() -> None:
    lone = estimate(100, 0.001)
    assert uncertainty(lone, [lone], StartSpread(relative=0.03, degrees=5)) == pytest.approx(3)
    assert uncertainty(bare(100), [bare(100)], None) == 0


def test_a_start_that_is_off_by_a_hundred_makes_its_configuration_discordant_and_no_other() -> None:
    """Recorded: a client that was starved read whole replies at once."""
    groups = [[232, 241, 226, 230], [290, 287], [40_038, 124], [233, 233]]
    assert discordant(groups) == {2}
    pooled = start_spread([group for place, group in enumerate(groups) if place != 2])
    assert pooled is not None
    assert pooled.relative < 0.03


def test_nobody_is_discordant_among_two_or_where_all_scatter_alike() -> None:
    assert discordant([[100, 200], [100, 101]]) == frozenset()
    assert discordant([[100, 100], [100, 101], [100, 100.5]]) == frozenset()
    rng = random.Random(2)
    odd = sum(bool(discordant([[rng.gauss(100, 3) for _ in range(3)] for _ in range(8)])) for _ in range(300))
    assert odd / 300 < 0.03, "1 % by design"


def test_of_discordant_starts_the_middle_one_counts_and_of_two_the_worse() -> None:
    lucky, fair, poor = bare(40_038), bare(124), bare(120)
    assert middle([lucky, fair], maximize=True) == Estimate(value=124, low=124, high=40_038, samples=2)
    assert middle([lucky, fair], maximize=False).value == 40_038
    assert middle([lucky, poor, fair], maximize=True).value == 124
