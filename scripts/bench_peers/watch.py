"""The CPU time of another process and of all it starts, watched from outside, the same for every client."""

from __future__ import annotations

import threading
import time
from bisect import bisect_left
from pathlib import Path

PAUSE_S = 0.05


def _cpu_s(pid: int) -> float | None:
    """Return the CPU seconds of all threads of a process, the ended ones too; None: it is gone."""
    try:
        return time.clock_gettime((~pid << 3) | 2)  # CPUCLOCK_SCHED of linux/posix-timers.h
    except OSError:
        return None


def _children(pid: int) -> list[int]:
    found: list[int] = []
    try:
        for task in Path(f"/proc/{pid}/task").iterdir():
            found += [int(word) for word in (task / "children").read_text().split()]
    except OSError:
        return found  # it ended while we looked
    return found


class CpuWatch(threading.Thread):
    """Notes the CPU time of a process tree every so often, until it is told to stop."""

    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self._pid = pid
        self._known: dict[int, float] = {}
        self._is_over = threading.Event()
        self._at_s: list[float] = []
        self._sums_s: list[float] = []

    def run(self) -> None:
        """Watch."""
        while not self._is_over.is_set():
            self._look()
            self._is_over.wait(PAUSE_S)

    def _look(self) -> None:
        waiting = [self._pid]
        while waiting:
            pid = waiting.pop()
            cpu_s = _cpu_s(pid)
            if cpu_s is not None:
                self._known[pid] = cpu_s
                waiting += _children(pid)
        self._at_s.append(time.perf_counter())
        self._sums_s.append(sum(self._known.values()))

    def end(self) -> None:
        """Stop watching."""
        self._is_over.set()
        self.join()

    @property
    def processes(self) -> int:
        """How many were seen."""
        return len(self._known)

    def between(self, start_s: float, end_s: float) -> float:
        """Return the CPU seconds spent between two moments, interpolated between the looks."""
        return self._until(end_s) - self._until(start_s)

    def _until(self, at_s: float) -> float:
        after = bisect_left(self._at_s, at_s)
        if after == 0:
            return self._sums_s[0]
        if after == len(self._at_s):
            return self._sums_s[-1]
        before = after - 1
        share = (at_s - self._at_s[before]) / (self._at_s[after] - self._at_s[before])
        return self._sums_s[before] + share * (self._sums_s[after] - self._sums_s[before])
