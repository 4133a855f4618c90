"""A study with objectives and limits of its own in the database, read back with plain Optuna."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import optuna
import pytest
from optuna.trial import TrialState as State

from tuner.errors import LedgerError
from tuner.model.metric import OBJECTIVES, Direction, Objective
from tuner.model.metric_text import constraint_of
from tuner.model.outcome import Cause, Infeasible, Measured, Outcome, TrialState, Verdict, limit_violation
from tuner.model.study import StudySpec
from tuner.report.front import front_rows
from tuner.search.ledger import OptunaLedger, check_ledger, open_ledger
from tuner.search.reopened import reopen_ledger
from tuner.search.rows import read_study
from tuner.search.storage import open_storage
from tuner.testing.draft_trees import canonical
from tuner.testing.results import estimate, result_of
from tuner.testing.specs import full_spec

NAME = "full"
WAIT = Objective(name="p95(ttft_s)@64", direction=Direction.MINIMIZE, unit="s")
LIMIT = constraint_of("p95(ttft_s)@64 <= 2")


def spec_of(place: Path) -> StudySpec:
    return replace(full_spec(place), objectives=(*OBJECTIVES, WAIT), constraints=(LIMIT,))


def measured(single: float, aggregate: float, wait_s: float) -> Measured:
    return Measured(
        single_request_throughput=estimate(single),
        aggregate_throughput=estimate(aggregate),
        peak_concurrency=16,
        others=((WAIT.name, estimate(wait_s)),),
    )


OUTSIDE = Infeasible(
    verdict=Verdict(cause=Cause.OUTSIDE_LIMITS, config_fault=True, evidence=(LIMIT.words(3.1),)),
    state=TrialState.JUDGING,
    level=None,
    violation=limit_violation(0.55),
    measured=measured(900, 9000, 3.1),
)


def end(ledger: OptunaLedger, outcome: Outcome) -> None:
    proposal = ledger.propose("gpu01")
    assert proposal is not None
    ledger.tell(result_of(proposal, outcome, study=NAME))


@pytest.fixture
def place(tmp_path: Path) -> Path:
    ledger = open_ledger(spec_of(tmp_path), canonical)
    for outcome in (measured(234, 1979, 1.5), OUTSIDE, measured(200, 1900, 0.9), measured(190, 1800, 1.2)):
        end(ledger, outcome)
    ledger.close()
    return tmp_path


def test_optuna_knows_every_objective_by_name_and_direction_and_no_front_has_what_is_outside(place: Path) -> None:
    with open_storage(place / "study" / "study.db") as storage:
        study = optuna.load_study(study_name=NAME, storage=storage)
        assert study.metric_names == [*(each.name for each in OBJECTIVES), "p95(ttft_s)@64"]
        assert [each.name for each in study.directions] == ["MAXIMIZE", "MAXIMIZE", "MINIMIZE"]
        assert [trial.number for trial in study.best_trials] == [0, 2]
        outside = study.trials[1]
    assert (outside.state, outside.values) == (State.PRUNED, None)
    assert outside.system_attrs["constraints"] == [OUTSIDE.violation]
    assert outside.user_attrs["cause"] == "outside_limits"


def test_an_onlooker_reads_back_terms_front_and_what_lies_outside(place: Path) -> None:
    stored = read_study(place / "study", NAME)
    assert stored.objectives == (*OBJECTIVES, WAIT)
    assert stored.constraints == ("p95(ttft_s)@64 <= 2",)
    assert stored.rows[1].outcome == OUTSIDE
    assert [row.number for row in front_rows(stored.rows, stored.objectives)] == [2, 0]


@pytest.mark.parametrize("change", ["constraints", "objectives"])
def test_a_study_does_not_go_on_with_other_objectives_or_limits(place: Path, change: str) -> None:
    other: StudySpec = {
        "constraints": replace(spec_of(place), constraints=(constraint_of("p95(ttft_s)@64 <= 3"),)),
        "objectives": replace(spec_of(place), objectives=OBJECTIVES),
    }[change]
    with pytest.raises(LedgerError, match=f"was begun with another {change}"):
        check_ledger(other)


def test_a_study_of_other_objectives_is_reopened_to_be_corrected(place: Path) -> None:
    spec = spec_of(place)
    ledger, stored = reopen_ledger(place / "study", NAME, space=spec.space, canonical=canonical)
    assert ledger.rows() == stored.rows
    assert ledger.rows()[2].values == (200.0, 1900.0, 0.9)
    ledger.close()
