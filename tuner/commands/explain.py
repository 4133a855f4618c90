"""Finds what there is of a trial: what ``tuner explain`` tells."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

from tuner.commands.log_input import LogInput
from tuner.commands.log_places import numbered
from tuner.commands.studies import running_driver
from tuner.errors import EvidenceError, UsageError
from tuner.model.study import TrialRow
from tuner.report.diagnosis import EvidenceLine
from tuner.report.evidence import Evidence, read_evidence
from tuner.report.story import Story, Surroundings, tell, verdict_of

if TYPE_CHECKING:
    from tuner.search.rows import StoredStudy

_NAMED = 8
"""Trials that are named one by one before a range does."""


def explain(directory: Path, name: str, trial: str) -> Story:
    """Tell a trial of a study, also while it runs.

    Args:
        directory: of the study's results.
        name: of the study.
        trial: its number, as it was given.

    Raises:
        UsageError: there is no such trial, or the study's database cannot be read.
        EvidenceError: what the trial left may not be read.
    """
    from tuner.search.rows import read_study  # noqa: PLC0415  seconds, only where it is needed

    stored = read_study(directory, name)
    row = _row(stored, trial)
    folder = directory / "trials" / f"{row.number:04d}"
    found = None if row.host is None else _evidence(folder, row)
    log = folder / "server.log"
    has_log = found is not None and log.is_file() and log.stat().st_size > 0
    around = Surroundings(
        study=name,
        engine=stored.engine,
        simulated=stored.simulated,
        parameters=stored.parameters,
        rows=stored.rows,
        is_driven=running_driver(directory) is not None,
        now_s=time.time(),
        log=str(_shown(log)) if has_log else None,
        evidence=_lines(row, log if has_log else None),
    )
    return tell(row, found, around)


def _row(stored: StoredStudy, given: str) -> TrialRow:
    numbers = [row.number for row in stored.rows]
    text = given.strip().removeprefix("#")
    if text.isascii() and text.isdigit() and int(text) in numbers:
        return stored.rows[numbers.index(int(text))]
    there = ", ".join(map(str, numbers)) if len(numbers) <= _NAMED else f"{numbers[0]} to {numbers[-1]}"
    raise UsageError(f"study {stored.name} has no trial {given!r}: there is {there}")


def _evidence(folder: Path, row: TrialRow) -> Evidence:
    found = read_evidence(
        manifest=_text(folder / "manifest.json"),
        events=_text(folder / "events.jsonl"),
        result=_text(folder / "result.json"),
    )
    if found.assignment is not None and found.assignment != row.assignment:
        return Evidence(gaps=(f"{_shown(folder)} is of another trial, which ran {found.assignment}",))
    return found


def _text(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return None
    except OSError as error:
        raise EvidenceError(f"{path}: cannot be read ({error.strerror}); make it readable") from error


def _lines(row: TrialRow, log: Path | None) -> tuple[EvidenceLine, ...]:
    verdict = verdict_of(row.outcome)
    if verdict is None:
        return ()
    return numbered(None if log is None else LogInput(str(log)), verdict)


def _shown(path: Path) -> Path:
    """Write a path from where the reader is, where it lies below."""
    here = Path.cwd()
    return path.relative_to(here) if path.is_relative_to(here) else path
