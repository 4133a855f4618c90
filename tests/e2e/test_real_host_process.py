"""A host without systemd, whose server is a process over SSH: killed runs, the same command again, and no trace."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tuner.testing.host_project import HostProject, Table, host_project, ssh_host
from tuner.testing.rig import HOME, Rig, sglang_unit

STATE_DIR = "/var/lib/tuner-test"


@pytest.fixture
def project(tmp_path: Path) -> Iterator[HostProject]:
    with host_project(tmp_path) as made:
        yield made


def process_host(rig: Rig) -> Table:
    table = dict(ssh_host(rig, kind="process", state_dir=STATE_DIR))
    del table["unit"]
    return table


def left_behind(rig: Rig) -> tuple[str, str]:
    """Return what is in the folder for our state, and our processes."""
    files = rig.run("sh", "-c", 'ls -A "$1" 2>/dev/null', "sh", STATE_DIR).stdout
    processes = rig.run("pgrep", "-af", f"{HOME}/bin/sglang|{STATE_DIR}")
    return files, processes.stdout


def killed_in(project: HostProject, trial: int, *options: str) -> None:
    process = project.start("run", "--study", project.name, *options)
    project.wait_for_state("measuring", process, trial=trial)
    process.kill()  # SIGKILL: nothing of the driver can clean up
    process.communicate()


def test_the_same_command_goes_on_after_a_kill_and_nothing_is_left_behind(rig: Rig, project: HostProject) -> None:
    line = next(line for line in sglang_unit().splitlines() if line.startswith("ExecStart="))
    project.write_hosts(process_host(rig), server=line.removeprefix("ExecStart=").split())
    killed_in(project, 0)
    code, rows = project.doctor()
    assert code == 0, [row for row in rows.values() if row["verdict"] == "failed"]
    assert "an earlier run of ours left" in rows["port"]["detail"], "the server still runs"
    done = project.run()
    assert done.returncode == 0, done.stderr
    assert [row["outcome"] for row in project.trials()] == ["interrupted", "measured", "measured"]
    assert left_behind(rig) == ("", "")

    killed_in(project, 3, "--trials", "3")
    restored = project.tuner("restore", "--study", project.name)
    assert restored.returncode == 0, restored.stderr
    assert left_behind(rig) == ("", "")
