"""doctor at a machine that lacks something, or on which somebody else is."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

from tuner.hosts.ssh.transport import SshTransport
from tuner.hosts.systemd.lease import LeaseFolder
from tuner.hosts.systemd.tenancy import lease_folder
from tuner.model.finding import Finding, RowVerdict
from tuner.model.host import CommandResult
from tuner.model.study import HostCare, Reach, UnitHostSpec
from tuner.ports import HostTransport
from tuner.simulator.host import ADDRESS
from tuner.testing.doctored import AIM, ME, failures, look, spec
from tuner.testing.rig import PORT, UNIT, Rig, sglang_unit
from tuner.testing.simulated_host import wait_until
from tuner.testing.unit_on_host import UnitOnHost
from tuner.wiring.doctor import check_host

KEY = "sk-planted-secret"


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
    assert found["unit"].verdict is RowVerdict.UNKNOWN
    assert found["disk"].verdict is RowVerdict.OK


def test_a_host_without_nvidia_smi_is_told_to_install_it(rig: Rig) -> None:
    rig.install_unit()
    found = within(rig, "mount -t tmpfs t /usr/local/bin", spec(rig))
    assert list(failures(found)) == ["nvidia-smi"]
    assert "install" in found["nvidia-smi"].remedy
    assert found["GPU memory"].verdict is RowVerdict.UNKNOWN


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
    UnitOnHost(rig).wait_until_it_answers()
    found = look(spec(rig))
    assert list(failures(found)) == ["port"]
    assert "other.service" in found["port"].detail
    assert found["GPU memory"].verdict is RowVerdict.WARNING
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
    UnitOnHost(rig).wait_until_it_answers()
    findings = look(spec(rig))
    assert failures(findings) == {}
    assert "0.5.23" in findings["engine version"].detail, "the key opens /server_info"
    assert KEY not in repr(findings)
