"""A unit as it was read: variables, refusals, and what systemd printed."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Sequence
from dataclasses import replace

import pytest

from tuner.errors import HostFault, PreflightError, UsageError
from tuner.hosts.systemd.expansion import expand, names_in, parse_environment_file
from tuner.hosts.systemd.paths import drop_in_path, object_path, shown_words, slice_cgroup
from tuner.hosts.systemd.root import Root
from tuner.hosts.systemd.unit import ExecLine, Unit, parse_unit, read_unit
from tuner.model.host import CommandResult
from tuner.testing.scripted_transport import ScriptedTransport, said

NAME = "sglang-qwen.service"
ARGV = ("/usr/bin/python3", "-m", "sglang.launch_server", "--port", "30000")


def unit(**changes: object) -> Unit:
    made = Unit(
        name=NAME,
        id=NAME,
        version="252",
        load_state="loaded",
        active_state="active",
        sub_state="running",
        unit_file_state="enabled",
        fragment_path=f"/etc/systemd/system/{NAME}",
        drop_in_paths=(),
        need_daemon_reload=False,
        type="simple",
        user="",
        exec_start=(ExecLine(path=ARGV[0], argv=ARGV),),
        exec_start_pre=0,
    )
    return replace(made, **changes)  # type: ignore[arg-type]


def running(*argv: str, flags: tuple[str, ...] = (), **changes: object) -> Unit:
    return unit(exec_start=(ExecLine(path=argv[0], argv=argv, flags=flags),), **changes)


# ---------------------------------------------------------------------------- variables


@pytest.mark.parametrize(
    ("word", "words"),
    [
        ("plain", ("plain",)),
        ("$TWO", ("one", "two")),
        ("${TWO}", ("one two",)),
        ("a${TWO}b", ("aone twob",)),
        ("a$TWO", ("a$TWO",)),
        ("$NONE", ()),
        ("${NONE}", ("",)),
        ("a${NONE}b", ("ab",)),
        ("$$TWO", ("$TWO",)),
        ("$${TWO}", ("${TWO}",)),
        ("100$", ("100$",)),
        ("${TWO", ("${TWO",)),
        ("$QUOTED", ("a b", "c", "")),
    ],
)
def test_variables_become_what_systemd_makes_of_them(word: str, words: tuple[str, ...]) -> None:
    assert expand(word, {"TWO": "one  two ", "QUOTED": "'a b' c \"\""} | {"TWO": "one two"}) == words


def test_the_names_a_word_refers_to_are_found() -> None:
    assert names_in("$A") == ("A",)
    assert names_in("x${A}y${B}") == ("A", "B")
    assert names_in("$$A$B") == ()


def test_an_environment_file_is_read_as_systemd_reads_it() -> None:
    text = (
        '# comment\n; comment\n\nPLAIN=a b  \n  INDENTED = x\nSINGLE=\'a $b\'\nDOUBLE="a \\"b\\" \\n"\n'
        "JOINED=a\\\nb\nTWO='a'\"b\"\nINNER=a'b'\nEMPTY=\nexport NOT=this\nno assignment\nLAST=é"
    )
    assert dict(parse_environment_file(text)) == {
        "PLAIN": "a b",
        "INDENTED": "x",
        "SINGLE": "a $b",
        "DOUBLE": 'a "b" \\n',
        "JOINED": "ab",
        "TWO": "ab",
        "INNER": "a'b'",
        "EMPTY": "",
        "LAST": "é",
    }


def test_files_win_over_the_unit_and_the_unit_over_its_surroundings() -> None:
    found = unit(
        surroundings=(("A", "manager"), ("B", "manager"), ("C", "manager"), ("D", "x"), ("E", "x")),
        environment=(("A", "unit"), ("B", "unit")),
        file_environment=(("A", "file"), ("A", "later")),
        unset=("D", "E=y"),
    ).variables()
    assert found == {"A": "later", "B": "unit", "C": "manager", "E": "x"}


# ---------------------------------------------------------------------------- the command


def test_the_command_is_literal_with_every_variable_expanded() -> None:
    made = running(
        "/usr/bin/sglang",
        "serve",
        "--api-key",
        "${KEY}",
        "$EXTRA",
        "$$5",
        environment=(("KEY", "a b"), ("EXTRA", "--port 1")),
    )
    command = made.command()
    assert command.argv == ("/usr/bin/sglang", "serve", "--api-key", "a b", "--port", "1", "$5")
    assert command.env == ()


def test_a_line_with_the_colon_prefix_is_not_expanded() -> None:
    assert running("/bin/server", "--key", "${KEY}", flags=("no-env-expand",)).command().argv[-1] == "${KEY}"


def test_the_program_is_the_path_whatever_name_it_is_given() -> None:
    named = unit(exec_start=(ExecLine(path="/opt/bin/python3", argv=("engine", "--port", "1")),))
    assert named.command().argv == ("/opt/bin/python3", "--port", "1")


@pytest.mark.parametrize(
    ("broken", "says"),
    [
        (unit(load_state="not-found", exec_start=()), "is not on this host"),
        (unit(load_state="masked", exec_start=()), "systemctl unmask"),
        (unit(load_state="bad-setting"), "cannot be loaded"),
        (unit(unit_file_state="transient"), "the first stop would delete it"),
        (unit(name="sglang.socket", id="sglang.socket"), "is no service"),
        (unit(id="other.service"), "is another name of other.service"),
        (unit(type="oneshot"), "Type=oneshot"),
        (unit(type="forking"), "Type=forking"),
        (unit(type="dbus"), "Type=dbus"),
        (unit(refuse_manual_stop=True), "RefuseManualStop"),
        (unit(exec_start=()), "no ExecStart"),
        (unit(exec_start=(ExecLine(path="/a", argv=("/a",)), ExecLine(path="/b", argv=("/b",)))), "2 ExecStart"),
        (running("/bin/bash", "-c", "exec python3 -m sglang.launch_server --port 1"), "runs a shell (/bin/bash)"),
        (running("/usr/bin/env", "bash", "/opt/run.sh", "--port", "1"), "runs a shell (bash)"),
        (running("/usr/bin/env", "-S", "python3 -m sglang"), "env -S"),
        (running("/usr/bin/docker", "run", "--rm", "lmsysorg/sglang"), "runs a container (docker)"),
        (running("/opt/serve.sh"), "without any option"),
        (running("/bin/server", "--port", "1", flags=("via-shell",)), "through a shell"),
    ],
)
def test_a_unit_that_cannot_be_tuned_says_why_in_one_line(broken: Unit, says: str) -> None:
    with pytest.raises(UsageError) as caught:
        broken.command()
    assert says in str(caught.value)
    assert str(caught.value).startswith("unit ")
    assert "\n" not in str(caught.value)


def test_a_program_behind_env_with_variables_is_no_wrapper() -> None:
    assert running("/usr/bin/env", "A=1", "python3", "-m", "sglang").command().argv[-2:] == ("-m", "sglang")


def test_a_variable_out_of_a_file_that_cannot_be_read_is_asked_for() -> None:
    hidden = running("/bin/server", "--key", "${KEY}", unreadable_files=("/etc/sglang.env",))
    with pytest.raises(UsageError, match=r"KEY.*/etc/sglang\.env cannot be read"):
        hidden.command()
    assert running("/bin/server", "--port", "1", unreadable_files=("/etc/sglang.env",)).command()


def test_neither_environment_is_shown_by_accident() -> None:
    assert "secret" not in repr(unit(environment=(("KEY", "secret"),), file_environment=(("KEY", "secret"),)))


@pytest.mark.parametrize(
    ("changes", "runs"),
    [
        ({"active_state": "active"}, True),
        ({"active_state": "refreshing"}, True),
        ({"active_state": "activating", "sub_state": "auto-restart"}, True),
        ({"active_state": "inactive"}, False),
        ({"active_state": "failed"}, False),
        ({"active_state": "inactive", "job": "start"}, True),
        ({"active_state": "failed", "job": "restart"}, True),
        ({"active_state": "deactivating", "job": "restart"}, True),
        ({"active_state": "deactivating", "job": "stop", "restart": "always"}, False),
        ({"active_state": "deactivating", "restart": "always"}, True),
        ({"active_state": "deactivating", "restart": "no"}, False),
        ({"active_state": "inactive", "unit_file_state": "enabled", "system_state": "starting"}, True),
        ({"active_state": "inactive", "unit_file_state": "disabled", "system_state": "starting"}, False),
        ({"active_state": "inactive", "unit_file_state": "enabled", "system_state": "running"}, False),
    ],
)
def test_a_unit_between_two_lives_runs(changes: dict[str, object], runs: bool) -> None:
    assert unit(**changes).is_active is runs


# ---------------------------------------------------------------------------- reading


def printed(version: str = "252.39-1~deb12u2", files: Sequence[object] = (), after: str = "") -> str:
    shown = {
        "Id": NAME,
        "LoadState": "loaded",
        "ActiveState": "active",
        "SubState": "running",
        "DropInPaths": "/etc/a.conf /run/b.conf",
        "Type": "simple",
        "MainPID": "42",
        "InvocationID": "abc",
        "NeedDaemonReload": "yes",
    }
    lines = [["/usr/bin/sglang", ["sglang", "a b", "${KEY}"], ["ignore-failure"], 0, 0, 0, 0, 0, 0, 0]]
    answers = (version, ["PATH=/bin"], lines, [], ["KEY=a=b"], list(files), ["GONE"])
    json_lines = [json.dumps({"type": "x", "data": answer}) for answer in answers]
    return "".join(f"{name}={value}\n" for name, value in shown.items()) + "\n" + "\n".join([*json_lines, after]) + "\n"


def test_what_systemd_prints_is_read() -> None:
    found = parse_unit(NAME, printed(after="bob:x:1000:1000::/home/bob:/bin/sh"))
    assert found.exec_start == (
        ExecLine(path="/usr/bin/sglang", argv=("sglang", "a b", "${KEY}"), flags=("ignore-failure",)),
    )
    assert (found.main_pid, found.invocation_id, found.need_daemon_reload) == (42, "abc", True)
    assert found.drop_in_paths == ("/etc/a.conf", "/run/b.conf")
    assert found.variables() == {
        "PATH": "/bin",
        "KEY": "a=b",
        "HOME": "/home/bob",
        "LOGNAME": "bob",
        "USER": "bob",
        "SHELL": "/bin/sh",
    }


def test_a_systemd_that_is_too_old_is_named_with_the_version_needed() -> None:
    with pytest.raises(PreflightError, match="systemd 239 on this host is too old: 244"):
        parse_unit(NAME, printed(version="239"))


def test_nonsense_is_a_fault_and_shown() -> None:
    with pytest.raises(HostFault, match="cannot be read"):
        parse_unit(NAME, "nonsense")


def unit_and_files(unit: CommandResult, files: dict[str, str]) -> ScriptedTransport:
    """Answer the question for the unit, and ``cat`` from a set of files; the rest is missing."""

    def answer(argv: tuple[str, ...]) -> CommandResult:
        if argv[0] == "sh":
            return unit
        if argv[0] == "cat" and argv[1] in files:
            return said(files[argv[1]])
        return said(stderr="No such file or directory", status=1)

    return ScriptedTransport(answer)


def test_environment_files_are_read_in_order_and_missing_ones_named_unless_optional() -> None:
    names = (("/etc/a.env", False), ("/etc/b.env", False), ("/etc/none.env", True), ("/etc/gone.env", False))
    first = base64.b64encode(b"A=1\nB=1\n").decode()
    lines = f"read\t/etc/a.env\t{first}\nhidden\t/etc/b.env\t\nmissing\t/etc/none.env\t\nmissing\t/etc/gone.env\t"
    answer = CommandResult(status=0, stdout=printed(files=[list(name) for name in names], after=lines), stderr="")
    transport = unit_and_files(answer, {"/etc/b.env": "B=2\n"})
    found = asyncio.run(read_unit(transport, NAME, Root(transport, sudo=False)))
    assert found.file_environment == (("A", "1"), ("B", "1"), ("B", "2"))
    assert found.unreadable_files == ("/etc/gone.env",)
    assert set(transport.inputs) == {b""}
    without_root = asyncio.run(read_unit(transport, NAME))
    assert without_root.unreadable_files == ("/etc/b.env", "/etc/gone.env")


@pytest.mark.parametrize(
    ("status", "stderr", "error", "says"),
    [
        (127, "sh: 1: systemctl: not found", PreflightError, "does not run systemd"),
        (1, "System has not been booted with systemd as init system (PID 1). Can't operate.", PreflightError, "does"),
        (1, "Unknown interface or property ExecStartEx.", PreflightError, "too old"),
        (1, "Connection timed out", HostFault, "Connection timed out"),
    ],
)
def test_a_host_without_a_fitting_systemd_is_told_from_one_that_fails(
    status: int, stderr: str, error: type[Exception], says: str
) -> None:
    transport = unit_and_files(CommandResult(status=status, stdout="", stderr=stderr), {})
    with pytest.raises(error, match=says):
        asyncio.run(read_unit(transport, NAME))


# ---------------------------------------------------------------------------- places


def test_things_of_a_unit_lie_where_systemd_puts_them() -> None:
    assert object_path("a@b-1.service") == "/org/freedesktop/systemd1/unit/a_40b_2d1_2eservice"
    assert object_path("1é.service") == "/org/freedesktop/systemd1/unit/_31_c3_a9_2eservice"
    assert drop_in_path(NAME) == f"/run/systemd/system/{NAME}.d/zzzz-tuner.conf"
    assert slice_cgroup("system-demo.slice") == "/system.slice/system-demo.slice"
    assert slice_cgroup("-.slice") == ""
    assert shown_words('/a.conf "/b\\\\x2d c.conf"') == ("/a.conf", "/b\\x2d c.conf")
    assert shown_words("/it's/a.conf /b") == ("/it's/a.conf", "/b")
