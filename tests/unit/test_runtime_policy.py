"""Who is to blame: the rules of the design as a table."""

from __future__ import annotations

import pytest

from tuner.model.outcome import Cause, Faulted, Infeasible, TrialState, Verdict, violation
from tuner.runtime.policy import NEVER_THE_CONFIGURATION, Death, RetryAfterCleaning, next_step


def death(cause: Cause, state: TrialState, *, config_fault: bool | None = None, level: int | None = None) -> Death:
    return Death(
        verdict=Verdict(cause=cause, config_fault=config_fault),
        state=state,
        level=level,
        level_index=None if level is None else (1, 4, 16).index(level),
        levels=3,
    )


def test_a_cause_that_names_the_configuration_needs_no_second_try() -> None:
    step = next_step([death(Cause.OOM_SERVING, TrialState.MEASURING, config_fault=True, level=16)])
    assert isinstance(step, Infeasible)
    assert (step.state, step.level) == (TrialState.MEASURING, 16)


@pytest.mark.parametrize("cause", [Cause.COLLECTIVE, Cause.UNKNOWN, Cause.CRASH_LOOP, Cause.PORT_IN_USE])
def test_a_cause_that_could_be_the_hosts_is_tried_once_more(cause: Cause) -> None:
    assert isinstance(next_step([death(cause, TrialState.LOADING)]), RetryAfterCleaning)


def test_the_same_state_dying_twice_is_the_configuration_even_if_the_log_says_nothing() -> None:
    dead = death(Cause.UNKNOWN, TrialState.LOADING)
    assert isinstance(next_step([dead, dead]), Infeasible)


def test_two_deaths_in_different_states_get_a_third_start() -> None:
    first, second = death(Cause.COLLECTIVE, TrialState.LOADING), death(Cause.UNKNOWN, TrialState.MEASURING, level=4)
    assert isinstance(next_step([first, second]), RetryAfterCleaning)


def test_three_deaths_in_three_states_are_a_fault() -> None:
    states = (TrialState.LOADING, TrialState.WARMING_UP, TrialState.SOAKING)
    step = next_step([death(Cause.UNKNOWN, state) for state in states])
    assert isinstance(step, Faulted)


@pytest.mark.parametrize("cause", sorted(NEVER_THE_CONFIGURATION, key=lambda cause: cause.value))
def test_some_causes_never_condemn_a_configuration(cause: Cause) -> None:
    dead = death(cause, TrialState.LOADING)
    assert isinstance(next_step([dead, dead]), Faulted)


def test_a_flaky_start_followed_by_a_death_of_the_configuration_is_infeasible() -> None:
    flake = death(Cause.COLLECTIVE, TrialState.LOADING)
    oom = death(Cause.OOM_GRAPH_CAPTURE, TrialState.LOADING, config_fault=True)
    step = next_step([flake, oom])
    assert isinstance(step, Infeasible)
    assert step.verdict.cause is Cause.OOM_GRAPH_CAPTURE


def test_rejected_arguments_are_graded_worst_wherever_they_are_noticed() -> None:
    step = next_step([death(Cause.REJECTED_ARGUMENTS, TrialState.LOADING, config_fault=True)])
    assert isinstance(step, Infeasible)
    assert step.violation == violation(TrialState.DEPLOYING)


def test_violations_are_ordered_by_how_far_a_trial_got() -> None:
    grades = [
        violation(TrialState.DEPLOYING),
        violation(TrialState.LOADING),
        violation(TrialState.WARMING_UP),
        *(violation(TrialState.MEASURING, level_index=index, levels=5) for index in range(5)),
        violation(TrialState.SOAKING),
    ]
    assert grades == sorted(grades, reverse=True)
    assert len(set(grades)) == len(grades)
    assert grades[-1] > 0
