"""Every seam between the pure parts and the world.

Conventions of all ports: coroutines may be cancelled at any await and then leave
nothing running that ``stop`` or ``clean`` would not find; one object is used from
one event loop; foreign exceptions never pass, they are mapped to ``tuner.errors``.
"""

from __future__ import annotations

from tuner.ports.bundle import HostPorts
from tuner.ports.engine import ControlClient, EngineAdapter, EngineApi, LogReader
from tuner.ports.host import Clock, GpuProbe, HostTransport, KernelLog, Route, ServiceManager, Tenancy
from tuner.ports.load import Leg, LoadGenerator, LoadProgress, ProgressSink, Target
from tuner.ports.study import EvidenceStore, Executor, Optimizer, Orders, Proposal, RunObserver

__all__ = [
    "Clock",
    "ControlClient",
    "EngineAdapter",
    "EngineApi",
    "EvidenceStore",
    "Executor",
    "GpuProbe",
    "HostPorts",
    "HostTransport",
    "KernelLog",
    "Leg",
    "LoadGenerator",
    "LoadProgress",
    "LogReader",
    "Optimizer",
    "Orders",
    "ProgressSink",
    "Proposal",
    "Route",
    "RunObserver",
    "ServiceManager",
    "Target",
    "Tenancy",
]
