"""Real GPU hosts to test against, minus the GPU: systemd, journald and sshd booted in containers on this machine.

A host is an overlay of this machine's own files, booted by systemd-nspawn in about four seconds with a
network of its own (a pair of veth interfaces, so that its cable can be pulled), a host key and an
``authorized_keys`` of its own. What it writes goes to a tmpfs and is gone afterwards. Root is needed, and
the Debian packages ``systemd-container openssh-server dbus iproute2 sudo``.

Every host also has the simulated SGLang in ``HOME/bin`` and its ``nvidia-smi`` on everybody's PATH.
"""

# ruff: noqa: S607 - the programs of this machine, by their names

from __future__ import annotations

import contextlib
import fcntl
import os
import shlex
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Self

from tuner.model.study import SshLogin
from tuner.simulator.host import environment, prepare
from tuner.testing.base_command import sglang_arguments

PROGRAMS = ("systemd-nspawn", "nsenter", "sshd", "ssh", "ssh-keygen", "dbus-daemon", "ip", "sudo")
CHECKOUT = Path(__file__).parents[2]
HOME = Path("/srv/gpu")
UNIT = "sglang-qwen.service"
PORT = 30000
OPERATOR = "engineer"
"""A user without rights, until a test gives it some."""

_BOOT_S = 60.0
_COMMAND_S = 150.0  # a stop waits for its server, which may take all of TimeoutStopSec
# Whoever booted the host may be killed: its end of this program's input closes then.
_WATCHDOG = """
cat >/dev/null
for signal in TERM TERM KILL; do
    kill -$signal "$1" 2>/dev/null || break
    sleep 5
done
umount "$2" && umount "$3" && rm -rf "$4"
"""
_NETWORK = "10.77"
_ARGUMENTS = sglang_arguments(PORT, host="0.0.0.0")  # noqa: S104 - the host is reached from outside


def missing() -> tuple[str, ...]:
    """Name what this machine lacks for a rig; empty: one can be booted."""
    lacking = [] if os.geteuid() == 0 else ["root"]
    lacking += [name for name in PROGRAMS if shutil.which(name, path="/usr/sbin:/usr/bin:/sbin:/bin") is None]
    return tuple(lacking)


def sglang_unit(*, command: str | None = None, restart: str = "always", extra: str = "") -> str:
    """Return the text of a unit as people write them: ``Restart=always``, no readiness, one ExecStart.

    Args:
        command: the ExecStart line; None: the simulated SGLang.
        restart: its Restart=.
        extra: further lines of [Service].
    """
    line = command or f"{HOME}/bin/sglang {' '.join(_ARGUMENTS)}"
    return (
        "[Unit]\nDescription=SGLang\nAfter=network.target\n\n"
        f"[Service]\nExecStart={line}\nRestart={restart}\nRestartSec=1\nTimeoutStopSec=20\n{extra}\n"
        "[Install]\nWantedBy=multi-user.target\n"
    )


class Rig:
    """One host; a context manager that boots it and takes it away.

    Args:
        speed: how many times faster than real the simulated SGLang loads.
        faults: of the simulated host.
    """

    def __init__(self, *, speed: float = 200.0, faults: tuple[str, ...] = ()) -> None:
        self._speed, self._faults = speed, faults
        self._installed: list[str] = []
        self._nspawn: subprocess.Popen[bytes] | None = None
        self._watchdog: subprocess.Popen[bytes] | None = None
        self._leader = 0

    def __enter__(self) -> Self:
        """Make its disk and keys, and boot it."""
        self.number, self._claim = _claim_number()
        self.name = f"gpu{self.number}"
        self.address = f"{_NETWORK}.{self.number}.2"
        self.folder = Path(tempfile.mkdtemp(prefix=f"tuner-rig-{self.number}-"))
        self._disk = self.folder / "disk"
        self.root = self._disk / "root"
        try:
            self._make_disk()
            self._make_keys()
            self.boot()
        except BaseException:
            self._take_away()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        """Power it off and remove its disk."""
        self._take_away()

    # ------------------------------------------------------------------ power

    def boot(self) -> None:
        """Switch it on and wait until it runs and sshd answers."""
        log = (self.folder / "console.log").open("ab")
        self._nspawn = subprocess.Popen(
            [
                *("systemd-nspawn", "--quiet", "--register=no", "--keep-unit", f"--directory={self.root}", "--boot"),
                *(f"--machine={self.name}", "--console=pipe", "--network-veth", f"--bind-ro={CHECKOUT}"),
                "systemd.unit=multi-user.target",
            ],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            pass_fds=(self._claim,),  # its number is taken as long as it lives
        )
        log.close()
        self._watchdog = subprocess.Popen(
            ["sh", "-c", _WATCHDOG, "sh", str(self._nspawn.pid), str(self.root), str(self._disk), str(self.folder)],
            stdin=subprocess.PIPE,
            start_new_session=True,
        )
        self._wait(self._find_leader, "it has no init")
        self._wait(lambda: self.run("systemctl", "is-system-running").stdout.strip() in {"running", "degraded"}, "boot")
        self._connect_cable()
        self._wait(self._speaks_ssh, "sshd")

    def power_off(self) -> None:
        """Switch it off, orderly."""
        nspawn, watchdog = self._nspawn, self._watchdog
        if nspawn is None or watchdog is None:
            return
        watchdog.kill()
        watchdog.communicate()
        if self._leader and nspawn.poll() is None:
            self.run("systemctl", "poweroff")
        for _ in range(3):
            try:
                nspawn.wait(20)
                break
            except subprocess.TimeoutExpired:
                nspawn.send_signal(signal.SIGTERM)
        else:
            nspawn.kill()
            nspawn.wait()
        self._nspawn, self._leader = None, 0

    def reboot(self) -> None:
        """Switch it off and on; /run is empty afterwards, the disk is not."""
        self.power_off()
        self.boot()

    # ------------------------------------------------------------------ inside

    def run(self, *argv: str, check: bool = False, stdin: str = "") -> subprocess.CompletedProcess[str]:
        """Run a command inside as root, without the network in between."""
        done = subprocess.run(
            ["nsenter", "--target", str(self._leader), "--all", "--wd=/", "--", *argv],
            input=stdin,
            capture_output=True,
            text=True,
            check=False,
            timeout=_COMMAND_S,
            env={"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C.UTF-8"},
        )
        if check and done.returncode != 0:
            msg = f"{' '.join(argv)}: exit {done.returncode}: {done.stderr.strip() or done.stdout.strip()}"
            raise AssertionError(msg)
        return done

    def write(self, path: str, text: str, *, mode: int = 0o644) -> None:
        """Write a file inside; its folder is made. Through the running system: /run and /tmp are its own."""
        self.run("install", "-D", "-m", f"{mode:o}", "/dev/null", path, check=True)
        self.run("tee", path, stdin=text, check=True)

    def install_unit(self, name: str = UNIT, text: str | None = None, *, start: bool = True) -> None:
        """Install a unit (the simulated SGLang, unless a text is given) and start it.

        A template (``a@.service``) is not started; ``start`` its instance.
        """
        self._installed.append(name)
        self.write(f"/etc/systemd/system/{name}", sglang_unit() if text is None else text)
        self.run("systemctl", "daemon-reload", check=True)
        if start:
            self.run("systemctl", "start", name, check=True)

    def reset(self) -> None:
        """Stop and remove every unit that was installed, with its drop-ins, lease and dead-man."""
        self.plug_cable()
        self.run("systemctl", "start", "ssh.service")
        for unit in self._installed:
            self.run("systemctl", "kill", "--signal=SIGKILL", unit)
        listed = self.run("systemctl", "list-units", "--all", "--plain", "--no-legend", "tuner-*").stdout
        for line in listed.splitlines():
            self.run("systemctl", "stop", line.split()[0])
        for unit in self._installed:
            self.run("systemctl", "stop", unit)
            for folder in ("/etc/systemd/system", "/run/systemd/system"):
                self.run("rm", "-rf", f"{folder}/{unit}", f"{folder}/{unit}.d")
            self.run("systemctl", "disable", unit)
        self.run("sh", "-c", 'rm -rf /run/tuner /etc/sudoers.d/engineer "$1"/*.json "$1"/faults', "sh", str(HOME))
        self.run("systemctl", "daemon-reload", check=True)
        self.run("systemctl", "reset-failed")
        self._installed.clear()

    def show(self, *properties: str, unit: str = UNIT) -> dict[str, str]:
        """Return properties of a unit as systemd has them."""
        shown = self.run("systemctl", "show", unit, f"--property={','.join(properties)}", check=True).stdout
        return dict(line.split("=", 1) for line in shown.splitlines() if "=" in line)

    def grant(self, lines: tuple[str, ...], *, user: str = OPERATOR) -> None:
        """Replace what ``user`` may do through sudo."""
        self.write(f"/etc/sudoers.d/{user}", "".join(f"{line}\n" for line in lines), mode=0o440)
        self.run("visudo", "-cf", f"/etc/sudoers.d/{user}", check=True)

    # ------------------------------------------------------------------ the way in

    def login(self, user: str = "root", *, key: Path | None = None, known_hosts: Path | None = None) -> SshLogin:
        """Return how to get in."""
        return SshLogin(
            host=self.address,
            user=user,
            identity_file=str(key or self.key),
            known_hosts=str(known_hosts or self.known_hosts),
            config_file="/dev/null",
        )

    def pull_cable(self) -> None:
        """Let every packet vanish, both ways; nothing is refused."""
        _ip("link", "set", f"ve-{self.name}", "down")

    def plug_cable(self) -> None:
        """Let packets through again."""
        self._connect_cable()

    def stop_sshd(self) -> None:
        """Stop sshd and end every session of it."""
        self.run("systemctl", "stop", "ssh.service", check=True)
        for pid in self.run("pgrep", "-x", "sshd").stdout.split():
            self.run("kill", "-9", pid)

    def start_sshd(self) -> None:
        """Start sshd."""
        self.run("systemctl", "start", "ssh.service", check=True)
        self._wait(self._speaks_ssh, "sshd")

    # ------------------------------------------------------------------ making it

    def _make_disk(self) -> None:
        self._disk.mkdir()
        _mount("-t", "tmpfs", "-o", "size=4g", "tmpfs", str(self._disk))
        for name in ("up", "work", "root"):
            (self._disk / name).mkdir()
        layers = f"lowerdir=/,upperdir={self._disk}/up,workdir={self._disk}/work"
        _mount("-t", "overlay", "overlay", "-o", layers, str(self.root))
        (self.root / "etc/machine-id").unlink(missing_ok=True)
        made = subprocess.run(["systemd-id128", "new"], capture_output=True, text=True, check=True)
        (self.root / "etc/machine-id").write_text(made.stdout)
        (self.root / "etc/hostname").write_text(f"{self.name}\n")
        # What this machine's own shells do first is not part of the test; it would be done for each command.
        (self.root / "root/.bashrc").unlink(missing_ok=True)
        # Nor is what else this machine starts: a database, a web server.
        for wanted in (self.root / "etc/systemd/system/multi-user.target.wants").glob("*"):
            if wanted.name != "ssh.service":
                wanted.unlink()
        home = self.root / HOME.relative_to("/")
        # The programs are made where they lie now, and told where they will be.
        facts = environment(HOME, speed=self._speed, address=self.address, faults=self._faults)
        programs = prepare(home, facts=facts)
        for program in programs.iterdir():
            program.write_text(program.read_text().replace(str(self.root), ""))
            program.chmod(0o755)
        (self.root / "usr/local/bin/nvidia-smi").unlink(missing_ok=True)
        (self.root / "usr/local/bin/nvidia-smi").symlink_to(HOME / "bin/nvidia-smi")
        subprocess.run(
            ["useradd", "--root", str(self.root), "--create-home", "--shell", "/bin/sh", "--password", "*", OPERATOR],
            check=True,
        )

    def _make_keys(self) -> None:
        self.key = self.folder / "id_ed25519"
        self.known_hosts = self.folder / "known_hosts"
        host_key = self.root / "etc/ssh/ssh_host_ed25519_key"
        for old in host_key.parent.glob("ssh_host_*"):
            old.unlink()
        for path, comment in ((self.key, "test"), (host_key, self.name)):
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", comment, "-f", str(path)], check=True)
        public = self.key.with_suffix(".pub").read_text()
        for home, owner in (("root", 0), (f"home/{OPERATOR}", None)):
            folder = self.root / home / ".ssh"
            folder.mkdir(mode=0o700, exist_ok=True)
            (folder / "authorized_keys").write_text(public)
            (folder / "authorized_keys").chmod(0o600)
            status = (self.root / home).stat()
            for path in (folder, folder / "authorized_keys"):
                os.chown(path, status.st_uid if owner is None else owner, status.st_gid if owner is None else owner)
        sshd = self.root / "etc/ssh/sshd_config.d/rig.conf"
        sshd.parent.mkdir(exist_ok=True)
        # No PAM: its session module asks logind for each login, which on a loaded machine takes half a minute at times.
        sshd.write_text("PermitRootLogin prohibit-password\nUseDNS no\nMaxStartups 100\nUsePAM no\n")
        kind, key, _ = host_key.with_suffix(".pub").read_text().split()
        self.known_hosts.write_text(f"{self.address} {kind} {key}\n")

    def _connect_cable(self) -> None:
        inside = f"ve-{self.name}"
        _ip("link", "set", inside, "up")
        _ip("address", "replace", f"{_NETWORK}.{self.number}.1/24", "dev", inside)
        self.run("ip", "link", "set", "host0", "up", check=True)
        self.run("ip", "address", "replace", f"{self.address}/24", "dev", "host0", check=True)

    def _take_away(self) -> None:
        self.power_off()
        for mount in (self.root, self._disk):
            if mount.is_mount():
                subprocess.run(["umount", str(mount)], check=True)
        shutil.rmtree(self.folder)
        os.close(self._claim)

    def _find_leader(self) -> bool:
        """Find the init of the container: the child of nspawn."""
        assert self._nspawn is not None
        assert self._nspawn.poll() is None, (self.folder / "console.log").read_text(errors="replace")[-2000:]
        children = Path(f"/proc/{self._nspawn.pid}/task/{self._nspawn.pid}/children").read_text().split()
        for child in children:
            with contextlib.suppress(OSError):
                if Path(f"/proc/{child}/comm").read_text().strip() == "systemd":
                    self._leader = int(child)
                    return True
        return False

    def _speaks_ssh(self) -> bool:
        probe = ["ssh", "-F", "/dev/null", "-o", "BatchMode=yes", "-o", f"UserKnownHostsFile={self.known_hosts}"]
        probe += ["-o", "ConnectTimeout=2", "-i", str(self.key), f"root@{self.address}", "true"]
        return subprocess.run(probe, capture_output=True, check=False).returncode == 0

    def _wait(self, holds: Callable[[], bool], what: str) -> None:
        deadline_s = time.monotonic() + _BOOT_S
        while not holds():
            assert time.monotonic() < deadline_s, f"{self.name}: {what}: {self._console()}"
            time.sleep(0.1)

    def _console(self) -> str:
        return (self.folder / "console.log").read_text(errors="replace")[-2000:]


def _claim_number() -> tuple[int, int]:
    """Take a number that no other host on this machine has; returns it and what holds it."""
    for number in range(1, 251):
        handle = os.open(Path(tempfile.gettempdir()) / f"tuner-rig-{number}.lock", os.O_CREAT | os.O_RDWR, 0o600)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(handle)
        else:
            return number, handle
    msg = "250 hosts run on this machine already"
    raise RuntimeError(msg)


def _mount(*arguments: str) -> None:
    subprocess.run(["mount", *arguments], check=True)


def _ip(*arguments: str) -> None:
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"ip {shlex.join(arguments)}: {done.stderr}"
