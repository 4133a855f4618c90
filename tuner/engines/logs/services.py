"""What a service manager and the kernel say of a server, in the same log: the same for every engine."""

from __future__ import annotations

import re
from dataclasses import dataclass

from tuner.model.outcome import Cause

TRIGGERS = ("systemd[", "kernel: ")
"""Lower-case texts of which the lines that :func:`said` understands hold one."""

_MANAGER = "systemd["
_KERNEL = "kernel: "
_EXITED = re.compile(r"\S+\.service: Main process exited, code=(?!exited, status=0/)")
_RESULT = re.compile(r"\S+\.service: (?:Failed with result '(oom-kill|watchdog)'|.*killed by the OOM killer)")
_STOPPING = re.compile(r"Stopping \S")
_KILLED = re.compile(r"Killed process \d+ \(([^)]*)\)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """What a line that is not the server's own says of it.

    Attributes:
        cause: HOST_OOM, HANG or CUDA_FAULT; None: none.
        is_death: it has ended, and nobody stopped it.
        is_stop: somebody stops it.
    """

    cause: Cause | None = None
    is_death: bool = False
    is_stop: bool = False


def said(prefix: str, message: str, processes: tuple[str, ...]) -> Said | None:
    """Read a line of systemd or of the kernel; None: it is somebody else's.

    Args:
        prefix: what journald wrote before the message.
        message: what was said.
        processes: how the names of the server's processes begin.
    """
    if _KERNEL in prefix:
        killed = _KILLED.search(message)
        if killed is not None and killed.group(1).startswith(processes):
            return Said(cause=Cause.HOST_OOM)
        return Said(cause=Cause.CUDA_FAULT) if "Xid (" in message else Said()
    if _MANAGER not in prefix:
        return None
    found = _RESULT.match(message)
    if found is not None:
        return Said(cause=Cause.HANG if found.group(1) == "watchdog" else Cause.HOST_OOM)
    return Said(is_death=_EXITED.match(message) is not None, is_stop=_STOPPING.match(message) is not None)
