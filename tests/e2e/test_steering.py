"""People steer a study from another terminal while it runs, and after it: try, abort, verdict."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import optuna
import pytest

from tuner.model.order import AbortOrder
from tuner.model.outcome import Cause, Infeasible, Interrupted, Measured
from tuner.model.ruling import Ruling, Word
from tuner.model.study import TrialRow
from tuner.search.rows import read_study
from tuner.testing.project import Project
from tuner.wiring.steer import give, new_id

HEARD_S = 2.0
"""From the order to the recorded verdict, at most."""


@dataclass(frozen=True)
class Running:
    """A study that runs for as long as the tests of this file."""

    project: Project
    process: subprocess.Popen[str]

    def steer(self, command: str, *arguments: str) -> str:
        done = self.project.tuner(command, "--study", "tiny", *arguments)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def refused(self, command: str, *arguments: str) -> str:
        done = self.project.tuner(command, "--study", "tiny", *arguments)
        assert done.returncode == 2, done.stdout
        (line,) = done.stderr.splitlines()
        return line.removeprefix("tuner: error: ")

    def rows(self) -> tuple[TrialRow, ...]:
        return read_study(self.project.results, "tiny").rows

    def row(self, number: int, *, until: Callable[[TrialRow], bool] = lambda row: row.outcome is not None) -> TrialRow:
        """Return a trial once it has ended, or is as wanted."""
        while True:
            rows = self.rows()
            if number < len(rows) and until(rows[number]):
                return rows[number]
            assert self.process.poll() is None, self.process.stderr and self.process.stderr.read()
            time.sleep(0.1)

    def measuring(self) -> int:
        """Return the number of a trial that measures now and has a while to go."""
        while True:
            now = [row.number for row in self.rows() if row.outcome is None and row.host is not None]
            for number in now:
                states = [event["state"] for event in self.events(number) if event["event"] == "StateEntered"]
                if states and states[-1] == "measuring":
                    return number
            assert self.process.poll() is None, self.process.stderr and self.process.stderr.read()
            time.sleep(0.05)

    def events(self, number: int) -> list[dict[str, Any]]:
        path = self.folder(number) / "events.jsonl"
        lines = path.read_text().splitlines(keepends=True) if path.exists() else []
        return [json.loads(line) for line in lines if line.endswith("\n")]

    def remarks(self, number: int) -> list[dict[str, Any]]:
        return [event for event in self.events(number) if event["event"] == "Remark" and "ruled by" in event["text"]]

    def folder(self, number: int) -> Path:
        return self.project.results / "trials" / f"{number:04d}"


@contextlib.contextmanager
def optuna_trials(project: Project) -> Iterator[list[optuna.trial.FrozenTrial]]:
    """Read the database as anybody would."""
    storage = optuna.storages.RDBStorage(f"sqlite:///{project.results}/study.db")
    try:
        yield optuna.load_study(study_name="tiny", storage=storage).trials
    finally:
        storage.remove_session()
        storage.engine.dispose()


@pytest.fixture(scope="module")
def running(shared: Project) -> Iterator[Running]:
    shared.write(trials=60)
    file = shared.root / "studies" / "tiny.toml"
    text = file.read_text()
    file.write_text(
        text.replace("level_min_s = 0.5", "level_min_s = 3").replace("level_max_s = 0.8", "level_max_s = 3")
    )
    process = shared.start("run", "--study", "tiny", "--plain")
    run = Running(shared, process)
    shared.wait_for_state("done", process)
    yield run
    if process.poll() is None:
        process.send_signal(signal.SIGINT)
        process.communicate()


def test_a_configuration_that_a_person_asks_for_is_run_next(running: Running) -> None:
    said = running.steer("try", "steps=5", "fraction=0.7")
    assert said.startswith("queued as trial "), said
    number = int(said.split()[3].rstrip(","))
    assert said == (
        f"queued as trial {number}, place 1 (next) of the queue: speculative_num_steps=5 speculative_eagle_topk=1 "
        "speculative_num_draft_tokens=6 mem_fraction_static=0.7"
    )
    running.row(number, until=lambda row: row.host is not None)
    running.project.wait_for_state("deploying", running.process, trial=number)
    manifest = json.loads((running.folder(number) / "manifest.json").read_text())
    assert manifest["assignment"]["speculative_num_steps"] == 5
    assert "trial " in running.steer("try", "steps=5", "fraction=0.7"), "asked again, it is there already"


def test_what_cannot_be_tried_is_refused_in_one_line(running: Running) -> None:
    assert "steps=99: speculative_num_steps must be 0 to 16" in running.refused("try", "steps=99")
    assert "did you mean steps?" in running.refused("try", "stpes=3")
    tree = running.refused("try", "steps=1", "topk=2", "draft=40")
    assert "cannot run" in tree
    assert "speculative_num_draft_tokens" in tree
    known = running.refused("try", "steps=3")
    assert "was trial 0: " in known
    assert "--again" in known


def test_an_abort_for_a_retry_ends_the_trial_which_runs_again(running: Running) -> None:
    number = running.measuring()
    began_s = time.time()
    said = running.steer("abort", "--trial", str(number), "--as", "retry", "--why", "power dipped")
    (remark,) = running.remarks(number)
    print(f"command to recorded verdict: {remark['at_s'] - began_s:.2f} s")  # noqa: T201 - the figure asked for
    assert f"trial {number} on sim0 is not counted" in said
    assert "server is being stopped, which has 10 s for that" in said
    row = running.row(number)
    assert isinstance(row.outcome, Interrupted)
    assert "power dipped" in row.outcome.why
    again = running.row(number + 1, until=lambda other: other.host is not None)
    assert again.assignment == row.assignment


def test_an_abort_as_infeasible_is_recorded_within_two_seconds_and_graded_where_the_trial_was(
    running: Running,
) -> None:
    number = running.measuring()
    ruling = Ruling(order=new_id(), word=Word.INFEASIBLE, why="load crashed", who="me@here", at_s=time.time())
    answer = give(AbortOrder(ruling=ruling), root=running.project.root, study="tiny", directory=running.project.results)
    heard_s = time.time() - ruling.at_s
    assert answer.done, answer.text
    with optuna_trials(running.project) as trials:
        recorded = trials[number].user_attrs["ruling"]
    print(f"order to recorded verdict: {heard_s:.2f} s")  # noqa: T201 - likewise
    assert heard_s < HEARD_S
    assert recorded["diagnosis"]["cause"] == "ruled"
    row = running.row(number)
    outcome = row.outcome
    assert isinstance(outcome, Infeasible)
    assert (outcome.verdict.cause, outcome.state.value) == (Cause.RULED, "measuring")
    assert 1.0 < outcome.violation < 2.0
    result = json.loads((running.folder(number) / "result.json").read_text())
    assert result["outcome"]["verdict"]["evidence"][0] == "load crashed"
    following = running.row(number + 1, until=lambda other: other.host is not None)
    assert following.assignment != row.assignment


def test_a_verdict_corrects_a_finished_trial_for_everybody_and_can_be_taken_back(running: Running) -> None:
    before = next(row for row in running.rows() if isinstance(row.outcome, Measured) and not row.baseline)
    said = running.steer("verdict", str(before.number), "--as", "infeasible", "--why", "answers were empty")
    assert f"trial {before.number}, measured" in said
    after = running.rows()[before.number]
    assert isinstance(after.outcome, Infeasible)
    assert after.corrections[0].before == before.outcome
    with optuna_trials(running.project) as trials:
        assert trials[before.number].state is optuna.trial.TrialState.PRUNED
        assert before.number not in {trial.number for trial in trials if trial.values is not None}
    table = {int(row["trial"]): row for row in running.project.trials()}
    assert table[before.number]["outcome"] == "infeasible"
    assert table[before.number]["cause"] == "ruled"
    status = running.project.tuner("status", "--study", "tiny").stdout
    assert "infeasible: ruled while judging (answers were empty)" in status
    assert "answers were empty" in running.remarks(before.number)[-1]["text"]
    running.steer("verdict", str(before.number), "--as", "measured", "--why", "the wrong trial")
    back = running.rows()[before.number]
    assert back.outcome == before.outcome
    assert back.values == before.values
    assert len(back.corrections) == 2
    assert {int(row["trial"]): row["outcome"] for row in running.project.trials()}[before.number] == "measured"


def test_words_that_do_not_fit_are_refused(running: Running) -> None:
    assert "nobody has overruled" in running.refused("verdict", "0", "--as", "measured", "--why", "x")
    assert "has no trial 999" in running.refused("verdict", "999", "--as", "retry", "--why", "x")
    assert "--why is empty" in running.refused("abort", "--as", "retry", "--why", "  ")
    assert "no trial runs on host sim7" in running.refused("abort", "--as", "retry", "--why", "x", "--host", "sim7")
    assert "trial 0 has ended" in running.refused("abort", "--as", "retry", "--why", "x", "--trial", "0")
    bad = running.project.tuner("abort", "--study", "tiny", "--as", "measured", "--why", "x")
    assert bad.returncode == 2
    assert "infeasible" in bad.stderr
    assert running.process.poll() is None


def test_without_a_run_orders_are_carried_out_at_once_and_the_next_run_takes_them_up(running: Running) -> None:
    number = running.measuring()
    answer = running.steer("abort", "--trial", str(number), "--as", "infeasible", "--why", "killed meanwhile")
    assert f"trial {number}" in answer
    running.process.kill()
    running.process.communicate()
    running.project.wait_until_no_server()
    while "process" in running.project.tuner("status", "--study", "tiny").stdout.splitlines()[0]:
        time.sleep(0.1)
    assert "no trial runs" in running.refused("abort", "--as", "retry", "--why", "x")
    said = running.steer("try", "steps=7")
    assert "queued as trial" in said
    queued = int(said.split()[3].rstrip(","))
    corrected = next(row for row in running.rows() if isinstance(row.outcome, Measured) and not row.baseline)
    running.steer("verdict", str(corrected.number), "--as", "infeasible", "--why", "late news")
    assert {int(row["trial"]): row["outcome"] for row in running.project.trials()}[corrected.number] == "infeasible"
    again = Running(running.project, running.project.start("run", "--study", "tiny", "--plain"))
    try:
        ruled = again.row(number)
        assert isinstance(ruled.outcome, Infeasible)
        assert ruled.outcome.verdict.evidence[0] == "killed meanwhile"
        again.row(queued, until=lambda row: row.host is not None)
    finally:
        again.process.send_signal(signal.SIGINT)
        again.process.communicate()
