"""A study begun under other terms: refused where something was measured, begun anew where nothing was."""

from __future__ import annotations

import itertools
from pathlib import Path

from tuner.model.study import StudySpec
from tuner.search.identity import difference
from tuner.search.ledger import check_ledger
from tuner.search.lock import StudyLock
from tuner.search.rows import read_study
from tuner.search.storage import DATABASE, mapped, peek

_PARTS = ("", "-wal", "-shm", "-journal")
"""Of a SQLite database."""


def check_terms(spec: StudySpec) -> None:
    """Look whether a run of ``spec`` would be refused for what was begun before; writes nothing.

    Raises:
        LedgerError, StudyUnwritable: see :func:`tuner.search.ledger.check_ledger`.
    """
    if empty_difference(spec) is None:
        check_ledger(spec)


def empty_difference(spec: StudySpec) -> str | None:
    """Say which term differs in a study in which nothing counts yet; None: none does, or something counts.

    Raises:
        LedgerError: the database cannot be read.
    """
    path = Path(spec.directory) / DATABASE
    stored = peek(path, spec.name)
    reason = None if stored is None else difference(stored, spec)
    if reason is None:
        return None
    return reason if is_empty(spec.directory, spec.name) else None


def is_empty(directory: str | Path, name: str) -> bool:
    """Whether nothing counts yet in a study that was begun.

    Raises:
        LedgerError: the database cannot be read.
    """
    return not any(row.counts for row in read_study(directory, name).rows)


def begin_anew(spec: StudySpec) -> str | None:
    """Move a database aside that was begun under other terms and in which nothing counts.

    Returns:
        What was done, for the reader; None: nothing.

    Raises:
        LedgerError: the database cannot be read, or another process runs the study.
        StudyUnwritable: it cannot be moved.
    """
    reason = empty_difference(spec)
    if reason is None:
        return None
    directory = Path(spec.directory)
    lock = StudyLock.acquire(directory)
    try:
        if empty_difference(spec) is None:  # another driver has begun it meanwhile
            return None
        aside = _move_aside(directory / DATABASE)
    finally:
        lock.release()
    return f"study {spec.name} {reason}; nothing was measured, so it begins anew ({aside.name} is what was there)"


def _move_aside(path: Path) -> Path:
    free = next(
        aside for count in itertools.count(1) if not (aside := path.with_name(f"{path.name}.old{count}")).exists()
    )
    with mapped(path):
        for part in _PARTS:
            piece = path.with_name(f"{path.name}{part}")
            if piece.exists():
                piece.rename(free.with_name(f"{free.name}{part}"))
    return free
