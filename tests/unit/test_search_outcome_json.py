import json
from itertools import cycle

import pytest

from tuner.model.account import ClientHealth
from tuner.model.metric import Estimate
from tuner.model.outcome import (
    Cause,
    Faulted,
    Infeasible,
    Interrupted,
    Measured,
    MemoryDirection,
    Outcome,
    TrialState,
    Verdict,
)
from tuner.model.record import LegTrust
from tuner.search.constraints import constraint_of
from tuner.search.outcome_json import decode_outcome, decode_result, encode_outcome, encode_unfinished

DIAGNOSES = [
    Verdict(
        cause=cause,
        config_fault=fault,
        stage="pool",
        direction=direction,
        viable_fraction=fraction,
        evidence=("a", "b"),
    )
    for cause, fault, direction, fraction in zip(
        Cause,
        cycle([True, False, None]),
        cycle([*MemoryDirection, None]),
        cycle([0.8, None]),
        strict=False,
    )
]
OUTCOMES: list[Outcome] = [
    Measured(
        single_request_throughput=Estimate(value=123.4, low=None, high=None, samples=1),
        aggregate_throughput=Estimate(value=0.0, low=0.0, high=1.0, samples=40),
        peak_concurrency=64,
    ),
    *(Infeasible(verdict=d, state=TrialState.MEASURING, level=16, violation=1.25) for d in DIAGNOSES),
    *(Infeasible(verdict=DIAGNOSES[0], state=state, level=None, violation=3.0) for state in TrialState),
    Faulted(error="gpu01: away; look", state=TrialState.CLEANING),
    Faulted(error="gpu01: away; look", state=TrialState.LOADING, verdict=DIAGNOSES[3]),
    Interrupted(state=TrialState.SOAKING),
]


@pytest.mark.parametrize("outcome", OUTCOMES, ids=lambda outcome: type(outcome).__name__)
def test_every_outcome_comes_back_from_json_as_it_was(outcome: Outcome) -> None:
    assert decode_outcome(json.loads(json.dumps(encode_outcome(outcome), allow_nan=False))) == outcome


def test_what_a_reader_must_know_of_each_level_comes_back_with_the_result() -> None:
    entry = encode_unfinished(OUTCOMES[0], "gpu01")
    assert decode_result(entry).trust == ()
    leg = {"concurrency": 8, "converged": False, "client": {"cpu_share": 0.5, "lag_p99_s": 0.25}, "window_s": 4.0}
    assert decode_result(entry | {"legs": [leg]}).trust == (
        LegTrust(concurrency=8, converged=False, client=ClientHealth(cpu_share=0.5, lag_p99_s=0.25)),
    )


def test_the_speed_of_each_prompt_comes_back_with_the_result() -> None:
    entry = encode_unfinished(OUTCOMES[0], "gpu01")
    assert decode_result(entry).by_prompt == ()
    leg = {"concurrency": 1, "converged": True, "by_prompt": [["chat-1", 270.5], ["code-2", 301.0]]}
    other = {"concurrency": 4, "converged": True, "by_prompt": []}
    assert decode_result(entry | {"legs": [leg, other]}).by_prompt == (("chat-1", 270.5), ("code-2", 301.0))
    del leg["by_prompt"]  # not kept by 0.1
    assert decode_result(entry | {"legs": [leg]}).by_prompt == ()


def test_all_causes_are_covered() -> None:
    assert {verdict.cause for verdict in DIAGNOSES} == set(Cause)


def test_an_outcome_of_another_version_is_refused() -> None:
    with pytest.raises(ValueError, match="unknown outcome 'great'"):
        decode_outcome({"kind": "great"})


def test_only_counted_outcomes_have_a_constraint() -> None:
    kinds = {type(outcome): constraint_of(outcome) for outcome in OUTCOMES}
    assert kinds == {Measured: 0.0, Infeasible: 3.0, Faulted: None, Interrupted: None}


@pytest.mark.parametrize("violation", [0.0, -1.0, float("nan")])
def test_an_infeasible_outcome_that_would_pass_as_feasible_is_refused(violation: float) -> None:
    with pytest.raises(ValueError, match="above 0"):
        constraint_of(Infeasible(verdict=DIAGNOSES[0], state=TrialState.LOADING, level=None, violation=violation))
