"""Repeated starts where a study has objectives of its own, one of them without intervals."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tuner.model.metric import OBJECTIVES, Direction, Estimate, Objective
from tuner.model.outcome import Cause, Infeasible, Measured, TrialState, Verdict
from tuner.model.repeat import Purpose, Repeat
from tuner.model.space import Assignment
from tuner.model.study import TrialRow
from tuner.stats.repeats import drifts, settled, standings
from tuner.testing.results import estimate

WAIT = Objective(name="p95(ttft_s)", direction=Direction.MINIMIZE, unit="s")
THREE = (*OBJECTIVES, WAIT)


def row(number: int, single: float, wait_s: float, *, steps: int, of: int | None = None) -> TrialRow:
    outcome = Measured(
        single_request_throughput=estimate(single),
        aggregate_throughput=estimate(2000.0),
        peak_concurrency=16,
        others=((WAIT.name, Estimate(value=wait_s, low=None, high=None, samples=40)),),
    )
    return TrialRow(
        number=number,
        assignment=Assignment.of({"steps": steps}),
        outcome=outcome,
        host="gpu01",
        baseline=steps == 1,
        values=(single, 2000.0, wait_s),
        capacity=None,
        duration_s=60.0,
        repeat=None if of is None else Repeat(of=of, purpose=Purpose.CONFIRMATION),
        finished_s=1000.0 * number,
    )


ROWS = (
    row(0, 100, 0.4, steps=1),
    row(1, 200, 0.8, steps=3),
    row(2, 100, 0.5, steps=1, of=0),
    row(3, 190, 1.0, steps=3, of=1),
)


def test_starts_are_combined_in_every_objective_also_in_one_without_intervals() -> None:
    base, winner, *_ = settled(ROWS, THREE)
    assert base.values == pytest.approx((100.0, 2000.0, 0.45))
    assert winner.values == pytest.approx((195.0, 2000.0, 0.9))
    assert isinstance(winner.outcome, Measured)
    wait = winner.outcome.estimate(WAIT.name)
    assert (wait.value, wait.samples) == (pytest.approx(0.9), 2)
    assert wait.low is not None
    assert wait.low < 0.9


def test_both_ends_of_a_front_with_a_minimised_objective_belong_to_it() -> None:
    found = standings(settled(ROWS, THREE), THREE)
    assert [(each.row.number, each.is_member) for each in found] == [(0, True), (1, True)]
    assert all(each.chance > 0.5 for each in found)


def test_drift_is_told_of_every_objective() -> None:
    assert {host: len(each) for host, each in drifts(settled(ROWS, THREE), THREE).items()} == {"gpu01": 3}


def test_a_confirmation_outside_a_limit_takes_its_trial_off_the_front_and_says_so() -> None:
    again = ROWS[3]
    assert isinstance(again.outcome, Measured)
    text = "p95(ttft_s) is 1, at most 0.9 s"
    verdict = Verdict(cause=Cause.OUTSIDE_LIMITS, config_fault=True, evidence=(text,))
    outside = Infeasible(verdict=verdict, state=TrialState.JUDGING, level=None, violation=0.05, measured=again.outcome)
    rows = settled((*ROWS[:3], replace(again, outcome=outside, values=None)), THREE)
    end = rows[1].outcome
    assert isinstance(end, Infeasible)
    assert end.verdict.evidence == (text,)
    assert "a fresh start of the same configuration broke a limit of the study: trial 3" in end.verdict.advice
    assert rows[1].values is None
