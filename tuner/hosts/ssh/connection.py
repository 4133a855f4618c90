"""One connection to a host: the way there, its key, our login, and whether it is still alive."""

from __future__ import annotations

import contextlib
import threading
import time
from dataclasses import dataclass, replace
from pathlib import Path

from tuner.errors import HostKeyRefused, LoginRefused, TransportFault
from tuner.hosts.ssh import known_hosts, session
from tuner.hosts.ssh.authentication import log_in
from tuner.hosts.ssh.command import Output
from tuner.hosts.ssh.faults import Started
from tuner.hosts.ssh.known_hosts import Entry, HostKey, Standing
from tuner.hosts.ssh.login import ResolvedLogin
from tuner.hosts.ssh.paramiko_edge import ByteStream, Link
from tuner.hosts.ssh.session import Order, Wake
from tuner.hosts.ssh.stream import Heard, ProxyStream, connect

_TCP_S = 5.0  # three packets; one that waits longer only comes late to a network that is back
_LOOKS = 20  # at a silent connection, until it counts as lost


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """How long what is waited for; seconds.

    Attributes:
        reconnect_s: for a host that was reached before and is not now.
        connect_s: for each step of connecting, unless ssh_config says otherwise (``ConnectTimeout``).
        ask_s: between two questions whether the host is still there; often, for a stall shows only after one.
        stall_s: without a sign of life after a question, after which the host counts as out of reach meanwhile.
        silence_s: without a sign of life, after which the connection is lost.
    """

    reconnect_s: float = 60.0
    connect_s: float = 15.0
    ask_s: float = 1.0
    stall_s: float = 2.0
    silence_s: float = 15.0


class Connection:
    """A connection on which commands run, several at once; blocking, and safe to use from several threads.

    Attributes:
        accepted_keys: fingerprints of host keys that were not known and were taken, with their hosts.

    Raises:
        HostKeyRefused: a host on the way does not prove to be the one that is known.
        LoginRefused: a host on the way takes neither our user nor our keys.
        TransportFault: there is no way.
    """

    def __init__(self, login: ResolvedLogin, patience: Patience) -> None:
        self.login = login
        self.accepted_keys: tuple[str, ...] = ()
        self._patience = patience
        self._via: Connection | None = None
        self._stop = threading.Event()
        try:
            self._heard = Heard(self._stream(), patience.stall_s)
            self._link = self._linked()
        except TransportFault:
            self._close_way()
            raise
        self._threads = [
            threading.Thread(target=work, daemon=True, name=f"ssh {login.hostname} {work.__name__.strip('_')}")
            for work in (self._ask, self._watch)
        ]
        for thread in self._threads:
            thread.start()

    @property
    def is_alive(self) -> bool:
        """Whether the host answers, as far as is known."""
        return self._link.is_alive

    @property
    def heard_at_s(self) -> float:
        """Monotonic time of the last sign of life."""
        return self._heard.at_s

    @property
    def stalls(self) -> tuple[tuple[float, float], ...]:
        """From when to when the host was silent although it was asked; monotonic times."""
        return self._heard.stalls

    @property
    def stalled_since_s(self) -> float | None:
        """Since when it is; None: it is not."""
        return self._heard.stalled_since_s

    def execute(self, order: Order, wake: Wake) -> Output:
        """Run a command; see :func:`tuner.hosts.ssh.session.execute`."""
        return session.execute(self._link, self.login.address, order, wake)

    def kill(self, started: Started) -> None:
        """End what an earlier connection left running."""
        session.kill(self._link, self.login.address, started)

    def forward(self, host: str, port: int) -> ByteStream:
        """Connect from the host on to another."""
        return self._link.open_stream(host, port, self._timeout_s)

    def close(self) -> None:
        """End the connection and everything on the way to it; may be called again."""
        self._stop.set()
        self._link.close()
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join()
        self._close_way()

    @property
    def _timeout_s(self) -> float:
        return self.login.connect_timeout_s or self._patience.connect_s

    def _stream(self) -> ByteStream:
        if self.login.via is not None:
            # The jump host's own life is not watched: a connection through it ends with it.
            self._via = Connection(self.login.via, replace(self._patience, ask_s=self._patience.silence_s))
            self.accepted_keys = self._via.accepted_keys
            return self._via.forward(self.login.hostname, self.login.port)
        if self.login.proxy_command is not None:
            return ProxyStream(self.login)
        timeout_s = self.login.connect_timeout_s or min(self._patience.connect_s, _TCP_S)
        return connect(self.login, timeout_s, self._patience.silence_s)

    def _linked(self) -> Link:
        login = self.login
        name = known_hosts.lookup_name(login.hostname, login.port, login.host_key_alias)
        try:
            entries = known_hosts.read_entries((*login.known_hosts, *login.system_known_hosts))
            revoked = known_hosts.read_revoked(login.revoked_keys)
        except (OSError, ValueError) as error:
            self._heard.close()
            msg = f"{login.address}: the host's key cannot be checked ({error}): make that file readable"
            raise HostKeyRefused(msg) from error
        bare = known_hosts.lookup_name(login.hostname, 22, login.host_key_alias)  # ssh looks for it as well
        kinds = known_hosts.kinds_known(entries, name) or known_hosts.kinds_known(entries, bare)
        link = Link(self._heard, login.address, kinds, self._timeout_s)
        try:
            is_new = self._check_key(link.host_key, entries, (name, bare), revoked)
            self._log_in(link, f"{name} {link.host_key.fingerprint}" if is_new else None)
            if is_new:  # not before: a host that does not know us is none that we need to know
                self._accept(name, link.host_key)
        except TransportFault:
            link.close()
            raise
        return link

    def _log_in(self, link: Link, new_key: str | None) -> None:
        try:
            log_in(link, self.login)
        except LoginRefused as error:
            taken = "".join(f"; took the new key of a jump host: {key}" for key in self.accepted_keys)
            left = "" if new_key is None else f"; its host key is new and was not taken: {new_key}"
            raise LoginRefused(f"{error}{left}{taken}", new_key=new_key) from error

    def _check_key(
        self, key: HostKey, entries: tuple[Entry, ...], names: tuple[str, str], revoked: frozenset[bytes]
    ) -> bool:
        """Hold that the key is the host's; return whether it is a new one that is to be taken."""
        name, bare = names
        judgement = known_hosts.judge(entries, name, key, revoked)
        if judgement.standing is Standing.UNKNOWN and name != bare:
            without_port = known_hosts.judge(entries, bare, key, revoked)
            if without_port.standing in {Standing.KNOWN, Standing.REVOKED}:
                judgement = without_port
        if judgement.standing is Standing.KNOWN:
            return False
        if judgement.standing is Standing.UNKNOWN and self.login.accept_new_host_key:
            return True
        raise HostKeyRefused(refusal(self.login, name, key, judgement))

    def _accept(self, name: str, key: HostKey) -> None:
        path = self.login.known_hosts[0] if self.login.known_hosts else "/dev/null"
        if path == "/dev/null":
            msg = f"{self.login.address}: its host key cannot be kept: name a file for UserKnownHostsFile in ssh_config"
            raise HostKeyRefused(msg)
        try:
            is_new = known_hosts.remember(Path(path), name, key, hashed=self.login.hash_known_hosts)
        except OSError as error:
            msg = f"{self.login.address}: its host key cannot be kept in {path}: {error.strerror}: make it writable"
            raise HostKeyRefused(msg) from error
        if is_new:
            self.accepted_keys = (*self.accepted_keys, f"{name} {key.fingerprint}")

    def _close_way(self) -> None:
        heard = getattr(self, "_heard", None)
        if heard is not None:
            with contextlib.suppress(OSError, EOFError):
                heard.close()
        if self._via is not None:
            self._via.close()

    def _ask(self) -> None:
        """Ask for a sign of life when there was none for a while; each question waits for its answer."""
        while not self._stop.wait(self._patience.ask_s) and self._link.is_alive:
            self._heard.asked_s = time.monotonic()
            self._link.ask_alive()
            self._heard.asked_s = None

    def _watch(self) -> None:
        """Give the connection up when a question stays without any sign of life."""
        silence_s = self._patience.silence_s
        while not self._stop.wait(silence_s / _LOOKS) and self._link.is_alive:
            is_asked = self._heard.asked_s is not None
            if is_asked and time.monotonic() - self._heard.at_s > silence_s:
                self._link.close()


def refusal(login: ResolvedLogin, name: str, key: HostKey, judgement: known_hosts.Judgement) -> str:
    """Say why a host key is not taken, and what to do."""
    shown = f"{login.address}: host key {key.fingerprint}"
    places = ", ".join(entry.place for entry in judgement.entries)
    file = login.known_hosts[0] if login.known_hosts else "known_hosts"
    if judgement.standing is Standing.UNKNOWN:
        return f"{shown} is not in {file}: compare it with the host's own, then run once with --accept-new-host-key"
    if judgement.standing is Standing.REVOKED:
        return f"{shown} is revoked in {places or login.revoked_keys}: do not connect, and ask who revoked it"
    if judgement.standing is Standing.CERTIFIED:
        return (
            f"{shown} is vouched for by a certificate authority only ({places}), which tuner does not check: "
            f"add the host's own key to {file}"
        )
    known = ", ".join(dict.fromkeys(entry.key.fingerprint for entry in judgement.entries))
    return (
        f"{shown} is not the one that is known ({known}, {places}): somebody may be listening in; "
        f"if the host was set up anew, run ssh-keygen -R '{name}' -f {places.split(', ')[0].rpartition(':')[0]}"
    )
