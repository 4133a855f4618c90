"""What a host can do: time, commands, its one server, its owner's claims, its GPUs, the way to it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from tuner.model.host import (
    CommandResult,
    Entered,
    GpuLook,
    GpuProcess,
    GpuReading,
    LogChunk,
    Original,
    ProcessEntry,
    ServiceState,
)
from tuner.model.trial import Command, ServiceIdentity


class Clock(Protocol):
    """Time and sleep behind one seam, so that back-off and time-outs are testable."""

    def now_s(self) -> float:
        """Unix time, for the reader."""

    def monotonic_s(self) -> float:
        """Monotonic time, for durations."""

    async def sleep(self, seconds: float) -> None:
        """Suspend the caller."""


class HostTransport(Protocol):
    """Runs commands on a host and moves small files."""

    async def run(
        self, argv: Sequence[str], *, stdin: bytes = b"", timeout_s: float = 30.0, repeat: bool = True
    ) -> CommandResult:
        """Run ``argv`` without a shell; each word is quoted once, at the host's shell, if there is one.

        Args:
            argv: program and arguments.
            stdin: what the command reads, then end of file.
            timeout_s: for the command itself, without what it takes to connect again.
            repeat: a connection that is lost before the result came is made again and the command
                run again. False, for what must not run twice: TransportFault instead.

        Raises:
            TransportFault: the result is not known (connection lost and not back, timed out).
        """

    async def read_file(self, path: str) -> bytes:
        """Read a small file.

        Raises:
            TransportFault: it cannot be read; the message names path and reason.
        """

    async def write_file(self, path: str, content: bytes, *, mode: int = 0o600) -> None:
        """Replace a file atomically, making its folder.

        Raises:
            TransportFault: it cannot be written.
        """

    async def close(self) -> None:
        """Close the connection, if there is one; a later call opens it again."""


class ServiceManager(Protocol):
    """Starts, watches and stops the one server of a host (systemd, or our supervisor)."""

    async def start(self, command: Command) -> ServiceIdentity:
        """Start a server; returns once its main process has been executed.

        Raises:
            ServerInTheWay: another server runs; nothing was started.
            HostFault: the manager itself failed. A command that dies at once is no error.
        """

    async def state(self) -> ServiceState:
        """Look at the service.

        Raises:
            TransportFault: the state is not known.
        """

    async def read_log(self, cursor: str | None) -> LogChunk:
        """Return what the current invocation (and its restarts) logged since ``cursor``.

        ``None`` starts at the first line of the last :meth:`start`. At most 1 MiB at once;
        bytes that are not UTF-8 are replaced.
        """

    async def stop(self, *, grace_s: float) -> None:
        """Record that we stop it, ask it to end, kill what is left after ``grace_s``.

        Returns when no process of it is left. Stopping a stopped server is no error.
        """

    async def forget(self) -> None:
        """Delete what stopped servers left on disk: their logs, which hold command lines and keys.

        :meth:`read_log` returns nothing afterwards; :meth:`state` still says how the last one ended.
        No error when nothing was ever started; what belongs to a server that runs stays.
        """

    async def leftovers(self) -> tuple[ProcessEntry, ...]:
        """Return the processes of the engine that live although the service is stopped."""

    async def kill_leftovers(self) -> None:
        """Kill the leftovers that are ours; foreign processes are never touched."""

    async def members(self) -> frozenset[int]:
        """Return the PIDs of all processes of the server that runs; empty when none does."""


class Tenancy(Protocol):
    """Our use of a host that belongs to somebody: the lease, the dead-man, and what was there before.

    The first thing that is written on a host is the lease, and nothing is changed without it.
    """

    async def enter(self) -> Entered:
        """Take the lease, keep what is there now, arm the dead-man; nothing else changes.

        A lease of the same study, or one that has run out, is taken over: what it kept as the
        original stays the original, and a drop-in that is still there is removed. Entering again
        while the lease is ours renews it.

        Raises:
            LeaseHeld: somebody else's.
            HostFault: the host failed us.
        """

    async def renew(self) -> None:
        """Push the end of the lease away.

        Raises:
            LeaseLost: it is no longer ours; enter again.
            TransportFault: the host is not reached.
        """

    async def restore(self) -> Original:
        """Put back what was there: no drop-in, the original started if it ran before, else stopped.

        Returns once the original's main process lives; the caller proves that it answers. The
        lease and the dead-man stay until :meth:`leave`. Without a lease on the host, nothing is
        changed. May be repeated.

        Raises:
            HostFault: the host failed us; the dead-man tries again by itself.
        """

    async def leave(self) -> None:
        """Hold that everything is as it was before, disarm the dead-man, give the lease back.

        Raises:
            RestoreFailed: something differs; the message names it. The lease is given back all the same.
            HostFault: the host failed us.
        """


class Route(Protocol):
    """How the load's traffic reaches the server.

    Attributes:
        deaths: how often the way has broken down so far, also if nobody has made it anew yet.
        is_through_proxy: a proxy of somebody's may answer for a server that is down.
    """

    @property
    def deaths(self) -> int: ...  # noqa: D102 - above

    @property
    def is_through_proxy(self) -> bool: ...  # noqa: D102 - above

    async def open(self, port: int) -> str:
        """Make the server's ``port`` reachable and return its base URL; a tunnel that died is made anew.

        Cheap while the way stands, so that a caller who waits for the server may call it at every look.

        Raises:
            HostFault: it cannot be made.
        """

    async def close(self) -> None:
        """End what :meth:`open` made."""


class KernelLog(Protocol):
    """Reads what a host's kernel says of the deaths of processes: for want of memory, by faults of a GPU."""

    async def since(self, unix_s: float) -> tuple[str, ...]:
        """Return such lines of our time ``unix_s`` or later, oldest first; few, and each of bounded length.

        Empty where there are none, and where they may not be read.

        Raises:
            TransportFault: the host is not reached.
        """

    def remark(self) -> str | None:
        """Say, once, that the log may not be read, and the remedy; None: it may, or it was said."""


class GpuProbe(Protocol):
    """Reads the GPUs that matter to the server of this host: all, or those its owner named."""

    async def read(self) -> tuple[GpuReading, ...]:
        """Return one reading a GPU; empty on a host without GPUs.

        Raises:
            HostFault: nvidia-smi is there and failed.
        """

    async def processes(self) -> tuple[GpuProcess, ...]:
        """Return the processes that hold GPU memory."""

    async def look(self) -> GpuLook:
        """Return both at once, by one command on the host: looking must not disturb what is measured."""
