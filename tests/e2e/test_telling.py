"""The story of a trial of a real study, and a log judged through a pipe."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tuner.testing.project import Project

GOLDEN = Path(__file__).parents[1] / "golden" / "sglang_logs"
Finished = tuple[Project, subprocess.CompletedProcess[str]]


def test_every_trial_of_a_finished_study_has_its_story(finished: Finished) -> None:
    project, done = finished
    assert done.returncode == 0, done.stderr
    for row in project.trials():
        told = project.tuner("explain", row["trial"], "--study", project.name)
        assert told.returncode == 0, told.stderr
        assert told.stderr == ""
        lines = told.stdout.splitlines()
        assert lines[0].startswith(f"tiny (SIMULATED), trial {row['trial']} on sim0")
        assert row["outcome"] in lines[0]
        for level in (1, 8):
            assert any(f"measuring {level} " in line and "tok/s each" in line for line in lines)
        assert lines[-1] == f"log       studies/tiny/trials/{int(row['trial']):04d}/server.log"
        assert "missing" not in told.stdout

    as_json = json.loads(project.tuner("explain", "0", "--study", project.name, "--format", "json").stdout)
    asked = {setting["name"]: (setting["asked"], setting["today"], setting["ran"]) for setting in as_json["settings"]}
    assert {len(set(values)) for values in asked.values()} == {1}, "trial 0 asks for what trial 0 runs, and runs it"
    assert as_json["following"]["trial"] == 1
    assert "has no trial '3': there is 0, 1, 2" in project.refused("explain", "3", "--study", project.name)


def test_a_log_is_judged_through_a_pipe_whose_reader_leaves(project: Project) -> None:
    log = (GOLDEN / "oom_under_load.log").read_bytes()
    command = f"'{sys.executable}' -m tuner diagnose - --exit 137 | head -1"
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", command], input=log, cwd=project.root, capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == b""
    assert done.stdout.startswith(b"The GPU ran out of memory")
