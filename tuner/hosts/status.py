"""What the manager and the supervisor tell each other: the order, and the status file.

Standard library only: the supervisor starts with this.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tuner.hosts import files
from tuner.hosts.files import ProcessKey

MARKER = "TUNER_INVOCATION"
"""The environment variable that every process of a server inherits."""

FAULT = "fault: "
"""Begins what a supervisor says on standard output when it can no longer work."""

STATUS = "status.json"
LOG = "log"


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What to run.

    Attributes:
        argv: absolute program first.
        env: the server's whole environment, without the marker.
        cwd: its working directory.
        marker: what its processes carry in ``TUNER_INVOCATION``, before the invocation id.
        restart_delay_s: time from a death to the next start; None: it stays dead.
        owner_pid: the tuner, our parent.
    """

    argv: list[str]
    env: dict[str, str]
    cwd: str
    marker: str
    restart_delay_s: float | None
    owner_pid: int


@dataclass(slots=True, kw_only=True)
class Status:
    """The status file.

    Attributes:
        activity: a value of ``tuner.ports.Activity``.
        error: why the program could not be executed at all.
        stop_reason: who wanted the stop.
        processes: every process below the supervisor at the last look, as PID and start time.
        is_final: the supervisor has nothing left to do.
    """

    boot_id: str
    supervisor: ProcessKey
    activity: str = "inactive"
    invocation_id: str | None = None
    main: ProcessKey | None = None
    restarts: int = 0
    exit_status: int | None = None
    exit_signal: int | None = None
    stop_requested: bool = False
    stop_reason: str | None = None
    error: str | None = None
    started_s: float | None = None
    ended_s: float | None = None
    processes: list[ProcessKey] = field(default_factory=list)
    is_final: bool = False


def write_status(directory: Path, status: Status) -> None:
    """Replace the status file.

    Raises:
        OSError: it could not be written.
    """
    files.replace_file(directory / STATUS, json.dumps(asdict(status)).encode())


def read_status(directory: Path) -> Status | None:
    """Read a status file; None: there is none, or it is not one.

    Only whole files are ever visible, so one that cannot be read was not written by a supervisor.
    """
    try:
        fields: dict[str, Any] = json.loads((directory / STATUS).read_bytes())
        fields["supervisor"] = ProcessKey(*fields["supervisor"])
        fields["main"] = ProcessKey(*fields["main"]) if fields["main"] else None
        fields["processes"] = [ProcessKey(*key) for key in fields["processes"]]
        return Status(**fields)
    except (OSError, ValueError, TypeError, KeyError):
        return None
