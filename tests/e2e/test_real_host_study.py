"""A whole study over SSH: as good as a local one, and without a trace on the host or a key in what is written."""

from __future__ import annotations

import csv
import io
import json
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from tuner.hosts.systemd.paths import drop_in_path
from tuner.testing.host_project import HostProject, host_project, left_as_it_was, ssh_host
from tuner.testing.rig import UNIT, Rig, sglang_unit
from tuner.testing.unit_on_host import UnitOnHost

TRIALS = 3
NOISE = 0.2
KEYS = {
    "in the command line": "sk-argv-k3y",
    "in Environment=": "sk-envi-k3y",
    "in the environment file, used in the command line": "sk-adm1n-k3y",
    "in the environment file, used by nobody": "hf-file-k3y",
    "in [server.env]": "wandb-study-k3y",
}
ARGV, ENVIRONMENT, ADMIN, FILE, STUDY = KEYS.values()


@dataclass(frozen=True)
class Finished:
    project: HostProject
    done: subprocess.CompletedProcess[str]
    drop_in: str
    log: str


@pytest.fixture(scope="module")
def finished(booted_rig: Rig, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Finished]:
    rig, host = booted_rig, UnitOnHost(booted_rig)
    try:
        rig.write("/etc/sglang.env", f'ADMIN_KEY="{ADMIN}"\nHF_TOKEN={FILE}\n', mode=0o600)
        text = sglang_unit(extra=f'Environment="OPENAI_API_KEY={ENVIRONMENT}"\nEnvironmentFile=/etc/sglang.env')
        keys = f"--api-key {ARGV} --admin-api-key ${{ADMIN_KEY}}"
        rig.install_unit(text=text.replace("--enable-metrics", f"--enable-metrics {keys}"))
        with host_project(tmp_path_factory.mktemp("study")) as project:
            project.write_hosts(ssh_host(rig), trials=TRIALS, more=f'\n[server.env]\nWANDB_API_KEY = "{STUDY}"\n')
            with left_as_it_was(host):
                process = project.start("run", "--study", project.name)
                project.wait_for_state("measuring", process)
                drop_in = rig.run("cat", drop_in_path(UNIT), check=True).stdout
                out, err = process.communicate()
            done = subprocess.CompletedProcess(process.args, process.returncode, out, err)
            log = rig.run("journalctl", "--unit", UNIT, "--output", "cat", check=True).stdout
            yield Finished(project, done, drop_in, log)
    finally:
        rig.reset()
        rig.run("rm", "/etc/sglang.env", check=True)


def test_a_study_over_ssh_runs_to_its_end_and_leaves_what_a_reader_needs(finished: Finished) -> None:
    project, done = finished.project, finished.done
    assert done.returncode == 0, done.stderr
    assert "SIMULATED" not in done.stdout
    rows = project.trials()
    assert sum(row["outcome"] in {"measured", "infeasible"} for row in rows) == TRIALS
    assert all(row["simulated"] == "False" for row in rows)
    for name in ("study.db", "front.csv", "trials.csv", "front.png"):
        assert (project.results / name).stat().st_size > 0
    folder = project.results / "trials" / "0000"
    manifest = json.loads((folder / "manifest.json").read_text())
    assert manifest["baseline"] is True
    assert "The server is fired up and ready to roll!" in (folder / "server.log").read_text()
    front = list(csv.DictReader(io.StringIO(project.tuner("front", project.name, "--format", "csv").stdout)))
    assert front
    assert {row["trial"] for row in front} <= {row["trial"] for row in rows if row["outcome"] == "measured"}


def test_what_is_measured_over_ssh_is_what_is_measured_here(finished: Finished) -> None:
    project = finished.project
    local = project.other("local")
    manifest = json.loads((project.results / "trials" / "0000" / "manifest.json").read_text())
    command = manifest["command"]["argv"]
    local.write_local([command[0].rpartition("/")[2], *command[1:]], trials=TRIALS)
    done = local.run()
    assert done.returncode == 0, done.stderr
    here, there = (speeds(one) for one in (local, project))
    assert len(here.keys() & there.keys()) >= TRIALS - 1, (here, there)
    for assignment in here.keys() & there.keys():
        assert there[assignment] == pytest.approx(here[assignment], rel=NOISE), assignment


def speeds(project: HostProject) -> dict[tuple[str, ...], float]:
    rows = [row for row in project.trials() if row["outcome"] == "measured"]
    names = [name for name in rows[0] if name.startswith(("speculative_", "mem_"))]
    return {tuple(row[name] for name in names): float(row["single_request_throughput"]) for row in rows}


def test_no_key_is_in_anything_that_was_written(finished: Finished) -> None:
    assert ARGV in finished.log, "the server prints it itself"
    assert ADMIN in finished.log
    project, done = finished.project, finished.done
    written = {"stdout": done.stdout.encode(), "stderr": done.stderr.encode()}
    for folder in (project.results, project.ray):
        written |= {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    assert len([name for name in written if name.startswith(str(project.ray))]) > 5, "Ray's session logs are here"
    found = [
        f"the key {where}: {place}"
        for where, key in KEYS.items()
        for place, content in written.items()
        if key.encode() in content
    ]
    assert found == []


def test_no_key_of_the_environment_file_is_in_the_drop_in(finished: Finished) -> None:
    assert "ExecStart=" in finished.drop_in
    assert ADMIN not in finished.drop_in
    assert FILE not in finished.drop_in


@pytest.mark.parametrize("command", ["doctor", "validate", "status"])
def test_no_key_is_shown(finished: Finished, command: str) -> None:
    done = finished.project.tuner(command, "--study", finished.project.name)
    assert done.returncode == 0, done.stderr
    assert [where for where, key in KEYS.items() if key in done.stdout + done.stderr] == []
