"""What a check of a host found, and what to do about it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class RowVerdict(Enum):
    """How a check ended."""

    OK = "ok"
    WARNING = "warning"  # a run is possible; the reader should know
    FAILED = "failed"  # no run is possible before this is mended
    UNKNOWN = "unknown"  # could not be looked at, because of an earlier row


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One row of ``tuner doctor``.

    Attributes:
        host: name of the host.
        check: what was looked at, in two or three words: ``host key``, ``unit``.
        detail: what was seen, in one line.
        remedy: what to do, in one line; empty where all is well. Lines to copy
            (sudoers) are in ``lines``.
    """

    host: str
    check: str
    verdict: RowVerdict
    detail: str
    remedy: str = ""
    lines: tuple[str, ...] = ()
