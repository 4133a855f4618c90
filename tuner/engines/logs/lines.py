"""Cuts a log that arrives in pieces into the lines that matter, in constant memory.

Nearly all of a serving engine's log is statistics and access lines. They are told apart by
a few texts, before anything is done to a line; only the rest is looked at (see
``scripts/bench_diagnose``).
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from tuner.engines.logs.shippers import unwrapped

LINE_LIMIT = 16_384
"""Characters kept of one line; a server that never ends its line must not fill our memory."""

SERVED = ""
"""Stands for steady lines among the lines that are returned: there the server served on."""

_ENDINGS = tuple(
    f"{word}{end}"
    for word in ("Error", "Exception", "Failure", "Exit", "Timeout", "Enabled", "Interrupt")
    for end in (":", "\n")
)
"""What the names of exceptions end with, where Python prints them."""

_ANSI = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b[@-Z\\-_]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Steady:
    """How lines look that a healthy server writes for ever, and that never explain a death.

    Attributes:
        within: a text that such a line holds.
        ends: how such a line ends.
    """

    within: tuple[str, ...] = ()
    ends: tuple[str, ...] = ()


class LineCutter:
    """Puts lines together across pieces; the result does not depend on where pieces end.

    Args:
        steady: lines of which only :data:`SERVED` is returned, once for those that stand together.
        triggers: lower-case texts of which a returned line holds one.
        has_exceptions: lines that may be the last of a traceback are returned, too.
    """

    def __init__(self, steady: Steady, triggers: Iterable[str], *, has_exceptions: bool = False) -> None:
        self._open = ""
        self._within = steady.within or ("\0",)
        self._ends = steady.ends
        self._triggers = _shortest(triggers)
        self._endings = _ENDINGS if has_exceptions else ()
        self._last = deque[str](maxlen=10)

    def cut(self, text: str) -> list[str]:
        """Take the next piece; return the completed lines that may matter, without colour codes."""
        if "\r" in text:
            text = text.replace("\r", "\n")
        if "\0" in text:  # a disk that was full, or text of two bytes a letter
            text = text.replace("\0", "")
        end = text.rfind("\n")
        if end < 0:
            self._open += text[: max(0, LINE_LIMIT - len(self._open))]
            return []
        whole = self._open + text[:end]
        self._open = text[end + 1 :][:LINE_LIMIT]
        return self._chosen(whole)

    def rest(self) -> list[str]:
        """Return the unfinished last line, if it may matter, for when no more will come."""
        line, self._open = self._open, ""
        return self._chosen(line)

    def last(self) -> tuple[str, ...]:
        """Return the last lines that are not blank, oldest first, at most ten.

        They are whole: a secret cut in two is no longer recognised.
        """
        return tuple(self._last)

    def _chosen(self, text: str) -> list[str]:
        if "\x1b" in text:
            text = _ANSI.sub("", text)
        lines = text.split("\n")
        if "{" in text and (text.startswith("{") or "\n{" in text):
            parts = (part for line in lines for part in (unwrapped(line) if line.startswith("{") else (line,)))
            lines = [_ANSI.sub("", part) if "\x1b" in part else part for part in parts]
        self._remember(lines)
        first, ends = self._within[0], self._ends
        rest = [line for line in lines if first not in line and not line.endswith(ends)]
        for steady in self._within[1:]:
            rest = [line for line in rest if steady not in line]
        has_served = len(rest) < len(lines)
        joined = "\n".join(rest) + "\n"
        lowered = joined.lower()
        present = [trigger for trigger in self._triggers if trigger in lowered]
        endings = [ending for ending in self._endings if ending in joined]
        if not present and not endings:
            return [SERVED] if has_served else []
        if has_served:
            return self._in_order(lines, present, endings)
        return [_clean(line) for line in rest if _matters(line, present, endings)]

    def _in_order(self, lines: list[str], present: list[str], endings: list[str]) -> list[str]:
        """Return the lines that may matter, and between them where the server served on."""
        chosen: list[str] = []
        for line in lines:
            if line.endswith(self._ends) or _holds(line, self._within):
                if not chosen or chosen[-1] != SERVED:
                    chosen.append(SERVED)
            elif _matters(line, present, endings):
                chosen.append(_clean(line))
        return chosen

    def _remember(self, lines: list[str]) -> None:
        kept: list[str] = []
        for line in reversed(lines):
            clean = _clean(line)
            if clean:
                kept.append(clean)
                if len(kept) == self._last.maxlen:
                    break
        self._last.extend(reversed(kept))


def _matters(line: str, triggers: list[str], endings: list[str]) -> bool:
    return _holds(line.lower(), triggers) or (bool(endings) and _holds(line.rstrip() + "\n", endings))


def _holds(line: str, triggers: Iterable[str]) -> bool:
    for trigger in triggers:  # noqa: SIM110 - twice as fast here as any() with a generator
        if trigger in line:
            return True
    return False


def _shortest(triggers: Iterable[str]) -> tuple[str, ...]:
    """Drop every trigger that another one finds already."""
    found: list[str] = []
    for trigger in sorted(set(triggers), key=len):
        if not any(shorter in trigger for shorter in found):
            found.append(trigger)
    return tuple(found)


def _clean(line: str) -> str:
    return line[:LINE_LIMIT].rstrip()


def shorten(line: str, limit: int = 400) -> str:
    """Cut a line, its secrets already taken out, to what fits on a screen."""
    return line if len(line) <= limit else line[: limit - 1] + "…"
