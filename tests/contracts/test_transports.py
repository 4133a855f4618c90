"""The transports, each over the same suite."""

from __future__ import annotations

import asyncio

from tuner.hosts.local import LocalTransport
from tuner.ports import HostTransport
from tuner.testing.transport_suite import TransportSuite


class TestLocalTransport(TransportSuite):
    def transport(self) -> HostTransport:
        return LocalTransport()


def test_a_local_command_gets_the_environment_of_its_transport() -> None:
    result = asyncio.run(LocalTransport({"PATH": "/usr/bin:/bin", "WHO": "me"}).run(("sh", "-c", "echo $WHO $HOME")))
    assert result.stdout == "me\n"
