"""One epoll for all streaming sockets of an event loop, itself a file the loop waits for.

asyncio's own transports allocate 256 KiB a read and wake a handle a socket; here one wake-up reads
every socket that is ready. Streams served from one batch become ready within a fraction of a
millisecond of each other. With kernel stamps it costs no accuracy to read them a moment later, so
from a few busy streams on a wake-up that finds only a part of them ready waits that moment once, and
reads the step as a whole instead of waking for every chunk.
"""

from __future__ import annotations

import asyncio
import select
import time
from collections.abc import Callable
from typing import Protocol
from weakref import WeakKeyDictionary

from tuner.load.wire.stamps import KernelClock

_GATHER_S = 0.0003  # a step of 64 streams is on the wire within it; a tenth of the shortest gap of a stream
_GATHER_FROM = 8  # busy streams; fewer wake us seldom enough
_MAX_EVENTS = 1024


class Reader(Protocol):
    """A registered socket."""

    def ready(self, mask: int) -> None:
        """Read or write as far as it goes; raises nothing."""


class Poller:
    """Reads the sockets of one event loop.

    Attributes:
        clock: of the kernel's stamps, as of this batch of reads.
        busy: streams that are being answered.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, pause: Callable[[float], None] = time.sleep) -> None:
        self._loop = loop
        self._pause = pause
        self._epoll = select.epoll()
        self._readers: dict[int, Reader] = {}
        self.clock = KernelClock()
        self.busy = 0
        loop.add_reader(self._epoll.fileno(), self._drain)

    @classmethod
    def of(cls, loop: asyncio.AbstractEventLoop) -> Poller:
        """Return the loop's own, made at its first use; it ends with its last socket."""
        found = _POLLERS.get(loop)
        if found is None:
            found = _POLLERS[loop] = cls(loop)
        return found

    def add(self, fd: int, reader: Reader) -> None:
        """Call ``reader.ready`` whenever ``fd`` can be read."""
        self._epoll.register(fd, select.EPOLLIN)
        self._readers[fd] = reader

    def watch(self, fd: int, *, reads: bool = True, writes: bool = False) -> None:
        """Change what is waited for."""
        self._epoll.modify(fd, (select.EPOLLIN if reads else 0) | (select.EPOLLOUT if writes else 0))

    def remove(self, fd: int) -> None:
        """Forget ``fd``, which must still be open."""
        del self._readers[fd]
        self._epoll.unregister(fd)
        if not self._readers:
            _POLLERS.pop(self._loop, None)
            self._loop.remove_reader(self._epoll.fileno())
            self._epoll.close()

    def _drain(self) -> None:
        poll = self._epoll.poll
        ready = poll(0, _MAX_EVENTS)
        if self.busy >= _GATHER_FROM and 2 * len(ready) < self.busy:
            self._pause(_GATHER_S)
            ready = poll(0, _MAX_EVENTS)
        self.clock.sync()
        readers = self._readers
        for fd, mask in ready:
            # One that was read before may have closed another.
            if (reader := readers.get(fd)) is not None:
                reader.ready(mask)


_POLLERS: WeakKeyDictionary[asyncio.AbstractEventLoop, Poller] = WeakKeyDictionary()
