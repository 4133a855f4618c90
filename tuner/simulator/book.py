"""The simulated host's GPU memory: who holds how much, as the driver would know it.

One JSON file in the host's folder, changed under an exclusive lock. A process that ends
cleanly releases what it holds. One that is killed does not: its entry stays, and whoever
reads the book first after the death starts the clock after which the memory is back, as a
driver takes its time to tear a killed process's context down.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

LINGER_S = 20.0
"""How long a killed process's memory stays taken at speed 1."""

MIN_LINGER_S = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """What a process wants to hold on one GPU; ``name`` is what nvidia-smi shows."""

    pid: int
    name: str
    gpu: int
    held_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Holding:
    """What one process holds.

    Attributes:
        pid: of the holder.
        name: as nvidia-smi shows it.
        bytes_per_gpu: by GPU index.
        alive: False while a killed process's memory lingers.
        foreign: planted by :meth:`Book.foreign`; never checked for life.
    """

    pid: int
    name: str
    bytes_per_gpu: Mapping[int, int]
    alive: bool
    foreign: bool


@dataclass(slots=True)
class _Entry:
    """One line of the book, as it is stored."""

    pid: int
    name: str
    start: int | None  # /proc start time of the pid; None for a planted one
    linger_s: float
    gpus: dict[int, int] = field(default_factory=dict)
    dead_since: float | None = None  # seconds of the monotonic clock, which all processes share
    until: float | None = None  # when a planted one goes by itself; None: it does not


def linger_s(speed: float) -> float:
    """Return how long killed memory lingers on a host of this speed."""
    return max(MIN_LINGER_S, LINGER_S / speed)


def start_time(pid: int) -> int | None:
    """Return a living process's start in clock ticks since boot; None: gone, or a zombie.

    Together with the pid it names a process for good (proc(5), field 22 of stat).
    """
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    state, *fields = stat.rpartition(")")[2].split()
    return None if state in {"Z", "X"} else int(fields[18])


class Book:
    """The memory book of the host in ``home``.

    Args:
        home: folder of the simulated host; made if it is not there.
        monotonic_s: clock shared by all processes of the machine.
        born: start time of a pid; None when it is gone.
    """

    def __init__(
        self,
        home: Path,
        *,
        monotonic_s: Callable[[], float] = time.monotonic,
        born: Callable[[int], int | None] = start_time,
    ) -> None:
        self._path = home / "gpu_book.json"
        self._lock = home / "gpu_book.lock"
        self._monotonic_s = monotonic_s
        self._born = born
        home.mkdir(parents=True, exist_ok=True)

    def hold(self, claims: Sequence[Claim], *, linger_s: float) -> None:
        """Set what processes hold, one GPU each; a process that is gone holds nothing new."""
        with self._open() as page:
            for claim in claims:
                start = self._born(claim.pid)
                if start is None:
                    continue
                entry = page.entries.get(claim.pid)
                if entry is None or entry.start != start:
                    entry = _Entry(pid=claim.pid, name=claim.name, start=start, linger_s=linger_s)
                    page.entries[claim.pid] = entry
                entry.gpus[claim.gpu] = claim.held_bytes

    def release(self, *pids: int) -> None:
        """Give back all that ``pids`` hold, as a clean end does; unknown pids are no error."""
        with self._open() as page:
            for pid in pids:
                page.entries.pop(pid, None)

    def foreign(self, pid: int, *, name: str, bytes_per_gpu: Mapping[int, int], for_s: float | None = None) -> None:
        """Plant another process's usage; it stays until :meth:`release`, or for ``for_s`` seconds."""
        until = None if for_s is None else self._monotonic_s() + for_s
        with self._open() as page:
            page.entries[pid] = _Entry(
                pid=pid, name=name, start=None, linger_s=0.0, gpus=dict(bytes_per_gpu), until=until
            )

    def overheat(self, *, for_s: float) -> None:
        """Let the hardware slow its GPUs down for ``for_s`` seconds."""
        with self._open() as page:
            page.hot_until = self._monotonic_s() + for_s

    def is_hot(self) -> bool:
        """Whether the hardware slows its GPUs down now."""
        with self._open() as page:
            return page.hot_until is not None

    def holdings(self) -> tuple[Holding, ...]:
        """Return everything held now, by pid; starts and ends the lingering of the dead."""
        with self._open() as page:
            return tuple(
                Holding(
                    pid=entry.pid,
                    name=entry.name,
                    bytes_per_gpu=dict(entry.gpus),
                    alive=entry.dead_since is None,
                    foreign=entry.start is None,
                )
                for _, entry in sorted(page.entries.items())
            )

    def used_bytes(self, gpu: int) -> int:
        """Return what is held on one GPU."""
        return sum(holding.bytes_per_gpu.get(gpu, 0) for holding in self.holdings())

    def free_bytes(self, *, gpus: Iterable[int], total_bytes: int) -> int:
        """Return the least free memory over ``gpus`` of ``total_bytes`` each, never below 0."""
        holdings = self.holdings()
        used = [sum(holding.bytes_per_gpu.get(gpu, 0) for holding in holdings) for gpu in gpus]
        return max(0, total_bytes - max(used, default=0))

    def count_start(self) -> int:
        """Count a start of the server; return which one it is, from 1."""
        with self._open() as page:
            page.starts += 1
            return page.starts

    @contextmanager
    def _open(self) -> Iterator[_Page]:
        descriptor = os.open(self._lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            before = self._path.read_bytes() if self._path.exists() else b""
            page = _Page.read(before)
            page.age(self._monotonic_s(), self._born)
            yield page
            after = page.write()
            if after != before:
                new = self._path.with_suffix(".new")
                new.write_bytes(after)
                new.replace(self._path)
        finally:
            os.close(descriptor)


@dataclass(slots=True)
class _Page:
    """The book's content while it is open."""

    starts: int = 0
    hot_until: float | None = None
    entries: dict[int, _Entry] = field(default_factory=dict)

    @classmethod
    def read(cls, content: bytes) -> _Page:
        if not content:
            return cls()
        stored: dict[str, Any] = json.loads(content)
        page = cls(starts=stored["starts"], hot_until=stored["hot_until"])
        for line in stored["entries"]:
            entry = _Entry(
                pid=line["pid"],
                name=line["name"],
                start=line["start"],
                linger_s=line["linger_s"],
                gpus={int(gpu): held for gpu, held in line["gpus"].items()},
                dead_since=line["dead_since"],
                until=line["until"],
            )
            page.entries[entry.pid] = entry
        return page

    def write(self) -> bytes:
        entries = [
            {
                "pid": entry.pid,
                "name": entry.name,
                "start": entry.start,
                "linger_s": entry.linger_s,
                "gpus": {str(gpu): held for gpu, held in sorted(entry.gpus.items())},
                "dead_since": entry.dead_since,
                "until": entry.until,
            }
            for _, entry in sorted(self.entries.items())
        ]
        page = {"starts": self.starts, "hot_until": self.hot_until, "entries": entries}
        return json.dumps(page, indent=1).encode()

    def age(self, now_s: float, born: Callable[[int], int | None]) -> None:
        """Start the clock of the newly dead, drop those whose time is up."""
        if self.hot_until is not None and now_s >= self.hot_until:
            self.hot_until = None
        for pid, entry in list(self.entries.items()):
            if entry.start is None:
                if entry.until is not None and now_s >= entry.until:
                    del self.entries[pid]
                continue
            if entry.dead_since is None and born(pid) != entry.start:
                entry.dead_since = now_s
            if entry.dead_since is not None and now_s - entry.dead_since >= entry.linger_s:
                del self.entries[pid]
