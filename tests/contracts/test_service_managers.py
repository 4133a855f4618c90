"""The service managers, each over the same suite."""

from __future__ import annotations

import os
import sys
import uuid
from pathlib import Path

import pytest

from tuner.hosts.clock import SystemClock
from tuner.hosts.process import ProcessServiceManager
from tuner.hosts.systemd.dropin import ServiceTerms
from tuner.hosts.systemd.root import Root
from tuner.hosts.systemd.service import SystemdServiceManager
from tuner.model.outcome import TrialState
from tuner.model.trial import Command
from tuner.testing.fake_clock import FakeClock
from tuner.testing.fake_host import Death, FakeService, Start
from tuner.testing.inside import InsideTransport
from tuner.testing.rig import Rig
from tuner.testing.service_suite import LOG_LINES, Behaviour, ServiceManagerSuite, Subject

WORDS = "".join(f"{line}\n" for line in LOG_LINES)


SCRIPTS = {
    Behaviour.LIVES: Start(log=((0.01, WORDS),)),
    Behaviour.EXITS: Start(death=Death(at=TrialState.LOADING, after_s=0.1, exit_status=3, log=WORDS)),
    Behaviour.IS_KILLED: Start(death=Death(at=TrialState.LOADING, after_s=0.1, exit_signal=9, log=WORDS)),
    Behaviour.IGNORES_SIGTERM: Start(log=((0.01, WORDS),), stop_s=None),
    Behaviour.LOOPS: Start(death=Death(after_s=0.1, exit_status=3, log=WORDS), restart_s=0.1),
    Behaviour.IS_MISSING: Start(refuses="program 'fake' is missing"),
}
PYTHON = f"import sys, time, os, signal; sys.stdout.reconfigure(encoding='utf-8'); words = {WORDS!r}\n"
SPEAK = "print(words, end='', flush=True)\n"
PROGRAMS = {
    Behaviour.LIVES: PYTHON + SPEAK + "time.sleep(300)",
    Behaviour.EXITS: PYTHON + SPEAK + "sys.exit(3)",
    Behaviour.IS_KILLED: PYTHON + SPEAK + "os.kill(os.getpid(), 9)",
    Behaviour.IGNORES_SIGTERM: PYTHON + "signal.signal(15, signal.SIG_IGN)\n" + SPEAK + "time.sleep(300)",
    Behaviour.LOOPS: PYTHON + SPEAK + "sys.exit(3)",
}


class TestFakeService(ServiceManagerSuite):
    def subject(self, behaviour: Behaviour, tmp_path: Path) -> Subject:  # noqa: ARG002 - nothing on disk
        clock = FakeClock()
        return Subject(manager=FakeService(SCRIPTS[behaviour], clock), command=Command(argv=("fake",)), clock=clock)


class TestProcessServiceManager(ServiceManagerSuite):
    def subject(self, behaviour: Behaviour, tmp_path: Path) -> Subject:
        manager = ProcessServiceManager(
            tmp_path / "host",
            dict(os.environ),
            restart="always" if behaviour is Behaviour.LOOPS else "no",
            restart_delay_s=0.1,
        )
        program = PROGRAMS.get(behaviour)
        argv = ("no-such-server", "--port", "1") if program is None else (sys.executable, "-S", "-c", program)
        return Subject(manager=manager, command=Command(argv=argv), clock=SystemClock())


class TestSystemdServiceManager(ServiceManagerSuite):
    @pytest.fixture(autouse=True)
    def _on_a_host(self, rig: Rig) -> None:
        self.rig = rig

    def subject(self, behaviour: Behaviour, tmp_path: Path) -> Subject:  # noqa: ARG002 - nothing on this disk
        unit = f"suite-{uuid.uuid4().hex[:8]}.service"
        self.rig.install_unit(unit, "[Service]\nExecStart=/bin/sleep --the-owners 1\n", start=False)
        transport, clock = InsideTransport(self.rig), SystemClock()
        terms = ServiceTerms(restart="always" if behaviour is Behaviour.LOOPS else "no")
        manager = SystemdServiceManager(transport, Root(transport, sudo=False), unit, clock, terms)
        program = PROGRAMS.get(behaviour)
        argv = ("no-such-server", "--port", "1") if program is None else ("/usr/bin/python3", "-S", "-c", program)
        return Subject(manager=manager, command=Command(argv=argv), clock=clock)
