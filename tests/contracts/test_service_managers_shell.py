"""The service manager of hosts that have a shell and nothing else, over the suite of all service managers."""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from tuner.hosts.clock import SystemClock
from tuner.hosts.local import LocalTransport
from tuner.hosts.shell.service import ShellServiceManager
from tuner.hosts.ssh.transport import SshTransport
from tuner.model.trial import Command
from tuner.ports import HostTransport
from tuner.testing.service_suite import LOG_LINES, Behaviour, ServiceManagerSuite, Subject
from tuner.testing.sshd import Sshd, sshd_program

WORDS = "".join(f"{line}\n" for line in LOG_LINES)
PYTHON = f"import sys, time, os, signal; sys.stdout.reconfigure(encoding='utf-8'); words = {WORDS!r}\n"
SPEAK = "print(words, end='', flush=True)\n"
PROGRAMS = {
    Behaviour.LIVES: PYTHON + SPEAK + "time.sleep(300)",
    Behaviour.EXITS: PYTHON + SPEAK + "sys.exit(3)",
    Behaviour.IS_KILLED: PYTHON + SPEAK + "os.kill(os.getpid(), 9)",
    Behaviour.IGNORES_SIGTERM: PYTHON + "signal.signal(15, signal.SIG_IGN)\n" + SPEAK + "time.sleep(300)",
    Behaviour.LOOPS: PYTHON + SPEAK + "sys.exit(3)",
}


def command(behaviour: Behaviour) -> Command:
    program = PROGRAMS.get(behaviour)
    argv = ("no-such-server", "--port", "1") if program is None else (sys.executable, "-S", "-c", program)
    return Command(argv=argv)


class _OverAShell(ServiceManagerSuite):
    """The same over any transport."""

    def transport(self, tmp_path: Path) -> HostTransport:
        raise NotImplementedError

    def subject(self, behaviour: Behaviour, tmp_path: Path) -> Subject:
        clock = SystemClock()
        manager = ShellServiceManager(
            self.transport(tmp_path),
            str(tmp_path / "host"),
            clock,
            restart=behaviour is Behaviour.LOOPS,
            restart_delay_s=0.1,
        )
        return Subject(manager=manager, command=command(behaviour), clock=clock)


class TestOverDash(_OverAShell):
    def transport(self, tmp_path: Path) -> LocalTransport:
        return with_shell(tmp_path, "dash")


class TestOverBash(_OverAShell):
    def transport(self, tmp_path: Path) -> LocalTransport:
        return with_shell(tmp_path, "bash")


class TestOverSsh(_OverAShell):
    """A real sshd; the shell is the login's own."""

    @pytest.fixture(autouse=True)
    def sshd(self, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
        if sshd_program() is None:
            pytest.skip("sshd is not installed: install openssh-server")
        with Sshd(tmp_path_factory.mktemp("sshd")) as self.host:
            yield

    def transport(self, tmp_path: Path) -> HostTransport:  # noqa: ARG002 - the host is the same machine
        self.over_ssh = SshTransport(self.host.login)
        return self.over_ssh

    def _run(self, behaviour: Behaviour, tmp_path: Path, scenario: Callable[[Subject], Awaitable[None]]) -> None:
        async def run() -> None:
            subject = self.subject(behaviour, tmp_path)
            try:
                await scenario(subject)
            finally:
                await subject.manager.stop(grace_s=0.0)
                await self.over_ssh.close()

        asyncio.run(run())


def with_shell(tmp_path: Path, name: str) -> LocalTransport:
    """A machine whose ``sh`` is another shell."""
    program = shutil.which(name)
    if program is None:
        pytest.skip(f"{name} is not installed")
    programs = tmp_path / "programs"
    programs.mkdir(exist_ok=True)
    (programs / "sh").symlink_to(program)
    return LocalTransport({**os.environ, "PATH": f"{programs}:{os.environ['PATH']}"})
