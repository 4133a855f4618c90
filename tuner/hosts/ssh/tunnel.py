"""The load's way to a server that listens on its host's loopback only: OpenSSH's own port forwarding.

The benchmark's traffic does not run through our own SSH connection, whose channels would be what is measured.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import socket
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from tuner.errors import TransportFault
from tuner.hosts.ssh.login import ResolvedLogin, by_hand, resolve, ssh_program
from tuner.hosts.ssh.threads import in_thread
from tuner.model.study import SshLogin

_TRIES = 3  # somebody else may take the port between our choice and ssh's listening
_LOOK_S = 0.05
_END_S = 5.0
_LISTEN = "0A"  # state of a socket in /proc/net/tcp
_EXPANDED = frozenset({"HostName", "IdentityFile", "IdentityAgent", "UserKnownHostsFile"})  # percent tokens
_COMMON = """\
Host *
  BatchMode yes
  StrictHostKeyChecking yes
  ExitOnForwardFailure yes
  ServerAliveInterval 5
  ServerAliveCountMax 3
  ControlMaster no
  ControlPath none
  ForwardAgent no
  ForwardX11 no
  LogLevel ERROR
"""


class OpenSshTunnel:
    """``ports.Route`` through a child process ``ssh -N -L``, made anew when it has died.

    It is given a configuration of its own with the login resolved: what else ssh_config has for the host,
    other forwardings say, stays out. It ends with the thread that opened it, however that ends.

    Args:
        login: how the host is reached.
        timeout_s: for the tunnel to stand.
    """

    def __init__(self, login: SshLogin, *, timeout_s: float = 30.0) -> None:
        self._login = login
        self._timeout_s = timeout_s
        self._process: asyncio.subprocess.Process | None = None
        self._ports: tuple[int, int] | None = None  # here, there
        self._before: tuple[int, int] | None = None  # the same of the last one that stood
        self._deaths = 0
        self._lock = asyncio.Lock()

    @property
    def deaths(self) -> int:
        """How many have died, the one that should stand now included."""
        return self._deaths + (self._ports is not None and not self._forwards_to(self._ports[1]))

    @property
    def is_through_proxy(self) -> bool:
        """None is: it ends at the server's own port."""
        return False

    async def open(self, port: int) -> str:
        """Forward a port of this machine to ``port`` of the host's loopback, and return its base URL.

        Raises:
            TransportFault: ssh could not; the message has what it said.
        """
        async with self._lock:
            if not self._forwards_to(port):
                # Again at the same port, if it is free: whoever has the URL of one that died goes on with it.
                before = self._before[0] if self._before is not None and self._before[1] == port else None
                await self._end()
                await self._make(port, before)
            assert self._ports is not None
            return f"http://127.0.0.1:{self._ports[0]}"

    async def close(self) -> None:
        """End the child process; a later :meth:`open` makes another."""
        async with self._lock:
            await self._end()

    def _forwards_to(self, port: int) -> bool:
        # asyncio learns of a death a little late, the socket is gone at once.
        return (
            self._process is not None
            and self._ports is not None
            and self._ports[1] == port
            and listens(self._process.pid, self._ports[0])
        )

    async def _make(self, port: int, local: int | None) -> None:
        login = await in_thread(f"ssh {self._login.host} resolve", partial(resolve, self._login), lambda: None)
        said = ""
        for _ in range(_TRIES):
            local = local or _free_port()
            try:
                said = await self._start(login, local, port)
            except BaseException:
                await self._end()
                raise
            if self._process is not None and self._process.returncode is None:
                self._ports = self._before = (local, port)
                return
            await self._end()
            local = None
            if "listen" not in said:  # "cannot listen to port": the next one may be free
                break
        msg = f"{login.address}: no tunnel to its port {port}: {said}: try the same by hand: {by_hand(self._login)}"
        raise TransportFault(msg)

    async def _start(self, login: ResolvedLogin, local: int, port: int) -> str:
        """Start ssh and wait until it listens; returns what it said, if it ended instead."""
        # Only needed until it stands: nothing is left behind by a tuner that is killed later.
        with tempfile.TemporaryDirectory(prefix="tuner-tunnel-") as folder:
            config, log = Path(folder) / "config", Path(folder) / "log"
            config.write_text(configuration(login))
            await self._launch(config, log, local, port)
            return await self._stands(log, local)

    async def _launch(self, config: Path, log: Path, local: int, port: int) -> None:
        with log.open("wb") as errors:
            self._process = await asyncio.create_subprocess_exec(
                *_dies_with_us(),
                *(ssh_program(), "-F", str(config), "-N", "-T"),
                *("-L", f"127.0.0.1:{local}:127.0.0.1:{port}", "--", _hop(0)),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.DEVNULL,
                stderr=errors,
                start_new_session=True,  # a Ctrl-C is for tuner, which needs its tunnel until the end
            )

    async def _stands(self, log: Path, local: int) -> str:
        assert self._process is not None
        deadline_s = asyncio.get_running_loop().time() + self._timeout_s
        while self._process.returncode is None and not listens(self._process.pid, local):
            if asyncio.get_running_loop().time() > deadline_s:
                await self._kill()
                return f"it did not stand after {self._timeout_s:g} s; {_said(log)}"
            await asyncio.sleep(_LOOK_S)
        return _said(log) or f"ssh ended with status {self._process.returncode}"

    async def _end(self) -> None:
        self._deaths = self.deaths
        self._ports = None
        await self._kill()
        self._process = None

    async def _kill(self) -> None:
        if self._process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            self._process.terminate()
        try:
            await asyncio.wait_for(self._process.wait(), _END_S)
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
            await self._process.wait()


def configuration(login: ResolvedLogin) -> str:
    """Return an ssh_config with the whole way of a login in it; its first host is the one meant.

    Raises:
        TransportFault: a value that no ssh_config can hold.
    """
    lines = [_COMMON]
    hops = tuple(_way(login))
    for number, hop in enumerate(hops):
        is_last = number + 1 == len(hops)
        lines.append(f"Host {_hop(number)}")
        for option, values in _options(hop, None if is_last else _hop(number + 1)):
            lines.append(f"  {option} {' '.join(_quoted(hop, option, value) for value in values)}")
        if hop.proxy_command is not None:
            lines.append(f"  ProxyCommand {hop.proxy_command}")  # as it stood in ssh_config: one line, not quoted
    return "\n".join(lines) + "\n"


def _way(login: ResolvedLogin) -> Iterator[ResolvedLogin]:
    hop: ResolvedLogin | None = login
    while hop is not None:
        yield hop
        hop = hop.via


def _hop(number: int) -> str:
    return f"tuner-hop-{number}"


def _options(hop: ResolvedLogin, next_hop: str | None) -> Iterator[tuple[str, tuple[str, ...]]]:
    yield "HostName", (hop.hostname,)
    yield "Port", (str(hop.port),)
    yield "User", (hop.user,)
    yield "AddressFamily", (hop.family,)
    yield "IdentityAgent", (hop.agent or "none",)
    yield "IdentitiesOnly", ("yes" if hop.identities_only else "no",)
    yield "UserKnownHostsFile", hop.known_hosts or ("none",)
    yield "GlobalKnownHostsFile", hop.system_known_hosts or ("none",)
    for path in hop.identity_files:
        yield "IdentityFile", (path,)
    for option, value in (
        ("HostKeyAlias", hop.host_key_alias),
        ("RevokedHostKeys", hop.revoked_keys),
        ("BindAddress", hop.bind_address),
        ("ConnectTimeout", f"{hop.connect_timeout_s:.0f}" if hop.connect_timeout_s else None),
        ("ProxyJump", next_hop),
    ):
        if value is not None:
            yield option, (value,)


def _quoted(hop: ResolvedLogin, option: str, value: str) -> str:
    if set(value) & set('"\\\r\n') or "${" in value:
        msg = f"{hop.host}: {value!r} cannot be written into an ssh_config: rename it"
        raise TransportFault(msg)
    return '"' + (value.replace("%", "%%") if option in _EXPANDED else value) + '"'


def _dies_with_us() -> tuple[str, ...]:
    """Return what makes a program end with the thread that started it; nothing where util-linux is missing."""
    program = shutil.which("setpriv")
    return (program, "--pdeathsig", "TERM", "--") if program else ()


def listens(pid: int, port: int) -> bool:
    """Whether this very process listens on a port of 127.0.0.1; another one's listening proves nothing."""
    wanted = f"0100007F:{port:04X}"
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        if fields[1] == wanted and fields[3] == _LISTEN:
            return f"socket:[{fields[9]}]" in _open_files(pid)
    return False


def _open_files(pid: int) -> set[str]:
    found = set()
    with contextlib.suppress(OSError):
        for entry in os.scandir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):
                found.add(os.readlink(entry.path))  # noqa: PTH115 - it is no path
    return found


def _said(log: Path) -> str:
    return " ".join(log.read_text(errors="replace").split())[-300:]


def _free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port
