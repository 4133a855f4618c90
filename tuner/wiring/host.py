"""A host's specification to its ports; runs inside the worker that drives the host."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from tuner.engines import engine
from tuner.hosts.clock import SystemClock
from tuner.hosts.gpu import NoGpu, NvidiaSmiProbe
from tuner.hosts.local import LocalTransport
from tuner.hosts.process import ProcessServiceManager
from tuner.hosts.route import DirectRoute
from tuner.load.client import HttpLoadGenerator
from tuner.load.http import HttpControlClient
from tuner.model.lease import Holder
from tuner.model.study import HostSpec, ProcessHostSpec, SimulatedHostSpec, UnitHostSpec
from tuner.ports import HostPorts
from tuner.simulator.host import environment, prepare

__all__ = ["build_host", "engine"]

LOOPBACK = "127.0.0.1"
PROCESS_STOP_GRACE_S = 10.0
"""A server whose requests were aborted ends at once; what does not is killed."""


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
        case ProcessHostSpec():
            return _process(spec)
        case UnitHostSpec():
            raise NotImplementedError(holder)


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
    return HostPorts(
        name=spec.name,
        address=LOOPBACK,
        # `python` in a study's command is the interpreter that tuner itself runs on.
        service=ProcessServiceManager(
            service_dir(spec), {**os.environ, "PATH": _path_with(Path(sys.executable).parent)}
        ),
        gpu=NoGpu(),
        load=HttpLoadGenerator(),
        control=HttpControlClient,
        clock=SystemClock(),
        route=DirectRoute(LOOPBACK),
        stop_grace_s=PROCESS_STOP_GRACE_S,
    )


def _path_with(folder: Path) -> str:
    return f"{folder}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
