"""doctor against a real host: what it says, what it advises, and that it changes nothing."""

from __future__ import annotations

import asyncio
import http.client
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from tuner.engines import ENGINES
from tuner.errors import TransportFault, UsageError
from tuner.hosts.checks.login import CHECKS
from tuner.hosts.checks.unit_host import EVERY
from tuner.hosts.clock import SystemClock
from tuner.hosts.shell.service import ShellServiceManager
from tuner.hosts.shell.tenancy import ShellTenancy
from tuner.hosts.ssh.transport import SshTransport
from tuner.hosts.systemd.lease import LeaseFolder
from tuner.hosts.systemd.tenancy import lease_folder
from tuner.model.finding import Finding, Verdict
from tuner.model.host import CommandResult
from tuner.model.lease import Holder, LeaseTerms
from tuner.model.study import HostCare, ProcessHostSpec, Reach, SshLogin, UnitHostSpec
from tuner.model.trial import Command
from tuner.ports import HostTransport
from tuner.simulator.host import ADDRESS
from tuner.testing.rig import HOME, OPERATOR, PORT, UNIT, Rig, sglang_unit
from tuner.testing.simulated_host import wait_until
from tuner.wiring.doctor import Aim, check_host, first_failed
from tuner.wiring.units import read_base

OK, WARNING, FAILED, UNKNOWN = Verdict.OK, Verdict.WARNING, Verdict.FAILED, Verdict.UNKNOWN
KEY = "sk-planted-secret"
ME = Holder(owner="me@here", study="mtp", directory="/studies/mtp", machine="m1", pid=4711, since_s=1_796_000_000.0)
AIM = Aim(engine=ENGINES["sglang"], base=None, ladder=(1, 4, 16), asking=ME)
COMMAND = f"{HOME}/bin/sglang serve --model-path m --host 0.0.0.0 --port {PORT} --mem-fraction-static 0.8"

SNAPSHOT = """
find /etc /srv /opt /tmp /var/tmp /var/lib/systemd /run/systemd/system /run/systemd/transient /run/tuner \
    -mindepth 1 -printf '%p %m %U %s %T@ %C@\\n' 2>/dev/null | grep -v /run/systemd/transient/session- | sort
systemctl list-unit-files --no-legend --no-pager
systemctl list-units --all --no-legend --no-pager --plain |
    while read -r name load active sub _; do printf '%s %s %s %s\\n' "$name" "$load" "$active" "$sub"; done |
    grep -v -e '^session-' -e '^user' -e '^run-user-'
systemctl show "$1" -p ActiveState,MainPID,InvocationID,NRestarts,DropInPaths,FragmentPath,UnitFileState
"""


def spec(rig: Rig, user: str = "root", *, unit: str = UNIT, sudo: bool = False, **changes: object) -> UnitHostSpec:
    return replace(
        UnitHostSpec(name="gpu01", unit=unit, login=rig.login(user), sudo=sudo),
        **changes,  # type: ignore[arg-type]
    )


def look(host: UnitHostSpec | ProcessHostSpec, aim: Aim = AIM, over: HostTransport | None = None) -> dict[str, Finding]:
    findings = asyncio.run(check_host(host, aim, over))
    assert all(finding.host == "gpu01" for finding in findings)
    checks = [finding.check for finding in findings]
    assert len(checks) == len(set(checks)), "a check is made once"
    for finding in findings:
        if finding.verdict in {WARNING, FAILED}:
            assert finding.remedy, f"{finding.check}: no remedy"
        if finding.verdict is UNKNOWN:
            assert finding.detail.startswith("not looked at: ")
    return {finding.check: finding for finding in findings}


def failures(found: Mapping[str, Finding]) -> dict[str, str]:
    return {check: finding.detail for check, finding in found.items() if finding.verdict is FAILED}


def wait_serving(rig: Rig) -> None:
    def serves() -> bool:
        connection = http.client.HTTPConnection(rig.address, PORT, timeout=5)
        try:
            connection.request("GET", "/health")
            return connection.getresponse().status == 200
        except OSError:
            return False
        finally:
            connection.close()

    wait_until(serves, within_s=60.0, what=rig.run("journalctl", "-n", "20", "-u", UNIT).stdout)


@pytest.fixture(autouse=True)
def _for_everybody(rig: Rig) -> None:
    rig.run("rm", "-f", "/root/.bashrc")  # this machine's own, which may take longer than what is looked at
    let_everybody(rig)


def let_everybody(rig: Rig) -> None:
    """Let every user run the simulated nvidia-smi, as the real one: its Python may lie below root's home."""
    rig.run("chmod", "711", "/root", check=True)
    rig.run("chmod", "-R", "a+rwX", str(HOME), check=True)


@pytest.fixture
def serving(rig: Rig) -> Rig:
    rig.install_unit()
    wait_serving(rig)
    let_everybody(rig)
    return rig


# ------------------------------------------------------------------ a host as it should be


def test_a_host_that_serves_is_ready_and_every_row_says_what_was_seen(serving: Rig) -> None:
    found = look(spec(serving))
    assert failures(found) == {}
    assert first_failed(tuple(found.values())) is None
    assert {check for check, finding in found.items() if finding.verdict is UNKNOWN} == set()
    for check, part in {
        "reachable": "SSH",
        "host key": "known",
        "login": "root",
        "systemd": "version",
        "unit": "active (running)",
        "command": "speculative_num_steps=3",
        "permissions": "root",
        "nvidia-smi": "4x",
        "GPU memory": f"of {UNIT}",
        "port": f"{PORT} is {UNIT}'s own",
        "engine version": "0.5.23",
        "clock": "± ",
        "lease": "nobody",
        "address": "0.0.0.0",
        "route": "round trip",
    }.items():
        assert part in found[check].detail, found[check]


def test_nothing_on_the_host_is_changed(serving: Rig) -> None:
    look(spec(serving))  # what a first login makes (a journal of the user) is there afterwards
    look(spec(serving, OPERATOR, sudo=True))
    before = serving.run("sh", "-c", SNAPSHOT, "sh", UNIT).stdout
    look(spec(serving))
    look(spec(serving, OPERATOR, sudo=True))
    look(spec(serving, unit="sglang-qwem.service"))
    after = serving.run("sh", "-c", SNAPSHOT, "sh", UNIT).stdout
    assert len(before.splitlines()) > 100
    assert after.splitlines() == before.splitlines()


def test_a_host_whose_unit_is_stopped_is_ready_too(rig: Rig) -> None:
    rig.install_unit(start=False)
    found = look(spec(rig))
    assert failures(found) == {}
    assert "inactive" in found["unit"].detail
    assert "free" in found["port"].detail
    assert "no server runs" in found["route"].detail


# ------------------------------------------------------------------ rights


def test_the_lines_that_are_printed_are_the_lines_that_are_missing(serving: Rig) -> None:
    found = look(spec(serving, OPERATOR, sudo=True))
    rights = found["permissions"]
    assert rights.verdict is FAILED
    assert "/etc/sudoers.d/tuner" in rights.remedy
    assert "visudo -cf" in rights.remedy
    assert all(line.startswith(f"{OPERATOR} ALL=(root) NOPASSWD: /") for line in rights.lines)
    assert found["journal"].verdict is FAILED
    assert f"usermod -a -G systemd-journal {OPERATOR}" in found["journal"].remedy

    serving.grant(rights.lines)  # as they are; visudo holds them
    serving.run("usermod", "-a", "-G", "systemd-journal", OPERATOR, check=True)
    try:
        found = look(spec(serving, OPERATOR, sudo=True))
    finally:
        serving.run("gpasswd", "-d", OPERATOR, "systemd-journal", check=True)
    assert failures(found) == {}
    assert found["permissions"].verdict is OK


def test_a_line_that_was_forgotten_is_the_one_that_is_printed(serving: Rig) -> None:
    lines = look(spec(serving, OPERATOR, sudo=True))["permissions"].lines
    serving.grant(lines[1:])
    assert look(spec(serving, OPERATOR, sudo=True))["permissions"].lines == lines[:1]


def test_a_right_that_wants_a_password_is_none(serving: Rig) -> None:
    lines = look(spec(serving, OPERATOR, sudo=True))["permissions"].lines
    asks = next(line for line in lines if "daemon-reload" in line)
    serving.grant((*(line for line in lines if line != asks), asks.replace("NOPASSWD: ", "")))
    found = look(spec(serving, OPERATOR, sudo=True))["permissions"]
    assert found.verdict is FAILED
    assert found.lines == (asks,)


def test_a_user_who_is_not_root_needs_sudo_to_be_named_in_the_study(serving: Rig) -> None:
    rights = look(spec(serving, OPERATOR))["permissions"]
    assert rights.verdict is FAILED
    assert "sudo = true" in rights.remedy
    assert rights.lines


# ------------------------------------------------------------------ the way in


def key_of(folder: Path) -> Path:
    path = folder / "other"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(path)], check=True)
    return path


def changed(rig: Rig, **changes: object) -> SshLogin:
    return replace(rig.login(), **changes)  # type: ignore[arg-type]


def known(rig: Rig, folder: Path, key: str) -> str:
    path = folder / "known_hosts"
    path.write_text(f"{rig.address} {key}\n" if key else "")
    return str(path)


WAYS_IN: dict[str, tuple[Callable[[Rig, Path], SshLogin], str, str]] = {
    "wrong key": (lambda rig, folder: changed(rig, identity_file=str(key_of(folder))), "login", "key"),
    "wrong user": (lambda rig, _: changed(rig, user="nobody-here"), "login", "nobody-here"),
    "unknown host key": (
        lambda rig, folder: changed(rig, known_hosts=known(rig, folder, "")),
        "host key",
        "SHA256:",
    ),
    "changed host key": (
        lambda rig, folder: changed(
            rig,
            known_hosts=known(rig, folder, " ".join(key_of(folder).with_suffix(".pub").read_text().split()[:2])),
        ),
        "host key",
        "SHA256:",
    ),
    "no host": (lambda rig, _: changed(rig, port=1), "reachable", "1"),
    "no key file": (
        lambda rig, _: changed(rig, identity_file="/nowhere/key"),
        "reachable",
        "/nowhere/key",
    ),
}


@pytest.mark.parametrize("case", sorted(WAYS_IN))
def test_a_login_that_does_not_work_is_a_row_and_everything_after_it_is_not_looked_at(
    rig: Rig, tmp_path: Path, case: str
) -> None:
    login, check, part = WAYS_IN[case]
    found = look(UnitHostSpec(name="gpu01", unit=UNIT, login=login(rig, tmp_path)))
    assert list(failures(found)) == [check]
    assert part in found[check].detail
    assert found["unit"].verdict is UNKNOWN
    assert found["route"].verdict is UNKNOWN


# ------------------------------------------------------------------ the unit


def unit_text(body: str) -> str:
    return f"[Unit]\nDescription=x\n[Service]\n{body}\n"


BAD_UNITS: dict[str, tuple[str, str, str]] = {
    "oneshot": (f"Type=oneshot\nExecStart={COMMAND}", "Type=oneshot", "Type=exec"),
    "forking": (f"Type=forking\nExecStart={COMMAND}", "Type=forking", "Type=exec"),
    "two commands": (f"Type=oneshot\nExecStart=/bin/true\nExecStart={COMMAND}", "Type=oneshot", "ExecStart"),
    "shell": (f"ExecStart=/bin/sh -c 'cd /srv && {COMMAND}'", "shell", "ExecStart="),
    "script": (f"ExecStart={HOME}/start.sh", "without any option", "ExecStart="),
    "container": ("ExecStart=/usr/bin/docker run --rm img", "container", "ExecStart="),
    "half a triple": (
        f"ExecStart={COMMAND} --speculative-algorithm NEXTN --speculative-num-steps 3",
        "speculative",
        "systemctl edit --full",
    ),
    "no fraction": ("ExecStart=/usr/bin/sglang serve --model-path m", "mem-fraction-static", "systemctl edit --full"),
}


@pytest.mark.parametrize("case", sorted(BAD_UNITS))
def test_a_unit_that_cannot_be_tuned_says_what_is_needed(rig: Rig, case: str) -> None:
    body, part, remedy = BAD_UNITS[case]
    rig.write(f"{HOME}/start.sh", "#!/bin/sh\n", mode=0o755)
    rig.install_unit(text=unit_text(body), start=False)
    found = look(spec(rig))
    assert list(failures(found)) == ["command"]
    assert part in found["command"].detail
    assert remedy in found["command"].remedy
    assert found["port"].verdict is UNKNOWN


def test_an_unknown_unit_is_told_the_nearest_name(rig: Rig) -> None:
    rig.install_unit(start=False)
    found = look(spec(rig, unit="sglang-qwem.service"))
    assert list(failures(found)) == ["unit"]
    assert f"did you mean {UNIT}" in found["unit"].remedy


def test_a_template_without_an_instance_is_told_so(rig: Rig) -> None:
    rig.install_unit("eng@.service", start=False)
    found = look(spec(rig, unit="eng@.service"))
    assert list(failures(found)) == ["unit"]
    assert "eng@NAME.service" in found["unit"].remedy


def test_a_masked_unit_is_told_how_to_unmask_it(rig: Rig) -> None:
    rig.install_unit(start=False)
    rig.run("systemctl", "mask", "--runtime", UNIT)
    rig.run("sh", "-c", 'rm /etc/systemd/system/"$1"; ln -s /dev/null /etc/systemd/system/"$1"', "sh", UNIT)
    rig.run("systemctl", "daemon-reload")
    try:
        found = look(spec(rig))
        assert list(failures(found)) == ["unit"]
        assert f"systemctl unmask {UNIT}" in found["unit"].remedy
    finally:
        rig.run("systemctl", "unmask", "--runtime", UNIT)


def test_what_a_crash_would_set_off_and_what_lies_beside_the_unit_is_told(rig: Rig) -> None:
    rig.install_unit("page.service", unit_text("Type=oneshot\nExecStart=/bin/true"), start=False)
    rig.install_unit(
        "proxy.service", "[Unit]\nRequires=" + UNIT + "\n[Service]\nExecStart=/bin/sleep 99\n", start=False
    )
    rig.install_unit(text=sglang_unit().replace("[Unit]", "[Unit]\nOnFailure=page.service"), start=False)
    rig.write(f"/etc/systemd/system/{UNIT}.d/override.conf", "[Service]\nNice=5\n")
    rig.run("systemctl", "daemon-reload", check=True)
    rig.run("systemctl", "start", "proxy.service", check=True)  # loaded, it is known to systemd
    found = look(spec(rig))
    assert found["side effects"].verdict is FAILED
    assert "proxy.service would be stopped" in found["side effects"].detail
    rig.run("systemctl", "stop", "proxy.service", check=True)
    found = look(spec(rig))
    assert found["side effects"].verdict is WARNING
    assert "page.service" in found["side effects"].detail
    assert "override.conf" in found["command"].detail


def test_a_unit_that_was_edited_and_not_reloaded_is_told(rig: Rig) -> None:
    rig.install_unit()  # started: systemd forgets a unit that nobody uses, and reads it anew
    rig.run("sh", "-c", 'sleep 1; echo "# edited" >> /etc/systemd/system/"$1"', "sh", UNIT)
    found = look(spec(rig))
    assert found["unit"].verdict is WARNING
    assert "daemon-reload" in found["unit"].remedy


# ------------------------------------------------------------------ the machine around it


class Prefixed:
    """The same host, with every command inside of another."""

    def __init__(self, inner: HostTransport, prefix: tuple[str, ...]) -> None:
        self._inner = inner
        self._prefix = prefix

    async def run(
        self, argv: Sequence[str], *, stdin: bytes = b"", timeout_s: float = 30.0, repeat: bool = True
    ) -> CommandResult:
        return await self._inner.run((*self._prefix, *argv), stdin=stdin, timeout_s=timeout_s, repeat=repeat)

    async def read_file(self, path: str) -> bytes:
        return await self._inner.read_file(path)

    async def write_file(self, path: str, content: bytes, *, mode: int = 0o600) -> None:
        raise AssertionError(f"doctor writes {path} {len(content)} {mode}")

    async def close(self) -> None:
        await self._inner.close()


def within(rig: Rig, script: str, host: UnitHostSpec) -> dict[str, Finding]:
    """Look at a host every command of which runs in a mount namespace that ``script`` prepared."""

    async def check() -> tuple[Finding, ...]:
        transport = SshTransport(rig.login())
        try:
            inside = Prefixed(transport, ("unshare", "--mount", "sh", "-c", f'{script}\nexec "$@"', "sh"))
            return await check_host(host, AIM, inside)
        finally:
            await transport.close()

    return {finding.check: finding for finding in asyncio.run(check())}


def test_a_host_without_systemd_is_told_of_process_hosts(rig: Rig) -> None:
    found = within(rig, "mount -t tmpfs t /run/systemd", spec(rig))
    assert list(failures(found)) == ["systemd"]
    assert 'kind = "process"' in found["systemd"].remedy
    assert found["unit"].verdict is UNKNOWN
    assert found["disk"].verdict is OK


def test_a_host_without_nvidia_smi_is_told_to_install_it(serving: Rig) -> None:
    found = within(serving, "mount -t tmpfs t /usr/local/bin", spec(serving))
    assert list(failures(found)) == ["nvidia-smi"]
    assert "install" in found["nvidia-smi"].remedy
    assert found["GPU memory"].verdict is UNKNOWN


FULL = """
mount --rbind /run /mnt && mount -t tmpfs -o size=64k full /run && mkdir /run/systemd /run/dbus &&
mount --rbind /mnt/systemd /run/systemd && mount --rbind /mnt/dbus /run/dbus || exit 99
head -c 64k /dev/zero > /run/file 2>/dev/null
"""


def test_a_host_whose_run_is_full_is_told_what_to_free(rig: Rig) -> None:
    rig.install_unit(start=False)
    found = within(rig, FULL, spec(rig))
    assert list(failures(found)) == ["/run writable"]
    assert "full" in found["/run writable"].detail
    assert "/run" in found["/run writable"].remedy


def test_gpus_that_are_not_there_are_told(rig: Rig) -> None:
    rig.install_unit(start=False)
    found = look(spec(rig, care=HostCare(gpu_indices=(0, 7))))
    assert list(failures(found)) == ["nvidia-smi"]
    assert "[7]" in found["nvidia-smi"].detail


def test_a_foreign_server_is_named_on_the_gpus_and_on_the_port(rig: Rig) -> None:
    rig.install_unit(start=False)
    rig.install_unit("other.service", sglang_unit())
    wait_serving(rig)
    found = look(spec(rig))
    assert list(failures(found)) == ["port"]
    assert "other.service" in found["port"].detail
    assert found["GPU memory"].verdict is WARNING
    assert "other.service" in found["GPU memory"].detail


def test_a_server_on_loopback_wants_a_tunnel_and_is_measured_through_it(rig: Rig) -> None:
    loopback = f"Environment={ADDRESS}=127.0.0.1"  # where the simulated server really listens
    rig.install_unit(text=sglang_unit(extra=loopback).replace("--host 0.0.0.0", "--host 127.0.0.1"))
    listening = ("ss", "-Hltn", f"sport = :{PORT}")
    wait_until(lambda: str(PORT) in rig.run(*listening).stdout, within_s=60.0, what=UNIT)
    found = look(spec(rig))
    assert list(failures(found)) == ["address"]
    assert "tunnel = true" in found["address"].remedy
    found = look(spec(rig, reach=Reach(tunnel=True)))
    assert failures(found) == {}
    assert "ssh -L: round trip" in found["route"].detail
    assert "chunks/s" in found["route"].detail
    assert "0.5.23" in found["engine version"].detail


def test_a_host_that_somebody_else_tunes_is_refused_with_the_owners_name(rig: Rig) -> None:
    rig.install_unit(start=False)

    async def take() -> None:
        transport = SshTransport(rig.login())
        try:
            folder = LeaseFolder(transport, lease_folder(UNIT), place=UNIT, sudo=False)
            await folder.take(replace(ME, owner="bob@there", study="night", directory="/studies/night"), 300.0)
        finally:
            await transport.close()

    asyncio.run(take())
    found = look(spec(rig))
    assert list(failures(found)) == ["lease"]
    assert "bob@there" in found["lease"].detail


def test_keys_of_the_server_are_used_and_never_shown(rig: Rig) -> None:
    rig.write("/etc/engine.env", f"ENGINE_KEY={KEY}\n", mode=0o600)
    text = sglang_unit(extra="EnvironmentFile=/etc/engine.env")
    rig.install_unit(text=text.replace("--enable-metrics", "--enable-metrics --api-key ${ENGINE_KEY}"))
    wait_serving(rig)
    findings = look(spec(rig))
    assert failures(findings) == {}
    assert "0.5.23" in findings["engine version"].detail, "the key opens /server_info"
    assert KEY not in repr(findings)


def test_a_variable_that_the_units_file_wins_over_is_told_before_anything_is_stopped(rig: Rig) -> None:
    rig.write("/etc/engine.env", "NCCL_DEBUG=INFO\n")
    rig.install_unit(text=sglang_unit(extra="EnvironmentFile=/etc/engine.env"), start=False)
    found = look(spec(rig), replace(AIM, env=("NCCL_DEBUG",)))
    assert failures(found) == {
        "command": f"in unit {UNIT}, NCCL_DEBUG comes from an EnvironmentFile=, which wins over what a trial sets"
    }
    assert "[server.env]" in found["command"].remedy
    with pytest.raises(UsageError, match=r"host gpu01: in unit .* NCCL_DEBUG comes from an EnvironmentFile="):
        read_base((spec(rig),), lambda _: None, env=("NCCL_DEBUG",))
    read_base((spec(rig),), lambda _: None, env=("NCCL",))


class Failing(SshTransport):
    """A host that is lost after some commands."""

    left = 0

    async def run(
        self, argv: Sequence[str], *, stdin: bytes = b"", timeout_s: float = 30.0, repeat: bool = True
    ) -> CommandResult:
        if self.left == 0:
            raise TransportFault("gpu01: lost")
        self.left -= 1
        return await super().run(argv, stdin=stdin, timeout_s=timeout_s, repeat=repeat)


@pytest.mark.parametrize("commands", [1, 2, 5, 9, 14])
def test_a_host_that_is_lost_in_the_middle_still_has_every_row(rig: Rig, commands: int) -> None:
    rig.install_unit(start=False)

    async def check() -> tuple[Finding, ...]:
        transport = Failing(rig.login())
        transport.left = commands
        try:
            return await check_host(spec(rig), AIM, transport)
        finally:
            await transport.close()

    findings = asyncio.run(check())
    assert first_failed(findings) == next(finding for finding in findings if finding.check == "connection")
    assert {finding.check for finding in findings} == {*CHECKS, *EVERY, "connection"}
    assert len(findings) == len({finding.check for finding in findings})


# ------------------------------------------------------------------ without systemd


def test_a_process_host_over_ssh_is_ready_or_says_what_is_missing(rig: Rig) -> None:
    base = Command(argv=("sglang", *COMMAND.split()[1:]))
    host = ProcessHostSpec(name="gpu01", state_dir="/tmp/tuner", login=rig.login(OPERATOR))
    found = look(host, replace(AIM, base=base))
    assert list(failures(found)) == ["program"]
    found = look(host, replace(AIM, base=replace(base, argv=(f"{HOME}/bin/sglang", *base.argv[1:]))))
    assert failures(found) == {}
    found = look(replace(host, state_dir="/etc/tuner"), replace(AIM, base=base))
    assert set(failures(found)) == {"state_dir", "program"}


def test_a_server_that_a_killed_run_left_is_ours_and_nobody_elses(rig: Rig) -> None:
    host = ProcessHostSpec(name="gpu01", state_dir="/tmp/tuner", login=rig.login())
    line = next(line for line in sglang_unit().splitlines() if line.startswith("ExecStart="))
    base = Command(argv=tuple(line.removeprefix("ExecStart=").split()))
    aim = replace(AIM, base=base)

    async def scenario() -> None:
        transport = SshTransport(rig.login())
        clock = SystemClock()
        tenancy = ShellTenancy(transport, host.state_dir, ME, LeaseTerms(), clock)
        service = ShellServiceManager(transport, host.state_dir, clock, lease=tenancy.lease_folder)
        try:
            await tenancy.enter()
            await service.start(base)
            await asyncio.to_thread(wait_serving, rig)
            found = await asyncio.to_thread(look, host, replace(aim, asking=replace(ME, pid=4712)))
            assert failures(found) == {}
            assert found["lease"].detail == "/tmp/tuner is leased by a run of this study, pid 4711"
            assert "an earlier run of ours left" in found["port"].detail
            other = replace(ME, owner="bob@there", study="night", directory="/studies/night")
            found = await asyncio.to_thread(look, host, replace(aim, asking=other))
            assert set(failures(found)) == {"lease", "port"}
            assert "me@here" in found["lease"].detail
        finally:
            await service.stop(grace_s=5.0)
            await tenancy.leave()
            await transport.close()

    asyncio.run(scenario())
