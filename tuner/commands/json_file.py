"""A file that a command was asked to write, refused before the work when it cannot be."""

from __future__ import annotations

import tempfile
from pathlib import Path

from tuner.errors import UsageError
from tuner.hosts.files import replace_file

STANDARD_OUTPUT = "-"


class JsonFile:
    """Takes a document again and again; each time the whole file is replaced.

    Args:
        name: of the file; ``-`` is standard output, which takes the last document only.

    Raises:
        UsageError: it cannot be written.
    """

    def __init__(self, name: str) -> None:
        self._path = None if name == STANDARD_OUTPUT else Path(name)
        self._latest: str | None = None
        if self._path is not None:
            _require_writable(self._path)

    @property
    def is_standard_output(self) -> bool:
        """Whether the document is all that may be printed."""
        return self._path is None

    def write(self, document: str) -> None:
        """Write ``document``, now where it is a file.

        Raises:
            UsageError: it cannot be written any more.
        """
        self._latest = document
        if self._path is None:
            return
        try:
            if _is_replaced(self._path):
                replace_file(self._path, f"{document}\n".encode(), mode=0o644)
            else:
                self._path.write_text(f"{document}\n")
        except OSError as error:
            raise _unwritable(self._path, error) from error

    @property
    def standard_output(self) -> str | None:
        """What is to be printed; None: nothing."""
        return self._latest if self._path is None else None


def _is_replaced(path: Path) -> bool:
    """Whether a whole new file takes its place: not a device or a pipe."""
    return not path.exists() or path.is_file()


def _require_writable(path: Path) -> None:
    try:
        if path.is_dir():
            raise IsADirectoryError(21, "it is a folder")
        if not _is_replaced(path):
            return
        if path.exists():
            with path.open("ab"):
                pass
        with tempfile.TemporaryFile(dir=path.resolve().parent):
            pass
    except OSError as error:
        raise _unwritable(path, error) from error


def _unwritable(path: Path, error: OSError) -> UsageError:
    return UsageError(
        f"--json {path}: cannot be written: {error.strerror or error}; name another file, or - to print it"
    )
