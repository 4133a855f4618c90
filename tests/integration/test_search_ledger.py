"""What the ledger leaves in the database, read back with plain Optuna and plain SQLite."""

import contextlib
import shutil
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import optuna
import pytest
from optuna.trial import TrialState as State

from tuner.errors import LedgerError, UsageError
from tuner.model.outcome import Faulted, Infeasible, Interrupted, Measured, Outcome, TrialState
from tuner.model.repeat import Purpose, Repeat
from tuner.model.space import Assignment
from tuner.report.front import front_rows
from tuner.search.ledger import OptunaLedger, open_ledger
from tuner.search.outcome_json import encode_result
from tuner.search.rows import RESULT, read_study
from tuner.search.storage import open_storage
from tuner.testing.draft_trees import FULL_BASELINE, canonical
from tuner.testing.results import faulted, infeasible, measured, result_of
from tuner.testing.specs import full_spec, small_spec

NAME = "full"


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[OptunaLedger]:
    opened = open_ledger(full_spec(tmp_path), canonical)
    yield opened
    opened.close()


def database(place: Path) -> Path:
    return place / "study" / "study.db"


@contextlib.contextmanager
def optunas_view(place: Path) -> Iterator[optuna.Study]:
    with open_storage(database(place)) as storage:
        yield optuna.load_study(study_name=NAME, storage=storage)


def end(ledger: OptunaLedger, outcome: Outcome) -> int:
    proposal = ledger.propose("gpu01")
    assert proposal is not None
    ledger.tell(result_of(proposal, outcome, study=NAME))
    return proposal.number


def test_optuna_finds_states_values_and_both_encodings_of_the_constraint(ledger: OptunaLedger, tmp_path: Path) -> None:
    end(ledger, measured(234, 1979))
    end(ledger, infeasible(state=TrialState.LOADING))
    end(ledger, faulted())
    with optunas_view(tmp_path) as study:
        good, dead, fault, retry = study.trials
        assert study.metric_names == ["single_request_throughput", "aggregate_throughput"]
    assert [good.state, dead.state, fault.state] == [State.COMPLETE, State.PRUNED, State.FAIL]
    assert retry.state is State.WAITING
    assert good.values == [234, 1979]
    assert dead.values is None
    assert (good.system_attrs["constraints"], good.system_attrs["constraints:infeasible"]) == ([0.0], 0.0)
    assert (dead.system_attrs["constraints"], dead.system_attrs["constraints:infeasible"]) == ([3.5], 3.5)
    assert set(good.constraints) == set(dead.constraints)
    assert fault.constraints == {}


def test_parameters_are_the_canonical_assignment_without_those_that_do_not_apply(
    ledger: OptunaLedger, tmp_path: Path
) -> None:
    end(ledger, measured(234, 1979))
    ledger.enqueue(Assignment.of({"steps": 0, "topk": 4, "draft": 9, "fraction": 0.7}))
    ledger.enqueue(Assignment.of({"steps": 6, "topk": 1, "draft": 9, "fraction": 0.7}))
    end(ledger, measured(60, 2400))
    end(ledger, measured(280, 1200))
    with optunas_view(tmp_path) as study:
        _, off, chain = study.trials
    assert off.params == {"steps": 0, "fraction": 0.7}
    assert chain.params == {"steps": 6, "topk": 1, "draft": 7, "fraction": 0.7}


@pytest.mark.parametrize("sampler", ["auto", "nsga2"])
def test_optunas_front_and_ours_agree_and_hold_nothing_infeasible(tmp_path: Path, sampler: str) -> None:
    ledger = open_ledger(full_spec(tmp_path, sampler=sampler), canonical)
    for index in range(9):
        end(ledger, infeasible() if index % 3 == 1 else measured(100 + (index * 37) % 50, 2000 - (index * 53) % 90))
    ours = {row.number for row in front_rows(ledger.rows())}
    infeasible_numbers = {row.number for row in ledger.rows() if isinstance(row.outcome, Infeasible)}
    with optunas_view(tmp_path) as study:
        optunas = {trial.number for trial in study.best_trials}
        made_up = [
            trial
            for trial in study.trials
            if trial.state is State.COMPLETE and trial.constraints != {"0": 0.0, "infeasible": 0.0}
        ]
    ledger.close()
    assert ours == optunas
    assert len(ours) > 1
    assert not ours & infeasible_numbers
    assert made_up == []


def test_the_database_is_in_wal_mode_and_can_be_read_while_it_is_open(ledger: OptunaLedger, tmp_path: Path) -> None:
    end(ledger, measured(234, 1979))
    with contextlib.closing(sqlite3.connect(database(tmp_path))) as connection:
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    assert read_study(tmp_path / "study", NAME).rows == ledger.rows()


def test_an_onlooker_learns_what_the_tables_need_and_writes_nothing(tmp_path: Path) -> None:
    ledger = open_ledger(full_spec(tmp_path), canonical)
    end(ledger, measured(234, 1979))
    rows = ledger.rows()
    ledger.close()
    before = {path.name: path.read_bytes() for path in (tmp_path / "study").iterdir()}
    stored = read_study(tmp_path / "study", NAME)
    assert stored.rows == rows
    assert stored.simulated
    assert stored.parameters == ("steps", "topk", "draft", "fraction")
    assert (stored.engine, stored.space, stored.sampler) == ("draft-trees", "draft-trees", "auto")
    assert {path.name: path.read_bytes() for path in (tmp_path / "study").iterdir()} == before


def test_what_a_killed_driver_left_can_be_read_and_resumed(ledger: OptunaLedger, tmp_path: Path) -> None:
    end(ledger, measured(234, 1979))
    running = ledger.propose("gpu01")
    assert running is not None
    # What kill -9 leaves: the file and its log as they are on the disk now, never closed.
    crashed = tmp_path / "crashed" / "study"
    crashed.mkdir(parents=True)
    for path in (tmp_path / "study").glob("study.db*"):
        shutil.copy(path, crashed)
    assert [row.outcome is None for row in read_study(crashed, NAME).rows] == [False, True]
    resumed = open_ledger(full_spec(tmp_path / "crashed"), canonical)
    assert resumed.settle() == (running.number,)
    again = resumed.propose("gpu01")
    assert again is not None
    assert again.assignment == running.assignment
    resumed.close()


@pytest.mark.parametrize(
    ("outcome", "state"), [(measured(280, 1800), State.COMPLETE), (infeasible(), State.PRUNED), (faulted(), State.FAIL)]
)
def test_a_driver_killed_between_recording_and_telling_is_finished_by_the_next(
    tmp_path: Path, outcome: Measured | Infeasible | Faulted, state: State
) -> None:
    killed = open_ledger(full_spec(tmp_path), canonical)
    proposal = killed.propose("gpu01")
    assert proposal is not None
    trial = killed._trials(State.RUNNING)[0]
    killed._record(trial, encode_result(result_of(proposal, outcome, study=NAME)), outcome)
    killed.close()
    resumed = open_ledger(full_spec(tmp_path), canonical)
    assert resumed.settle() == ()
    assert resumed.rows()[0].outcome == outcome
    following = resumed.propose("gpu01")
    assert following is not None
    assert (following.assignment == FULL_BASELINE) is isinstance(outcome, Faulted)
    resumed.close()
    with optunas_view(tmp_path) as study:
        assert study.trials[0].state is state


def test_a_retry_queued_before_the_kill_is_not_queued_twice(tmp_path: Path) -> None:
    killed = open_ledger(full_spec(tmp_path), canonical)
    proposal = killed.propose("gpu01")
    assert proposal is not None
    trial = killed._trials(State.RUNNING)[0]
    killed._record(trial, encode_result(result_of(proposal, faulted(), study=NAME)), faulted())
    killed._queue.add_again(trial)
    killed.close()
    resumed = open_ledger(full_spec(tmp_path), canonical)
    resumed.settle()
    assert [row.assignment for row in resumed.rows()] == [FULL_BASELINE, FULL_BASELINE]
    resumed.close()


def test_a_resumed_study_goes_on_as_an_uninterrupted_one(tmp_path: Path) -> None:
    def outcome(assignment: Assignment) -> Measured | Infeasible:
        steps = int(assignment["steps"])
        return infeasible() if steps > 8 else measured(60 + 20 * steps, 2000 - 70 * steps)

    def measure(ledger: OptunaLedger) -> None:
        proposal = ledger.propose("gpu01")
        assert proposal is not None
        ledger.tell(result_of(proposal, outcome(proposal.assignment), study=NAME))

    whole = open_ledger(full_spec(tmp_path / "whole"), canonical)
    for _ in range(12):
        measure(whole)
    broken = open_ledger(full_spec(tmp_path / "broken"), canonical)
    for index in range(12):
        if index in (0, 3, 9):
            broken.propose("gpu01")  # and the driver dies
            broken.close()
            broken = open_ledger(full_spec(tmp_path / "broken"), canonical)
            broken.settle()
        measure(broken)
    counted = [
        [(row.assignment, row.outcome) for row in ledger.rows() if isinstance(row.outcome, Measured | Infeasible)]
        for ledger in (whole, broken)
    ]
    whole.close()
    broken.close()
    assert counted[0] == counted[1]


def test_what_another_program_queued_runs_in_its_canonical_form_or_is_dropped(
    ledger: OptunaLedger, tmp_path: Path
) -> None:
    end(ledger, measured(234, 1979))
    with optunas_view(tmp_path) as study:
        study.enqueue_trial({"steps": 4, "topk": 2, "draft": 60, "fraction": 0.8})
        study.enqueue_trial({"colour": 4})
        study.enqueue_trial({"steps": 6, "topk": 1, "draft": 9, "fraction": 0.8})
    proposal = ledger.propose("gpu01")
    assert proposal is not None
    assert proposal.assignment == Assignment.of({"steps": 6, "topk": 1, "draft": 7, "fraction": 0.8})
    ledger.tell(result_of(proposal, measured(280, 1500), study=NAME))
    for row in ledger.rows()[1:3]:
        assert isinstance(row.outcome, Interrupted)
        assert row.outcome.why.startswith("not run: ")


def test_a_trial_that_another_program_ended_is_an_error_that_says_so(ledger: OptunaLedger, tmp_path: Path) -> None:
    proposal = ledger.propose("gpu01")
    assert proposal is not None
    with optunas_view(tmp_path) as study:
        study.tell(proposal.number, state=State.FAIL)
    with pytest.raises(LedgerError, match="trial 0 was ended by another program"):
        ledger.tell(result_of(proposal, measured(1, 1), study=NAME))
    assert isinstance(ledger.rows()[0].outcome, Faulted)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_value_that_is_not_finite_is_refused_before_anything_is_written(
    ledger: OptunaLedger, tmp_path: Path, value: float
) -> None:
    proposal = ledger.propose("gpu01")
    assert proposal is not None
    with pytest.raises(ValueError, match="not finite"):
        ledger.tell(result_of(proposal, measured(value, 1), study=NAME))
    with optunas_view(tmp_path) as study:
        assert study.trials[0].state is State.RUNNING
        assert RESULT not in study.trials[0].user_attrs


def test_an_interrupted_trial_of_a_dead_driver_says_that_it_was_interrupted(tmp_path: Path) -> None:
    killed = open_ledger(full_spec(tmp_path), canonical)
    killed.propose("gpu01")
    killed.close()
    resumed = open_ledger(full_spec(tmp_path), canonical)
    resumed.settle()
    interrupted, waiting = resumed.rows()
    assert isinstance(interrupted.outcome, Interrupted)
    assert (interrupted.host, interrupted.duration_s) == ("gpu01", None)
    assert (waiting.baseline, waiting.outcome) == (True, None)
    resumed.close()


def test_a_folder_with_odd_characters_is_no_obstacle(tmp_path: Path) -> None:
    place = tmp_path / "50 % ?x=1#y"
    place.mkdir()
    ledger = open_ledger(full_spec(place), canonical)
    end(ledger, measured(1, 1))
    ledger.close()
    assert len(read_study(place / "study", NAME).rows) == 1


def test_an_unknown_sampler_is_refused_before_a_folder_is_made(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="sampler 'magic'"):
        open_ledger(small_spec(tmp_path, sampler="magic"), canonical)
    assert list(tmp_path.iterdir()) == []


def again(ledger: OptunaLedger, of: int, outcome: Outcome) -> int:
    proposal = ledger.repeat(Repeat(of=of, purpose=Purpose.CONFIRMATION), "gpu01")
    ledger.tell(result_of(proposal, outcome, study=NAME))
    return proposal.number


def test_optuna_sees_a_confirmed_trial_once_with_what_its_starts_together_say(
    ledger: OptunaLedger, tmp_path: Path
) -> None:
    lucky = end(ledger, measured(234, 1979))
    other = end(ledger, measured(210, 1950))
    for _ in range(2):
        again(ledger, lucky, measured(150, 1400))
    with optunas_view(tmp_path) as study:
        assert study.trials[lucky].values == pytest.approx([178, 1593])
        assert [trial.number for trial in study.best_trials] == [other], "who led by luck does not lead any more"
        repeats = study.trials[2:]
        assert [trial.state for trial in repeats] == [State.FAIL] * 2
        assert [trial.user_attrs["repeat_of"] for trial in repeats] == [lucky] * 2
    stored = read_study(tmp_path / "study", NAME)
    assert [row.number for row in front_rows(stored.rows)] == [other]
    assert stored.rows == ledger.rows()


def test_optuna_has_no_front_with_a_trial_that_died_when_it_was_confirmed(ledger: OptunaLedger, tmp_path: Path) -> None:
    end(ledger, measured(234, 1979))
    end(ledger, measured(100, 900))
    again(ledger, 0, infeasible())
    with optunas_view(tmp_path) as study:
        assert study.trials[0].state is State.PRUNED
        assert study.trials[0].values is None
        assert study.trials[0].user_attrs["outcome"] == "infeasible"
        assert [trial.number for trial in study.best_trials] == [1]
        assert study.trials[0].system_attrs["constraints"][0] > 0


def test_a_driver_killed_before_it_showed_a_confirmation_shows_it_at_the_next_start(tmp_path: Path) -> None:
    killed = open_ledger(full_spec(tmp_path), canonical)
    end(killed, measured(200, 1000))
    proposal = killed.repeat(Repeat(of=0, purpose=Purpose.CONFIRMATION), "gpu01")
    outcome = measured(100, 1000)
    trial = killed._trials(State.RUNNING)[0]
    killed._record(trial, encode_result(result_of(proposal, outcome, study=NAME)), outcome)
    killed.close()
    resumed = open_ledger(full_spec(tmp_path), canonical)
    assert resumed.settle() == ()
    assert resumed.settle() == ()
    assert resumed.rows()[0].values == pytest.approx((150, 1000))
    resumed.close()
    with optunas_view(tmp_path) as study:
        assert study.trials[0].values == pytest.approx([150, 1000])
        assert [trial.state for trial in study.trials] == [State.COMPLETE, State.FAIL]
