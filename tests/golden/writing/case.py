"""What a golden log is: lines, how the server ended, and what must be said of it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from tuner.model.outcome import Cause, Ending, MemoryDirection

SGLANG = ("0.5.9", "0.5.15", "0.5.23")
GIB = 2**30
KILLED = Ending(exit_signal=9)  # the parent ends by killing itself, whatever happened


class Line(NamedTuple):
    """One record of a log; its text may run over several lines, of which the first carries the stamp.

    ``rank`` is ``TP0`` and the like, empty for the parent, None for text that passes the logger by.
    """

    text: str
    rank: str | None = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """The verdict that must be given. ``stage`` None: a cut log does not tell; not compared then."""

    cause: Cause
    config_fault: bool | None = None
    stage: str | None = ""
    direction: MemoryDirection | None = None
    shortfall_bytes: int | None = None
    viable_fraction: float | None = None
    evidence: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One golden log.

    Attributes:
        family: the engine's version, or a word for logs from a folder.
        shape: how the log came to us.
        decisive: texts without which nothing in the log or the ending tells the cause; empty: the ending does.
        without: what may be said once the decisive lines are gone.
        fatal: whether the log alone must end the waiting; None: not compared.
    """

    name: str
    engine: str
    family: str
    shape: str
    log: bytes
    ending: Ending
    expected: Expected
    decisive: tuple[str, ...] = ()
    without: frozenset[Cause] = frozenset({Cause.UNKNOWN})
    fatal: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Death:
    """How one server of SGLang ends, at one point of its start-up.

    Attributes:
        at: the point of the start-up (:data:`writing.startup.STAGES`).
        told: how the parent reports it: ``child`` (a scheduler sent SIGQUIT), ``race`` (the parent's wait
            noticed first), ``poll:N`` (the parent found a child dead with exit code N), ``parent`` (not at all).
        decisive: see :class:`Case`; empty: the evidence's text.
        silent: the cause is not in the log, so that no line can be taken away.
    """

    name: str
    at: str
    lines: tuple[Line, ...]
    expected: Expected
    ending: Ending = KILLED
    told: str = "child"
    decisive: tuple[str, ...] = ()
    without: frozenset[Cause] = frozenset({Cause.UNKNOWN})
    families: tuple[str, ...] = SGLANG
    traits: frozenset[str] = field(default_factory=lambda: frozenset({"hybrid", "draft"}))
    silent: bool = False

    def but(self, **changes: Any) -> Death:  # noqa: ANN401 - the fields of this class
        """Return a variant."""
        return replace(self, **changes)


def scheduler(*frames: str, error: str, rank: str = "TP0") -> Line:
    """Return the record of an exception in a scheduler, with the frames it came through."""
    return Line("Scheduler hit an exception: " + traceback(*frames, error=error), rank)


def traceback(*frames: str, error: str) -> str:
    """Return a traceback as Python prints it. A frame is ``path:line:function``."""
    told = []
    for frame in ("managers/scheduler.py:3621:run_scheduler_process", *frames):
        path, line, name = frame.split(":")
        told.append(f'  File "/usr/local/lib/python3.12/dist-packages/sglang/srt/{path}", line {line}, in {name}')
    return "\n".join(("Traceback (most recent call last):", *told, error))


def out_of_memory(tried_gib: float, free_gib: float, *, others: str = "", gpu: int = 0) -> str:
    """Return PyTorch's sentence. ``others``: what it says of other processes on the GPU."""
    return (
        f"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {size(tried_gib)}. GPU {gpu} has a total "
        f"capacity of 139.80 GiB of which {size(free_gib)} is free. {others}Including non-PyTorch memory, this process "
        "has 138.00 GiB memory in use. Of the allocated memory 130.11 GiB is allocated by PyTorch, with 512.00 MiB "
        "allocated in private pools (e.g., CUDA Graphs), and 1.20 GiB is reserved by PyTorch but unallocated. If "
        "reserved but unallocated memory is large try setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to "
        "avoid fragmentation.  See documentation for Memory Management  "
        "(https://pytorch.org/docs/stable/notes/cuda.html#environment-variables)"
    )


def size(gib: float) -> str:
    """Write a size as PyTorch does."""
    return f"{gib:.2f} GiB" if gib >= 1 else f"{gib * 1024:.2f} MiB"


def missing(tried_gib: float, free_gib: float) -> int:
    """Return the bytes that were missing, to the digits that PyTorch prints."""
    return int((tried_gib - free_gib) * GIB)
