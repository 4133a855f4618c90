"""The Pareto front as a table that fits the terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from tuner.model.metric import AGGREGATE_THROUGHPUT, OBJECTIVES, SINGLE_REQUEST_THROUGHPUT, Estimate, Objective
from tuner.model.outcome import measured_by
from tuner.model.study import TrialRow
from tuner.report.front import estimates
from tuner.report.metric_words import value_words
from tuner.screen.words import NOT_MEASURED, SEPARATOR, gain, rate, settings

_SHORT = {SINGLE_REQUEST_THROUGHPUT: "single", AGGREGATE_THROUGHPUT: "aggregate"}
_OTHER_COLUMNS = 30
"""What the columns beside the settings take at most, with their gaps."""
_LEAST_SETTINGS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class _Layout:
    """What a table shows; ``columns`` None puts all settings into one column of ``cut`` characters."""

    columns: Mapping[str, str] | None
    gains: bool
    intervals: bool
    cut: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontTable:
    """What is to be shown of a front.

    Attributes:
        names: parameters and their short names, in the order of the space.
        front: measured trials, in the order of the lines.
        base: the baseline for comparison, "today"; None while it is not measured.
        most: lines shown at most; the rest is counted. None: all.
        with_base: show the baseline below the front when it is not on it.
        intervals: show the 95 % intervals, and at which concurrency the aggregate was, where there is room.
        chances: how likely each trial belongs to the front, by number; shown where there is room. Empty: not known.
    """

    title: str
    names: Mapping[str, str]
    front: Sequence[TrialRow]
    base: TrialRow | None
    most: int | None = None
    with_base: bool = False
    intervals: bool = False
    chances: Mapping[int, float] = field(default_factory=dict)
    objectives: Sequence[Objective] = OBJECTIVES

    def fitted(self, console: Console, width: int) -> Table:
        """Lay it out for ``width`` columns; what does not fit goes in the order of its worth.

        First the intervals, then the gains, then the parameters that are the same in every
        line (they move to the caption); at last the parameters share one column that is cut.
        """
        options = console.options.update(max_width=10 * console.width)  # measured against the width, not cut to it
        for layout in self._layouts():
            table = self._table(layout)
            if Measurement.get(console, options, table).maximum <= width:
                return table
        return self._table(
            _Layout(columns=None, gains=False, intervals=False, cut=max(_LEAST_SETTINGS, width - _OTHER_COLUMNS))
        )

    def _layouts(self) -> list[_Layout]:
        shown = self._shown()
        same = {name for name in self.names if len({row.assignment.get(name) for row in shown}) == 1}
        varying = {name: short for name, short in self.names.items() if name not in same or len(shown) == 1}
        return [
            *([_Layout(columns=self.names, gains=True, intervals=True)] if self.intervals else []),
            _Layout(columns=self.names, gains=True, intervals=False),
            _Layout(columns=self.names, gains=False, intervals=False),
            _Layout(columns=varying, gains=True, intervals=False),
            _Layout(columns=varying, gains=False, intervals=False),
        ]

    def _shown(self) -> list[TrialRow]:
        return [*self.front[: self.most], *self._below()]

    def _below(self) -> list[TrialRow]:
        return [self.base] if self.with_base and self.base is not None and self.base not in self.front else []

    def _table(self, layout: _Layout) -> Table:
        table = Table(
            title=self.title,
            title_justify="left",
            caption=self._caption(layout),
            caption_justify="left",
            box=None,
            pad_edge=False,
            padding=(0, 2, 0, 0),
        )
        table.add_column("trial", justify="right", no_wrap=True)
        if layout.columns is None:
            table.add_column("settings", no_wrap=True, overflow="ellipsis", max_width=layout.cut)
        else:
            for short in layout.columns.values():
                table.add_column(short.replace("_", "\n"), justify="right", no_wrap=True)
        for each in self.objectives:
            head = f"{_SHORT.get(each.name, each.name)}\n{each.unit}"
            table.add_column(Text(head), justify="right", no_wrap=True)
        if layout.intervals:
            table.add_column("at", justify="right", no_wrap=True)
        if layout.intervals and self.chances:
            table.add_column("starts", justify="right", no_wrap=True)
            table.add_column("belongs to\nthe front", justify="right", no_wrap=True)
        if layout.gains:
            table.add_column("against\ntoday", justify="right", no_wrap=True)
        for row in self._shown():
            table.add_row(*self._cells(row, layout), style=None if row in self.front else "dim")
        return table

    def _cells(self, row: TrialRow, layout: _Layout) -> list[str]:
        if layout.columns is None:
            cells = [settings(row.assignment, self.names)]
        else:
            cells = [str(row.assignment.get(name, NOT_MEASURED)) for name in layout.columns]
        found = estimates(row, self.objectives) or ()
        units = [each.unit for each in self.objectives]
        cells += [
            _value(estimate, unit, with_interval=layout.intervals) for estimate, unit in zip(found, units, strict=False)
        ]
        if layout.intervals:
            measured = measured_by(row.outcome)
            cells.append(NOT_MEASURED if measured is None else str(measured.peak_concurrency))
        if layout.intervals and self.chances:
            cells += [str(max(1, len(row.starts))), _percent(self.chances.get(row.number))]
        if layout.gains:
            base = (estimates(self.base, self.objectives) if self.base is not None else None) or (None,) * len(found)
            against = [
                gain(estimate.value, None if zero is None else zero.value)
                for estimate, zero in zip(found, base, strict=True)
            ]
            cells.append(" / ".join(against))
        # By its mark and not by its number: after an interruption the baseline runs again as another trial.
        return [f"{row.number} (today)" if row.baseline else str(row.number), *cells]

    def _caption(self, layout: _Layout) -> str | None:
        shown = self._shown()
        columns = self.names if layout.columns is None else layout.columns
        same = [
            f"{short} {shown[0].assignment.get(name, NOT_MEASURED)}"
            for name, short in self.names.items()
            if name not in columns
        ]
        caption = [f"all: {SEPARATOR.join(same)}"] if same else []
        if self.most is not None and len(self.front) > self.most:
            caption.append(f"and {len(self.front) - self.most} more")
        return "; ".join(caption) or None


def _percent(share: float | None) -> str:
    return NOT_MEASURED if share is None else f"{100 * share:.0f}%"


def _value(estimate: Estimate, unit: str, *, with_interval: bool) -> str:
    is_rate = unit == "tok/s"
    value = rate(estimate.value) if is_rate else value_words(estimate.value, unit)
    if not with_interval or estimate.low is None or estimate.high is None:
        return value
    half = (estimate.high - estimate.low) / 2
    return f"{value} ±{half:.1f}" if is_rate else f"{value} ±{half:.2g}"
