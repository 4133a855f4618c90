"""Output whose reader may leave: ``tuner validate | head -1``."""

from __future__ import annotations

import os
from typing import Any, TextIO


class PatientOutput:
    """A stream that is written on, unread, once whoever read it has gone.

    Here and not in an ``except`` around a command, because the command line's library and the
    one that draws turn a closed pipe into exits of their own, with 1, and because a run must
    not end with its reader.
    """

    def __init__(self, stream: TextIO) -> None:
        """Write to ``stream``."""
        self._stream = stream

    def write(self, text: str) -> int:
        """Write ``text``, or drop it when nobody reads any more."""
        try:
            return self._stream.write(text)
        except BrokenPipeError:
            self._let_go()
            return len(text)

    def flush(self) -> None:
        """Hand on what is buffered, or drop it when nobody reads any more."""
        try:
            self._stream.flush()
        except BrokenPipeError:
            self._let_go()

    def _let_go(self) -> None:
        # What is still buffered goes there too, also when Python flushes at its end.
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self._stream.fileno())
        os.close(nowhere)

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401  whatever else a stream has
        return getattr(self._stream, name)
