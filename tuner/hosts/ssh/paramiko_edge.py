"""paramiko behind types of our own: the one module that imports it, and where its exceptions end.

A :class:`Link` is one SSH connection. What is decided about it (which key of the host is right, which of
ours is shown, what a lost connection means) is decided elsewhere.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import paramiko
from cryptography.exceptions import UnsupportedAlgorithm
from paramiko.agent import AgentSSH
from paramiko.ber import BERException
from paramiko.hostkeys import InvalidHostKey
from paramiko.packet import NeedRekeyException
from paramiko.pkey import UnknownKeyType
from paramiko.sftp import SFTPError
from paramiko.transport import Transport

from tuner.errors import HostKeyRefused, LoginRefused, TransportFault
from tuner.hosts.ssh.faults import ConnectionLost
from tuner.hosts.ssh.known_hosts import HostKey

_AGENT_TIMEOUT_S = 60.0  # it may ask its person first
_RSA_SIGNATURES = ("rsa-sha2-512", "rsa-sha2-256")  # what an ssh-rsa host key is negotiated as
_READ_BYTES = 1 << 20
_ENDING_SESSIONS = 2
_ALIVE_LOOK_S = 0.5

FAULTS: tuple[tuple[type[Exception], type[TransportFault]], ...] = (
    (paramiko.BadHostKeyException, HostKeyRefused),
    (paramiko.AuthenticationException, LoginRefused),
    (paramiko.ssh_exception.IncompatiblePeer, TransportFault),
    (paramiko.ChannelException, TransportFault),
    (paramiko.ssh_exception.ConfigParseError, TransportFault),
    (paramiko.ssh_exception.CouldNotCanonicalize, TransportFault),
    (paramiko.SSHException, ConnectionLost),  # all that remains: the protocol broke off
    (OSError, ConnectionLost),  # NoValidConnectionsError, PipeTimeout and what sockets raise
    (EOFError, ConnectionLost),
    (NeedRekeyException, ConnectionLost),
    (InvalidHostKey, HostKeyRefused),
    (UnknownKeyType, TransportFault),
    (UnsupportedAlgorithm, TransportFault),
    (BERException, TransportFault),
    (SFTPError, TransportFault),
    (ValueError, ConnectionLost),  # numbers and packets that cannot be read
)
"""What paramiko raises, and what it is to us; the first row that fits counts."""

FOREIGN = tuple(row[0] for row in FAULTS)

_log = logging.getLogger("paramiko")
if _log.level == logging.NOTSET:
    # It logs every lost connection with a traceback; we say so in a line, where somebody can act on it.
    _log.setLevel(logging.CRITICAL)


def fault_class(error: type[BaseException]) -> type[TransportFault] | None:
    """Return what an exception of paramiko is to us; None: it is none that we know."""
    return next((ours for theirs, ours in FAULTS if issubclass(error, theirs)), None)


@contextlib.contextmanager
def mapped(where: str) -> Iterator[None]:
    """Raise paramiko's exceptions as ours, ``where`` before them."""
    try:
        yield
    except TransportFault:
        raise
    except FOREIGN as error:
        ours = fault_class(type(error)) or TransportFault
        said = " ".join(str(error).split()) or type(error).__name__
        msg = f"{where}: {said}"
        raise ours(msg) from error


class ByteStream(Protocol):
    """What SSH runs over: a socket, or a channel of another SSH connection."""

    def settimeout(self, timeout: float | None, /) -> None:
        """Limit how long the others block, in seconds."""

    def send(self, piece: Any, /) -> int:  # noqa: ANN401 - bytes of any kind
        """Send some of it."""

    def recv(self, size: int, /) -> bytes:
        """Receive; empty at the end."""

    def close(self) -> None:
        """End it."""


class Waker(Protocol):
    """Told when a channel has something to read, or has ended."""

    def set(self) -> None:
        """Wake the reader."""

    def clear(self) -> None:
        """Called when everything is read; the reader forgets by itself."""


class PrivateKey:
    """A key of ours, in a file or in the agent."""

    def __init__(self, key: Any, name: str) -> None:  # noqa: ANN401 - paramiko has no types
        self._key = key
        self.name = name

    @property
    def blob(self) -> bytes:
        """The public half."""
        return bytes(self._key.asbytes())

    def offer(self, transport: Any, user: str) -> list[str]:  # noqa: ANN401
        """Log in with it; returns what else the host wants."""
        return list(transport.auth_publickey(user, self._key))


def load_key(path: str) -> PrivateKey | None:
    """Load a private key; None: it has a passphrase.

    Raises:
        TransportFault: the file is none, or of a type that is not supported.
    """
    with mapped(path):
        try:
            return PrivateKey(paramiko.PKey.from_path(path), path)
        except (TypeError, paramiko.PasswordRequiredException):  # cryptography says it by a TypeError
            return None


class Agent(AgentSSH):  # type: ignore[misc]  # paramiko has no types
    """The keys of an agent at a socket of our choice.

    Raises:
        TransportFault: nobody answers there.
    """

    def __init__(self, path: str) -> None:
        super().__init__()
        self._socket = socket.socket(socket.AF_UNIX)
        try:
            with mapped(f"ssh agent at {path}"):
                self._socket.settimeout(_AGENT_TIMEOUT_S)
                self._socket.connect(path)
                self._connect(self._socket)
        except TransportFault:
            self._socket.close()
            raise

    def keys(self) -> list[PrivateKey]:
        """Return its keys, in its order."""
        return [PrivateKey(key, f"agent key {key.comment or key.get_name()}") for key in self.get_keys()]

    def close(self) -> None:
        """Hang up."""
        self._close()
        self._socket.close()


class Answered(threading.Event):
    """What a channel waits on for an answer, without end: it comes, or the connection is gone.

    paramiko's own is not set when the connection is lost just before the channel begins to wait.
    """

    def __init__(self, is_alive: Callable[[], bool]) -> None:
        super().__init__()
        self._is_alive = is_alive

    def wait(self, timeout: float | None = None) -> bool:
        """Wait; gone, it counts as set, and the channel finds no answer there."""
        if timeout is not None:
            return super().wait(timeout)
        while not super().wait(_ALIVE_LOOK_S):
            if not self._is_alive():
                self.set()
        return True


class Session:
    """A channel on which one command runs."""

    def __init__(self, channel: Any, where: str) -> None:  # noqa: ANN401
        self._channel = channel
        self._where = where

    def execute(self, command: bytes, waker: Waker) -> None:
        """Start a command line in the login shell of the host.

        Raises:
            TransportFault: it was refused, or the connection is lost.
        """
        with mapped(self._where):
            self._channel.settimeout(0.0)
            self._channel.event = Answered(self._channel.transport.is_active)
            self._channel.in_buffer.set_event(waker)
            self._channel.in_stderr_buffer.set_event(waker)
            self._channel.exec_command(command)

    def send(self, piece: bytes) -> int:
        """Send as much as the host takes now, maybe nothing."""
        with mapped(self._where):
            try:
                return int(self._channel.send(piece))
            except TimeoutError:
                return 0

    def end_input(self) -> None:
        """Say that no more will be sent."""
        with mapped(self._where):
            self._channel.shutdown_write()

    def read(self) -> bytes:
        """Return what the command wrote to its standard output since, maybe nothing."""
        with mapped(self._where):
            return bytes(self._channel.recv(_READ_BYTES)) if self._channel.recv_ready() else b""

    def read_errors(self) -> bytes:
        """Return what the command wrote to its standard error since, maybe nothing."""
        with mapped(self._where):
            return bytes(self._channel.recv_stderr(_READ_BYTES)) if self._channel.recv_stderr_ready() else b""

    @property
    def is_ended(self) -> bool:
        """Whether nothing more will come than what can be read now."""
        return bool(self._channel.closed or self._channel.eof_received)

    def close(self) -> None:
        """End the channel; a connection that is lost is no error."""
        with contextlib.suppress(*FOREIGN):
            self._channel.close()


class Link:
    """One SSH connection, from the first byte on; every method but :meth:`close` blocks.

    Args:
        stream: what it runs over; closed with it.
        where: the host as messages name it.
        kinds: types of host key to ask for before all others.
        timeout_s: for each answer of the host until somebody is logged in.

    Raises:
        TransportFault: no SSH connection comes about.
    """

    def __init__(self, stream: ByteStream, where: str, kinds: Sequence[str], timeout_s: float) -> None:
        self._where = where
        self._stream = stream
        # A host opens 10 sessions at once (MaxSessions): these few stay free to end the others' commands.
        self.ending = threading.BoundedSemaphore(_ENDING_SESSIONS)
        try:
            with mapped(where):
                self._transport: Any = Transport(stream)
                self._transport.daemon = True
                self._transport.banner_timeout = timeout_s
                self._transport.handshake_timeout = timeout_s
                self._transport.auth_timeout = max(timeout_s, _AGENT_TIMEOUT_S)
                options = self._transport.get_security_options()
                options.key_types = preferred(kinds, options.key_types)
                self._transport.start_client(timeout=3 * timeout_s)
                key = self._transport.get_remote_server_key()
        except TransportFault:
            self.close()
            raise
        self.host_key = HostKey(key.get_name(), key.asbytes())

    def ask_methods(self, user: str) -> tuple[str, ...] | None:
        """Ask which ways to log in there are; None: the host let us in without any.

        Raises:
            TransportFault: the connection is lost.
        """
        with mapped(self._where):
            try:
                self._transport.auth_none(user)
            except paramiko.BadAuthenticationType as error:
                return tuple(error.allowed_types)
            except paramiko.AuthenticationException as error:
                if self.is_alive and "timeout" not in str(error):
                    raise
                # Whoever refuses a user says so: this host broke off, or does not answer.
                msg = "the connection was lost while logging in"
                raise paramiko.SSHException(msg) from error
        return None

    def log_in(self, user: str, key: PrivateKey) -> tuple[str, ...]:
        """Log in; returns what else the host wants, nothing when we are in.

        Raises:
            LoginRefused: it does not take this key.
            TransportFault: the connection is lost.
        """
        with mapped(self._where):
            return tuple(key.offer(self._transport, user))

    def open_session(self, timeout_s: float) -> Session:
        """Open a channel for a command."""
        with mapped(self._where):
            return Session(self._transport.open_session(timeout=timeout_s), self._where)

    def open_stream(self, host: str, port: int, timeout_s: float) -> ByteStream:
        """Connect from this host on to the next (``ssh -W``)."""
        with mapped(f"{self._where}: to {host}:{port} from there"):
            stream: ByteStream = self._transport.open_channel(
                "direct-tcpip", (host, port), ("127.0.0.1", 0), timeout=timeout_s
            )
            return stream

    def ask_alive(self) -> None:
        """Ask for a sign of life and wait for it, or for the end of the connection."""
        with contextlib.suppress(*FOREIGN):
            self._transport.global_request("keepalive@openssh.com", wait=True)

    @property
    def is_alive(self) -> bool:
        """Whether the connection is there, as far as is known."""
        return bool(self._transport.is_active())

    def close(self) -> None:
        """End the connection and its thread."""
        transport = getattr(self, "_transport", None)
        if transport is not None:
            with contextlib.suppress(*FOREIGN):
                transport.close()
        with contextlib.suppress(OSError, *FOREIGN):
            self._stream.close()


def preferred(kinds: Sequence[str], supported: Sequence[str]) -> tuple[str, ...]:
    """Order the types of host key so that those known of the host come first."""
    wanted = [name for kind in kinds for name in (_RSA_SIGNATURES if kind == "ssh-rsa" else (kind,))]
    return tuple(dict.fromkeys([*(name for name in wanted if name in supported), *supported]))
