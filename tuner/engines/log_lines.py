"""Cuts a log that arrives in pieces into clean lines, in constant memory."""

from __future__ import annotations

import re
from collections import deque

LINE_LIMIT = 16_384
"""Characters kept of one line; a server that never ends its line must not fill our memory."""

_ANSI = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b[@-Z\\-_]")
_ENDS = re.compile(r"[\r\n]+")


class LineCutter:
    """Puts lines together across pieces; the result does not depend on where pieces end."""

    def __init__(self) -> None:
        self._open = ""

    def cut(self, text: str) -> list[str]:
        """Take the next piece; return the lines it completes, without colour codes and empty lines."""
        first, *rest = _ENDS.split(text)
        self._open += first[: max(0, LINE_LIMIT - len(self._open))]
        if not rest:
            return []
        complete = [self._open, *rest[:-1]]
        self._open = rest[-1][:LINE_LIMIT]
        return [clean for line in complete if (clean := _clean(line))]

    def rest(self) -> list[str]:
        """Return the unfinished last line, for when no more will come."""
        line, self._open = _clean(self._open), ""
        return [line] if line else []


def _clean(line: str) -> str:
    line = line[:LINE_LIMIT]
    if "\x1b" in line:
        line = _ANSI.sub("", line)
    return line.rstrip()


class LastLines:
    """The last few lines: what there is to show when nothing explains a death."""

    def __init__(self, count: int = 10) -> None:
        self._lines: deque[str] = deque(maxlen=count)

    def add(self, lines: list[str]) -> None:
        """Remember the end of ``lines``."""
        self._lines.extend(lines[-(self._lines.maxlen or 1) :])

    def get(self) -> tuple[str, ...]:
        """Return them whole, oldest first: a secret cut in two is no longer recognised."""
        return tuple(self._lines)


def shorten(line: str, limit: int = 400) -> str:
    """Cut a line, its secrets already taken out, to what fits on a screen."""
    return line if len(line) <= limit else line[: limit - 1] + "…"
