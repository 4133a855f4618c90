"""What a run needs and does not find: one line with the place and the remedy, nothing written, the right exit code."""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Iterator

import optuna
import pytest

from tuner.testing.project import Project


def test_a_database_of_another_study_is_refused(project: Project) -> None:
    project.results.mkdir()
    optuna.create_study(study_name="another", storage=f"sqlite:///{project.results}/study.db")
    line = project.refused("run", "--study", "tiny")
    assert str(project.results / "study.db") in line
    assert "another" in line


def test_a_file_that_is_no_database_is_refused(project: Project) -> None:
    project.results.mkdir()
    (project.results / "study.db").write_bytes(b"not a database" * 100)
    line = project.refused("run", "--study", "tiny")
    assert str(project.results / "study.db") in line
    assert "restore it from a copy, or move it away" in line


def test_a_port_that_is_taken_is_found_before_anything_is_written(project: Project) -> None:
    with socket.create_server(("127.0.0.1", 0)) as holder:
        port = holder.getsockname()[1]
        project.write(port=port)
        line = project.refused("run", "--study", "tiny", code=3)
    assert f"127.0.0.1:{port} is taken" in line
    assert "--port" in line


def test_ray_that_cannot_be_reached_is_said_with_what_to_check(project: Project) -> None:
    line = project.refused("run", "--study", "tiny", "--ray-address", "127.0.0.1:9", code=3)
    assert "127.0.0.1:9" in line
    assert "check --ray-address" in line


def test_ray_that_cannot_be_started_is_said(project: Project) -> None:
    project.env["RAY_TMPDIR"] = "/proc/no-such-folder"
    line = project.refused("run", "--study", "tiny", code=3)
    assert "Ray" in line


@pytest.fixture
def full_disk(project: Project) -> Iterator[Project]:
    """The project's results on a disk of one MiB."""
    if os.geteuid() != 0:
        pytest.skip("only root can mount a small disk")
    project.results.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(project.results)], check=False)
    if mounted.returncode:
        pytest.skip("this container may not mount a small disk")
    yield project
    subprocess.run(["umount", str(project.results)], check=True)


def test_a_disk_without_room_is_found_before_anything_is_written(full_disk: Project) -> None:
    line = full_disk.refused("run", "--study", "tiny", code=3)
    assert str(full_disk.results) in line
    assert "free" in line
