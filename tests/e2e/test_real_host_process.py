"""A run that is killed on a host without systemd, and the same command again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tuner.testing.host_project import HostProject, host_project, ssh_host
from tuner.testing.rig import Rig, sglang_unit


@pytest.fixture
def project(tmp_path: Path) -> Iterator[HostProject]:
    with host_project(tmp_path) as made:
        yield made


def test_the_same_command_goes_on_after_a_kill_although_the_server_still_runs(rig: Rig, project: HostProject) -> None:
    line = next(line for line in sglang_unit().splitlines() if line.startswith("ExecStart="))
    table = dict(ssh_host(rig, kind="process", state_dir="/var/lib/tuner-test"))
    del table["unit"]
    project.write_hosts(table, server=line.removeprefix("ExecStart=").split())
    process = project.start("run", "--study", project.name)
    project.wait_for_state("measuring", process, trial=0)
    process.kill()
    process.communicate()
    code, rows = project.doctor()
    assert code == 0, [row for row in rows.values() if row["verdict"] == "failed"]
    assert "an earlier run of ours left" in rows["port"]["detail"]
    done = project.run()
    assert done.returncode == 0, done.stderr
    counted = [row["outcome"] for row in project.trials() if row["outcome"] in {"measured", "infeasible"}]
    assert len(counted) == 2
