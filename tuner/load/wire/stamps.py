"""The kernel's receive time of a read, on ``time.perf_counter``.

Linux stamps the segments of a TCP socket that asks for it (``SO_TIMESTAMPNS``) on CLOCK_REALTIME and
tells the stamp of the last one a read returned. ``perf_counter`` is CLOCK_MONOTONIC there. Both run at
one rate, so their distance changes only when somebody sets the wall clock. It is measured before
every batch of reads: where it has jumped since the last batch, the stamps of this batch may be of
either side of the jump and are not used.
"""

from __future__ import annotations

import platform
import socket
import struct
import sys
import time
from collections.abc import Callable

# Of Linux' generic ABI; SPARC, PA-RISC and 32-bit time stamps have others.
_SO_TIMESTAMPNS = 35
_MACHINES = frozenset({"x86_64", "aarch64", "riscv64", "ppc64le", "s390x", "loongarch64"})
_TIMESPEC = struct.Struct("@qq")
ANCILLARY_BYTES = socket.CMSG_SPACE(_TIMESPEC.size) if hasattr(socket, "CMSG_SPACE") else 0
unpack_stamp: Callable[[bytes], tuple[int, int]] = _TIMESPEC.unpack
"""Seconds and nanoseconds out of a read's ancillary data."""

_STEADY_NS = 20_000  # two readings one after the other differ by less, unless something came between
_TRIES = 8


def asks_kernel(sock: socket.socket) -> bool:
    """Ask the kernel for receive times; whether it gives them."""
    if sys.platform != "linux" or platform.machine() not in _MACHINES:
        return False
    try:
        sock.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)
        return sock.getsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS) != 0
    except OSError:  # a sandbox that lacks the option: the stamps are ours then
        return False


class KernelClock:
    """The distance of the kernel's stamps from ``perf_counter``.

    A stamp of ``seconds, nanoseconds`` is ``(seconds - base_s) + nanoseconds * 1e-9`` seconds on it.

    Args:
        wall_ns, mono_ns: the two clocks.

    Attributes:
        base_s: to be subtracted from whole seconds.
        shift_s: to be added to the rest.
        is_steady: the stamps of this batch can be used.
    """

    __slots__ = ("_distance_ns", "_mono_ns", "_wall_ns", "base_s", "is_steady", "shift_s")

    def __init__(
        self, wall_ns: Callable[[], int] = time.time_ns, mono_ns: Callable[[], int] = time.perf_counter_ns
    ) -> None:
        self._wall_ns = wall_ns
        self._mono_ns = mono_ns
        self._take(self._measure())
        self.is_steady = True

    def sync(self) -> None:
        """Measure the distance before a batch of reads."""
        jump_ns = self._wall_ns() - self._mono_ns() - self._distance_ns
        if -_STEADY_NS < jump_ns < _STEADY_NS:
            self.is_steady = True
            return
        before_ns = self._distance_ns
        self._take(self._measure())
        self.is_steady = abs(self._distance_ns - before_ns) < _STEADY_NS

    def _measure(self) -> int:
        """Return wall - monotonic; of several readings the one with the least between them."""
        readings: list[tuple[int, int]] = []
        for _ in range(_TRIES):
            begun_ns = self._mono_ns()
            wall_ns = self._wall_ns()
            ended_ns = self._mono_ns()
            readings.append((ended_ns - begun_ns, wall_ns - (begun_ns + ended_ns) // 2))
        return min(readings)[1]

    def _take(self, distance_ns: int) -> None:
        self._distance_ns = distance_ns
        self.base_s, rest_ns = divmod(distance_ns, 10**9)
        self.shift_s = -rest_ns * 1e-9
