"""One driver a study: an advisory lock on a file in the study's folder."""

from __future__ import annotations

import contextlib
import datetime as dt
import fcntl
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Self

from tuner.errors import LedgerError, StudyUnwritable

LOCK_FILE = "lock"
ONLOOKER_S = 1.0
"""How long whoever only looks may hold the lock; `status` lets go within a millisecond."""
RETRY_S = 0.01
_DRIVEN: set[Path] = set()
"""Locks that :func:`driving` holds in this process: the kernel would refuse us our own."""


class StudyLock:
    """The kernel's lock on ``<directory>/lock``; it dies with the process, so it is never stale.

    The file itself stays behind, empty: removing it would let two processes each lock a
    different file of the same name (whoever locks checks for that).
    """

    def __init__(self, descriptor: int | None, path: Path) -> None:
        self._descriptor = descriptor
        self._path = path
        self._is_inner = descriptor is None

    @classmethod
    def acquire(cls, directory: Path) -> Self:
        """Take the lock, or refuse at once; an onlooker is waited for.

        Inside :func:`driving` this process has it already: what is returned then gives nothing back.

        Raises:
            LedgerError: another process holds it (the message names it).
            StudyUnwritable: the file cannot be written.
        """
        path = directory / LOCK_FILE
        if path in _DRIVEN:
            return cls(None, path)
        descriptor = _locked(path)
        while not _is_current(descriptor, path):  # removed by a driver that failed to begin the study
            os.close(descriptor)
            descriptor = _locked(path)
        lock = cls(descriptor, path)
        since = dt.datetime.now(dt.UTC).isoformat(timespec="seconds")
        try:
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, json.dumps({"pid": os.getpid(), "since": since}).encode() + b"\n", 0)
        except OSError as error:
            lock.release()
            raise StudyUnwritable(
                f"{path}: cannot be written ({error.strerror}); free some space and try again"
            ) from error
        return lock

    def release(self) -> None:
        """Give the lock back; releasing twice is no error."""
        if self._descriptor is None:
            return
        descriptor, self._descriptor = self._descriptor, None
        try:
            os.ftruncate(descriptor, 0)
        finally:
            os.close(descriptor)

    def remove(self) -> None:
        """Remove the file of a lock that is held: the study could not be begun."""
        if not self._is_inner:
            self._path.unlink(missing_ok=True)


@contextlib.contextmanager
def driving(directory: Path) -> Iterator[None]:
    """Be the study's one driver, from before its hosts are taken until they are given back.

    Its folder is made for it. What was not used is removed again.

    Raises:
        LedgerError: another process is.
        StudyUnwritable: the folder cannot be made, or its lock cannot be written.
    """
    made = [folder for folder in (directory, *directory.parents) if not folder.exists()]
    path = directory / LOCK_FILE
    with contextlib.ExitStack() as undo:
        for folder in reversed(made):
            try:
                folder.mkdir()
            except OSError as error:
                raise StudyUnwritable(f"{folder}: cannot be made ({error.strerror}); make it writable") from error
            undo.callback(remove_if_empty, folder)
        was_there = path.exists()
        lock = StudyLock.acquire(directory)
        undo.callback(lock.release)
        _DRIVEN.add(path)
        undo.callback(_DRIVEN.discard, path)
        try:
            yield
        finally:
            if not was_there and [entry.name for entry in directory.iterdir()] == [LOCK_FILE]:
                lock.remove()


def remove_if_empty(folder: Path) -> None:
    """Remove a folder that was made and not used."""
    with contextlib.suppress(OSError):
        folder.rmdir()


def require_unlocked(directory: Path) -> None:
    """Hold that no driver runs the study, before anything is started for it; writes nothing.

    Raises:
        LedgerError: another process runs it (the message names it).
        StudyUnwritable: the lock cannot be looked at.
    """
    path = directory / LOCK_FILE
    if path in _DRIVEN:
        return
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    except OSError as error:
        raise StudyUnwritable(f"{path}: cannot be read ({error.strerror}); make it readable") from error
    try:
        _flock_patiently(descriptor, path)
    finally:
        os.close(descriptor)


def _locked(path: Path) -> int:
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise StudyUnwritable(f"{path}: cannot be written ({error.strerror}); make the folder writable") from error
    try:
        _flock_patiently(descriptor, path)
    except OSError as error:
        os.close(descriptor)
        raise StudyUnwritable(
            f"{path}: cannot be locked ({error.strerror}); choose a folder on a disk that knows locks"
        ) from error
    except LedgerError:
        os.close(descriptor)
        raise
    return descriptor


def _flock_patiently(descriptor: int, path: Path) -> None:
    patience_ends_s = time.monotonic() + ONLOOKER_S
    while not _flocked(descriptor, fcntl.LOCK_EX):
        # Whoever runs the study keeps out everybody; where a second onlooker gets in, the
        # first holder is one too, and gone in a moment.
        if not _flocked(descriptor, fcntl.LOCK_SH) or time.monotonic() > patience_ends_s:
            holder = describe_holder(os.read(descriptor, 4096))
            raise LedgerError(f"{path}: this study is being run by {holder}; wait for it, or stop it with Ctrl-C")
        fcntl.flock(descriptor, fcntl.LOCK_UN)
        time.sleep(RETRY_S)


def holder_of(directory: Path) -> str | None:
    """Say which process runs the study in ``directory``; None: none does. Changes nothing."""
    try:
        descriptor = os.open(directory / LOCK_FILE, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        return None if _flocked(descriptor, fcntl.LOCK_SH) else describe_holder(os.read(descriptor, 4096))
    except OSError:
        return None
    finally:
        os.close(descriptor)


def _flocked(descriptor: int, kind: int) -> bool:
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_current(descriptor: int, path: Path) -> bool:
    try:
        return os.fstat(descriptor).st_ino == path.stat().st_ino
    except FileNotFoundError:
        return False


def describe_holder(content: bytes) -> str:
    """Say who holds the lock, from what the holder wrote into the file."""
    try:
        entry = json.loads(content)
        return f"process {int(entry['pid'])} since {entry['since']}"
    except (ValueError, KeyError, TypeError):
        # The holder takes the lock and writes its name in two steps.
        return "another process that has just started"
