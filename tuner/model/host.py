"""What one look at a host shows: its service, its log, its processes, its GPUs."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from tuner.model.trial import Command, ServiceIdentity


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandResult:
    """What a command did; a non-zero status is a value."""

    status: int
    stdout: str
    stderr: str


class Activity(Enum):
    """What a service manager says of the server."""

    INACTIVE = "inactive"  # never started, or stopped by us and gone
    RUNNING = "running"  # the main process lives
    RESTARTING = "restarting"  # it died and will be started again by the manager
    FAILED = "failed"  # it died and stays dead


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceState:
    """One look at the service.

    Attributes:
        identity: of the current or last invocation; None when never started.
        restarts: automatic restarts since our start; above 0 is a crash.
        exit_status: of the last main process that ended, if it exited.
        exit_signal: of the last main process that ended, if a signal ended it.
        stop_requested: our own stop was recorded before any signal was sent.
        stopped_by_others: somebody else told the manager to stop it; how it ended may be forgotten.
        result: systemd's ``Result=`` of the last main process (``oom-kill``, ``timeout``, …); None where
            the manager has no such word.
    """

    activity: Activity
    identity: ServiceIdentity | None
    restarts: int
    exit_status: int | None
    exit_signal: int | None
    stop_requested: bool
    stopped_by_others: bool = False
    result: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LogChunk:
    """Log text since a cursor; ``cursor`` continues after it."""

    text: str
    cursor: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessEntry:
    """A process on the host."""

    pid: int
    command: str
    ours: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuReading:
    """One GPU as nvidia-smi shows it.

    Attributes:
        sm_clock_hz: None where the driver does not say.
        slowed_by: what the hardware slows itself down for (``hw_thermal_slowdown``,
            ``hw_power_brake_slowdown``, ``sw_thermal_slowdown``, ``hw_slowdown``); a power cap,
            which is normal under load, is not among them.
        power_w: None where the driver does not say.
    """

    index: int
    memory_used_bytes: int
    memory_total_bytes: int
    sm_clock_hz: float | None = None
    slowed_by: tuple[str, ...] = ()
    power_w: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuProcess:
    """A process that holds GPU memory.

    Attributes:
        name: empty of a process that is gone, whose memory the driver has not taken back yet.
        memory_used_bytes: on all GPUs together; 0 where the driver does not say.
        gpus: indices of the GPUs it holds memory on; empty where they are not known.
    """

    pid: int
    name: str
    memory_used_bytes: int
    gpus: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuLook:
    """All GPUs and their processes, seen at once."""

    readings: tuple[GpuReading, ...] = ()
    processes: tuple[GpuProcess, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Entered:
    """What taking a host showed.

    Attributes:
        secrets: values out of the server's own environment that must not be stored or shown.
        remarks: for the reader: a lease that was taken over, a drop-in that a killed run had left.
    """

    secrets: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Original:
    """What ran on the host before we came.

    Attributes:
        command: with every variable expanded; None: there is nothing of the owner's on this host.
        was_running: it ran, so it runs again after a restore.
    """

    command: Command | None
    was_running: bool
