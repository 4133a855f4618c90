"""Judges a log that may come from anywhere: what ``tuner diagnose`` does."""

from __future__ import annotations

import signal
from dataclasses import dataclass

from tuner.commands.log_engine import Guess
from tuner.commands.log_input import LogInput
from tuner.commands.log_places import numbered
from tuner.engines import ENGINES, engine
from tuner.errors import UsageError
from tuner.model.outcome import Ending
from tuner.ports import LogReader
from tuner.report.asked_in_log import AskedInLog
from tuner.report.diagnosis import Diagnosis, diagnosis_of

_SIGNALS = 64
_SHELL = 128
_STATUSES = 255


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
    remarks = tuple(log.remarks)  # a second reading ends with the last line it looks for
    return diagnosis_of(
        verdict,
        engine=name,
        is_guessed=engine_name is None,
        stage=verdict.stage or reading.reader.stage,
        evidence=numbered(log if log.can_be_read_again else None, verdict),
        asked=reading.asked.found,
        names=engine(name).parameters,
        remarks=remarks,
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
