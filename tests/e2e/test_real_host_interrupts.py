"""Whatever ends a run, its host is left as it was: at once, by the next command, or by its dead-man."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tuner.hosts.systemd.paths import drop_in_path
from tuner.testing.host_project import SHORT_LEASE_S, HostProject, host_project, left_as_it_was, ssh_host
from tuner.testing.rig import UNIT, Rig
from tuner.testing.unit_on_host import UnitOnHost
from tuner.wiring.signals import SAME_SIGNAL_S

RESTORED_S = 15.0
"""From the end of a lease until the dead-man has looked, and the original runs."""


@pytest.fixture
def host(rig: Rig) -> UnitOnHost:
    rig.install_unit()
    return UnitOnHost(rig)


@pytest.fixture
def project(tmp_path: Path, host: UnitOnHost) -> Iterator[HostProject]:
    with host_project(tmp_path) as made:
        made.write_hosts(ssh_host(host.rig))
        yield made


def measuring(project: HostProject) -> subprocess.Popen[str]:
    """Start a run, and return when it measures."""
    process = project.start("run", "--study", project.name)
    project.wait_for_state("measuring", process)
    return process


def kill(process: subprocess.Popen[str]) -> None:
    process.kill()  # SIGKILL: nothing of the driver can clean up
    process.communicate()


def outcomes(project: HostProject) -> list[str]:
    return [row["outcome"] for row in project.trials()]


def test_a_killed_run_is_taken_over_by_the_next_and_the_host_is_restored(
    project: HostProject, host: UnitOnHost
) -> None:
    with left_as_it_was(host):
        kill(measuring(project))
        assert host.is_there(drop_in_path(UNIT)), "it is still ours"
        done = project.run()
        assert done.returncode == 0, done.stderr
    assert "earlier run of this study" in done.stderr
    assert outcomes(project) == ["interrupted", "measured", "measured"]


def test_restore_puts_back_what_a_killed_run_left(project: HostProject, host: UnitOnHost) -> None:
    with left_as_it_was(host):
        kill(measuring(project))
        assert host.is_there(drop_in_path(UNIT))
        left = project.tuner("status", "--study", project.name).stderr
        assert f"python -m tuner restore --study {project.name}" in left, "who looks is told what is left there"
        done = project.tuner("restore", "--study", project.name)
        assert done.returncode == 0, done.stderr
        assert "not given back" not in project.tuner("status", "--study", project.name).stderr
        host_name = host.rig.name
        assert done.stdout.splitlines() == [f"host {host_name}: {UNIT} runs as it did before, and answers"]
        host.wait_until_it_answers()
    again = project.tuner("restore", "--study", project.name)
    assert again.returncode == 0, again.stderr
    assert again.stdout == f"host {host_name}: nothing to put back: {UNIT} is active without a trial's drop-in\n"
    assert "putting back" not in again.stderr


def test_a_host_restores_itself_when_nobody_comes(project: HostProject, host: UnitOnHost) -> None:
    project.write_hosts(ssh_host(host.rig, dead_man_s=SHORT_LEASE_S))
    with left_as_it_was(host, within_s=SHORT_LEASE_S + RESTORED_S):
        process = measuring(project)
        host.rig.pull_cable()
        kill(process)
        assert host.is_there(drop_in_path(UNIT))
    host.rig.plug_cable()
    host.wait_until_it_answers()


def test_ctrl_c_once_restores_the_host_and_waits_for_its_answer(project: HostProject, host: UnitOnHost) -> None:
    with left_as_it_was(host):
        process = measuring(project)
        os.killpg(process.pid, signal.SIGINT)
        _, err = process.communicate()
        assert process.returncode == 130, err
        assert "Traceback" not in err
        assert "waiting for the original to answer again" in err
    assert outcomes(project)[0] == "interrupted"


def test_ctrl_c_twice_restores_the_host_and_does_not_wait_for_its_answer(rig: Rig, tmp_path: Path) -> None:
    host = UnitOnHost(rig)
    rig.install_unit()
    with host_project(tmp_path) as project, left_as_it_was(host):
        project.write_hosts(ssh_host(rig))
        process = measuring(project)
        os.killpg(process.pid, signal.SIGINT)
        time.sleep(SAME_SIGNAL_S + 0.3)  # sooner, it may count as the same wish
        os.killpg(process.pid, signal.SIGINT)
        _, err = process.communicate()
        assert process.returncode == 130, err
        assert "Traceback" not in err
        assert "restoring the hosts without waiting" in err
        assert "nobody waits for its answer" in err


def test_a_second_study_is_refused_the_host_and_the_first_goes_on(project: HostProject, host: UnitOnHost) -> None:
    others = {command: project.other(f"to-{command}") for command in ("run", "restore", "doctor")}
    for other in others.values():
        other.write_hosts(ssh_host(host.rig))
    with left_as_it_was(host):
        first = measuring(project)
        # All at the same time, because the first run goes on meanwhile, and ends.
        asking = {command: other.start(command, "--study", other.name) for command, other in others.items()}
        said = {command: process.communicate() for command, process in asking.items()}
        assert first.poll() is None
        for command, process in asking.items():
            assert process.returncode == 3, said[command]
        for command in ("run", "restore"):
            *prose, line = said[command][1].splitlines()
            assert line.startswith("tuner: error: ")
            assert not any("starting Ray" in text for text in prose), prose
            assert f"study {project.name}" in line, line
            assert f"process {first.pid}" in line, line
        assert f"study {project.name}" in said["doctor"][0]
        assert not any(other.results.exists() for other in others.values())
        _, err = first.communicate()
        assert first.returncode == 0, err
    assert outcomes(project) == ["measured", "measured"]
