"""Searching with objectives of the study's own, and with limits that measured trials break."""

from __future__ import annotations

import importlib.util
import json

import pytest
from optuna.samplers import RandomSampler
from optuna.trial import TrialState as OptunaState

from tuner.model.metric import OBJECTIVES, Direction, Objective
from tuner.model.outcome import Cause, Infeasible, Measured, TrialState, Verdict, limit_violation
from tuner.model.space import Assignment
from tuner.model.study import TrialRow
from tuner.search.constraints import KEY, constraint_of
from tuner.search.domain import Domain
from tuner.search.history import Experience, History
from tuner.search.outcome_json import decode_outcome, encode_outcome
from tuner.search.samplers import SAMPLERS, Setting, make_strategy
from tuner.search.shadow import Shadow, View
from tuner.testing.draft_trees import FULL_BASELINE, FULL_SPACE, canonical
from tuner.testing.results import estimate

HERE = [name for name in SAMPLERS if name != "gp" or importlib.util.find_spec("torch") is not None]
DOMAIN = Domain(FULL_SPACE, canonical, FULL_BASELINE)
WAIT = Objective(name="p95(ttft_s)", direction=Direction.MINIMIZE, unit="s")
THREE = (*OBJECTIVES, WAIT)
OFF = Assignment.of({"steps": 0, "fraction": 0.7})
FAST = Measured(
    single_request_throughput=estimate(300.0),
    aggregate_throughput=estimate(900.0),
    peak_concurrency=16,
    others=((WAIT.name, estimate(3.1)),),
)
OUTSIDE = Infeasible(
    verdict=Verdict(cause=Cause.OUTSIDE_LIMITS, config_fault=True, evidence=("p95(ttft_s) is 3.1, at most 2 s",)),
    state=TrialState.JUDGING,
    level=None,
    violation=limit_violation(0.55),
    measured=FAST,
)


def row(outcome: Infeasible | Measured, assignment: Assignment = OFF) -> TrialRow:
    return TrialRow(
        number=0,
        assignment=assignment,
        outcome=outcome,
        host="gpu01",
        baseline=False,
        values=None,
        capacity=None,
        duration_s=1.0,
    )


def living(assignment: Assignment) -> Experience:
    """Waits grow with steps, and beyond six they are outside the limit, although throughput is best there."""
    steps, fraction = float(assignment["steps"]), float(assignment["fraction"])
    values = (60 * (1 + steps) ** 0.7, 4000 * fraction - 90 * steps, 0.3 + 0.25 * steps)
    exceeded = values[2] / 1.8 - 1
    if exceeded > 0:
        return Experience(assignment=assignment, values=None, violation=limit_violation(exceeded), outside=values)
    return Experience(assignment=assignment, values=values)


@pytest.mark.parametrize("outcome", [FAST, OUTSIDE], ids=["measured", "outside"])
def test_values_of_other_metrics_come_back_from_json(outcome: Infeasible | Measured) -> None:
    assert decode_outcome(json.loads(json.dumps(encode_outcome(outcome), allow_nan=False))) == outcome


def test_a_result_without_other_metrics_is_stored_as_it_always_was() -> None:
    plain = Measured(single_request_throughput=estimate(1.0), aggregate_throughput=estimate(2.0), peak_concurrency=4)
    assert set(encode_outcome(plain)) == {
        "kind",
        "single_request_throughput",
        "aggregate_throughput",
        "peak_concurrency",
    }


def test_a_broken_limit_is_a_constraint_above_zero_with_its_values_kept_for_samplers_that_need_some() -> None:
    (seen,) = History.of([row(OUTSIDE)], [each.name for each in THREE]).counted
    assert constraint_of(OUTSIDE) == seen.violation > 0
    assert (seen.values, seen.outside) == (None, (300.0, 900.0, 3.1))


@pytest.mark.parametrize(
    ("view", "state", "values"),
    [(View.PRUNED, OptunaState.PRUNED, None), (View.IMPUTED, OptunaState.COMPLETE, [300.0, 900.0, 3.1])],
    ids=["pruned", "imputed"],
)
def test_a_trial_outside_a_limit_is_shown_to_samplers_as_infeasible_with_its_own_values(
    view: View, state: OptunaState, values: list[float] | None
) -> None:
    history = History.of([row(OUTSIDE)], [each.name for each in THREE])
    shadow = Shadow(DOMAIN, history, sampler=RandomSampler(seed=1), view=view, objectives=THREE)
    (trial,) = shadow.trials
    assert (trial.state, trial.values, trial.constraints) == (state, values, {KEY: OUTSIDE.violation})


@pytest.mark.parametrize("name", HERE)
def test_every_sampler_searches_three_objectives_of_both_directions_beside_limits(name: str) -> None:
    strategy = make_strategy(name, Setting(domain=DOMAIN, objectives=THREE, seed=3))
    counted: list[Experience] = [living(FULL_BASELINE)]
    while len(counted) < 16:
        history = History(
            counted=tuple(counted), running=(), taken=frozenset(experience.assignment for experience in counted)
        )
        assignment = strategy.next(history)
        assert assignment is not None
        assert assignment not in history.taken
        counted.append(living(assignment))
    assert any(experience.values is not None for experience in counted)


def test_the_default_sampler_turns_away_from_what_is_outside_the_limits() -> None:
    strategy = make_strategy("auto", Setting(domain=DOMAIN, objectives=THREE, seed=3))
    counted: list[Experience] = [living(FULL_BASELINE)]
    while len(counted) < 30:
        taken = frozenset(experience.assignment for experience in counted)
        assignment = strategy.next(History(counted=tuple(counted), running=(), taken=taken))
        assert assignment is not None
        counted.append(living(assignment))
    outside = [experience.violation > 0 for experience in counted]
    assert sum(outside[15:]) <= 5
