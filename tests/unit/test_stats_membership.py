"""How likely a configuration belongs to the front."""

from __future__ import annotations

import pytest

from tuner.stats.membership import membership


def test_what_is_known_exactly_belongs_or_does_not() -> None:
    assert membership([(1, 3), (3, 1), (1, 1), (2, 2)], [(0, 0)] * 4) == (1, 1, 0, 1)


def test_equal_points_do_not_push_each_other_off_the_front() -> None:
    assert membership([(1, 1), (1, 1)], [(0, 0)] * 2) == (1, 1)


def test_two_equals_of_which_one_leads_in_both_by_chance_are_on_the_front_three_times_in_four() -> None:
    """One dominates the other with probability 1/4: both coordinates must lie the same way."""
    first, second = membership([(1, 1), (1, 1)], [(0.1, 0.1)] * 2)
    assert first == pytest.approx(0.75, abs=0.03)
    assert second == pytest.approx(0.75, abs=0.03)


def test_a_near_miss_has_a_chance_and_a_far_one_none() -> None:
    first, near, far = membership([(100, 100), (99, 99), (50, 50)], [(2, 2)] * 3)
    assert first > near > 0.2
    assert far == 0


def test_the_same_study_gives_the_same_numbers() -> None:
    points, errors = [(1.0, 2.0), (2.0, 1.0), (1.4, 1.4)], [(0.3, 0.3)] * 3
    assert membership(points, errors) == membership(points, errors)
    assert membership([], []) == ()


def test_three_objectives_work_as_two_do() -> None:
    assert membership([(1, 1, 3), (1, 1, 2)], [(0, 0, 0)] * 2) == (1, 0)
