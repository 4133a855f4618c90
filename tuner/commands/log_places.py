"""Says on which lines of a log the evidence of a verdict stands."""

from __future__ import annotations

import re
from collections.abc import Mapping

from tuner.commands.log_input import LogInput
from tuner.model.outcome import Cause, Verdict
from tuner.report.diagnosis import EvidenceLine

_ANYWHERE = 12
"""Characters of a line that are enough to look for it."""
_COLOURS = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")
_LAST_COUNTS = frozenset({Cause.UNKNOWN, Cause.OWN_STOP, Cause.OPERATOR_STOP})
"""Causes whose evidence is the end of the log."""


def numbered(log: LogInput | None, verdict: Verdict) -> tuple[EvidenceLine, ...]:
    """Look for a verdict's evidence in the log; what the reader itself put together is found nowhere.

    Args:
        log: that can be read again; None: there is none, and no number is known.
        verdict: that was formed on it.

    Raises:
        UsageError: the log cannot be read.
    """
    if log is None:
        return tuple(EvidenceLine(line=None, text=text) for text in verdict.evidence)
    wanted = {text: part for text in verdict.evidence if len(part := _part(text)) >= _ANYWHERE}
    found = _lines_of(log, wanted, is_last=verdict.cause in _LAST_COUNTS)
    last = {text: index for index, text in enumerate(verdict.evidence)}  # of a text that comes twice, one is known
    return tuple(
        EvidenceLine(line=found.get(text) if last[text] == index else None, text=text)
        for index, text in enumerate(verdict.evidence)
    )


def _part(text: str) -> str:
    """Return the longest part of a line of evidence that stands in the log as it is."""
    return max((part for cut in text.split("***") for part in cut.split("…")), key=len).strip()


def _lines_of(log: LogInput, wanted: Mapping[str, str], *, is_last: bool) -> dict[str, int]:
    found: dict[str, int] = {}
    if not wanted:
        return found
    for piece in log.pieces():
        text = _without_colours(piece.text)
        for whole, part in wanted.items():
            if whole in found and not is_last:
                continue
            at = text.rfind(part) if is_last else text.find(part)
            if at >= 0:
                found[whole] = piece.line if piece.is_one else piece.line + text.count("\n", 0, at)
        if len(found) == len(wanted) and not is_last:
            break
    return found


def _without_colours(text: str) -> str:
    return _COLOURS.sub("", text) if "\x1b" in text else text
