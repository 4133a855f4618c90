"""What was there before, kept and compared."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tuner.hosts.systemd.snapshot import Snapshot, differences, read_before, restarted, write_before
from tuner.hosts.systemd.unit import ExecLine

BEFORE = Snapshot(
    fragment_path="/etc/systemd/system/sglang.service",
    drop_in_paths=("/etc/systemd/system/sglang.service.d/override.conf",),
    unit_file_state="enabled",
    is_running=True,
    exec_start=(ExecLine(path="/usr/bin/sglang", argv=("sglang", "serve", "--key", "${API_KEY}", 'a "b"\n')),),
    text_digest="0" * 64,
    need_daemon_reload=False,
    invocation_id="0123456789abcdef" * 2,
    has_folder=False,
    dependants=("proxy.service",),
)


def other_exec(*words: str) -> tuple[ExecLine, ...]:
    return (ExecLine(path="/usr/bin/sglang", argv=("sglang", *words)),)


def test_the_same_is_no_difference() -> None:
    assert differences(BEFORE, BEFORE) == ()


def test_another_invocation_of_the_original_is_no_difference() -> None:
    assert differences(BEFORE, restarted(BEFORE, "f" * 32)) == ()


@pytest.mark.parametrize(
    ("after", "said"),
    [
        (replace(BEFORE, fragment_path=""), "its unit file is nowhere, was /etc/systemd/system/sglang.service"),
        (replace(BEFORE, drop_in_paths=()), "drop-in /etc/systemd/system/sglang.service.d/override.conf is gone"),
        (replace(BEFORE, drop_in_paths=(*BEFORE.drop_in_paths, "/run/x.conf")), "drop-in /run/x.conf is new"),
        (replace(BEFORE, unit_file_state="disabled"), "it is disabled (enablement), was enabled"),
        (replace(BEFORE, is_running=False), "it does not run, and did before"),
        (
            replace(BEFORE, dependants=()),
            "proxy.service, which depends on it, does not run, and did before: start it",
        ),
        (replace(BEFORE, text_digest="1" * 64), "the text of its unit files differs"),
        (
            replace(BEFORE, need_daemon_reload=True),
            "its files were changed and systemd has not read them: run `systemctl daemon-reload`",
        ),
        (replace(BEFORE, exec_start=()), "ExecStart differs: it has 0 lines, had 1"),
        (replace(BEFORE, exec_start=other_exec("serve")), "ExecStart differs: it has 2 words, had 5"),
        (
            replace(BEFORE, exec_start=other_exec("serve", "--key", "sk-secret", 'a "b"\n')),
            "ExecStart differs from word 4 on",
        ),
    ],
)
def test_a_difference_is_named_without_values_of_the_command_line(after: Snapshot, said: str) -> None:
    assert differences(BEFORE, after) == (said,)


def test_what_could_not_be_read_is_not_compared() -> None:
    assert differences(replace(BEFORE, text_digest=None), BEFORE) == ()
    assert differences(BEFORE, replace(BEFORE, text_digest=None)) == ()


def test_a_reload_that_was_due_before_may_change_the_command() -> None:
    before = replace(BEFORE, need_daemon_reload=True)
    assert differences(before, replace(BEFORE, exec_start=other_exec("serve"))) == ()


def test_what_is_kept_is_what_is_read() -> None:
    assert read_before(write_before(BEFORE).decode()) == BEFORE


@pytest.mark.parametrize(
    ("before", "line"),
    [
        (BEFORE, f"running {BEFORE.invocation_id} made"),
        (replace(BEFORE, is_running=False, invocation_id="", has_folder=True), "stopped - kept"),
    ],
)
def test_its_first_line_is_for_a_shell(before: Snapshot, line: str) -> None:
    assert write_before(before).decode().splitlines()[0] == line


@pytest.mark.parametrize("content", ["", "running - made\n", "running - made\n{}", "running - made\n[1]", "x\n{bad"])
def test_what_is_not_ours_is_nothing(content: str) -> None:
    assert read_before(content) is None
