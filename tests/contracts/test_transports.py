"""The transports, each over the same suite."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tuner.errors import TransportFault
from tuner.hosts.files import process_stat
from tuner.hosts.local import LocalTransport
from tuner.hosts.ssh.transport import SshTransport
from tuner.ports import HostTransport
from tuner.testing.sshd import Sshd, sshd_program
from tuner.testing.transport_suite import TransportSuite


class TestLocalTransport(TransportSuite):
    def transport(self) -> HostTransport:
        return LocalTransport()


@pytest.fixture(scope="module")
def sshd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sshd]:
    if sshd_program() is None:
        pytest.skip("openssh-server is not installed")
    with Sshd(tmp_path_factory.mktemp("sshd")) as sshd:
        yield sshd


class TestSshTransport(TransportSuite):
    @pytest.fixture(autouse=True)
    def closed_afterwards(self, sshd: Sshd) -> Iterator[None]:
        self.login, self.made = sshd.login, list[SshTransport]()
        yield
        for transport in self.made:
            asyncio.run(transport.close())

    def transport(self) -> HostTransport:
        self.made.append(SshTransport(self.login))
        return self.made[-1]


def test_a_local_command_gets_the_environment_of_its_transport() -> None:
    result = asyncio.run(LocalTransport({"PATH": "/usr/bin:/bin", "WHO": "me"}).run(("sh", "-c", "echo $WHO $HOME")))
    assert result.stdout == "me\n"


def test_a_cancelled_command_has_ended_when_the_cancellation_is_through(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"

    async def scenario() -> None:
        running = asyncio.ensure_future(LocalTransport().run(("sh", "-c", f"echo $$ > '{pid_file}'; exec sleep 300")))
        while not pid_file.exists() or not pid_file.read_text():  # noqa: ASYNC110 - another process sets no event
            await asyncio.sleep(0.01)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert process_stat(int(pid_file.read_text())) is None

    asyncio.run(scenario())


def test_a_program_that_may_not_be_executed_is_status_126(tmp_path: Path) -> None:
    program = tmp_path / "program"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o600)
    assert asyncio.run(LocalTransport().run((str(program),))).status == 126


def test_a_program_that_is_none_is_unknown_and_named(tmp_path: Path) -> None:
    program = tmp_path / "program"
    program.write_bytes(b"\x7fELF nonsense")
    program.chmod(0o700)
    with pytest.raises(TransportFault, match="program: cannot be started"):
        asyncio.run(LocalTransport().run((str(program),)))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can leave a process behind that it may not kill")
@pytest.mark.parametrize("end", ["timed out", "cancelled"])
def test_a_command_of_another_user_is_not_waited_for_and_said_to_run_still(tmp_path: Path, end: str) -> None:
    pid_file = tmp_path / "pid"

    async def scenario() -> None:
        timeout_s = 0.5 if end == "timed out" else 60.0
        command = ("sh", "-c", f"echo $$ > '{pid_file}'; exec sleep 5")
        running = asyncio.ensure_future(LocalTransport().run(command, timeout_s=timeout_s))
        while not pid_file.exists() or not pid_file.read_text():  # noqa: ASYNC110 - another process sets no event
            await asyncio.sleep(0.01)
        nobody = 65534
        os.setresuid(nobody, nobody, 0)  # as a user is who started sudo: the child is root's
        try:
            if end == "cancelled":
                running.cancel()
            await asyncio.wait((running,))
        finally:
            os.setresuid(0, 0, 0)
            os.kill(int(pid_file.read_text()), signal.SIGKILL)
        with pytest.raises(TransportFault if end == "timed out" else asyncio.CancelledError) as caught:
            await running
        assert end == "cancelled" or "it runs still, as another user" in str(caught.value)
        while process_stat(int(pid_file.read_text())) is not None:  # noqa: ASYNC110
            await asyncio.sleep(0.01)

    began_s = time.monotonic()
    asyncio.run(scenario())
    assert time.monotonic() - began_s < 4.0
