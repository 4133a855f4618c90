"""A real sshd on a loopback address, with keys and configuration of its own: for tests.

It lets in the user who runs the tests, by a key made for it, and touches nothing outside its folder::

    with Sshd(tmp_path) as sshd:
        transport = SshTransport(sshd.login)
"""

from __future__ import annotations

import contextlib
import getpass
import os
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path
from types import TracebackType
from typing import Self

from tuner.hosts import files
from tuner.hosts.files import ProcessKey
from tuner.model.study import SshLogin

_START_TIMEOUT_S = 20.0
_CONF = """
Port {port}
ListenAddress {address}
HostKey {host_key}
PidFile none
AuthorizedKeysFile {authorized}
PasswordAuthentication no
KbdInteractiveAuthentication no
PermitRootLogin yes
StrictModes no
UsePAM no
LogLevel VERBOSE
SetEnv SHLVL=1
"""
# SHLVL: a bash that is deeper than the first does not read the tester's own .bashrc, however slow that is.

_CLIENT = """
Host {alias}
  HostName {address}
  Port {port}
  User {user}
  IdentityFile {identity}
  IdentitiesOnly yes
  UserKnownHostsFile {known_hosts}
  GlobalKnownHostsFile /dev/null
"""


def sshd_program() -> str | None:
    """Return OpenSSH's server; None: it is not installed."""
    return shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")


class Sshd:
    """One sshd in the foreground; a context manager.

    Args:
        folder: where its files go; made when needed.
        address: of loopback, one a host.
        alias: its Host alias in ``config``.
        options: more lines for sshd_config(5); the first of two counts.

    Attributes:
        port: it listens on, the same after a restart.
        config: an ssh_config that knows it as ``alias``.
        known_hosts: has its key.
        identity: private key it lets in.
        authorized: its authorized_keys.
        log: what it said.
    """

    def __init__(self, folder: Path, address: str = "127.0.0.1", alias: str = "gpu", options: str = "") -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.address, self.alias, self.user = address, alias, getpass.getuser()
        self.identity, self.host_key = folder / "id_ed25519", folder / "host_ed25519"
        self.config, self.known_hosts = folder / "ssh_config", folder / "known_hosts"
        self.authorized, self.log = folder / "authorized_keys", folder / "sshd.log"
        self._conf = folder / "sshd_config"
        self._process: subprocess.Popen[bytes] | None = None
        self._ours: set[ProcessKey] = set()  # sessions and their commands, also of an sshd that has ended
        self.port = _free_port(address)
        make_key(self.identity)
        make_key(self.host_key)
        self.authorized.write_bytes(self.identity.with_suffix(".pub").read_bytes())
        names = {"port": self.port, "address": address, "host_key": self.host_key, "authorized": self.authorized}
        self._conf.write_text(options + _CONF.format(**names))
        self.config.write_text(
            _CLIENT.format(
                alias=alias,
                address=address,
                port=self.port,
                user=self.user,
                identity=self.identity,
                known_hosts=self.known_hosts,
            )
        )
        self.know()

    @property
    def login(self) -> SshLogin:
        """The way in, by its alias."""
        return SshLogin(host=self.alias, config_file=str(self.config))

    def know(self) -> None:
        """Write its present host key into ``known_hosts``."""
        kind, key = self.host_key.with_suffix(".pub").read_text().split()[:2]
        self.known_hosts.write_text(f"[{self.address}]:{self.port} {kind} {key}\n")

    def change_host_key(self, kind: str = "ed25519") -> None:
        """Give it another key, which ``known_hosts`` does not know; :meth:`restart` makes it count."""
        self.host_key.unlink()
        make_key(self.host_key, kind)

    def start(self) -> None:
        """Start it and wait until it listens."""
        program = sshd_program()
        assert program is not None, "sshd is not installed: install openssh-server"
        if os.getuid() == 0:
            Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                (program, "-D", "-e", "-f", str(self._conf)), stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        deadline_s = time.monotonic() + _START_TIMEOUT_S
        while not self._listens():
            assert self._process.poll() is None, f"sshd ended: {self.log.read_text()[-500:]}"
            assert time.monotonic() < deadline_s, f"sshd does not listen: {self.log.read_text()[-500:]}"
            time.sleep(0.01)

    def stop(self) -> None:
        """Stop listening, as a restart does; sessions live on."""
        self._note()
        if self._process is not None:
            files.send_signal(self._key(), signal.SIGCONT)
            self._process.terminate()
            self._process.wait()
            self._process = None

    def restart(self) -> None:
        """Stop listening and start again; sessions live on."""
        self.stop()
        self.start()

    def kill_sessions(self) -> None:
        """Kill all connections; their commands live on, as on a real host."""
        files.kill_all(self._sessions(), timeout_s=5.0)

    def freeze(self) -> None:
        """Answer nothing any more, without closing anything: a black hole."""
        for key in (self._key(), *self._sessions()):
            files.send_signal(key, signal.SIGSTOP)

    def thaw(self) -> None:
        """Go on after :meth:`freeze`."""
        for key in (*self._sessions(), self._key()):
            files.send_signal(key, signal.SIGCONT)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
        files.kill_all([key for key in self._ours if files.is_running(key)], timeout_s=5.0)

    def _key(self) -> ProcessKey:
        assert self._process is not None, "sshd does not run"
        stat = files.process_stat(self._process.pid)
        assert stat is not None, "sshd has ended"
        return stat.key

    def _note(self) -> None:
        """Remember every process below it; one whose parent has ended is not found any more."""
        roots = [key.pid for key in self._ours] + ([self._process.pid] if self._process else [])
        for root in roots:
            self._ours |= {stat.key for stat in files.descendants(root)}

    def _sessions(self) -> list[ProcessKey]:
        self._note()
        return [key for key in self._ours if files.is_running(key) and files.command_line(key.pid).startswith("sshd")]

    def _listens(self) -> bool:
        with contextlib.suppress(OSError), socket.create_connection((self.address, self.port), timeout=1.0):
            return True
        return False


def make_key(path: Path, kind: str = "ed25519", passphrase: str = "") -> None:
    """Make a key pair, unless there is one."""
    if not path.exists():
        program = shutil.which("ssh-keygen")
        assert program is not None, "ssh-keygen is not installed: install openssh-client"
        subprocess.run(
            (program, "-q", "-t", kind, "-N", passphrase, "-C", path.name, "-f", str(path)),
            check=True,
            stdin=subprocess.DEVNULL,
        )


def _free_port(address: str) -> int:
    with socket.socket() as sock:
        sock.bind((address, 0))
        port: int = sock.getsockname()[1]
        return port
