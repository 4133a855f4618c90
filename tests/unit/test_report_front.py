from dataclasses import replace
from pathlib import Path

import pytest

from tuner.model.metric import (
    AGGREGATE_THROUGHPUT,
    OBJECTIVES,
    SINGLE_REQUEST_THROUGHPUT,
    Direction,
    Estimate,
    Objective,
)
from tuner.model.outcome import Cause, Outcome
from tuner.model.space import Assignment
from tuner.model.study import TrialRow
from tuner.report.front import Heading, baseline_row, best_gain, causes, front_rows
from tuner.testing.draft_trees import FULL_BASELINE
from tuner.testing.results import faulted, infeasible, interrupted, measured
from tuner.testing.specs import full_spec


def row(number: int, outcome: Outcome | None, *, assignment: Assignment = FULL_BASELINE) -> TrialRow:
    values = None
    if outcome is not None and hasattr(outcome, SINGLE_REQUEST_THROUGHPUT):
        values = (outcome.single_request_throughput.value, outcome.aggregate_throughput.value)
    return TrialRow(
        number=number,
        assignment=assignment,
        outcome=outcome,
        host="gpu01",
        baseline=number == 0,
        values=values,
        capacity=None,
        duration_s=60.0,
    )


# The table the project started from: steps 5 is faster alone, steps 3 together, steps 4 between them.
ROWS = (
    row(0, measured(234, 1979)),
    row(1, measured(123, 1582)),
    row(2, measured(186, 1844)),
    row(3, measured(277, 1817)),
    row(4, measured(282, 1273)),
    row(5, infeasible()),
    row(6, infeasible(Cause.HANG)),
    row(7, infeasible()),
    row(8, faulted()),
    row(9, interrupted()),
    row(10, None),
)


WIDE = Estimate(value=739, low=577, high=901, samples=4)


def test_the_front_is_what_nothing_dominates_by_single_request_throughput() -> None:
    assert [found.number for found in front_rows(ROWS)] == [0, 3, 4]


def test_a_front_of_nothing_measured_is_empty() -> None:
    assert front_rows(ROWS[5:]) == ()
    assert best_gain(ROWS[5:]) == ()


def test_of_two_equal_trials_both_are_on_the_front() -> None:
    assert [found.number for found in front_rows([row(1, measured(5, 5)), row(2, measured(5, 5))])] == [2, 1]


def test_an_objective_to_minimise_is_turned_round() -> None:
    objectives = (OBJECTIVES[0], Objective(name=AGGREGATE_THROUGHPUT, direction=Direction.MINIMIZE))
    assert [found.number for found in front_rows(ROWS[:5], objectives)] == [4]
    gain = best_gain(ROWS[:5], objectives)[1]
    assert (gain.trial, round(gain.percent or 0, 1)) == (4, 35.7)


def test_the_gain_is_against_the_baseline_for_each_objective() -> None:
    single, aggregate = best_gain(ROWS)
    assert (single.trial, single.baseline, single.best) == (4, 234, 282)
    assert single.percent == pytest.approx(20.51, abs=0.01)
    assert (aggregate.trial, aggregate.percent) == (0, 0.0)


def test_a_baseline_that_was_repeated_after_a_fault_is_still_the_baseline() -> None:
    repeated = (replace(row(0, faulted()), baseline=True), replace(row(1, measured(100, 100)), baseline=True), ROWS[3])
    found = baseline_row(repeated)
    assert found is not None
    assert found.number == 1
    assert best_gain(repeated)[0].percent == pytest.approx(177.0)


def test_without_a_measured_baseline_no_gain_is_stated() -> None:
    assert best_gain([row(0, infeasible()), ROWS[1]]) == ()


def test_a_baseline_of_zero_has_no_percentage() -> None:
    assert best_gain([row(0, measured(0, 0)), ROWS[1]])[0].percent is None


def test_causes_are_counted_the_most_frequent_first() -> None:
    assert causes(ROWS) == (("oom_serving", 2), ("hang", 1))


def test_the_heading_of_a_study_says_whether_it_is_simulated(tmp_path: Path) -> None:
    heading = Heading.of(full_spec(tmp_path))
    assert heading.simulated
    assert heading.parameters == ("steps", "topk", "draft", "fraction")


def test_the_range_of_a_gain_sets_each_interval_against_the_far_end_of_the_other() -> None:
    before, after = replace(measured(100, 739), aggregate_throughput=WIDE), measured(100, 970)
    single, aggregate = best_gain([row(0, before), row(1, after)])
    assert aggregate.percent_low == pytest.approx(100 * (970 * 0.98 / 901 - 1))
    assert aggregate.percent_high == pytest.approx(100 * (970 * 1.02 / 577 - 1))
    assert single.percent_low is not None
    assert single.percent_high is not None
    assert single.percent_low < 0 < single.percent_high


def test_a_gain_has_no_range_where_a_level_was_too_short_for_an_interval() -> None:
    before = replace(measured(100, 739), aggregate_throughput=replace(WIDE, low=None, high=None))
    gain = best_gain([row(0, before), row(1, measured(100, 970))])[1]
    assert (gain.percent_low, gain.percent_high) == (None, None)
