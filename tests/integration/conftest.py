"""The shells under which servers are run."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tuner.hosts.local import LocalTransport
from tuner.testing.shell_server import tools


def under(shell: str, folder: Path) -> LocalTransport:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    return LocalTransport(tools(folder, shell))


@pytest.fixture(params=["dash", "bash", "busybox"])
def each_shell(request: pytest.FixtureRequest, tmp_path: Path) -> LocalTransport:
    """This machine, where ``sh`` is each of them in turn."""
    return under(request.param, tmp_path)


@pytest.fixture
def dash(tmp_path: Path) -> LocalTransport:
    """This machine, where ``sh`` is Debian's."""
    return under("dash", tmp_path)
