"""A person's correction in the real database: what plain Optuna and optuna-dashboard then see."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import optuna
import pytest
from optuna.trial import TrialState as State
from optuna_dashboard._pareto_front import get_pareto_front_trials

from tuner.errors import LedgerError
from tuner.model.outcome import Infeasible, Outcome
from tuner.model.ruling import Correction, Ruling, Word, corrected
from tuner.report.front import front_rows
from tuner.search.history import History
from tuner.search.ledger import OptunaLedger, open_ledger
from tuner.search.reopened import reopen_ledger
from tuner.search.rows import read_study
from tuner.search.storage import open_storage
from tuner.testing.draft_trees import FULL_SPACE, SMALL_SPACE, canonical
from tuner.testing.results import faulted, infeasible, measured, result_of
from tuner.testing.specs import full_spec

NAME = "full"
BEST, GOOD, POOR = measured(900, 9000), measured(300, 2000), measured(200, 1500)


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[OptunaLedger]:
    opened = open_ledger(full_spec(tmp_path), canonical)
    yield opened
    opened.close()


@contextlib.contextmanager
def optunas_view(place: Path) -> Iterator[optuna.Study]:
    with open_storage(place / "study" / "study.db") as storage:
        yield optuna.load_study(study_name=NAME, storage=storage)


def end(ledger: OptunaLedger, outcome: Outcome) -> int:
    proposal = ledger.propose("gpu01")
    assert proposal is not None
    ledger.tell(result_of(proposal, outcome, study=NAME))
    return proposal.number


def overrule(ledger: OptunaLedger, number: int, word: Word, order: str = "1") -> Outcome:
    before = ledger.rows()[number].outcome
    assert before is not None
    ruling = Ruling(order=order, word=word, why="load crashed", who="me@here", at_s=1.0)
    outcome = corrected(ruling, before, ledger.rows()[number].corrections)
    assert not isinstance(outcome, str)
    ledger.correct(number, outcome, Correction(ruling=ruling, before=before))
    return outcome


def fronts(ledger: OptunaLedger, place: Path) -> tuple[set[int], set[int], set[int]]:
    """Return ours, Optuna's and optuna-dashboard's."""
    ours = {row.number for row in front_rows(ledger.rows())}
    with optunas_view(place) as study:
        optunas = {trial.number for trial in study.best_trials}
        boards = get_pareto_front_trials(trials=study.trials, directions=study.directions)
    return ours, optunas, {trial.number for trial in boards}


def test_a_trial_that_is_ruled_infeasible_leaves_every_front_and_comes_back_when_that_is_undone(
    ledger: OptunaLedger, tmp_path: Path
) -> None:
    good, best, _ = end(ledger, GOOD), end(ledger, BEST), end(ledger, POOR)
    assert fronts(ledger, tmp_path) == ({best}, {best}, {best})
    overrule(ledger, best, Word.INFEASIBLE)
    assert fronts(ledger, tmp_path) == ({good}, {good}, {good})
    overrule(ledger, best, Word.RETRY, "2")
    assert fronts(ledger, tmp_path) == ({good}, {good}, {good})
    overrule(ledger, best, Word.MEASURED, "3")
    assert fronts(ledger, tmp_path) == ({best}, {best}, {best})


def test_optuna_finds_a_corrected_trial_as_if_it_had_been_told_so(ledger: OptunaLedger, tmp_path: Path) -> None:
    ruled, retried, undone, died = (end(ledger, outcome) for outcome in (BEST, GOOD, POOR, infeasible()))
    outcome = overrule(ledger, ruled, Word.INFEASIBLE)
    assert isinstance(outcome, Infeasible)
    overrule(ledger, retried, Word.RETRY)
    overrule(ledger, undone, Word.INFEASIBLE)
    overrule(ledger, undone, Word.MEASURED, "2")
    with optunas_view(tmp_path) as study:
        trials = study.trials
    assert [trials[n].state for n in (ruled, retried, undone, died)] == [
        State.PRUNED, State.FAIL, State.COMPLETE, State.PRUNED,
    ]  # fmt: skip
    assert trials[ruled].values is None
    assert trials[retried].values is None
    assert trials[undone].values == [200.0, 1500.0]
    violation = outcome.violation
    system = trials[ruled].system_attrs
    assert (system["constraints"], system["constraints:infeasible"]) == ([violation], violation)
    assert set(trials[ruled].constraints) == set(trials[died].constraints)
    assert trials[ruled].user_attrs["cause"] == "ruled"
    assert trials[retried].constraints == {}
    assert trials[undone].system_attrs["constraints"] == [0.0]
    assert "cause" not in trials[undone].user_attrs
    assert trials[ruled].params == dict(ledger.rows()[ruled].assignment)


@pytest.mark.parametrize("sampler", ["auto", "tpe", "nsga2", "random", "grid"])
def test_every_sampler_goes_on_from_the_corrected_history(tmp_path: Path, sampler: str) -> None:
    ledger = open_ledger(full_spec(tmp_path, sampler=sampler), canonical)
    for index in range(12):
        end(ledger, infeasible() if index % 4 == 3 else measured(100 + index, 2000 - index))
    outcome = overrule(ledger, 0, Word.INFEASIBLE)
    assert isinstance(outcome, Infeasible)
    overrule(ledger, 1, Word.RETRY)
    history = History.of(ledger.rows())
    assert history.counted[0].violation == outcome.violation
    assert history.counted[0].values is None
    assert len(history.counted) == 11
    seen = [row.assignment for row in ledger.rows()]
    assert ledger.propose("gpu01") is not None  # the retry
    proposal = ledger.propose("gpu02")
    assert proposal is not None
    assert proposal.assignment not in seen
    ledger.close()


def test_a_correction_is_one_transaction(ledger: OptunaLedger, tmp_path: Path) -> None:
    number = end(ledger, BEST)
    path = tmp_path / "study" / "study.db"
    with contextlib.closing(sqlite3.connect(path)) as other:
        other.execute(
            "CREATE TRIGGER full BEFORE INSERT ON trial_user_attributes WHEN NEW.key = 'corrections' "
            "BEGIN SELECT RAISE(ABORT, 'database or disk is full'); END"
        )
        other.commit()
    before = ledger.rows()
    with pytest.raises(Exception, match="free some disk space"):
        overrule(ledger, number, Word.INFEASIBLE)
    assert ledger.rows() == before
    with optunas_view(tmp_path) as study:
        assert study.trials[number].state is State.COMPLETE
        assert study.trials[number].values == [900.0, 9000.0]


def test_an_onlooker_reads_who_corrected_what(ledger: OptunaLedger, tmp_path: Path) -> None:
    number = end(ledger, BEST)
    overrule(ledger, number, Word.INFEASIBLE)
    row = read_study(tmp_path / "study", NAME).rows[number]
    (correction,) = row.corrections
    assert correction.before == BEST
    assert (correction.ruling.who, correction.ruling.why) == ("me@here", "load crashed")


def test_a_study_that_nobody_runs_is_reopened_to_queue_and_to_correct(tmp_path: Path) -> None:
    first = open_ledger(full_spec(tmp_path), canonical)
    end(first, BEST)
    first.close()
    again, stored = reopen_ledger(tmp_path / "study", NAME, space=FULL_SPACE, canonical=canonical)
    assert stored.trials == 24
    assert again.propose("gpu01") is None, "it searches nothing"
    overrule(again, 0, Word.RETRY)
    assert [type(row.outcome).__name__ for row in again.rows()] == ["Interrupted", "NoneType"]
    again.close()
    run = open_ledger(full_spec(tmp_path), canonical)
    assert run.settle() == ()
    proposal = run.propose("gpu01")
    assert proposal is not None
    assert proposal.baseline
    run.close()


def test_a_study_cannot_be_reopened_while_it_runs_or_with_another_space(ledger: OptunaLedger, tmp_path: Path) -> None:
    end(ledger, faulted())
    with pytest.raises(LedgerError, match="this study is being run by process"):
        reopen_ledger(tmp_path / "study", NAME, space=FULL_SPACE, canonical=canonical)
    ledger.close()
    with pytest.raises(LedgerError, match=r"was begun with space draft-trees .* put the space file back"):
        reopen_ledger(tmp_path / "study", NAME, space=SMALL_SPACE, canonical=canonical)
