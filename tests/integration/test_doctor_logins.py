"""doctor at a host that cannot be entered, or is lost while it looks."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from tuner.errors import TransportFault
from tuner.hosts.checks.login import CHECKS
from tuner.hosts.checks.unit_host import EVERY
from tuner.hosts.ssh.transport import SshTransport
from tuner.model.finding import Finding, RowVerdict
from tuner.model.host import CommandResult
from tuner.model.study import SshLogin, UnitHostSpec
from tuner.testing.doctored import AIM, failures, look, spec
from tuner.testing.rig import UNIT, Rig
from tuner.wiring.doctor import check_host, first_failed


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
    if case == "changed host key":
        assert "ssh-keygen -R" in found[check].remedy
        assert "--accept-new-host-key" not in found[check].remedy
    assert found["unit"].verdict is RowVerdict.UNKNOWN
    assert found["route"].verdict is RowVerdict.UNKNOWN


def test_a_new_host_key_is_shown_and_not_taken_where_the_login_fails(rig: Rig, tmp_path: Path) -> None:
    login = changed(rig, known_hosts=known(rig, tmp_path, ""), user="nobody-here", accept_new_host_key=True)
    found = look(UnitHostSpec(name="gpu01", unit=UNIT, login=login))
    assert list(failures(found)) == ["login"]
    assert found["host key"].verdict is RowVerdict.WARNING
    assert "SHA256:" in found["host key"].detail
    assert (tmp_path / "known_hosts").read_text() == ""


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
