"""What an SSH connection runs over: a TCP connection, or a program of ssh_config's ``ProxyCommand``."""

from __future__ import annotations

import contextlib
import math
import os
import shlex
import socket
import subprocess
import threading
import time
from typing import Any

from tuner.errors import TransportFault
from tuner.hosts.ssh.faults import ConnectionLost
from tuner.hosts.ssh.login import ResolvedLogin, expand
from tuner.hosts.ssh.paramiko_edge import ByteStream

_FAMILIES = {"any": socket.AF_UNSPEC, "inet": socket.AF_INET, "inet6": socket.AF_INET6}
_SHELL_WORDS = frozenset("|&;<>()`")  # no word of a command has these, unless a shell was to read them
_END_S = 2.0


class Heard:
    """A stream that knows when the other side was last heard, and when it was silent although it was asked.

    Args:
        stream: the other side.
        stall_s: of silence after a question, from which on it is noted; seconds.

    Attributes:
        at_s: when it was last heard; monotonic time.
        asked_s: when the question was asked that has no answer yet; None: there is none.
        stalls: from when to when it was silent; monotonic times.
    """

    def __init__(self, stream: ByteStream, stall_s: float = math.inf) -> None:
        self.at_s = time.monotonic()
        self.asked_s: float | None = None
        self.stalls: tuple[tuple[float, float], ...] = ()
        self._stall_s = stall_s
        self._stream = stream
        self._closed = False  # paramiko asks a socket for it by this name

    def settimeout(self, timeout: float | None, /) -> None:
        """Limit how long the others block, in seconds."""
        self._stream.settimeout(timeout)

    def send(self, piece: Any, /) -> int:  # noqa: ANN401 - bytes of any kind
        """Send some of it."""
        return self._stream.send(piece)

    def recv(self, size: int, /) -> bytes:
        """Receive; empty at the end."""
        piece = self._stream.recv(size)
        if piece:
            since_s, self.at_s = self.stalled_since_s, time.monotonic()
            if since_s is not None:
                self.stalls = (*self.stalls, (since_s, self.at_s))
        return piece

    @property
    def stalled_since_s(self) -> float | None:
        """Since when it has been silent although it was asked; None: not for long yet. Monotonic time."""
        asked_s = self.asked_s
        if asked_s is None:
            return None
        since_s = max(asked_s, self.at_s)  # an answer may be late behind much else that arrives
        return since_s if time.monotonic() - since_s > self._stall_s else None

    def close(self) -> None:
        """End it."""
        self._closed = True
        self._stream.close()


def connect(login: ResolvedLogin, timeout_s: float, unanswered_s: float) -> ByteStream:
    """Open a TCP connection; blocks.

    Args:
        login: says where to.
        timeout_s: for each address of the host.
        unanswered_s: after which the kernel gives the connection up.

    Raises:
        ConnectionLost: nobody answers, or the name is not known.
    """
    family = _FAMILIES.get(login.family, socket.AF_UNSPEC)
    try:
        places = socket.getaddrinfo(login.hostname, login.port, family, socket.SOCK_STREAM)
    except OSError as error:
        msg = f"{login.address}: the name {login.hostname} is not known: {error.strerror or error}"
        raise ConnectionLost(msg) from error
    reason: OSError | None = None
    for kind, type_, protocol, _, address in places:
        stream = socket.socket(kind, type_, protocol)
        try:
            stream.settimeout(timeout_s)
            stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(unanswered_s * 1000))
            if login.bind_address is not None:
                stream.bind((login.bind_address, 0))
            stream.connect(address)
        except OSError as error:
            stream.close()
            reason = error
        else:
            return stream
    why = (reason.strerror or str(reason)) if reason else "it has no address"
    msg = f"{login.address}: port {login.port} of {login.hostname} cannot be reached: {why}"
    raise ConnectionLost(msg) from reason


class ProxyStream:
    """The two ends of a ``ProxyCommand``: a socket for us, standard input and output for the program.

    Raises:
        TransportFault: it cannot be started without a shell.
    """

    def __init__(self, login: ResolvedLogin) -> None:
        argv = proxy_arguments(login)
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                self._process = subprocess.Popen(
                    argv,
                    stdin=theirs.fileno(),
                    stdout=theirs.fileno(),
                    stderr=subprocess.DEVNULL,
                    start_new_session=True,
                )
            except OSError as error:
                ours.close()
                msg = f"{login.address}: ProxyCommand {argv[0]} cannot be started: {error.strerror}: install it"
                raise TransportFault(msg) from error
        self._socket = ours
        self._closing = threading.Lock()
        self.settimeout, self.send, self.recv = ours.settimeout, ours.send, ours.recv

    def close(self) -> None:
        """Hang up, and end the program if it does not end by that."""
        with self._closing:
            self._socket.close()
            if self._process.returncode is not None:
                return
            self._process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_END_S)
                return
            self._process.kill()
            self._process.wait()


def proxy_arguments(login: ResolvedLogin) -> tuple[str, ...]:
    """Return the command of a ``ProxyCommand`` word by word, its percent tokens expanded.

    Raises:
        TransportFault: it needs a shell, which is not given to it.
    """
    text = login.proxy_command or ""
    remedy = "put it into a script of its own and name that"
    try:
        words = shlex.split(text)
    except ValueError as error:
        msg = f"{login.host}: ProxyCommand {text!r} cannot be read: {error}: {remedy}"
        raise TransportFault(msg) from error
    if words and words[0] == "exec":
        words = words[1:]
    if not words or any(_SHELL_WORDS & set(word) or "$" in word.replace("${", "") for word in words):
        msg = f"{login.host}: ProxyCommand {text!r} needs a shell, which tuner does not start: {remedy}"
        raise TransportFault(msg)
    return tuple(expand(word, login, os.environ) for word in words)
