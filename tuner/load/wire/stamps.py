"""The kernel's receive time of a read, on ``time.perf_counter``.

Linux stamps the segments of a TCP socket that asks for it (``SO_TIMESTAMPNS``) on CLOCK_REALTIME and
tells the stamp of the last one a read returned. ``perf_counter`` is CLOCK_MONOTONIC there. Both run at
one rate, so their distance changes only when somebody sets the wall clock; some virtual machines do so
ten times a second. It is measured before every batch of reads. Where it has jumped since the last
batch, a stamp may be of either side of the jump: it is taken for one from after it, where what waits to
be read nearly always belongs, unless that would put it outside of the time since the last batch.
"""

from __future__ import annotations

import math
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
_SMALL_NS = 1_000_000  # a jump whose whole error would still be bearable
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
        is_steady: the wall clock was not set since the last batch.
    """

    __slots__ = ("_distance_ns", "_floor_s", "_mono_ns", "_synced_ns", "_wall_ns", "base_s", "is_steady", "shift_s")

    def __init__(
        self, wall_ns: Callable[[], int] = time.time_ns, mono_ns: Callable[[], int] = time.perf_counter_ns
    ) -> None:
        self._wall_ns = wall_ns
        self._mono_ns = mono_ns
        self._synced_ns = mono_ns()
        self._floor_s = math.inf
        self._take(self._measure())
        self.is_steady = True

    def sync(self) -> None:
        """Measure the distance before a batch of reads."""
        mono_ns, before_ns = self._mono_ns(), self._synced_ns
        self._synced_ns = mono_ns
        jump_ns = self._wall_ns() - mono_ns - self._distance_ns
        if -_STEADY_NS < jump_ns < _STEADY_NS:
            self.is_steady = True
            return
        jump_ns = self._measure() - self._distance_ns
        self._take(self._distance_ns + jump_ns)
        self.is_steady = abs(jump_ns) < _STEADY_NS
        # Where both sides lie in the time since the last batch, the error may be as large as the jump.
        span_ns = mono_ns - before_ns
        is_clear = abs(jump_ns) <= max(_SMALL_NS, span_ns // 10) or abs(jump_ns) >= span_ns
        self._floor_s = before_ns * 1e-9 if is_clear else math.inf

    def is_credible(self, at_s: float, now_s: float) -> bool:
        """Whether a stamp can be used though the wall clock was set."""
        return self._floor_s <= at_s <= now_s

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
