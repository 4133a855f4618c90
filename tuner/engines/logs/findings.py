"""What a log shows of a death, before it is known how the server ended."""

from __future__ import annotations

from dataclasses import dataclass, field

from tuner.model.outcome import Cause, MemoryDirection


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A rule that applied, with what its line and its moment add.

    Attributes:
        stage: of the start-up, when the line was written.
        other_holder: the line itself names another process that held as much memory as was missing.
    """

    cause: Cause
    config_fault: bool | None
    line: str
    stage: str = ""
    direction: MemoryDirection | None = None
    shortfall_bytes: int | None = None
    viable_fraction: float | None = None
    fatal: bool = False
    other_holder: bool = False
    advice: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """All that a log shows.

    Attributes:
        stage: the last start-up stage; empty before any.
        is_serving: the last life came so far that it served.
        sure: the first cause; what came after it is its consequence.
        hint: the first line that would be a cause if the server turned out to be dead.
        exception: the first exception's line, explained or not.
        death: the first line that says that the server is lost.
        doubt: a line that says that another process may hold GPU memory.
        stop: the line in which the server says that it was told to end; what came after it is not looked at.
        has_recovered: it served on after ``sure``, ``hint`` and ``exception``.
        last: the last lines, at most ten.
    """

    stage: str = ""
    is_serving: bool = False
    sure: Finding | None = None
    hint: Finding | None = None
    exception: str = ""
    death: str = ""
    doubt: str = ""
    stop: str = ""
    has_recovered: bool = False
    last: tuple[str, ...] = field(default=())

    @property
    def is_troubled(self) -> bool:
        """Whether anything was seen that may be or become a cause."""
        return self.sure is not None or self.hint is not None or bool(self.exception)

    @property
    def is_lost(self) -> bool:
        """Whether the log says that the server cannot live."""
        return bool(self.death) or (self.sure is not None and self.sure.fatal)
