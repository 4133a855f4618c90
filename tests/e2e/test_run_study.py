"""The main job through the command line: run a study, look at it, interrupt it, kill it, take it up again."""

from __future__ import annotations

import contextlib
import csv
import io
import json
import os
import pty
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import optuna

from tuner.testing.project import Project
from tuner.wiring.signals import SAME_SIGNAL_S

COUNTED = {"measured", "infeasible"}
Finished = tuple[Project, subprocess.CompletedProcess[str]]


def kinds(project: Project) -> list[str]:
    return [row["outcome"] for row in project.trials()]


def assignments(project: Project, outcomes: set[str]) -> list[tuple[str, ...]]:
    names = [name for name in project.trials()[0] if name.startswith(("speculative_", "mem_"))]
    return [tuple(row[name] for name in names) for row in project.trials() if row["outcome"] in outcomes]


def counted_assignments(project: Project) -> list[tuple[str, ...]]:
    return assignments(project, COUNTED)


def files_with_the_secret(project: Project) -> list[Path]:
    written = [path for path in project.results.rglob("*") if path.is_file()]
    return [path for path in written if b"planted-s3cret" in path.read_bytes()]


def test_a_study_runs_to_its_end_and_leaves_everything_a_reader_needs(finished: Finished) -> None:
    project, done = finished
    assert done.returncode == 0, done.stderr
    assert "simulated" in done.stdout.lower()
    assert len(project.trials()) == 3
    assert all(row["simulated"] == "True" for row in project.trials())
    for name in ("study.db", "front.csv", "trials.csv", "front.png"):
        assert (project.results / name).stat().st_size > 0
    first = project.results / "trials" / "0000"
    manifest = json.loads((first / "manifest.json").read_text())
    assert manifest["baseline"] is True
    assert manifest["simulated"] is True
    assert {path.name for path in first.iterdir()} == {
        "manifest.json", "events.jsonl", "server.log", "requests.jsonl", "result.json"
    }  # fmt: skip
    assert "The server is fired up and ready to roll!" in (first / "server.log").read_text()
    requests = [json.loads(line) for line in (first / "requests.jsonl").read_text().splitlines()]
    assert {request["tokens"] for request in requests if request["status"] == "ok"} == {24}

    assert files_with_the_secret(project) == []
    assert "planted-s3cret" not in done.stdout + done.stderr

    study = optuna.load_study(study_name="tiny", storage=f"sqlite:///{project.results}/study.db")
    assert study.metric_names == ["single_request_throughput", "aggregate_throughput"]
    with sqlite3.connect(project.results / "study.db") as database:
        assert database.execute("pragma journal_mode").fetchone() == ("wal",)
    database.close()

    table = project.tuner("front", "--study", "tiny")
    assert table.returncode == 0
    as_csv = list(csv.DictReader(io.StringIO(project.tuner("front", "--study", "tiny", "--format", "csv").stdout)))
    as_json = json.loads(project.tuner("front", "--study", "tiny", "--format", "json").stdout)
    best = {trial.number for trial in study.best_trials}
    assert {int(row["trial"]) for row in as_csv} == best
    assert {row["trial"] for row in as_json["front"]} == best
    status = project.tuner("status", "--study", "tiny")
    assert status.returncode == 0
    assert "3" in status.stdout

    again = project.run()
    assert again.returncode == 0, again.stderr
    assert len(project.trials()) == 3, "a finished study runs nothing again"
    assert "starting Ray" not in again.stderr
    project.wait_until_no_server()


def times_entered(project: Project, state: str) -> int:
    written = project.results.glob("trials/*/events.jsonl")
    return sum(path.read_text().count(f'"state": "{state}"') for path in written)


def test_a_run_that_is_killed_in_every_state_ends_as_an_uninterrupted_one_would(
    project: Project, finished: Finished
) -> None:
    states = ("cleaning", "loading", "measuring", "soaking", "done")
    for state in states:
        before = times_entered(project, state) or (state == "cleaning")  # the first trial is left to end
        process = project.start("run", "--study", project.name)
        while times_entered(project, state) <= before:
            assert process.poll() is None, process.communicate()
            time.sleep(0.02)
        process.kill()  # SIGKILL: nothing of the driver can clean up
        process.communicate()
        project.wait_until_no_server()
        assert files_with_the_secret(project) == [], f"{state}: also where nobody was left to clean up"

    done = project.run()
    assert done.returncode == 0, done.stderr
    counted = counted_assignments(project)
    assert counted == counted_assignments(finished[0])
    assert len(set(counted)) == 3, "nothing finished runs twice"
    cut_off = assignments(project, {"interrupted"})
    assert cut_off[:4] == [counted[1]] * 4, "what was cut off is run again, each time"
    # The last kill met a trial that was not yet told, nothing at all, or the beginning of the next.
    assert cut_off[4:] in ([], [counted[1]], [counted[2]])
    study = optuna.load_study(study_name="tiny", storage=f"sqlite:///{project.results}/study.db")
    assert not study.get_trials(states=(optuna.trial.TrialState.RUNNING, optuna.trial.TrialState.WAITING))
    project.wait_until_no_server()


def test_ctrl_c_once_cleans_up_saves_and_exits_with_130(project: Project) -> None:
    process = project.start("run", "--study", project.name)
    project.wait_for_state("measuring", process)
    os.killpg(process.pid, signal.SIGINT)  # the terminal signals the whole group
    _, err = process.communicate()
    assert process.returncode == 130, err
    assert "Traceback" not in err
    assert kinds(project) == ["interrupted", "waiting"]
    project.wait_until_no_server()
    done = project.run()
    assert done.returncode == 0, done.stderr
    assert len(counted_assignments(project)) == 3


def test_ctrl_c_while_ray_starts_ends_before_anything_has_begun(project: Project) -> None:
    process = project.start("run", "--study", project.name)
    assert process.stderr is not None
    assert "starting Ray" in process.stderr.readline()
    os.killpg(process.pid, signal.SIGINT)
    _, err = process.communicate()
    assert process.returncode == 130, err
    assert "Traceback" not in err
    assert not (project.results / "study.db").exists()


def test_ctrl_c_twice_leaves_at_once_and_no_server_stays(project: Project) -> None:
    process = project.start("run", "--study", project.name)
    project.wait_for_state("measuring", process)
    os.killpg(process.pid, signal.SIGINT)
    time.sleep(SAME_SIGNAL_S + 0.3)  # sooner, it may count as the same wish
    os.killpg(process.pid, signal.SIGINT)
    process.communicate()
    assert process.returncode == 130
    project.wait_until_no_server()


def test_a_worker_that_is_killed_makes_its_trial_faulted_and_the_assignment_runs_again(project: Project) -> None:
    process = project.start("run", "--study", project.name)
    project.wait_for_state("measuring", process)
    os.kill(worker_of(process), signal.SIGKILL)
    _, err = process.communicate()
    assert process.returncode == 0, err
    first, second = project.trials()[:2]
    assert (first["outcome"], second["outcome"]) == ("faulted", "measured")
    assert first["speculative_num_steps"] == second["speculative_num_steps"]
    assert len(counted_assignments(project)) == 3


def worker_of(driver: subprocess.Popen[str]) -> int:
    """Return the PID of the driver's Ray worker: a descendant of its, by the name Ray gives it."""
    parents = {}
    names = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                pid, rest = int(entry.name), (entry / "stat").read_text().rpartition(")")[2].split()
                parents[pid], names[pid] = int(rest[1]), (entry / "cmdline").read_bytes()
    for pid, name in names.items():
        ancestor = pid
        while ancestor in parents and ancestor != driver.pid:
            ancestor = parents[ancestor]
        if ancestor == driver.pid and b"HostWorker" in name:
            return pid
    raise AssertionError("the driver has no worker")


def test_two_hosts_run_two_trials_at_once(project: Project) -> None:
    project.write(trials=4, hosts=2)
    done = project.run()
    assert done.returncode == 0, done.stderr
    rows = project.trials()
    assert {row["host"] for row in rows} == {"sim0", "sim1"}
    spans = []
    for path in sorted(project.results.glob("trials/*/result.json")):
        result = json.loads(path.read_text())
        spans.append((result["started_s"], result["finished_s"], result["host"]))
    assert any(
        a[0] < b[1] and b[0] < a[1] and a[2] != b[2] for index, a in enumerate(spans) for b in spans[index + 1 :]
    )
    assert len(set(counted_assignments(project))) == 4


def test_one_flaky_start_in_two_condemns_no_configuration(project: Project) -> None:
    project.write(trials=2, faults=("nccl-flake:0.5",))
    done = project.run()
    assert done.returncode == 0, done.stderr
    assert kinds(project) == ["measured", "measured"]
    remarks = (project.results / "trials" / "0001" / "events.jsonl").read_text()
    assert "starting once more after cleaning: collective" in remarks


def test_a_host_that_cannot_run_the_engine_ends_the_study_with_exit_4(project: Project) -> None:
    text = (project.root / "studies" / "tiny.toml").read_text()
    (project.root / "studies" / "tiny.toml").write_text(text.replace('"sglang", "serve"', '"no-such-program", "serve"'))
    done = project.run()
    assert done.returncode == 4
    assert "no-such-program" in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr


def test_a_second_driver_is_refused_with_the_first_ones_pid(project: Project) -> None:
    process = project.start("run", "--study", project.name)
    project.wait_for_state("loading", process)
    second = project.run()
    assert second.returncode == 2
    assert str(process.pid) in second.stderr
    assert "starting Ray" not in second.stderr
    os.killpg(process.pid, signal.SIGINT)
    process.communicate()


def test_a_terminal_shows_the_live_view_and_says_that_it_is_simulated(project: Project) -> None:
    project.write(trials=1)
    leader, follower = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "tuner", "run", "--study", "tiny"],
        cwd=project.root,
        stdout=subprocess.PIPE,
        stderr=follower,
        env={**os.environ, "TERM": "xterm-256color", "COLUMNS": "100", "LINES": "40"},
        start_new_session=True,
    )
    project.started.append(process)  # type: ignore[arg-type]
    os.close(follower)
    seen = b""
    try:
        while piece := os.read(leader, 65536):
            seen += piece
    except OSError:
        pass  # the terminal's other end is closed: the program has ended
    os.close(leader)
    out, _ = process.communicate()
    assert process.returncode == 0
    assert b"SIMULATED" in seen
    assert b"\x1b[" in seen
    assert b"simulated" in out.lower()
