"""A host that cannot be used: a row of doctor with its remedy, a one-line error of run, and nothing is touched."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tuner.testing.host_project import (
    HostProject,
    Table,
    host_project,
    journal_reader,
    left_as_it_was,
    let_everybody,
    ssh_host,
)
from tuner.testing.rig import HOME, OPERATOR, PORT, Rig
from tuner.testing.unit_on_host import UnitOnHost

ODD = "odd.service"
PLAIN = f"{HOME}/bin/sglang serve --model-path m --port {PORT} --mem-fraction-static 0.8"
BACK_DOOR = 2222


@pytest.fixture
def host(rig: Rig) -> UnitOnHost:
    rig.install_unit(start=False)
    return UnitOnHost(rig)


@pytest.fixture
def project(tmp_path: Path) -> Iterator[HostProject]:
    with host_project(tmp_path) as made:
        yield made


def is_refused(project: HostProject, host: UnitOnHost, check: str, *said: str) -> None:
    """Hold that doctor and run say the same of a host, what to do included, and that it is untouched."""
    with left_as_it_was(host):
        code, rows = project.doctor()
        assert code == 3
        failed = {name: row for name, row in rows.items() if row["verdict"] == "failed"}
        assert list(failed) == [check], failed
        row = failed[check]
        assert row["remedy"]
        line = project.refused_run()
        for text in said:
            assert text in f"{row['detail']}: {row['remedy']}", row
            assert text in line, line


def make_key(path: Path) -> str:
    """Make a key pair; return the public one as known_hosts has it."""
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(path)], check=True)
    kind, key = path.with_suffix(".pub").read_text().split()[:2]
    return f"{kind} {key}"


# ------------------------------------------------------------------ the way in


def test_a_wrong_key_is_refused(project: HostProject, host: UnitOnHost) -> None:
    make_key(project.root / "other")
    project.write_hosts(ssh_host(host.rig, identity_file="other"))
    is_refused(project, host, "login", "authorized_keys")


def test_a_wrong_user_is_refused(project: HostProject, host: UnitOnHost) -> None:
    project.write_hosts(ssh_host(host.rig, "nobody-here"))
    is_refused(project, host, "login", "nobody-here")


def test_an_unknown_host_key_is_refused_until_it_is_accepted_once_with_its_fingerprint(
    project: HostProject, host: UnitOnHost
) -> None:
    (project.root / "known").touch()
    project.write_hosts(ssh_host(host.rig, known_hosts="known"))
    is_refused(project, host, "host key", "SHA256:", "--accept-new-host-key")

    key = host.rig.root / "etc/ssh/ssh_host_ed25519_key.pub"
    shown = subprocess.run(["ssh-keygen", "-lf", str(key)], capture_output=True, text=True, check=True).stdout
    fingerprint = shown.split()[1]
    first = project.tuner("validate", project.name, "--accept-new-host-key")
    assert first.returncode == 0, first.stderr
    assert first.stderr.count(fingerprint) == 1
    second = project.tuner("validate", project.name)
    assert second.returncode == 0, second.stderr
    assert "SHA256:" not in second.stderr


def test_a_changed_host_key_is_refused_also_where_a_new_one_would_be_accepted(
    project: HostProject, host: UnitOnHost
) -> None:
    known = project.root / "known"
    known.write_text(f"{host.rig.address} {make_key(project.root / 'old')}\n")
    project.write_hosts(ssh_host(host.rig, known_hosts="known"))
    is_refused(project, host, "host key", "SHA256:")
    project.refused_run("--accept-new-host-key")
    assert len(known.read_text().splitlines()) == 1


def test_a_user_without_rights_is_refused(project: HostProject, host: UnitOnHost) -> None:
    let_everybody(host.rig)
    with journal_reader(host.rig):
        project.write_hosts(ssh_host(host.rig, OPERATOR))
        is_refused(project, host, "permissions", "/etc/sudoers.d/tuner", "a password is required")
        project.write_hosts(ssh_host(host.rig, OPERATOR, sudo=False))
        is_refused(project, host, "permissions", "sudo = true")


# ------------------------------------------------------------------ the unit


@pytest.mark.parametrize(
    ("service", "check", "said"),
    [
        pytest.param(None, "unit", "odd.service", id="unknown"),
        pytest.param("Type=oneshot\nExecStart={plain}", "command", "Type=oneshot", id="oneshot"),
        pytest.param("ExecStart=/bin/sh -c 'cd /srv && {plain}'", "command", "shell", id="shell wrapper"),
        pytest.param("ExecStart={home}/start.sh", "command", "ExecStart=", id="script"),
    ],
)
def test_a_unit_that_cannot_be_tuned_is_refused(
    project: HostProject, host: UnitOnHost, service: str | None, check: str, said: str
) -> None:
    if service is not None:
        body = service.format(plain=PLAIN, home=HOME)
        host.rig.install_unit(ODD, f"[Unit]\nDescription=x\n[Service]\n{body}\n", start=False)
    project.write_hosts(ssh_host(host.rig, unit=ODD))
    is_refused(project, host, check, said)


def test_a_masked_unit_is_refused(project: HostProject, host: UnitOnHost) -> None:
    host.sh('ln -s /dev/null "/etc/systemd/system/$1" && systemctl daemon-reload', ODD)
    project.write_hosts(ssh_host(host.rig, unit=ODD))
    try:
        is_refused(project, host, "unit", f"systemctl unmask {ODD}")
    finally:
        host.sh('rm "/etc/systemd/system/$1" && systemctl daemon-reload', ODD)


# ------------------------------------------------------------------ the machine


@contextmanager
def back_door(rig: Rig, script: str) -> Iterator[Table]:
    """Let in through a second sshd, in a mount namespace that ``script`` has prepared; yield the host's table."""
    serve = f"{script}\nexec /usr/sbin/sshd -p {BACK_DOOR} -o PidFile=/tmp/back-door.pid"
    rig.run("unshare", "--mount", "sh", "-c", serve, check=True)
    known = rig.folder / "known_at_the_back"
    address, key = rig.known_hosts.read_text().split(maxsplit=1)
    known.write_text(f"[{address}]:{BACK_DOOR} {key}")
    try:
        yield ssh_host(rig, port=BACK_DOOR, known_hosts=str(known))
    finally:
        rig.run("sh", "-c", "kill $(cat /tmp/back-door.pid)", check=True)


@dataclass(frozen=True)
class Machine:
    script: str
    check: str
    said: str


FULL = """
mount --rbind /run /mnt && mount -t tmpfs -o size=64k full /run && mkdir /run/systemd /run/dbus /run/sshd &&
mount --rbind /mnt/systemd /run/systemd && mount --rbind /mnt/dbus /run/dbus || exit 99
head -c 64k /dev/zero > /run/file 2>/dev/null
"""
MACHINES = {
    "no systemd": Machine("mount -t tmpfs t /run/systemd", "systemd", 'kind = "process"'),
    "no nvidia-smi": Machine("mount -t tmpfs t /usr/local/bin", "nvidia-smi", "nvidia-smi"),
    "full /run": Machine(FULL, "/run writable", "/run"),
}


@pytest.mark.parametrize("name", sorted(MACHINES))
def test_a_machine_that_cannot_be_used_is_refused(project: HostProject, host: UnitOnHost, name: str) -> None:
    machine = MACHINES[name]
    with back_door(host.rig, machine.script) as table:
        project.write_hosts(table)
        is_refused(project, host, machine.check, machine.said)
