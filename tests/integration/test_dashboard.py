"""The real optuna-dashboard on a study of ours, while the driver has it open."""

import contextlib
import json
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tuner.model.account import ClientHealth, Speculation
from tuner.model.metric import Estimate
from tuner.model.outcome import Infeasible
from tuner.model.record import LegResult
from tuner.model.ruling import Correction, Ruling, Word, corrected
from tuner.report.front import front_rows
from tuner.search.ledger import OptunaLedger, open_ledger
from tuner.testing.draft_trees import canonical
from tuner.testing.results import faulted, infeasible, measured, result_of
from tuner.testing.specs import full_spec

PROGRAM = Path(sys.executable).with_name("optuna-dashboard")
CHROMIUM = shutil.which("chromium")
NAME = "full"


@dataclass(frozen=True)
class Dashboard:
    url: str
    ledger: OptunaLedger

    def get(self, path: str) -> Any:  # noqa: ANN401 (JSON)
        with urllib.request.urlopen(f"{self.url}{path}", timeout=30) as reply:
            return json.load(reply)

    def study(self) -> Any:  # noqa: ANN401 (JSON)
        (summary,) = self.get("/api/studies")["study_summaries"]
        assert summary["study_name"] == NAME
        return self.get(f"/api/studies/{summary['study_id']}")


def fill(ledger: OptunaLedger) -> None:
    """Nine trials, three of which died after legs that would dominate everything."""
    splendid = LegResult(
        concurrency=1,
        single_request_throughput=Estimate(value=9999.0, low=9990.0, high=10_008.0, samples=50),
        aggregate_throughput=Estimate(value=99_999.0, low=99_000.0, high=100_100.0, samples=50),
        window_s=10.0,
        offered=50,
        completed=50,
        failed=0,
        converged=True,
        client=ClientHealth(cpu_share=0.1, lag_p99_s=0.001),
        speculation=Speculation(acceptance_length=9.0, step_time_s=0.001),
    )
    outcomes = [
        measured(234, 1979),
        infeasible(),
        measured(123, 1582),
        measured(277, 1817),
        faulted(),
        infeasible(),
        measured(282, 1273),
        infeasible(),
        measured(186, 1844),
    ]
    for outcome in outcomes:
        proposal = ledger.propose("gpu01")
        assert proposal is not None
        result = result_of(proposal, outcome, study=NAME)
        if isinstance(outcome, Infeasible):
            result = type(result)(
                **{name: getattr(result, name) for name in result.__slots__ if name != "legs"}, legs=(splendid,)
            )
        ledger.tell(result)


def free_port() -> int:
    with contextlib.closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture(scope="module")
def dashboard(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dashboard]:
    if not PROGRAM.exists():
        pytest.skip(f"optuna-dashboard is not installed beside {sys.executable}")
    place = tmp_path_factory.mktemp("dashboard")
    ledger = open_ledger(full_spec(place), canonical)
    fill(ledger)
    port = free_port()
    with (place / "dashboard.log").open("wb") as log:
        process = subprocess.Popen(
            [PROGRAM, "--host", "127.0.0.1", "--port", str(port), f"sqlite:///{place / 'study' / 'study.db'}"],
            stdout=log,
            stderr=subprocess.STDOUT,
        )
        try:
            url = f"http://127.0.0.1:{port}"
            wait_until_it_answers(process, url, place / "dashboard.log")
            yield Dashboard(url=url, ledger=ledger)
        finally:
            process.terminate()
            process.wait(timeout=30)
            ledger.close()


def wait_until_it_answers(process: "subprocess.Popen[bytes]", url: str, log: Path) -> None:
    deadline = time.monotonic() + 90
    while time.monotonic() < deadline:
        assert process.poll() is None, log.read_text()
        try:
            with urllib.request.urlopen(f"{url}/api/studies", timeout=30):
                return
        except (urllib.error.URLError, ConnectionError):
            time.sleep(0.1)
    raise AssertionError(f"no answer in 90 s: {log.read_text()}")


def test_both_objectives_are_shown_by_name_and_maximised(dashboard: Dashboard) -> None:
    study = dashboard.study()
    assert study["objective_names"] == ["single_request_throughput", "aggregate_throughput"]
    assert study["directions"] == ["maximize", "maximize"]


def test_its_best_trials_are_our_front_and_hold_nothing_infeasible(dashboard: Dashboard) -> None:
    shown = {trial["number"] for trial in dashboard.study()["best_trials"]}
    rows = dashboard.ledger.rows()
    assert shown == {row.number for row in front_rows(rows)}
    assert len(shown) == 3
    assert not shown & {row.number for row in rows if isinstance(row.outcome, Infeasible)}


def test_it_reads_the_constraint_of_every_counted_trial(dashboard: Dashboard) -> None:
    for trial in dashboard.study()["trials"]:
        if trial["state"] == "Complete":
            assert trial["constraints"] == [0.0]
        elif trial["state"] == "Pruned":
            assert trial["constraints"][0] > 0
            assert "values" not in trial or trial["values"] is None


def test_it_says_that_the_study_is_simulated_and_why_trials_died(dashboard: Dashboard) -> None:
    study = dashboard.study()
    assert {"key": "simulated", "value": "True"} in study["user_attrs"]
    dead = [trial for trial in study["trials"] if trial["state"] == "Pruned"]
    assert len(dead) == 3
    for trial in dead:
        assert {"key": "cause", "value": "oom_serving"} in trial["user_attrs"]


def test_the_driver_goes_on_while_it_is_watched(dashboard: Dashboard) -> None:
    before = len(dashboard.study()["trials"])
    proposal = dashboard.ledger.propose("gpu01")
    assert proposal is not None
    dashboard.ledger.tell(result_of(proposal, measured(100, 100), study=NAME))
    deadline = time.monotonic() + 60  # it keeps trials for some seconds
    while len(dashboard.study()["trials"]) == before and time.monotonic() < deadline:
        time.sleep(0.5)
    assert len(dashboard.study()["trials"]) == before + 1


def test_a_browser_draws_the_front(dashboard: Dashboard, tmp_path: Path) -> None:
    if CHROMIUM is None:
        pytest.skip("chromium is not installed: apt-get install chromium")
    (summary,) = dashboard.get("/api/studies")["study_summaries"]
    page = subprocess.run(
        [
            CHROMIUM,
            "--headless",
            "--no-sandbox",  # tests run as root in CI
            "--disable-gpu",
            f"--user-data-dir={tmp_path / 'profile'}",
            "--virtual-time-budget=20000",
            "--dump-dom",
            f"{dashboard.url}/dashboard/studies/{summary['study_id']}",
        ],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert page.returncode == 0, page.stderr
    assert NAME in page.stdout
    assert "Pareto Front" in page.stdout
    assert "Best Trials" in page.stdout


def test_a_trial_that_a_person_overrules_leaves_its_best_trials_while_it_is_watched(dashboard: Dashboard) -> None:
    ledger = dashboard.ledger
    best = front_rows(ledger.rows())[0]
    assert best.number in {trial["number"] for trial in dashboard.study()["best_trials"]}
    assert best.outcome is not None
    ruling = Ruling(order="1", word=Word.INFEASIBLE, why="load crashed", who="me@here", at_s=1.0)
    outcome = corrected(ruling, best.outcome, ())
    assert isinstance(outcome, Infeasible)
    ledger.correct(best.number, outcome, Correction(ruling=ruling, before=best.outcome))
    deadline = time.monotonic() + 60  # it keeps trials for some seconds
    while dashboard.study()["trials"][best.number]["state"] != "Pruned" and time.monotonic() < deadline:
        time.sleep(0.5)
    study = dashboard.study()
    assert study["trials"][best.number]["constraints"] == [outcome.violation]
    assert {trial["number"] for trial in study["best_trials"]} == {row.number for row in front_rows(ledger.rows())}
