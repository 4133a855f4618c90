"""Hosts that differ: a user without root, one of two that fails."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tuner.testing import rig as rigs
from tuner.testing.host_project import (
    HostProject,
    host_project,
    journal_reader,
    left_as_it_was,
    let_everybody,
    ssh_host,
)
from tuner.testing.rig import OPERATOR, Rig
from tuner.testing.unit_on_host import UnitOnHost

COUNTED = {"measured", "infeasible"}


@pytest.fixture
def project(tmp_path: Path) -> Iterator[HostProject]:
    with host_project(tmp_path) as made:
        yield made


@pytest.fixture
def second_rig() -> Iterator[Rig]:
    with rigs.Rig() as rig:
        yield rig


def counted_hosts(project: HostProject) -> list[str]:
    return [row["host"] for row in project.trials() if row["outcome"] in COUNTED]


def test_a_user_with_exactly_the_lines_that_doctor_prints_can_run_a_study(rig: Rig, project: HostProject) -> None:
    host = UnitOnHost(rig)
    rig.install_unit()
    host.wait_until_it_answers()
    let_everybody(rig)
    project.write_hosts(ssh_host(rig, OPERATOR))
    with left_as_it_was(host):
        code, rows = project.doctor()
        assert code == 3
        assert {check for check, row in rows.items() if row["verdict"] == "failed"} == {"permissions", "journal"}
        lines = tuple(rows["permissions"]["lines"])
        assert lines
        assert all(line.startswith(f"{OPERATOR} ALL=(root) NOPASSWD: /") for line in lines)
        assert f"usermod -a -G systemd-journal {OPERATOR}" in rows["journal"]["remedy"]
        printed = {line.strip() for line in project.tuner("doctor", project.name).stdout.splitlines()}
        assert set(lines) <= printed, "lines to copy stay whole"

        line = project.refused_run()
        assert "permissions" in line
        rig.grant(lines)
        with journal_reader(rig):
            code, rows = project.doctor()
            assert code == 0, rows
            done = project.run()
        assert done.returncode == 0, done.stderr
    assert [row["outcome"] for row in project.trials()] == ["measured", "measured"]


def test_a_host_that_fails_is_set_aside_and_the_other_finishes_the_study(
    rig: Rig, second_rig: Rig, project: HostProject
) -> None:
    good, bad = UnitOnHost(rig), UnitOnHost(second_rig)
    for host in (good, bad):
        host.rig.install_unit()
    project.write_hosts(ssh_host(rig), ssh_host(second_rig), trials=4)
    with left_as_it_was(good, bad) as (_, before):
        process = project.start("run", "--study", project.name)
        project.wait_for_state("loading", process)
        bad.sh('rm "$1" && printf "#!/bin/sh\\nexit 9\\n" >"$1" && chmod +x "$1"', "/usr/local/bin/nvidia-smi")
        while bad.standing() != before:
            assert process.poll() is None, "it is restored while the other goes on"
            time.sleep(0.5)
        _, err = process.communicate()
        assert process.returncode == 0, err
    assert f"host {second_rig.name} is set aside after 3 faults in a row" in err
    faulted = [row for row in project.trials() if row["outcome"] == "faulted"]
    assert {row["host"] for row in faulted} == {second_rig.name}
    assert all("nvidia-smi" in row["cause"] for row in faulted)
    assert len(counted_hosts(project)) == 4
    bad.wait_until_it_answers()
