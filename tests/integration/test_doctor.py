"""doctor against a real host: what it says, what it advises, and that it changes nothing."""

from __future__ import annotations

import pytest

from tuner.model.finding import RowVerdict
from tuner.testing.doctored import failures, look, spec
from tuner.testing.host_project import let_everybody
from tuner.testing.rig import OPERATOR, PORT, UNIT, Rig
from tuner.testing.unit_on_host import UnitOnHost
from tuner.wiring.doctor import first_failed

SNAPSHOT = """
find /etc /srv /opt /tmp /var/tmp /var/lib/systemd /run/systemd/system /run/systemd/transient /run/tuner \
    -mindepth 1 -printf '%p %m %U %s %T@ %C@\\n' 2>/dev/null | grep -v /run/systemd/transient/session- | sort
systemctl list-unit-files --no-legend --no-pager
systemctl list-units --all --no-legend --no-pager --plain |
    while read -r name load active sub _; do printf '%s %s %s %s\\n' "$name" "$load" "$active" "$sub"; done |
    grep -v -e '^session-' -e '^user' -e '^run-user-'
systemctl show "$1" -p ActiveState,MainPID,InvocationID,NRestarts,DropInPaths,FragmentPath,UnitFileState
"""


@pytest.fixture
def serving(rig: Rig) -> Rig:
    rig.install_unit()
    UnitOnHost(rig).wait_until_it_answers()
    let_everybody(rig)
    return rig


# ------------------------------------------------------------------ a host as it should be


def test_a_host_that_serves_is_ready_and_every_row_says_what_was_seen(serving: Rig) -> None:
    found = look(spec(serving))
    assert failures(found) == {}
    assert first_failed(tuple(found.values())) is None
    assert {check for check, finding in found.items() if finding.verdict is RowVerdict.UNKNOWN} == set()
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
    assert rights.verdict is RowVerdict.FAILED
    assert "/etc/sudoers.d/tuner" in rights.remedy
    assert "visudo -cf" in rights.remedy
    assert all(line.startswith(f"{OPERATOR} ALL=(root) NOPASSWD: /") for line in rights.lines)
    assert found["journal"].verdict is RowVerdict.FAILED
    assert f"usermod -a -G systemd-journal {OPERATOR}" in found["journal"].remedy

    serving.grant(rights.lines)  # as they are; visudo holds them
    serving.run("usermod", "-a", "-G", "systemd-journal", OPERATOR, check=True)
    try:
        found = look(spec(serving, OPERATOR, sudo=True))
    finally:
        serving.run("gpasswd", "-d", OPERATOR, "systemd-journal", check=True)
    assert failures(found) == {}
    assert found["permissions"].verdict is RowVerdict.OK


def test_a_line_that_was_forgotten_is_the_one_that_is_printed(serving: Rig) -> None:
    lines = look(spec(serving, OPERATOR, sudo=True))["permissions"].lines
    serving.grant(lines[1:])
    assert look(spec(serving, OPERATOR, sudo=True))["permissions"].lines == lines[:1]


def test_a_right_that_wants_a_password_is_none(serving: Rig) -> None:
    lines = look(spec(serving, OPERATOR, sudo=True))["permissions"].lines
    asks = next(line for line in lines if "daemon-reload" in line)
    serving.grant((*(line for line in lines if line != asks), asks.replace("NOPASSWD: ", "")))
    found = look(spec(serving, OPERATOR, sudo=True))["permissions"]
    assert found.verdict is RowVerdict.FAILED
    assert found.lines == (asks,)


def test_a_user_who_is_not_root_needs_sudo_to_be_named_in_the_study(serving: Rig) -> None:
    rights = look(spec(serving, OPERATOR))["permissions"]
    assert rights.verdict is RowVerdict.FAILED
    assert "sudo = true" in rights.remedy
    assert rights.lines
