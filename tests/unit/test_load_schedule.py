"""Staggering, and the rules that end a leg."""

from __future__ import annotations

import pytest

from tuner.load.schedule import (
    evaluation_period_s,
    is_hopeless,
    is_narrow,
    is_over,
    request_s,
    start_delay_s,
)
from tuner.model.metric import Estimate
from tuner.ports import Leg


def leg(concurrency: int = 16, min_s: float = 10.0, max_s: float = 60.0) -> Leg:
    return Leg(concurrency=concurrency, min_s=min_s, max_s=max_s, interval=0.02, salt="s")


def estimate(half_width: float | None, samples: int) -> Estimate:
    if half_width is None:
        return Estimate(value=100.0, low=None, high=None, samples=samples)
    return Estimate(value=100.0, low=100 - 100 * half_width, high=100 + 100 * half_width, samples=samples)


def test_slots_start_spread_over_one_request() -> None:
    assert [start_delay_s(k, 4, 2.0) for k in range(4)] == [0.0, 0.5, 1.0, 1.5]


def test_requests_are_expected_to_last_as_on_a_line_through_the_legs_before() -> None:
    assert request_s({}, 16) is None
    assert request_s({1: 2.0}, 16) == 2.0
    assert request_s({1: 2.0, 4: 2.3}, 16) == pytest.approx(3.5)
    assert request_s({1: 2.0, 4: 2.3, 16: 3.5, 32: 3.5}, 64) == 3.5  # the server runs no more at once
    assert request_s({1: 2.0, 4: 1.9}, 16) == 1.9
    assert request_s({64: 7.0, 32: 5.0}, 64) == 7.0
    assert request_s({64: 7.0}, 1) == 7.0


def test_a_lone_request_is_judged_by_its_own_speed_and_many_by_their_sum() -> None:
    narrow, wide = estimate(0.01, 10), estimate(0.03, 10)
    assert is_narrow(leg(1), narrow, wide)
    assert not is_narrow(leg(1), wide, narrow)
    assert is_narrow(leg(16), wide, narrow)
    assert not is_narrow(leg(16), narrow, wide)


def test_too_few_samples_are_never_narrow() -> None:
    assert not is_narrow(leg(1), estimate(0.0, 7), None)
    assert is_narrow(leg(1), estimate(0.0, 8), None)
    assert not is_narrow(leg(4), None, estimate(0.0, 7))
    assert is_narrow(leg(4), None, estimate(0.0, 8))
    assert not is_narrow(leg(16), None, estimate(0.0, 5))
    assert is_narrow(leg(16), None, estimate(0.0, 6))


def test_what_has_no_interval_is_not_narrow() -> None:
    assert not is_narrow(leg(16), None, None)
    assert not is_narrow(leg(16), None, estimate(None, 9))


@pytest.mark.parametrize("concurrency", [1, 16])
def test_a_leg_ends_when_narrow_after_its_shortest_time_or_at_its_longest(concurrency: int) -> None:
    def over(window_s: float, *, narrow: bool) -> bool:
        return is_over(
            leg(concurrency), window_s=window_s, is_narrow=narrow, single=estimate(0.1, 3), request_timeout_s=300
        )

    assert not over(9.9, narrow=True)
    assert over(10.0, narrow=True)
    assert not over(59.9, narrow=False)
    assert over(60.0, narrow=False)


def test_a_lone_request_that_is_longer_than_its_leg_is_waited_for_until_it_must_have_timed_out() -> None:
    def over(window_s: float, concurrency: int) -> bool:
        return is_over(leg(concurrency), window_s=window_s, is_narrow=False, single=None, request_timeout_s=300)

    assert not over(359, 1)
    assert over(360, 1)
    assert over(60, 2)


def test_a_leg_with_nothing_but_failures_is_given_up_at_its_longest_time() -> None:
    assert is_hopeless(leg(), elapsed_s=60, complete=0, failed=1, request_timeout_s=300)
    assert not is_hopeless(leg(), elapsed_s=59, complete=0, failed=1, request_timeout_s=300)
    assert not is_hopeless(leg(), elapsed_s=60, complete=1, failed=1, request_timeout_s=300)


def test_a_slow_leg_is_waited_for_until_its_requests_had_to_time_out() -> None:
    assert not is_hopeless(leg(), elapsed_s=600, complete=0, failed=0, request_timeout_s=300)
    assert is_hopeless(leg(), elapsed_s=660, complete=0, failed=0, request_timeout_s=300)


def test_short_legs_are_looked_at_more_often() -> None:
    assert evaluation_period_s(leg(min_s=0.5)) == 0.05
    assert evaluation_period_s(leg(min_s=2.0)) == 0.1
    assert evaluation_period_s(leg(min_s=100.0)) == 0.5
