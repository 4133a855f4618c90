"""How a host of somebody's is reached: for commands, and for the load."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from tuner.hosts.local import LocalTransport
from tuner.hosts.route import DirectRoute
from tuner.hosts.ssh.connection import Patience
from tuner.hosts.ssh.login import resolve
from tuner.hosts.ssh.transport import SshTransport
from tuner.hosts.ssh.tunnel import OpenSshTunnel
from tuner.model.study import ProcessHostSpec, UnitHostSpec
from tuner.ports import HostTransport, Route

LOOPBACK = "127.0.0.1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """The way to one host; nothing is connected yet.

    Attributes:
        address: as the load's URLs have it.
        outage_s: seconds the host has been out of reach so far; None: it cannot be.
        accepted_key: the host key that was new and was taken.
    """

    transport: HostTransport
    route: Route
    address: str
    outage_s: Callable[[], float] | None
    accepted_key: Callable[[], str | None]


def way_to(spec: UnitHostSpec | ProcessHostSpec, patience: Patience | None = None) -> Way:
    """Make the way to a host: this machine, or one that is reached over SSH.

    Raises:
        TransportFault: OpenSSH's configuration cannot be followed.
    """
    if spec.login is None:
        return Way(
            transport=LocalTransport(),
            route=DirectRoute(LOOPBACK, spec.reach.base_url),
            address=LOOPBACK,
            outage_s=None,
            accepted_key=lambda: None,
        )
    transport = SshTransport(spec.login, patience=patience or Patience())
    address = resolve(spec.login).hostname
    route = OpenSshTunnel(spec.login) if spec.reach.tunnel else DirectRoute(address, spec.reach.base_url)
    return Way(
        transport=transport,
        route=route,
        address=address,
        outage_s=lambda: _total_s(transport),
        accepted_key=lambda: transport.accepted_key,
    )


def _total_s(transport: SshTransport) -> float:
    now_s = time.monotonic()
    return sum((now_s if end_s is None else end_s) - start_s for start_s, end_s in transport.outages)
