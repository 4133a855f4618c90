"""A project folder of its own for every test that runs the command line."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tuner.testing.project import Project

CHECKOUT = Path(__file__).parents[2]


@contextlib.contextmanager
def made(folder: Path) -> Iterator[Project]:
    shutil.copytree(CHECKOUT / "search_spaces", folder / "search_spaces")
    (folder / "studies").mkdir()
    project = Project(folder)
    project.write()
    yield project
    for process in project.started:
        if process.poll() is None:
            process.kill()
        process.wait()
        for stream in (process.stdout, process.stderr):
            if stream is not None:
                stream.close()
    project.wait_until_no_server()


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Project]:
    """A project in which nothing has run yet."""
    with made(tmp_path) as new:
        yield new


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Project]:
    """A project for all tests of a file."""
    with made(tmp_path_factory.mktemp("shared")) as new:
        yield new


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Project, subprocess.CompletedProcess[str]]]:
    """A project whose study ran to its end without interruption; to look at, not to change."""
    with made(tmp_path_factory.mktemp("finished")) as complete:
        yield complete, complete.run()
