"""What a reader says of a case, and where that differs from what must be said."""

from __future__ import annotations

import codecs
import re
from dataclasses import replace

from tuner.engines import engine
from tuner.model.outcome import Verdict
from tuner.ports import LogReader
from writing.case import Case

_MOST_EVIDENCE = 10
_COLOUR = re.compile(rb"\x1b\[[0-9;]*[A-Za-z]")
_SECRET = "sk-golden"


def fed(case: Case, piece: int = 0) -> LogReader:
    """Return a reader that has read the log, in pieces of this many bytes (0: at once)."""
    reader = engine(case.engine).log_reader()
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    step = piece or max(1, len(case.log))
    for start in range(0, len(case.log), step):
        reader.feed(decoder.decode(case.log[start : start + step]))
    reader.feed(decoder.decode(b"", final=True))
    return reader


def judged(case: Case, piece: int = 0) -> Verdict:
    """Return the verdict on a case."""
    return fed(case, piece).diagnose(case.ending)


def differences(case: Case, found: Verdict) -> list[str]:
    """Say where a verdict is not the one expected; empty: it is right."""
    expected = case.expected
    pairs = {
        "cause": (found.cause.value, expected.cause.value),
        "config_fault": (found.config_fault, expected.config_fault),
        "stage": (found.stage, expected.stage if expected.stage is not None else found.stage),
        "direction": (found.direction, expected.direction),
        "shortfall_bytes": (found.shortfall_bytes, expected.shortfall_bytes),
        "viable_fraction": (found.viable_fraction, expected.viable_fraction),
    }
    told = [f"{name} {is_!r} instead of {should!r}" for name, (is_, should) in pairs.items() if is_ != should]
    if not any(expected.evidence in line for line in found.evidence or ("",)):
        told.append(f"evidence without {expected.evidence!r}")
    if len(found.evidence) > _MOST_EVIDENCE:
        told.append(f"{len(found.evidence)} lines of evidence, more than {_MOST_EVIDENCE}")
    if not found.advice:
        told.append("no advice")
    if _SECRET in "".join(found.evidence) + found.advice:
        told.append("a secret in what is shown")
    return told


def mutilated(case: Case) -> Case:
    """Return the case without its decisive lines."""
    marks = tuple(text.encode() for text in case.decisive)
    lines = [(line, _COLOUR.sub(b"", line)) for line in case.log.splitlines(keepends=True)]
    kept = [line for line, bare in lines if not any(mark in bare for mark in marks)]
    return replace(case, log=b"".join(kept))
