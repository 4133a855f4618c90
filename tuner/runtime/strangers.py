"""Tells somebody else's processes on the GPUs from the server's: pure decisions."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from tuner.model.host import GpuProcess

_GIB = 2.0**30


def strangers(
    processes: Iterable[GpuProcess], *, ours: Collection[int], at_clean: Mapping[int, int], slack_bytes: int
) -> tuple[GpuProcess, ...]:
    """Return the processes that have no business on the GPUs of a server that is measured.

    Args:
        processes: all that hold GPU memory.
        ours: PIDs of the server.
        at_clean: bytes held, by PID, when the host was proven clean: it may stay so, not grow.
        slack_bytes: how much growth is none.
    """
    return tuple(
        process
        for process in processes
        if process.name  # one that is gone computes nothing
        and process.pid not in ours
        and (process.pid not in at_clean or process.memory_used_bytes > at_clean[process.pid] + slack_bytes)
    )


def strangers_text(processes: Iterable[GpuProcess]) -> str:
    """Name foreign processes, what they hold and where."""
    named = ", ".join(process_text(process) for process in processes)
    return f"foreign process {named} used the GPU"


def process_text(process: GpuProcess) -> str:
    """Name a process on the GPU: ``4711 python train.py (10.0 GiB on GPU 0)``."""
    held = f"{process.memory_used_bytes / _GIB:.1f} GiB" if process.memory_used_bytes else "memory not known"
    where = f" on GPU {', '.join(map(str, process.gpus))}" if process.gpus else ""
    return f"{process.pid} {process.name or '(gone)'} ({held}{where})"
