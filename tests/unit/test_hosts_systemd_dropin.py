"""The text of a trial's drop-in."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tuner.errors import UsageError
from tuner.hosts.systemd.dropin import ServiceTerms, drop_in, exec_start
from tuner.hosts.systemd.unit import ExecLine, Unit
from tuner.model.trial import Command

BASE = Unit(
    name="a.service",
    id="a.service",
    version="252",
    load_state="loaded",
    active_state="active",
    sub_state="running",
    unit_file_state="enabled",
    fragment_path="/etc/systemd/system/a.service",
    drop_in_paths=(),
    need_daemon_reload=False,
    type="simple",
    user="",
    exec_start=(),
    exec_start_pre=0,
    environment=(("KEY", "sk-secret"), ("EXTRA", "--tp 4"), ("NONE", "")),
)


def base(*argv: str, path: str | None = None, flags: tuple[str, ...] = ()) -> Unit:
    return replace(BASE, exec_start=(ExecLine(path=path or argv[0], argv=argv, flags=flags),))


def text(unit: Unit, *argv: str) -> str:
    return exec_start(unit, Command(argv=argv)).text


def test_only_what_the_trial_changed_is_changed_and_variables_stay_variables() -> None:
    unit = base("/bin/server", "--api-key", "${KEY}", "$EXTRA", "--steps", "3", "--fraction", "0.8")
    changed = text(
        unit, "/bin/server", "--api-key", "sk-secret", "--tp", "4", "--steps", "10", "--fraction", "0.8", "--new", "a b"
    )
    assert changed == '/bin/server --api-key "${KEY}" "$EXTRA" --steps 10 --fraction 0.8 --new "a b"'


def test_the_units_own_command_is_written_as_the_unit_has_it() -> None:
    unit = base("/bin/server", "--api-key=${KEY}", "$EXTRA", "$NONE", "--json", '{"a": "$$5"}')
    line = exec_start(unit, unit.command())
    assert line.text == '/bin/server "--api-key=${KEY}" "$EXTRA" --json "{\\"a\\": \\"$$5\\"}"'
    # $NONE passes nothing, and is left out.
    assert line.held.argv == ("/bin/server", "--api-key=${KEY}", "$EXTRA", "--json", '{"a": "$$5"}')


def test_a_variable_of_which_a_part_was_changed_becomes_literal() -> None:
    assert text(base("/bin/server", "$EXTRA"), "/bin/server", "--tp", "8") == "/bin/server --tp 8"


def test_a_line_that_systemd_does_not_expand_is_written_literally() -> None:
    unit = base("/bin/server", "--key", "${KEY}", flags=("no-env-expand",))
    assert text(unit, *unit.command().argv) == '/bin/server --key "$${KEY}"'


@pytest.mark.parametrize(
    ("flags", "start"),
    [
        (("ignore-failure",), "/bin/server"),
        (("privileged",), "+/bin/server"),
        (("ignore-failure", "no-setuid"), '"!/bin/server"'),
        (("ambient",), '"!!/bin/server"'),
    ],
)
def test_prefixes_of_privilege_stay_and_the_one_that_hides_failures_goes(flags: tuple[str, ...], start: str) -> None:
    line = exec_start(base("/bin/server", "--a", flags=flags), Command(argv=("/bin/server", "--a")))
    assert line.text == f"{start} --a"
    assert line.held.flags == tuple(flag for flag in flags if flag != "ignore-failure")


def test_a_name_other_than_the_path_is_kept() -> None:
    unit = base("engine", "--a", path="/opt/bin/python3")
    line = exec_start(unit, Command(argv=("/opt/bin/python3", "--b")))
    assert line.text == "@/opt/bin/python3 engine --b"
    assert line.held == ExecLine(path="/opt/bin/python3", argv=("engine", "--b"))


def test_a_crash_shows_and_no_limit_of_the_owners_hides_it() -> None:
    command = Command(argv=("/bin/server", "--a"), env=(("DEBUG", "a b"),))
    written = drop_in(
        exec_start(base("/bin/server"), command), command, ServiceTerms(stop_timeout_s=90.0), token="f00d"
    )
    lines = written.splitlines()
    unit_part, service_part = lines[: lines.index("[Service]")], lines[lines.index("[Service]") :]
    assert {"StartLimitIntervalSec=0", "StartLimitAction=none", "FailureAction=none"} <= set(unit_part)
    wanted = {"Type=exec", "Restart=no", "TimeoutStopSec=90.000", "KillMode=control-group", "SendSIGKILL=yes"}
    wanted |= {"SuccessExitStatus=", "LogRateLimitIntervalSec=0", "StandardOutput=journal", 'Environment="DEBUG=a b"'}
    assert wanted <= set(service_part)
    # The reset stands directly before our own line: it clears every other.
    assert lines[-2:] == ["ExecStart=", "ExecStart=/bin/server --a"]


def test_a_command_that_cannot_be_written_is_refused() -> None:
    with pytest.raises(UsageError, match="NUL"):
        exec_start(base("/bin/server"), Command(argv=("/bin/server", "a\0b")))
    command = Command(argv=("/bin/server",), env=(("A B", "x"),))
    with pytest.raises(UsageError, match="environment variable"):
        drop_in(exec_start(base("/bin/server"), command), command, ServiceTerms(), token="f00d")


def test_it_says_whose_it_is_and_keeps_systemds_own_words_out_of_the_log() -> None:
    command = Command(argv=("/bin/server",))
    lines = drop_in(exec_start(base("/bin/server"), command), command, ServiceTerms(), token="f00d").splitlines()
    assert "Documentation=file:/run/tuner/trial-f00d" in lines
    assert {"LogLevelMax=info", "SyslogLevel=info", "SyslogLevelPrefix=no"} <= set(lines)
