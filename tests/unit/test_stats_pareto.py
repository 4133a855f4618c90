"""The front and the hypervolume, against brute force and by hand."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tuner.stats.pareto import dominates, front, hypervolume

GRID = st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), max_size=12)


def cells(points: list[tuple[int, int]]) -> int:
    """Count the unit squares of the grid that some point dominates."""
    return sum(any(x > a and y > b for x, y in points) for a, b in itertools.product(range(6), repeat=2))


def test_the_table_of_the_first_measurements_has_its_known_front() -> None:
    points = [(123.0, 1582.0), (186.0, 1844.0), (234.0, 1979.0), (277.0, 1817.0), (282.0, 1273.0)]
    assert front(points) == (2, 3, 4)


def test_equal_points_are_all_on_the_front() -> None:
    assert front([(1.0, 2.0), (1.0, 2.0), (0.0, 0.0)]) == (0, 1)


def test_a_point_that_ties_in_one_objective_and_loses_in_the_other_is_dominated() -> None:
    assert front([(1.0, 2.0), (1.0, 1.0), (0.5, 2.0)]) == (0,)


def test_no_points_have_no_front_and_no_volume() -> None:
    assert front([]) == ()
    assert hypervolume([], (0.0, 0.0)) == 0.0


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_point_that_was_not_measured_is_refused(value: float) -> None:
    with pytest.raises(ValueError, match="point 1"):
        front([(1.0, 1.0), (value, 2.0)])


def test_the_hypervolume_of_a_staircase_is_the_sum_of_its_steps() -> None:
    assert hypervolume([(1.0, 3.0), (2.0, 2.0), (3.0, 1.0)], (0.0, 0.0)) == 6.0
    assert hypervolume([(1.0, 3.0)], (0.5, 1.0)) == 1.0


def test_points_no_better_than_the_reference_add_nothing() -> None:
    assert hypervolume([(1.0, 5.0), (5.0, 1.0)], (1.0, 1.0)) == 0.0


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4), st.integers(0, 4)), max_size=15))
def test_the_front_is_what_brute_force_finds_in_any_dimension(points: list[tuple[int, int, int]]) -> None:
    expected = tuple(i for i, p in enumerate(points) if not any(dominates(q, p) for q in points))
    assert front(points) == expected


@given(GRID)
def test_the_hypervolume_is_the_area_counted_square_by_square(points: list[tuple[int, int]]) -> None:
    assert hypervolume(points, (0, 0)) == cells(points)


@given(GRID, st.tuples(st.integers(0, 6), st.integers(0, 6)))
def test_a_further_point_never_lowers_the_hypervolume(points: list[tuple[int, int]], further: tuple[int, int]) -> None:
    assert hypervolume([*points, further], (0, 0)) >= hypervolume(points, (0, 0))


@given(st.lists(st.tuples(*[st.integers(0, 6)] * 3), max_size=12))
def test_the_volume_of_three_objectives_is_the_number_of_unit_cubes_below_the_points(
    points: list[tuple[int, int, int]],
) -> None:
    cubes = {
        cube
        for cube in itertools.product(range(6), repeat=3)
        if any(all(edge < end for edge, end in zip(cube, point, strict=True)) for point in points)
    }
    assert hypervolume(points, (0, 0, 0)) == len(cubes)


def test_the_volume_of_more_objectives_is_refused() -> None:
    with pytest.raises(ValueError, match="2 or 3 objectives, not of 4"):
        hypervolume([], (0, 0, 0, 0))
