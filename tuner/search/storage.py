"""The study's SQLite file: made whole or not at all, opened for one driver, read by anybody.

Every error of SQLite, SQLAlchemy, Optuna and the file system leaves this folder of the
program as one that names the file and the remedy: StudyUnwritable where the machine is to
blame (disk, rights), LedgerError where the file is.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
import sqlite3
import warnings
from collections.abc import Iterator, Mapping
from enum import Enum
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import optuna
import sqlalchemy.exc
from optuna.exceptions import ExperimentalWarning, OptunaError
from optuna.storages import RDBStorage
from optuna.trial import FrozenTrial

from tuner.errors import LedgerError, StudyUnwritable
from tuner.model.metric import Objective

DATABASE: Final = "study.db"
BUSY_TIMEOUT_S: Final = 30.0
"""How long a write waits for another program's lock (optuna-dashboard writes notes)."""

NEEDED_BYTES: Final = 64 * 1024 * 1024
"""Free disk space below which a study is not begun: evidence of one trial can be this much."""


# ---------------------------------------------------------------------------- errors


FOREIGN: Final = (sqlalchemy.exc.SQLAlchemyError, sqlite3.Error, OptunaError, OSError)
"""Everything the libraries below the ledger raise when the database or the disk fails."""


@contextlib.contextmanager
def mapped(path: Path) -> Iterator[None]:
    """Turn what the database's libraries raise into LedgerError or StudyUnwritable."""
    try:
        yield
    except FOREIGN as error:
        raise explained(path, error) from error


def explained(path: Path, error: BaseException) -> LedgerError | StudyUnwritable:
    """Say in one line what went wrong with the file, whose fault it is, and what to do about it."""
    roots = [error]
    while (deeper := getattr(roots[-1], "orig", None) or roots[-1].__cause__) is not None and deeper not in roots:
        roots.append(deeper)
    root = roots[-1]
    text = (root.strerror if isinstance(root, OSError) and root.strerror else str(root)).strip() or type(root).__name__
    reason = " ".join(text.split())
    kind, remedy = _judged(root, reason.lower())
    return kind(f"{path}: {reason}; {remedy}")


def _judged(root: BaseException, reason: str) -> tuple[type[LedgerError | StudyUnwritable], str]:
    number = root.errno if isinstance(root, OSError) else None
    if number in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG) or "full" in reason:
        return StudyUnwritable, "free some disk space and run again"
    if number in (errno.EACCES, errno.EPERM, errno.EROFS) or "readonly" in reason or "unable to open" in reason:
        return StudyUnwritable, "make the folder and the file writable, or choose another folder"
    if number == errno.EIO or "disk i/o" in reason:
        return StudyUnwritable, "check the disk and its free space, then run again"
    if "locked" in reason:
        return LedgerError, "close the program that holds it and run again"
    if "not a database" in reason or "malformed" in reason:
        return LedgerError, "restore it from a copy, or move it away to begin anew"
    return LedgerError, "move it away to begin anew, or choose another folder"


# ---------------------------------------------------------------------------- looking, without writing


def check_room(directory: Path, *, needed_bytes: int = NEEDED_BYTES) -> None:
    """Refuse a folder that cannot be made or written, or a disk that is nearly full; writes nothing.

    Raises:
        StudyUnwritable: names the folder and the remedy.
        LedgerError: a file is in the way.
    """
    place = directory
    with mapped(directory):
        while not place.exists() and place != place.parent:
            place = place.parent
        if not place.is_dir():
            raise LedgerError(f"{directory}: {place} is not a folder; choose another folder for the study")
        free_bytes = shutil.disk_usage(place).free
    if not os.access(place, os.W_OK | os.X_OK):
        raise StudyUnwritable(f"{directory}: {place} is read-only; make it writable, or choose another folder")
    if free_bytes < needed_bytes:
        raise StudyUnwritable(
            f"{directory}: only {free_bytes / 2**20:.0f} MiB of disk space left,"
            f" {needed_bytes / 2**20:.0f} MiB are needed; free some and run again"
        )


def peek(path: Path, name: str) -> dict[str, Any] | None:
    """Return the user attributes of study ``name``; None when there is no file yet.

    Raises:
        LedgerError: the file is no study database, or of another study.
        StudyUnwritable: the folder or the disk does not let it be read.
    """
    with mapped(path):
        if not path.exists():
            return None
    with mapped(path), contextlib.closing(connect_readable(path)) as connection:
        tables = {row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        if not {"studies", "study_user_attributes", "trials", "version_info"} <= tables:
            raise LedgerError(f"{path}: is not a study database; move it away to begin anew")
        names = {row[1]: row[0] for row in connection.execute("SELECT study_id, study_name FROM studies")}
        if name not in names:
            others = ", ".join(sorted(names)) or "no study"
            raise LedgerError(
                f"{path}: holds {others}, not study {name}; choose another study name or folder, or move it away"
            )
        attributes = connection.execute(
            "SELECT key, value_json FROM study_user_attributes WHERE study_id = ?", (names[name],)
        ).fetchall()
    try:
        return {key: json.loads(value) for key, value in attributes}
    except (ValueError, TypeError) as error:
        raise LedgerError(f"{path}: its attributes are unreadable; restore it from a copy, or move it away") from error


def connect_readable(path: Path) -> sqlite3.Connection:
    """Open the file so that nothing can be written."""
    # Without a write-ahead log nobody writes, and the file can be read as it lies: otherwise
    # SQLite would make a log of its own beside it just to read.
    is_quiet = not path.with_name(path.name + "-wal").exists()
    query = "mode=ro&immutable=1" if is_quiet else "mode=ro"
    return sqlite3.connect(
        f"file:{quote(str(path))}?{query}", uri=True, timeout=BUSY_TIMEOUT_S, check_same_thread=False
    )


# ---------------------------------------------------------------------------- opening


def create(
    path: Path,
    name: str,
    *,
    objectives: tuple[Objective, ...],
    attributes: Mapping[str, Any],
    first: FrozenTrial,
) -> None:
    """Make a new study whose first trial waits; it appears under its name only when complete.

    Raises:
        StudyUnwritable: it cannot be written; what was begun is removed.
    """
    quiet_optuna()
    begun = path.with_name(path.name + ".new")
    with mapped(path):
        _remove_database(begun)  # of a driver that was killed here
        try:
            with open_storage(begun, purpose=Purpose.CREATE) as storage, warnings.catch_warnings():
                warnings.simplefilter("ignore", ExperimentalWarning)  # set_metric_names
                study = optuna.create_study(
                    study_name=name,
                    storage=storage,
                    directions=[objective.direction.value for objective in objectives],
                )
                study.set_metric_names([objective.name for objective in objectives])
                for key, value in attributes.items():
                    study.set_user_attr(key, value)
                study.add_trial(first)
            with contextlib.closing(sqlite3.connect(begun)) as connection:
                connection.execute("PRAGMA journal_mode=WAL")  # remembered in the file
            _force_to_disk(begun)
            begun.replace(path)
        except BaseException:
            _remove_database(begun)
            raise


def _force_to_disk(path: Path) -> None:
    descriptor = os.open(path, os.O_RDWR)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _remove_database(path: Path) -> None:
    for suffix in ("", "-journal", "-wal", "-shm"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)


class Purpose(Enum):
    """What a database is opened for."""

    CREATE = "create"  # a file nobody else sees; forced to the disk once, when it is complete
    WRITE = "write"
    READ = "read"  # nothing can be written


@contextlib.contextmanager
def open_storage(path: Path, *, purpose: Purpose = Purpose.WRITE) -> Iterator[RDBStorage]:
    """Open Optuna's storage on the file and close every connection at the end.

    Raises:
        LedgerError: the file was made by another version of Optuna.
    """
    quiet_optuna()

    def connect() -> sqlite3.Connection:
        if purpose is Purpose.READ:
            return connect_readable(path)
        connection = sqlite3.connect(path, timeout=BUSY_TIMEOUT_S, check_same_thread=False)
        if purpose is Purpose.CREATE:
            connection.execute("PRAGMA synchronous=OFF")
        return connection

    try:
        # The creator, not the URL, names the file: a URL would trip over ? and % in the path.
        storage = RDBStorage(
            f"sqlite:///{DATABASE}",
            engine_kwargs={"creator": connect},
            skip_compatibility_check=purpose is Purpose.CREATE,
            skip_table_creation=purpose is Purpose.READ,
        )
    except OptunaError:
        raise
    except RuntimeError as error:  # raised by Optuna's check of the schema's version
        raise LedgerError(f"{path}: {' '.join(str(error).split())}") from error
    try:
        yield storage
    finally:
        storage.remove_session()
        storage.engine.dispose()


def quiet_optuna() -> None:
    """Keep Optuna from printing: only the command line prints."""
    optuna.logging.disable_default_handler()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
