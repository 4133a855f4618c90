"""One command over a connection, from its first byte to its status; or its end on the host."""

from __future__ import annotations

import contextlib
import secrets
import threading
import time
from dataclasses import dataclass

from tuner.errors import TransportFault
from tuner.hosts.ssh import command
from tuner.hosts.ssh.command import Output, Reading, shown
from tuner.hosts.ssh.faults import ConnectionLost, Started
from tuner.hosts.ssh.paramiko_edge import Link, Session

_OPEN_TIMEOUT_S = 20.0  # longer than a connection may be silent: whether it is lost is found out elsewhere
_KILL_TIMEOUT_S = 5.0
_START_TIMEOUT_S = 2.0  # for a host to say which process it is that has to be ended
_SEND_LOOK_S = 0.01  # nobody says when the host takes more
_REFUSED_S = 0.05
_LOOK_S = 1.0  # a second line of defence behind being woken
_CLOSING_S = 1.0  # channels end a moment before their connection says that it is lost
_SEND_BYTES = 1 << 18


class Wake:
    """Wakes the thread of a command: there is something to read, or it is to end."""

    def __init__(self) -> None:
        self.is_cancelled = False
        self._event = threading.Event()

    def set(self) -> None:
        """There is something to read."""
        self._event.set()

    def clear(self) -> None:
        """Do nothing: of two outputs the other may have something; the reader forgets by itself."""

    def cancel(self) -> None:
        """End the command."""
        self.is_cancelled = True
        self._event.set()

    def wait(self, timeout_s: float) -> None:
        """Wait to be woken, and forget it."""
        self._event.wait(max(0.0, timeout_s))
        self._event.clear()


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """A command to run."""

    argv: tuple[str, ...]
    stdin: bytes = b""
    timeout_s: float = 30.0


def execute(link: Link, where: str, order: Order, wake: Wake) -> Output:
    """Run a command and return what it did; blocks.

    Cancelled, it ends the command on the host and returns an output of no meaning.

    Raises:
        ConnectionLost: the connection was lost before the result came.
        TransportFault: it took too long and was killed, or the host runs no commands for us.
    """
    token = secrets.token_hex(8)
    line = command.command_line(order.argv, token)
    session = _opened(link, _OPEN_TIMEOUT_S, wake)
    running = _Running(session, token, order.stdin)
    try:
        session.execute(line, wake)
        return _follow(link, where, order, running, wake)
    except ConnectionLost as loss:
        started = running.started
        raise ConnectionLost(str(loss), is_sent=True, started=started) from loss
    finally:
        session.close()


def _opened(link: Link, timeout_s: float, wake: Wake) -> Session:
    """Open a session; the host counts one that has ended for a moment longer than we do (MaxSessions)."""
    deadline_s = time.monotonic() + timeout_s
    while True:
        try:
            return link.open_session(timeout_s)
        except ConnectionLost:
            raise
        except TransportFault:
            if time.monotonic() > deadline_s or wake.is_cancelled or not link.is_alive:
                raise
        wake.wait(_REFUSED_S)


class _Running:
    """A command that was sent: what came back so far."""

    def __init__(self, session: Session, token: str, stdin: bytes) -> None:
        self.session = session
        self.out, self.errors = Reading(token), Reading(token)
        self._unsent = memoryview(stdin)
        self._is_input_ended = False

    @property
    def started(self) -> Started | None:
        return command.parse_started(self.out.started)

    @property
    def look_s(self) -> float:
        return _LOOK_S if self._is_input_ended else _SEND_LOOK_S

    def send(self) -> None:
        while self._unsent and not self.session.is_ended:
            sent = self.session.send(bytes(self._unsent[:_SEND_BYTES]))
            if sent == 0:
                return
            self._unsent = self._unsent[sent:]
        if not self._is_input_ended:
            self._is_input_ended = True
            self.session.end_input()

    def read(self) -> bool:
        """Take what has arrived; False: the channel has ended and nothing more will."""
        is_ended = self.session.is_ended  # before reading: what came until then is read
        while piece := self.session.read():
            self.out.feed(piece)
        while piece := self.session.read_errors():
            self.errors.feed(piece)
        return not is_ended

    @property
    def output(self) -> Output | None:
        if self.out.ended is None or self.errors.ended is None or not self.out.ended.isdigit():
            return None
        return Output(status=int(self.out.ended), stdout=self.out.content, stderr=self.errors.content)


def _follow(link: Link, where: str, order: Order, running: _Running, wake: Wake) -> Output:
    deadline_s = time.monotonic() + order.timeout_s
    while True:
        running.send()
        is_open = running.read()
        output = running.output
        if output is not None:
            return output
        if not is_open:
            raise _ended_early(link, where, order, running)
        left_s = deadline_s - time.monotonic()
        if wake.is_cancelled or left_s <= 0:
            is_gone = _end(link, where, running, wake)
            if wake.is_cancelled:
                return Output(status=-1, stdout=b"", stderr=b"")
            fate = "killed" if is_gone else "and it may run still: look at the host"
            msg = f"{where}: {shown(order.argv)}: no result after {order.timeout_s:g} s, {fate}"
            raise TransportFault(msg)
        wake.wait(min(left_s, running.look_s))


def _ended_early(link: Link, where: str, order: Order, running: _Running) -> TransportFault:
    """Say why a channel ended without a result."""
    deadline_s = time.monotonic() + _CLOSING_S
    while link.is_alive and time.monotonic() < deadline_s:
        time.sleep(0.01)
    if running.out.started is None and link.is_alive:
        said = " ".join((running.errors.content + running.out.content).decode(errors="replace").split())
        msg = (
            f"{where}: the login shell runs no commands for tuner; it said {said[:200]!r}: "
            "give the user a shell, and its key no forced command"
        )
        return TransportFault(msg)
    reason = "its shell was killed" if link.is_alive else "the connection was lost"
    return ConnectionLost(f"{where}: {shown(order.argv)}: {reason} before its result came")


def _end(link: Link, where: str, running: _Running, wake: Wake) -> bool:
    """End a command on the host; returns whether nobody holds its output open any more."""
    deadline_s = time.monotonic() + _START_TIMEOUT_S
    while running.started is None and time.monotonic() < deadline_s and link.is_alive:
        if not running.read():
            return False
        wake.wait(_SEND_LOOK_S)
    started = running.started
    if started is None or not link.is_alive:
        return False
    with contextlib.suppress(TransportFault):
        kill(link, where, started)
    deadline_s = time.monotonic() + _KILL_TIMEOUT_S
    while time.monotonic() < deadline_s and link.is_alive:
        if not running.read():
            return True
        wake.wait(_SEND_LOOK_S)
    return False


def kill(link: Link, where: str, started: Started) -> None:
    """Kill what is left of a command: its session's process group; nothing, if that is gone.

    Raises:
        TransportFault: the host did not answer.
    """
    order = Order(argv=command.kill_arguments(started), timeout_s=_KILL_TIMEOUT_S)
    with link.ending:
        token, wake = secrets.token_hex(8), Wake()
        session = _opened(link, _KILL_TIMEOUT_S, wake)
        running = _Running(session, token, b"")
        try:
            session.execute(command.command_line(order.argv, token), wake)
            deadline_s = time.monotonic() + order.timeout_s
            running.send()
            while running.output is None and running.read() and time.monotonic() < deadline_s:
                wake.wait(_SEND_LOOK_S)
        finally:
            session.close()
    if running.output is None:
        msg = f"{where}: process {started.pid} of the host could not be ended"
        raise TransportFault(msg)
