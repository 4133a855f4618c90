"""What one look at a unit means, and what runs as root for it."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from tuner.errors import HostFault, UsageError
from tuner.hosts.systemd.look import Look, parse_look
from tuner.hosts.systemd.root import Root, commands, replace_commands, sudoers_lines
from tuner.model.host import Activity, CommandResult
from tuner.model.trial import ServiceIdentity
from tuner.testing.scripted_transport import ScriptedTransport, said

UNIT = "a.service"
SHOWN = """\
b00t
LoadState=loaded
ActiveState=active
SubState=running
Result=success
InvocationID=abc
MainPID=7
ExecMainPID=7
ExecMainCode=0
ExecMainStatus=0
NRestarts=0
Restart=no
DropInPaths=/etc/x.conf /run/systemd/system/a.service.d/zzzz-tuner.conf
ControlGroup=/system.slice/a.service
Slice=system.slice
Job=0
"""


def look(**changes: object) -> Look:
    made = parse_look(UNIT, CommandResult(status=0, stdout=SHOWN, stderr=""))
    return replace(made, **changes)  # type: ignore[arg-type]


def test_a_look_is_read() -> None:
    seen = look()
    assert seen.boot_id == "b00t"
    assert seen.identity == ServiceIdentity(invocation_id="abc", main_pid=7)
    assert seen.activity is Activity.RUNNING
    assert seen.ending is None
    assert seen.has_drop_in
    assert not seen.is_over
    assert look(control_group="", slice="a-b.slice").cgroup == "/a.slice/a-b.slice/a.service"


@pytest.mark.parametrize(
    ("active", "sub", "main_pid", "restart", "activity"),
    [
        ("inactive", "dead", 0, "no", Activity.INACTIVE),
        ("active", "running", 7, "no", Activity.RUNNING),
        ("active", "exited", 0, "no", Activity.FAILED),
        ("reloading", "reload", 7, "no", Activity.RUNNING),
        ("activating", "start-pre", 0, "no", Activity.RUNNING),
        ("activating", "start", 7, "no", Activity.RUNNING),
        ("activating", "auto-restart", 0, "always", Activity.RESTARTING),
        ("activating", "auto-restart-queued", 0, "always", Activity.RESTARTING),
        ("deactivating", "stop-sigterm", 7, "no", Activity.RUNNING),
        ("deactivating", "stop-sigterm", 0, "no", Activity.FAILED),
        ("deactivating", "final-sigkill", 0, "always", Activity.RESTARTING),
        ("failed", "failed", 0, "no", Activity.FAILED),
        ("maintenance", "cleaning", 0, "no", Activity.FAILED),
    ],
)
def test_every_state_of_systemd_is_one_of_ours(
    active: str, sub: str, main_pid: int, restart: str, activity: Activity
) -> None:
    seen = look(active_state=active, sub_state=sub, main_pid=main_pid, restart=restart)
    assert seen.activity is activity


@pytest.mark.parametrize(
    ("code", "status", "ending"), [(0, 0, None), (1, 3, (3, None)), (2, 9, (None, 9)), (3, 6, (None, 6))]
)
def test_an_end_is_an_exit_or_a_signal(code: int, status: int, ending: tuple[int | None, int | None] | None) -> None:
    assert look(main_pid=0, exec_main_code=code, exec_main_status=status).ending == ending


def test_a_program_that_systemd_could_not_execute_is_told_from_one_that_failed() -> None:
    assert look(main_pid=0, exec_main_code=1, exec_main_status=203).was_never_executed
    assert not look(main_pid=0, exec_main_code=1, exec_main_status=3).was_never_executed
    assert not look(main_pid=0, exec_main_code=2, exec_main_status=9).was_never_executed


def test_a_systemd_that_does_not_answer_is_a_fault_with_its_words() -> None:
    with pytest.raises(HostFault, match=r"unit a\.service.*Connection timed out"):
        parse_look(UNIT, CommandResult(status=1, stdout="b00t\n", stderr="Connection timed out\nmore"))
    with pytest.raises(HostFault, match=r"unit a\.service"):
        parse_look(UNIT, CommandResult(status=0, stdout="b00t\nMainPID=x\n", stderr=""))


# ---------------------------------------------------------------------------- root


def by_program(**answers: list[CommandResult]) -> ScriptedTransport:
    """Answer as told, by the program; every other succeeds in silence."""
    return ScriptedTransport(lambda argv: (answers.get(argv[0]) or [said()]).pop(0))


def failed(stderr: str, status: int = 1) -> CommandResult:
    return CommandResult(status=status, stdout="", stderr=stderr)


def test_a_file_is_replaced_by_the_commands_that_are_listed() -> None:
    transport = by_program()
    asyncio.run(Root(transport, sudo=True).replace_file("/run/x", b"text"))
    listed = replace_commands("/run/x")
    assert transport.calls == [("sudo", "-n", *argv) for argv in listed]
    assert transport.inputs == [b"", b"text", b""]


def test_a_rename_that_was_done_before_its_answer_was_lost_is_no_failure() -> None:
    transport = by_program(mv=[failed("mv: cannot stat '/run/x.new': No such file or directory")])
    asyncio.run(Root(transport, sudo=False).replace_file("/run/x", b"text"))
    assert [call[0] for call in transport.calls] == ["install", "tee", "mv", "install", "tee", "mv"]


def test_a_full_disk_is_a_fault_that_names_the_file() -> None:
    transport = by_program(tee=[failed("tee: /run/x.new: No space left on device")])
    with pytest.raises(HostFault, match=r"/run/x\.new.*No space left"):
        asyncio.run(Root(transport, sudo=False).replace_file("/run/x", b"text"))


@pytest.mark.parametrize(
    "words",
    [
        "sudo: a password is required",
        "Sorry, user bob is not allowed to execute '/usr/bin/systemctl start a' as root on gpu01.",
    ],
)
def test_a_refusal_of_sudo_is_no_answer_and_says_where_the_lines_are(words: str) -> None:
    transport = by_program(sudo=[failed(words), failed(words)])
    with pytest.raises(HostFault, match="sudoers lines that `tuner doctor` prints"):
        asyncio.run(Root(transport, sudo=True).attempt(("systemctl", "start", "a")))


def test_every_command_is_one_line_of_sudoers_with_exactly_its_arguments() -> None:
    programs = {"systemctl": "/usr/bin/systemctl", "install": "/usr/bin/install", "tee": "/usr/bin/tee"}
    programs["mv"] = "/usr/bin/mv"
    lines = sudoers_lines("bob", commands("a@1:b.service"), programs)
    assert "bob ALL=(root) NOPASSWD: /usr/bin/systemctl start --no-block a@1\\:b.service" in lines
    assert len(lines) == len(commands("a@1:b.service"))
    assert sudoers_lines("bob", (("true",),), {"true": "/bin/true"}) == ('bob ALL=(root) NOPASSWD: /bin/true ""',)
    assert sudoers_lines("bob", (("cat", "/a=b*,c"),), {"cat": "/bin/cat"})[0].endswith(r"/bin/cat /a\=b\*\,c")


@pytest.mark.parametrize("user", ["", "%wheel", "a b", "ALL,bob", "bob\n"])
def test_a_user_that_sudoers_would_read_differently_is_refused(user: str) -> None:
    with pytest.raises(UsageError, match="sudoers"):
        sudoers_lines(user, (("true",),), {"true": "/bin/true"})


def test_an_argument_that_a_line_cannot_hold_is_refused() -> None:
    with pytest.raises(UsageError, match="sudoers"):
        sudoers_lines("bob", (("cat", "a\nb"),), {"cat": "/bin/cat"})
