"""One row of a check, before it is known which host it belongs to."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tuner.model.finding import Finding, RowVerdict

_LONGEST = 400
"""A detail is one line of a table: a command line of many flags is cut."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """What one check saw; see :class:`tuner.model.finding.Finding`."""

    check: str
    verdict: RowVerdict
    detail: str
    remedy: str = ""
    lines: tuple[str, ...] = ()

    def of(self, host: str) -> Finding:
        """Return the row as a finding of ``host``."""
        return Finding(
            host=host,
            check=self.check,
            verdict=self.verdict,
            detail=one_line(self.detail),
            remedy=one_line(self.remedy),
            lines=self.lines,
        )


def ok(check: str, detail: str) -> Row:
    """All is well."""
    return Row(check=check, verdict=RowVerdict.OK, detail=detail)


def warning(check: str, detail: str, remedy: str, lines: Iterable[str] = ()) -> Row:
    """A run is possible; the reader should know."""
    return Row(check=check, verdict=RowVerdict.WARNING, detail=detail, remedy=remedy, lines=tuple(lines))


def failed(check: str, detail: str, remedy: str, lines: Iterable[str] = ()) -> Row:
    """No run is possible before this is mended."""
    return Row(check=check, verdict=RowVerdict.FAILED, detail=detail, remedy=remedy, lines=tuple(lines))


def unknown(checks: Iterable[str], because: str) -> tuple[Row, ...]:
    """Say of each check that it was not made, and which row is the reason."""
    return tuple(Row(check=check, verdict=RowVerdict.UNKNOWN, detail=f"not looked at: {because}") for check in checks)


def is_failed(rows: Iterable[Row]) -> bool:
    """Whether one of the rows forbids a run."""
    return any(row.verdict is RowVerdict.FAILED for row in rows)


def is_ok(row: Row) -> bool:
    """Whether nothing is the matter."""
    return row.verdict is RowVerdict.OK


def one_line(text: str) -> str:
    """Return ``text`` on one line, cut where a table would break."""
    line = " ".join(text.split())
    return line if len(line) <= _LONGEST else line[: _LONGEST - 1] + "…"


def gib(count: float) -> str:
    """Write bytes for a reader."""
    if count < 1 << 20:
        return f"{count / (1 << 10):.0f} KiB"
    return f"{count / (1 << 20):.0f} MiB" if count < 1 << 30 else f"{count / (1 << 30):.1f} GiB"
