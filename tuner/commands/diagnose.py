"""Judges a log that may come from anywhere: what ``tuner diagnose`` does."""

from __future__ import annotations

import re
import signal
from collections.abc import Mapping
from dataclasses import dataclass

from tuner.commands.log_engine import Guess
from tuner.commands.log_input import LogInput
from tuner.engines import ENGINES, engine
from tuner.errors import UsageError
from tuner.model.outcome import Cause, Ending, Verdict
from tuner.ports import LogReader
from tuner.report.asked_in_log import AskedInLog
from tuner.report.diagnosis import Diagnosis, EvidenceLine, diagnosis_of

_SIGNALS = 64
_SHELL = 128
_STATUSES = 255
_ANYWHERE = 12
"""Characters of a line that are enough to look for it."""
_COLOURS = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")
_LAST_COUNTS = frozenset({Cause.UNKNOWN, Cause.OWN_STOP, Cause.OPERATOR_STOP})
"""Causes whose evidence is the end of the log."""


@dataclass(slots=True)
class _Reading:
    """One engine's view of a log."""

    reader: LogReader
    asked: AskedInLog

    def feed(self, text: str) -> None:
        self.reader.feed(text)
        self.asked.feed(text)


def diagnose(log: LogInput, *, engine_name: str | None, ending: Ending) -> Diagnosis:
    """Read a log to its end and say why its server died.

    Args:
        log: to read; twice, where it can be, to say on which lines the evidence stands.
        engine_name: that wrote it; None: its own words tell.
        ending: what is known of how the server ended.

    Raises:
        UsageError: the log cannot be read, or nothing in it tells which engine wrote it.
    """
    names = tuple(ENGINES) if engine_name is None else (engine(engine_name).name,)
    guess = Guess(names)
    readings = {
        name: _Reading(reader=engine(name).log_reader(), asked=AskedInLog(engine(name).parameters)) for name in names
    }
    for piece in log.pieces():
        for reading in readings.values():
            reading.feed(piece.text)
        if len(readings) > 1:
            guess.feed(piece.text)
            if guess.is_sure:
                name = guess.engine(log.name)
                readings = {name: readings[name]}
    name = names[0] if engine_name is not None else guess.engine(log.name)
    reading = readings[name]
    verdict = reading.reader.diagnose(ending)
    return diagnosis_of(
        verdict,
        engine=name,
        is_guessed=engine_name is None,
        stage=verdict.stage or reading.reader.stage,
        evidence=_numbered(log, verdict) if log.can_be_read_again else _unnumbered(verdict),
        asked=reading.asked.found,
        names=engine(name).parameters,
        remarks=tuple(log.remarks),
    )


def ending_of(exit_code: int | None, signal_given: str | None) -> Ending:
    """Say how a server ended, from what a person knows of it.

    Args:
        exit_code: as a shell says it (137 is signal 9), or as Python does (-9 is signal 9); None: not known.
        signal_given: number or name, with or without SIG; None: not known.

    Raises:
        UsageError: there is no such signal or code, or one contradicts the other.
    """
    if exit_code is None and signal_given is None:
        return Ending(has_ended=False)
    number = None if signal_given is None else _signal(signal_given)
    if exit_code is None:
        return Ending(exit_signal=number)
    if not -_SIGNALS <= exit_code <= _STATUSES:
        raise UsageError(f"--exit {exit_code}: give a code of 0 to {_STATUSES}, or a signal as -1 to -{_SIGNALS}")
    by_code = -exit_code if exit_code < 0 else exit_code - _SHELL if _SHELL < exit_code <= _SHELL + _SIGNALS else None
    if number is not None and by_code != number:
        raise UsageError(f"--exit {exit_code} and --signal {signal_given} do not say the same; give one of them")
    return Ending(exit_signal=by_code) if by_code is not None else Ending(exit_status=exit_code)


def _signal(given: str) -> int:
    text = given.strip().upper()
    if text.isascii() and text.isdigit() and 1 <= int(text) <= _SIGNALS:
        return int(text)
    name = text if text.startswith("SIG") else f"SIG{text}"
    if name in signal.Signals.__members__:
        return int(signal.Signals[name])
    raise UsageError(f"--signal {given}: there is no such signal; give 1 to {_SIGNALS}, or a name such as KILL")


def _unnumbered(verdict: Verdict) -> tuple[EvidenceLine, ...]:
    return tuple(EvidenceLine(line=None, text=text) for text in verdict.evidence)


def _numbered(log: LogInput, verdict: Verdict) -> tuple[EvidenceLine, ...]:
    """Look for the evidence once more; what the reader itself put together is found nowhere."""
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
