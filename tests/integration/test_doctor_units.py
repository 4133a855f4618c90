"""doctor at a unit that cannot be tuned, or that not only tuner touches."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tuner.errors import PreflightError, UsageError
from tuner.model.finding import RowVerdict
from tuner.testing.doctored import AIM, COMMAND, failures, look, spec
from tuner.testing.rig import HOME, UNIT, Rig, sglang_unit
from tuner.wiring.units import read_base


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
    assert found["port"].verdict is RowVerdict.UNKNOWN
    if part.startswith("Type="):
        with pytest.raises(UsageError, match=rf"unit {UNIT} .*{part}"):
            read_base((spec(rig),), lambda _: None)


def test_a_unit_that_systemd_itself_refuses_is_told_and_no_run_takes_it(rig: Rig) -> None:
    rig.install_unit(text=unit_text(f"ExecStart=/bin/true\nExecStart={COMMAND}"), start=False)
    found = look(spec(rig))
    assert list(failures(found)) == ["unit"]
    assert "cannot be loaded" in found["unit"].detail
    with pytest.raises(PreflightError, match=rf"host gpu01: {UNIT} cannot be loaded"):
        read_base((spec(rig),), lambda _: None)


def test_an_unknown_unit_is_told_the_nearest_name(rig: Rig) -> None:
    rig.install_unit(start=False)
    found = look(spec(rig, unit="sglang-qwem.service"))
    assert list(failures(found)) == ["unit"]
    assert f"did you mean {UNIT}" in found["unit"].remedy
    assert found["GPU memory"].detail == "not looked at: the unit is not there"  # whose it is, nobody can say
    with pytest.raises(PreflightError, match=rf"host gpu01: this host has no unit .*did you mean {UNIT}"):
        read_base((spec(rig, unit="sglang-qwem.service"),), lambda _: None)


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
    assert found["side effects"].verdict is RowVerdict.FAILED
    assert "proxy.service would be stopped" in found["side effects"].detail
    rig.run("systemctl", "stop", "proxy.service", check=True)
    found = look(spec(rig))
    assert found["side effects"].verdict is RowVerdict.WARNING
    assert "page.service" in found["side effects"].detail
    assert "override.conf" in found["command"].detail


def test_a_unit_that_was_edited_and_not_reloaded_is_told(rig: Rig) -> None:
    rig.install_unit()  # started: systemd forgets a unit that nobody uses, and reads it anew
    rig.run("sh", "-c", 'sleep 1; echo "# edited" >> /etc/systemd/system/"$1"', "sh", UNIT)
    found = look(spec(rig))
    assert found["unit"].verdict is RowVerdict.WARNING
    assert "daemon-reload" in found["unit"].remedy


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
