"""The real engine, end to end: llama.cpp's server, a real model, this machine's CPU."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from tuner.testing.project import Project

CHECKOUT = Path(__file__).parents[2]


def test_four_trials_of_the_cpu_study_give_a_front_of_a_real_engine(project: Project) -> None:
    project.name = "smollm2-cpu"
    for name in ("smollm2-cpu.toml", "smollm2-cpu.jsonl"):
        shutil.copy(CHECKOUT / "studies" / name, project.root / "studies" / name)
    done = project.run("--trials", "4")
    assert done.returncode == 0, done.stderr
    search = [row for row in project.trials() if not row["repeat_of"]]
    rows = [row for row in search if row["outcome"] in {"measured", "infeasible"}]
    assert len(rows) == 4
    assert all(row["simulated"] == "False" for row in rows)
    measured = [row for row in rows if row["outcome"] == "measured"]
    assert measured, done.stderr
    assert measured[0]["trial"] == "0"
    for row in measured:
        assert 1 < float(row["single_request_throughput"]) < 1000
        assert float(row["aggregate_throughput"]) > 0
    assert json.loads(project.tuner("front", "--study", project.name, "--format", "json").stdout)["front"]
    log = (project.results / "trials" / "0000" / "server.log").read_text()
    assert "SmolLM2-135M" in log
    project.wait_until_no_server()
