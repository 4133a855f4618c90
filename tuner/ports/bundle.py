"""All a trial needs of one host."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from tuner.model.host import CommandResult
from tuner.ports.engine import ControlClient
from tuner.ports.host import Clock, GpuProbe, KernelLog, Route, ServiceManager, Tenancy
from tuner.ports.load import LoadGenerator


@dataclass(frozen=True, slots=True, kw_only=True)
class HostPorts:
    """All a trial needs of one host.

    Attributes:
        address: the host as messages name it.
        stop_grace_s: how long a server may take to end before it is killed.
        look_s: between two looks at the service; a look over a network costs more than one at home.
        renew_s: between two renewals of the lease.
        outage_s: seconds the connection to the host has been out, all in all; None: there is none to lose.
        new_key: host and fingerprint of a key that was not known and was taken; None: there is no such thing.
        tenancy: None: the host is nobody else's, and nothing on it is to be restored.
        cleanup: the owner's own way to free the GPUs; None: there is none.
        kernel: None: nobody asks what its kernel says.
        listening: port -> addresses that somebody listens on there, seen from the host itself, or HostFault;
            None: nobody can tell.
        wait_s: how long the host may take to become clean; None: the runtime's own limit.
    """

    name: str
    address: str
    service: ServiceManager
    gpu: GpuProbe
    load: LoadGenerator
    control: Callable[[str], ControlClient]  # base URL -> client
    clock: Clock
    route: Route
    stop_grace_s: float = 30.0
    look_s: float = 0.1
    tenancy: Tenancy | None = None
    renew_s: float = 60.0
    outage_s: Callable[[], float] | None = None
    new_key: Callable[[], str | None] | None = None
    cleanup: Callable[[], Awaitable[CommandResult]] | None = None
    wait_s: float | None = None
    kernel: KernelLog | None = None
    listening: Callable[[int], Awaitable[tuple[str, ...]]] | None = None
