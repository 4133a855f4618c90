"""A host's specification to its ports; runs inside the worker that drives the host."""

from __future__ import annotations

import os
import sys
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

from tuner.engines import engine
from tuner.hosts.clock import SystemClock
from tuner.hosts.gpu import NoGpu, NvidiaSmiProbe
from tuner.hosts.kernel import HostKernelLog
from tuner.hosts.listening import listening_on
from tuner.hosts.local import LocalTransport
from tuner.hosts.process import ProcessServiceManager
from tuner.hosts.route import DirectRoute
from tuner.hosts.shell.service import ShellServiceManager
from tuner.hosts.shell.tenancy import ShellTenancy
from tuner.hosts.systemd.root import Root
from tuner.hosts.systemd.service import SystemdServiceManager
from tuner.hosts.systemd.tenancy import UnitTenancy
from tuner.load.client import HttpLoadGenerator
from tuner.load.health import STRICT_LIMITS
from tuner.load.http import HttpControlClient
from tuner.model.host import CommandResult
from tuner.model.lease import Holder
from tuner.model.study import HostSpec, ProcessHostSpec, SimulatedHostSpec, UnitHostSpec
from tuner.ports import GpuProbe, HostPorts, ServiceManager, Tenancy
from tuner.simulator.host import environment, prepare
from tuner.wiring.reach import Way, way_to

__all__ = ["build_host", "engine"]

PROCESS_STOP_GRACE_S = 10.0
"""A server whose requests were aborted ends at once; what does not is killed."""
OWNED_STOP_GRACE_S = 120.0
"""A real server waits for its schedulers and frees its GPUs; killed on the way, it may leave memory behind."""
OWNED_LOOK_S = 0.3
"""Between two looks at a host's service: each is two commands over SSH, and a death shows in a second all the same."""
CLEANUP_TIMEOUT_S = 600.0
"""For the owner's own cleanup command: resetting a virtual machine takes minutes."""


def service_dir(spec: SimulatedHostSpec | ProcessHostSpec) -> Path:
    """Return the folder in which a host's server is supervised."""
    return Path(spec.state_dir) / "service"


def build_host(spec: HostSpec, holder: Holder) -> HostPorts:
    """Make the ports of one host; nothing is started.

    Args:
        spec: the host.
        holder: who takes it, where it is somebody's.
    """
    match spec:
        case SimulatedHostSpec():
            return _simulated(spec)
        case ProcessHostSpec(login=None):
            return _process(spec)
        case ProcessHostSpec():
            return _remote_process(spec, holder)
        case UnitHostSpec():
            return _unit(spec, holder)


def _simulated(spec: SimulatedHostSpec) -> HostPorts:
    home = Path(spec.state_dir)
    facts = environment(home, spec.profile, spec.speed, spec.address, spec.faults)
    programs = prepare(home, facts=facts)
    env = {**os.environ, **facts, "PATH": _path_with(programs)}
    return HostPorts(
        name=spec.name,
        address=spec.address,
        service=ProcessServiceManager(service_dir(spec), env),
        gpu=NvidiaSmiProbe(LocalTransport(env), path=str(programs / "nvidia-smi")),
        load=HttpLoadGenerator(),
        control=HttpControlClient,
        clock=SystemClock(),
        route=DirectRoute(spec.address),
        stop_grace_s=PROCESS_STOP_GRACE_S,
    )


def _process(spec: ProcessHostSpec) -> HostPorts:
    way = way_to(spec)
    return HostPorts(
        name=spec.name,
        address=way.address,
        # `python` in a study's command is the interpreter that tuner itself runs on.
        service=ProcessServiceManager(
            service_dir(spec), {**os.environ, "PATH": _path_with(Path(sys.executable).parent)}
        ),
        gpu=_gpu(spec, way),
        load=HttpLoadGenerator(limits=STRICT_LIMITS),
        control=HttpControlClient,
        clock=SystemClock(),
        route=way.route,
        kernel=HostKernelLog(way.transport, SystemClock(), spec.name),
        listening=partial(listening_on, way.transport),
        stop_grace_s=PROCESS_STOP_GRACE_S,
        cleanup=_cleanup(spec),
        wait_s=spec.care.wait_s,
    )


def _unit(spec: UnitHostSpec, holder: Holder) -> HostPorts:
    way = way_to(spec)
    clock = SystemClock()
    root = Root(way.transport, sudo=spec.sudo)
    tenancy = UnitTenancy(way.transport, root, spec.unit, replace(holder, host=spec.name), spec.care.lease, clock)
    service = SystemdServiceManager(way.transport, root, spec.unit, clock, record=tenancy.record)
    return _owned(spec, way, service, tenancy)


def _remote_process(spec: ProcessHostSpec, holder: Holder) -> HostPorts:
    way = way_to(spec)
    clock = SystemClock()
    tenancy = ShellTenancy(way.transport, spec.state_dir, replace(holder, host=spec.name), spec.care.lease, clock)
    service = ShellServiceManager(way.transport, spec.state_dir, clock, lease=tenancy.lease_folder)
    return _owned(spec, way, service, tenancy)


def _owned(spec: UnitHostSpec | ProcessHostSpec, way: Way, service: ServiceManager, tenancy: Tenancy) -> HostPorts:
    """Bundle what all hosts have in common that are somebody's."""
    return HostPorts(
        name=spec.name,
        address=way.address,
        service=service,
        gpu=_gpu(spec, way),
        load=HttpLoadGenerator(limits=STRICT_LIMITS),
        control=HttpControlClient,
        clock=SystemClock(),
        route=way.route,
        kernel=HostKernelLog(way.transport, SystemClock(), spec.name),
        listening=partial(listening_on, way.transport),
        stop_grace_s=OWNED_STOP_GRACE_S,
        look_s=OWNED_LOOK_S,
        tenancy=tenancy,
        renew_s=spec.care.lease.renew_s,
        outage_s=way.outage_s,
        new_key=way.accepted_key,
        cleanup=_cleanup(spec),
        wait_s=spec.care.wait_s,
    )


def _gpu(spec: UnitHostSpec | ProcessHostSpec, way: Way) -> GpuProbe:
    return NvidiaSmiProbe(way.transport, indices=spec.care.gpu_indices) if spec.care.uses_gpus else NoGpu()


def stop_grace_s(spec: HostSpec) -> float:
    """Return how long the server of a host is given to stop."""
    return OWNED_STOP_GRACE_S if spec.is_owned else PROCESS_STOP_GRACE_S


def _cleanup(spec: UnitHostSpec | ProcessHostSpec) -> Callable[[], Awaitable[CommandResult]] | None:
    command = spec.care.cleanup_command
    if not command:
        return None
    here = LocalTransport({**os.environ, "TUNER_HOST": spec.name})
    return lambda: here.run(command, timeout_s=CLEANUP_TIMEOUT_S)


def _path_with(folder: Path) -> str:
    return f"{folder}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
