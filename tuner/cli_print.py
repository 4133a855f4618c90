"""The only place that prints: data to stdout, prose to stderr."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console, RenderableType

from tuner.commands.options import FindingsFormat, Format
from tuner.model.finding import Finding
from tuner.model.names import short_names
from tuner.screen.findings import findings_json, findings_lines
from tuner.screen.front_table import FrontTable

if TYPE_CHECKING:
    from tuner.report.front import Heading
    from tuner.search.rows import StoredStudy

_PIPE_WIDTH = 240
"""Columns of a table that is not on a terminal: nothing is cut for whoever reads it."""


def data(line: str) -> None:
    """Print what was asked for."""
    print(line)


def prose(line: str) -> None:
    """Say something about the work, at once."""
    print(line, file=sys.stderr, flush=True)


def print_table(table: RenderableType) -> None:
    """Print a table as wide as the terminal, or as wide as it likes."""
    console = _console()
    console.print(table)


def print_front(directory: Path, study: str, as_format: Format) -> tuple[str, ...]:
    """Print the front; return what it gains against trial 0, as lines."""
    from tuner.report import front as fronts  # noqa: PLC0415  pulls in pandas
    from tuner.report import tables  # noqa: PLC0415
    from tuner.report.confidence import chances  # noqa: PLC0415
    from tuner.search.rows import read_study as read_stored  # noqa: PLC0415  pulls in Optuna

    stored = read_stored(directory, study)
    heading = fronts.Heading(
        study=stored.name,
        engine=stored.engine,
        parameters=stored.parameters,
        simulated=stored.simulated,
        objectives=stored.objectives,
    )
    if as_format is Format.JSON:
        print(tables.to_json(stored.rows, heading))
    elif as_format is Format.CSV:
        print(
            tables.to_csv(fronts.front_rows(stored.rows, stored.objectives), heading, chances(stored.rows, heading)),
            end="",
        )
    elif (table := _front_table(stored, heading)).front:
        console = _console()
        console.print(table.fitted(console, console.width))
    else:
        prose(f"the front of {study} is empty: no trial is measured yet")
    return tables.gain_lines(stored.rows, heading)


def _front_table(stored: StoredStudy, heading: Heading) -> FrontTable:
    from tuner.report.confidence import chances  # noqa: PLC0415  see print_front
    from tuner.report.front import baseline_row, front_rows  # noqa: PLC0415

    again = any(row.repeat is not None for row in stored.rows)
    return FrontTable(
        title=f"front of {stored.name}{' (SIMULATED)' if stored.simulated else ''}",
        names=short_names(stored.parameters),
        front=tuple(reversed(front_rows(stored.rows, stored.objectives))),
        base=baseline_row(stored.rows),
        with_base=True,
        intervals=True,
        chances=chances(stored.rows, heading) if again else {},
        objectives=stored.objectives,
    )


def print_findings(findings: Sequence[Finding], as_format: FindingsFormat) -> None:
    """Print what doctor found."""
    if as_format is FindingsFormat.JSON:
        print(findings_json(findings))
        return
    console = Console()
    for line in findings_lines(findings, width=console.width if console.is_terminal else None):
        console.print(line, soft_wrap=True)  # lines to copy stay whole


def _console() -> Console:
    console = Console()
    return console if console.is_terminal else Console(width=_PIPE_WIDTH)
