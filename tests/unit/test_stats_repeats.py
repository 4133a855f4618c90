"""What the trials of a study say once their repeats are taken together with them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tuner.model.metric import AGGREGATE_THROUGHPUT, Direction, Objective
from tuner.model.outcome import Measured, Outcome
from tuner.model.repeat import Purpose, Repeat
from tuner.model.study import TrialRow
from tuner.stats.repeats import settled, standings
from tuner.testing.fake_run import mtp, row
from tuner.testing.results import estimate, faulted, infeasible, measured

TTFT = "p95(ttft_s)"
OBJECTIVES = (
    Objective(name=AGGREGATE_THROUGHPUT),
    Objective(name=TTFT, direction=Direction.MINIMIZE, unit="s"),
)


def waiting(aggregate: float, ttft_s: float, peak: int = 16) -> Measured:
    return replace(measured(100, aggregate, peak_concurrency=peak), others=((TTFT, estimate(ttft_s)),))


def trial(number: int, outcome: Outcome, repeat: Repeat | None = None) -> TrialRow:
    values = None
    if isinstance(outcome, Measured):
        values = tuple(outcome.estimate(objective.name).value for objective in OBJECTIVES)
    of = number if repeat is None else repeat.of
    return replace(row(number, mtp(of + 1), outcome), values=values, repeat=repeat, finished_s=60.0 * number)


def again(of: int, purpose: Purpose = Purpose.CONFIRMATION) -> Repeat:
    return Repeat(of=of, purpose=purpose)


def test_every_objective_of_the_study_is_combined_whatever_its_name_and_direction() -> None:
    rows = settled([trial(0, waiting(1000, 2.0)), trial(1, waiting(980, 2.2), again(0))], OBJECTIVES)
    assert rows[0].values == pytest.approx((990, 2.1))
    assert isinstance(rows[0].outcome, Measured)
    assert rows[0].outcome.estimate(TTFT).value == pytest.approx(2.1)
    assert rows[0].outcome.single_request_throughput == estimate(100), "what is no objective stays its own start's"
    assert rows[1].outcome == waiting(980, 2.2)


def test_less_is_better_where_the_study_says_so() -> None:
    found = standings(
        [trial(0, waiting(1000, 2.0)), trial(1, waiting(990, 4.0)), trial(2, waiting(500, 1.0))], OBJECTIVES
    )
    assert [each.is_member for each in found] == [True, False, True]
    assert found[1].chance < 0.5 < found[0].chance


def test_of_minimised_starts_that_disagree_the_worse_middle_one_is_the_higher() -> None:
    rows = settled(
        [
            *(trial(number, waiting(1000, 2.0)) for number in range(3)),
            trial(3, waiting(1000, 0.01)),
            *(trial(4 + number, waiting(1000, 2.0), again(number)) for number in range(3)),
            trial(7, waiting(1000, 2.0), again(3)),
        ],
        OBJECTIVES,
    )
    assert rows[3].values == pytest.approx((1000, 2.0))


def test_a_repeat_after_a_drift_replaces_what_was_measured_before_it() -> None:
    rows = settled(
        [
            trial(0, waiting(1000, 2.0)),
            trial(1, waiting(1010, 2.0), again(0)),
            trial(2, waiting(800, 2.5), again(0, Purpose.DRIFT)),
            trial(3, waiting(810, 2.5), again(0)),
        ],
        OBJECTIVES,
    )
    assert rows[0].values == pytest.approx((805, 2.5))
    assert rows[0].starts == (2, 3)


def test_repeats_without_a_result_change_nothing() -> None:
    first = trial(0, waiting(1000, 2.0))
    assert settled([first, trial(1, faulted(), again(0))], OBJECTIVES)[0] == first


def test_a_trial_that_a_person_or_its_own_death_took_out_stays_out_whatever_its_repeats_say() -> None:
    dead = trial(0, infeasible())
    assert settled([dead, trial(1, waiting(1000, 2.0), again(0))], OBJECTIVES)[0] == dead


def test_the_concurrency_of_the_peak_is_the_one_of_most_starts() -> None:
    rows = settled(
        [
            trial(0, waiting(1000, 2.0, peak=64)),
            trial(1, waiting(1000, 2.0, peak=16), again(0)),
            trial(2, waiting(1000, 2.0, peak=16), again(0)),
        ],
        OBJECTIVES,
    )
    assert isinstance(rows[0].outcome, Measured)
    assert rows[0].outcome.peak_concurrency == 16
