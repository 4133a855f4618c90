"""Rules for every test."""

from __future__ import annotations

import faulthandler
import os
import signal
from collections.abc import Generator, Iterator

import pytest
from hypothesis import settings

from tuner.testing import rig as rigs

IN_CI = os.environ.get("CI") == "true"

faulthandler.enable()

# No test may depend on being fast: several run at once.
settings.register_profile("busy machine", settings.default, deadline=None)
settings.load_profile("busy machine")

# A runner that a shell started in the background ignores these, and so would every server that a test starts.
for _number in (signal.SIGHUP, signal.SIGQUIT):
    if signal.getsignal(_number) is signal.SIG_IGN:
        signal.signal(_number, signal.SIG_DFL)
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """In CI every component is there: a skip is a failure."""
    report = yield
    if IN_CI and report.skipped:
        report.outcome = "failed"
        report.longrepr = f"skipped in CI, where nothing may be missing: {report.longrepr}"
    return report


@pytest.fixture(scope="session")
def booted_rig() -> Iterator[rigs.Rig]:
    """A host with systemd and sshd that lives as long as the tests."""
    if lacking := rigs.missing():
        pytest.skip(f"no host can be booted here without {', '.join(lacking)}")
    with rigs.Rig() as rig:
        yield rig


@pytest.fixture
def rig(booted_rig: rigs.Rig) -> Iterator[rigs.Rig]:
    """The same host, without the unit and whatever else an earlier test put on it."""
    yield booted_rig
    booted_rig.reset()
