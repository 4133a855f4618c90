"""The transports, each over the same suite."""

from __future__ import annotations

import asyncio
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
