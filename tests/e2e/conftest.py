"""A project folder of its own for every test that runs the command line."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tuner.testing.project import Project

CHECKOUT = Path(__file__).parents[2]


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Project]:
    shutil.copytree(CHECKOUT / "search_spaces", tmp_path / "search_spaces")
    (tmp_path / "studies").mkdir()
    made = Project(tmp_path)
    made.write()
    yield made
    for process in made.started:
        if process.poll() is None:
            process.kill()
        process.communicate()
    made.wait_until_no_server()
