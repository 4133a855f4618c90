"""Writes the server's log the way SGLang's processes do: straight to standard error."""

from __future__ import annotations

import os
import time

STDOUT = 1
STDERR = 2


class Log:
    """A log shared by the processes of one server.

    Each record is one ``write``, so that lines of several processes do not mix.

    Args:
        ranked: schedulers put their rank into the prefix, as SGLang does with more than one GPU.
        line_end: what ends a record; an empty one is a fault of the host.
    """

    def __init__(self, *, ranked: bool, line_end: str = "\n") -> None:
        self._ranked = ranked
        self._shows_ms = os.environ.get("SGLANG_LOG_MS", "").lower() in ("1", "true", "yes")
        self._line_end = line_end

    def record(self, message: str, rank: int | None = None, *, stream: int = STDERR) -> None:
        """Log one record; only its first line has the prefix."""
        self.raw(f"[{self._prefix(rank)}] {message}", stream=stream)

    def raw(self, text: str, *, stream: int = STDERR) -> None:
        """Write a record without a prefix."""
        content = (text.replace("\n", self._line_end) + self._line_end).encode()
        try:
            while content:
                content = content[os.write(stream, content) :]
        except BrokenPipeError:
            return  # nobody reads any more; a server does not die of that

    def _prefix(self, rank: int | None) -> str:
        seconds = time.time()
        now = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))
        if self._shows_ms:
            now += f".{int(seconds % 1 * 1000):03d}"
        return f"{now} TP{rank}" if rank is not None and self._ranked else now
