"""What doctor prints: rows a reader finds, remedies to follow, lines to copy, and data for programs."""

from __future__ import annotations

import io
import json

import pytest
from rich.console import Console

from tuner.model.finding import Finding, RowVerdict
from tuner.screen.findings import findings_json, findings_lines, is_ready, summary_lines

SUDOERS = (
    "ops ALL=(root) NOPASSWD: /usr/bin/systemctl daemon-reload",
    "ops ALL=(root) NOPASSWD: /usr/bin/systemctl start --no-block sglang-qwen.service, /usr/bin/tee /run/x",
)
FINDINGS = (
    Finding(host="gpu01", check="reachable", verdict=RowVerdict.OK, detail="ops@gpu01:22 in 12 ms"),
    Finding(
        host="gpu01",
        check="permissions",
        verdict=RowVerdict.FAILED,
        detail="2 of 9 commands may not be run as root",
        remedy="add these lines to /etc/sudoers.d/tuner with visudo -f",
        lines=SUDOERS,
    ),
    Finding(host="gpu01", check="journal", verdict=RowVerdict.UNKNOWN, detail="not looked at: permissions"),
    Finding(host="gpu02", check="clock", verdict=RowVerdict.WARNING, detail="3 s behind", remedy="set it: timedatectl"),
)


def drawn(width: int | None, *, terminal: bool = False) -> list[str]:
    file = io.StringIO()
    console = Console(
        file=file, force_terminal=terminal, width=width or 80, color_system="standard" if terminal else None
    )
    for line in findings_lines(FINDINGS, width=width):
        console.print(line, soft_wrap=True)
    return file.getvalue().splitlines()


def test_a_pipe_gets_a_row_a_finding_grouped_by_host_without_colours() -> None:
    assert drawn(None) == [
        "gpu01",
        "  ok       reachable    ops@gpu01:22 in 12 ms",
        "  FAILED   permissions  2 of 9 commands may not be run as root",
        "                        → add these lines to /etc/sudoers.d/tuner with visudo -f",
        "  unknown  journal      not looked at: permissions",
        "  lines for permissions:",
        f"    {SUDOERS[0]}",
        f"    {SUDOERS[1]}",
        "gpu02",
        "  warning  clock        3 s behind",
        "                        → set it: timedatectl",
    ]


def test_a_terminal_breaks_prose_but_no_line_that_is_to_be_copied() -> None:
    lines = drawn(60)
    assert f"    {SUDOERS[1]}" in lines
    assert max(len(line) for line in lines if line.strip() not in SUDOERS) <= 60
    at = lines.index("  FAILED   permissions  2 of 9 commands may not be run as")
    assert lines[at + 1 : at + 4] == [
        "                        root",
        "                        → add these lines to",
        "                          /etc/sudoers.d/tuner with visudo",
    ]


def test_a_narrow_terminal_is_no_bug() -> None:
    assert any("gpu01" in line for line in drawn(10))


def test_only_the_verdict_is_coloured() -> None:
    lines = drawn(100, terminal=True)
    assert lines[1].startswith("  \x1b[32mok")
    assert lines[2].startswith("  \x1b[1;31mFAILED")
    assert lines[1].count("\x1b") == 2


def test_a_host_cannot_steer_the_terminal() -> None:
    finding = Finding(
        host="g\x1b[2J", check="unit", verdict=RowVerdict.FAILED, detail="a\nb\x9b31m", remedy="c\rd", lines=("e\x07",)
    )
    text = "\n".join(line.plain for line in findings_lines([finding], width=None))
    assert "\x1b" not in text
    assert text.splitlines() == [
        "g�[2J",
        "  FAILED  unit  a b�31m",
        "                → c d",
        "  lines for unit:",
        "    e�",
    ]
    assert summary_lines([finding]) == ["g�[2J: not ready: unit"]


def test_every_host_is_summed_up() -> None:
    assert summary_lines(FINDINGS) == ["gpu01: not ready: permissions", "gpu02: ready; 1 warning: clock"]
    assert summary_lines(FINDINGS[:1]) == ["gpu01: ready"]


@pytest.mark.parametrize(("findings", "ready"), [((), True), (FINDINGS, False), (FINDINGS[2:], True)])
def test_only_a_failed_row_stops_a_run(findings: tuple[Finding, ...], ready: bool) -> None:
    assert is_ready(findings) is ready


def test_a_program_gets_every_field_as_it_is() -> None:
    rows = json.loads(findings_json(FINDINGS))
    assert rows[1] == {
        "host": "gpu01",
        "check": "permissions",
        "verdict": "failed",
        "detail": "2 of 9 commands may not be run as root",
        "remedy": "add these lines to /etc/sudoers.d/tuner with visudo -f",
        "lines": list(SUDOERS),
    }
    assert json.loads(findings_json(())) == []


def test_what_was_not_looked_at_for_one_reason_is_one_row_for_a_reader_and_all_rows_for_a_program() -> None:
    unseen = [
        Finding(host="gpu01", check=check, verdict=RowVerdict.UNKNOWN, detail="not looked at: no login")
        for check in ("systemd", "unit", "journal")
    ]
    other = Finding(host="gpu02", check="unit", verdict=RowVerdict.UNKNOWN, detail="not looked at: no login")
    lines = [line.plain for line in findings_lines([FINDINGS[0], *unseen, other], width=None)]
    assert lines[2:] == [
        "  unknown  3 checks   not looked at: no login (systemd, unit, journal)",
        "gpu02",
        "  unknown  unit       not looked at: no login",
    ]
    assert len(json.loads(findings_json(unseen))) == 3


def test_nothing_found_is_nothing_written() -> None:
    assert findings_lines((), width=80) == []
    assert summary_lines(()) == []
