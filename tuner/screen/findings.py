"""What ``tuner doctor`` found, a block a host: for a terminal, for a file, for a program."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import groupby

from rich.text import Text

from tuner.model.finding import Finding, RowVerdict
from tuner.screen.words import counted

_STYLES = {
    RowVerdict.OK: "green",
    RowVerdict.WARNING: "yellow",
    RowVerdict.FAILED: "bold red",
    RowVerdict.UNKNOWN: "dim",
}
_WORDS = {RowVerdict.FAILED: "FAILED"}
"""What stands out without colours too; the others are their values."""
_INDENT = "  "
_COPY_INDENT = "    "
_GAP = 2
_ARROW = "→ "
_LEAST_DETAIL = 24
"""Columns that a detail is given on the narrowest terminal."""


def findings_lines(findings: Sequence[Finding], *, width: int | None) -> list[Text]:
    """Write one row a finding, under the name of its host; print them unbroken.

    Args:
        findings: in the order they are to be read; those of a host together.
        width: columns of the terminal; None: lines may be of any length. Lines to copy are never broken.
    """
    rows = _gathered(findings)
    verdicts = max((len(_word(finding.verdict)) for finding in rows), default=0)
    checks = max((len(_clean(finding.check)) for finding in rows), default=0)
    lines: list[Text] = []
    for host, of_host in groupby(rows, key=lambda finding: finding.host):
        lines.append(Text(_clean(host), style="bold"))
        with_lines: list[Finding] = []
        for finding in of_host:
            label = f"{_clean(finding.check):<{checks}}"
            lines += _row(finding, f"{_word(finding.verdict):<{verdicts}}", label, width)
            with_lines += [finding] if finding.lines else []
        for finding in with_lines:  # last: there may be dozens, between which no row would be found
            lines.append(Text(f"{_INDENT}lines for {_clean(finding.check)}:"))
            lines += [Text(f"{_COPY_INDENT}{_printable(line)}") for line in finding.lines]
    return lines


def _gathered(findings: Sequence[Finding]) -> list[Finding]:
    """Make one row of neighbours that were not looked at for the same reason."""
    rows: list[Finding] = []
    for key, run in groupby(findings, key=lambda finding: (finding.host, finding.verdict, finding.detail)):
        same = list(run)
        if (
            key[1] is RowVerdict.UNKNOWN
            and len(same) > 1
            and not any(finding.remedy or finding.lines for finding in same)
        ):
            names = ", ".join(finding.check for finding in same)
            same = [replace(same[0], check=counted(len(same), "check"), detail=f"{same[0].detail} ({names})")]
        rows += same
    return rows


def _row(finding: Finding, verdict: str, label: str, width: int | None) -> Iterator[Text]:
    lead = f"{_INDENT}{verdict}{' ' * _GAP}{label}{' ' * _GAP}"
    first, *rest = _wrapped(_clean(finding.detail), width, len(lead))
    yield Text.assemble(_INDENT, (verdict, _STYLES[finding.verdict]), f"{' ' * _GAP}{label}{' ' * _GAP}{first}")
    for line in rest:
        yield Text(f"{' ' * len(lead)}{line}")
    if finding.remedy:
        column = len(lead) + len(_ARROW)
        for index, line in enumerate(_wrapped(_clean(finding.remedy), width, column)):
            yield Text(f"{' ' * len(lead)}{' ' * len(_ARROW) if index else _ARROW}{line}")


def _wrapped(text: str, width: int | None, column: int) -> list[str]:
    if width is None:
        return [text]
    room = max(_LEAST_DETAIL, width - column)
    return textwrap.wrap(text, room, break_long_words=False, break_on_hyphens=False) or [""]


def _word(verdict: RowVerdict) -> str:
    return _WORDS.get(verdict, verdict.value)


def _clean(text: str) -> str:
    """Make one line of it: what a host says must not steer the terminal."""
    return " ".join(_printable(" ".join(text.split())).split())


def _printable(text: str) -> str:
    return "".join(letter if letter.isprintable() else "�" for letter in text)


def summary_lines(findings: Sequence[Finding]) -> list[str]:
    """Say of every host whether a run can use it."""
    return [_summary(host, list(rows)) for host, rows in groupby(findings, key=lambda finding: finding.host)]


def _summary(host: str, rows: Sequence[Finding]) -> str:
    failed = [_clean(row.check) for row in rows if row.verdict is RowVerdict.FAILED]
    warnings = [_clean(row.check) for row in rows if row.verdict is RowVerdict.WARNING]
    more = f"; {counted(len(warnings), 'warning')}: {', '.join(warnings)}" if warnings else ""
    state = f"not ready: {', '.join(failed)}" if failed else "ready"
    return f"{_clean(host)}: {state}{more}"


def is_ready(findings: Sequence[Finding]) -> bool:
    """Whether nothing stands in the way of a run."""
    return all(finding.verdict is not RowVerdict.FAILED for finding in findings)


def findings_json(findings: Sequence[Finding]) -> str:
    """Write the findings for a program: a list of objects, one a row."""
    return json.dumps(
        [
            {
                "host": finding.host,
                "check": finding.check,
                "verdict": finding.verdict.value,
                "detail": finding.detail,
                "remedy": finding.remedy,
                "lines": list(finding.lines),
            }
            for finding in findings
        ],
        indent=2,
    )
