"""Commands and files of a host over SSH, also of one whose connection comes and goes."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Sequence
from functools import partial

from tuner.errors import HostKeyRefused, LoginRefused, TransportFault
from tuner.hosts.clock import SystemClock
from tuner.hosts.ssh.command import Output, command_line, write_arguments
from tuner.hosts.ssh.connection import Connection, Patience
from tuner.hosts.ssh.faults import ConnectionLost, Started
from tuner.hosts.ssh.login import ResolvedLogin, by_hand, resolve
from tuner.hosts.ssh.session import Order, Wake
from tuner.hosts.ssh.threads import in_thread, in_thread_or_not_at_all
from tuner.model.host import CommandResult
from tuner.model.study import SshLogin
from tuner.ports import Clock

_SESSIONS = 8  # at once: a host allows 10 on one connection (MaxSessions), and some are for ending others
_FIRST_DELAY_S = 0.25
_LAST_DELAY_S = 5.0
_SHOWN = 300  # characters of what a host said

Outage = tuple[float, float | None]
"""From the last sign of life to the new connection, monotonic seconds; None: it lasts."""


class SshTransport:
    """``ports.HostTransport`` over one SSH connection; the host needs sshd and a shell, nothing of ours.

    The connection is made when it is needed first. Lost, it is made again, and what was running is ended
    on the host and run again, for as long as ``patience`` says since it was lost. A host that was never
    reached is not waited for. A command's input ends early when the connection is lost: what must not be
    cut short says how long it is.

    Args:
        login: how the host is reached.
        clock: for the waits between two tries; what happens on the network takes real time.
        patience: with the host.
        connect: makes a connection, blocking; None: to where ``login`` leads.
    """

    def __init__(
        self,
        login: SshLogin,
        *,
        clock: Clock | None = None,
        patience: Patience = Patience(),  # noqa: B008 - frozen
        connect: Callable[[], Connection] | None = None,
    ) -> None:
        self._login = login
        self._clock = clock or SystemClock()
        self._patience = patience
        self._connect = connect or self._open
        self._resolved: ResolvedLogin | None = None
        self._connection: Connection | None = None
        self._accepted: tuple[str, ...] = ()
        self._outages: list[tuple[float, float]] = []
        self._out_since_s: float | None = None
        self._give_up_s: float | None = None  # of an outage, however many commands wait for its end
        self._slots = asyncio.Semaphore(_SESSIONS)
        self._connecting = asyncio.Lock()

    @property
    def address(self) -> str:
        """The host as messages name it; with user and port once it was reached."""
        return self._resolved.address if self._resolved else self._login.host

    @property
    def accepted_key(self) -> str | None:
        """Host and fingerprint of the key that was not known and was taken; None: there was none."""
        return ", ".join(self._accepted) or None

    @property
    def outages(self) -> tuple[Outage, ...]:
        """When the host could not be reached, although it had been, or left a question unanswered for long."""
        lasting, stalls = self._out_since_s, list[tuple[float, float]]()
        if self._connection is not None:
            lasting = self._lost_since_s(self._connection)
            if lasting is None and self._connection.stalled_since_s is not None:
                lasting = self._at_s(self._connection.stalled_since_s)
            stalls = self._stalls(self._connection)
        return (*self._outages, *stalls, *(() if lasting is None else ((lasting, None),)))

    async def run(
        self, argv: Sequence[str], *, stdin: bytes = b"", timeout_s: float = 30.0, repeat: bool = True
    ) -> CommandResult:
        """Run ``argv`` in the login shell of the host, each word quoted once.

        Killed or cancelled, its process group on the host is killed, as far as our user may.
        """
        output = await self._output(Order(argv=tuple(argv), stdin=stdin, timeout_s=timeout_s), repeat=repeat)
        return CommandResult(
            status=output.status,
            stdout=output.stdout.decode(errors="replace"),
            stderr=output.stderr.decode(errors="replace"),
        )

    async def read_file(self, path: str) -> bytes:
        """Read a small file."""
        output = await self._output(Order(argv=("env", "LC_ALL=C", "cat", "--", path)))
        if output.status != 0:
            msg = f"{self.address}: {path}: cannot be read: {_reason(output, path)}"
            raise TransportFault(msg)
        return output.stdout

    async def write_file(self, path: str, content: bytes, *, mode: int = 0o600) -> None:
        """Replace a file atomically, making its folder."""
        output = await self._output(Order(argv=write_arguments(path, mode, len(content)), stdin=content))
        if output.status != 0:
            msg = f"{self.address}: {path}: cannot be written: {_reason(output, path)}"
            raise TransportFault(msg)

    async def close(self) -> None:
        """Close the connection, if there is one; a later call opens it again."""
        async with self._connecting:
            connection, self._connection = self._connection, None
            if connection is not None:
                self._out_since_s = self._lost_since_s(connection)
                self._end_outage()
                self._outages += self._stalls(connection)
                await self._blocking(connection.close)

    async def _output(self, order: Order, *, repeat: bool = True) -> Output:
        command_line(order.argv, "")  # before anything is sent: it may be what no host takes
        async with self._slots:
            give_up_s: float | None = None
            leftover: Started | None = None
            losses = 0
            while True:
                connection = await self._connected(give_up_s)
                try:
                    if leftover is not None:
                        await self._blocking(partial(connection.kill, leftover))
                        leftover = None
                    wake = Wake()
                    return await in_thread(
                        f"ssh {self.address} command", partial(connection.execute, order, wake), wake.cancel
                    )
                except ConnectionLost as loss:
                    if loss.is_sent and not repeat:
                        msg = f"{loss}: its result is not known, and it must not run twice: look at the host"
                        raise TransportFault(msg) from loss
                    leftover = loss.started or leftover
                    now_s = self._clock.monotonic_s()
                    give_up_s = now_s + self._patience.reconnect_s if give_up_s is None else give_up_s
                    if now_s >= give_up_s:
                        msg = f"{loss}, again and again for {self._patience.reconnect_s:g} s: look at the network"
                        raise TransportFault(msg) from loss
                    if losses > 0:  # the first may be repaired at once
                        await self._clock.sleep(backoff_s(losses - 1, random.random()))  # noqa: S311 - jitter
                    losses += 1

    async def _connected(self, give_up_s: float | None) -> Connection:
        """Return a connection that lives, made again where it must be."""
        async with self._connecting:
            if self._connection is not None and self._connection.is_alive:
                return self._connection
            if self._connection is not None:
                lost, self._connection = self._connection, None
                self._out_since_s = self._lost_since_s(lost)
                self._outages += self._stalls(lost)
                await self._blocking(lost.close)
            was_there = self._out_since_s is not None
            now_s = self._clock.monotonic_s()
            if was_there and self._give_up_s is None:
                # From the first that needed it: one that was lost long before, unused, has this long as well.
                self._give_up_s = now_s + self._patience.reconnect_s
            limits_s = [limit_s for limit_s in (give_up_s, self._give_up_s) if limit_s is not None]
            self._connection = await self._try_until(min(limits_s, default=now_s), was_there=was_there)
            self._end_outage()
            self._accepted = (*self._accepted, *self._connection.accepted_keys)
            return self._connection

    async def _try_until(self, give_up_s: float, *, was_there: bool) -> Connection:
        tries = 0
        while True:
            try:
                return await in_thread_or_not_at_all(f"ssh {self._login.host} connect", self._connect, Connection.close)
            except HostKeyRefused:
                raise
            except TransportFault as fault:
                # While a host shuts down or starts up it refuses users whom it let in before (pam_nologin).
                may_pass = isinstance(fault, ConnectionLost) or (was_there and isinstance(fault, LoginRefused))
                delay_s = backoff_s(tries, random.random())  # noqa: S311 - jitter
                if not may_pass or self._clock.monotonic_s() + delay_s > give_up_s:
                    raise self._given_up(fault, was_there=was_there) from fault
            tries += 1
            await self._clock.sleep(delay_s)

    def _given_up(self, fault: TransportFault, *, was_there: bool) -> TransportFault:
        if not isinstance(fault, ConnectionLost):
            return fault
        if was_there:
            msg = f"{fault}: not back after {self._patience.reconnect_s:g} s: look at the host and the network"
            return TransportFault(msg)
        return TransportFault(f"{fault}: check name, port and network, or try: {by_hand(self._login)}")

    def _open(self) -> Connection:
        if self._resolved is None:
            self._resolved = resolve(self._login)
        return Connection(self._resolved, self._patience)

    async def _blocking(self, work: Callable[[], None]) -> None:
        await in_thread(f"ssh {self._login.host}", work, lambda: None)

    def _lost_since_s(self, connection: Connection) -> float | None:
        """Return when a connection that is lost was last heard; None: it lives."""
        if connection.is_alive:
            return None
        return self._at_s(connection.heard_at_s)

    def _stalls(self, connection: Connection) -> list[tuple[float, float]]:
        return [(self._at_s(from_s), self._at_s(to_s)) for from_s, to_s in connection.stalls]

    def _at_s(self, heard_s: float) -> float:
        """Return by our clock what a connection says by the machine's monotonic one."""
        return self._clock.monotonic_s() - max(0.0, time.monotonic() - heard_s)

    def _end_outage(self) -> None:
        if self._out_since_s is not None:
            self._outages.append((self._out_since_s, self._clock.monotonic_s()))
            self._out_since_s = self._give_up_s = None


def backoff_s(tries: int, jitter: float) -> float:
    """Return how long to wait after so many failed tries; ``jitter`` from 0 to 1 spreads several hosts' tries."""
    longest_s = min(_LAST_DELAY_S, _FIRST_DELAY_S * 2.0 ** min(tries, 16))
    return longest_s * (0.5 + 0.5 * jitter)


def _reason(output: Output, path: str) -> str:
    said = " ".join(output.stderr.decode(errors="replace").replace(f"{path}: ", "").split())
    return said[-_SHOWN:] or f"status {output.status}"
