"""The front as a picture."""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Final

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.transforms import Bbox

from tuner.model.metric import AGGREGATE_THROUGHPUT, OBJECTIVES, Direction, Estimate, Objective
from tuner.model.names import short_names
from tuner.model.study import TrialRow
from tuner.report.front import (
    Heading,
    baseline_row,
    causes,
    estimates,
    front_rows,
    infeasible_rows,
    measured_rows,
)
from tuner.report.metric_words import metric_words
from tuner.report.tables import value_text, words

# Colours that differ in lightness too, so that they survive a colour-blind reader and a grey print.
INK: Final = "#1f2933"
FAINT: Final = "#7b8794"
GRID: Final = "#e4e7eb"
POINT: Final = "#9aa5b1"
FRONT: Final = "#0b69a3"
BASELINE: Final = "#de6a10"

LABEL_SIZE: Final = 8.5
LABEL_OFFSETS: Final = (
    (12, 10), (12, -12), (-12, -12), (-12, 10), (16, 26), (16, -28), (-16, -28), (-16, 26),
    (24, 44), (24, -46), (-24, -46), (-24, 44), (34, 0), (-34, 0), (34, 66), (-34, -68),
)  # fmt: skip
"""Where a label may go, in points from its marker, the best place first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Mark:
    """How one kind of point looks; ``shape`` in matplotlib's letters, ``size`` in points."""

    colour: str
    size: float
    label: str
    shape: str = "o"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Panel:
    """Two of the objectives against each other; x and y are their places in the study."""

    axes: Axes
    heading: Heading
    x: int = 0
    y: int = 1

    @property
    def objectives(self) -> tuple[Objective, Objective]:
        """The objectives of its two axes."""
        return self.heading.objectives[self.x], self.heading.objectives[self.y]

    @property
    def is_whole(self) -> bool:
        """Whether it shows all that the front is about."""
        return len(self.heading.objectives) == 2

    def point(self, row: TrialRow) -> tuple[float, float]:
        """Return where a measured trial lies."""
        assert row.values is not None
        return row.values[self.x], row.values[self.y]


OTHER_MARK: Final = _Mark(colour=POINT, size=5.5, label="measured, with 95 % intervals")
FRONT_MARK: Final = _Mark(colour=FRONT, size=8, label="front")


def render_front(rows: Iterable[TrialRow], heading: Heading) -> bytes:
    """Return the picture as PNG."""
    buffer = io.BytesIO()
    build_figure(rows, heading).savefig(buffer, format="png")
    return buffer.getvalue()


def build_figure(rows: Iterable[TrialRow], heading: Heading) -> Figure:
    """Compose the picture: every measured trial with its intervals, the front, the baseline.

    Two objectives are one panel; of three, each pair is one, and a member of the front may look beaten in it.
    """
    every = tuple(rows)
    pairs = tuple(combinations(range(len(heading.objectives)), 2))
    figure = Figure(figsize=(10 if len(pairs) == 1 else 15, 6.4), dpi=160, facecolor="white")
    FigureCanvasAgg(figure)  # attaches itself: no display is ever looked for
    for place, (x, y) in enumerate(pairs):
        share = 1 / len(pairs)
        left, width = (0.085, 0.885) if len(pairs) == 1 else (0.055 + place * share * 0.985, share - 0.07)
        axes = figure.add_axes((left, 0.135, width, 0.735))
        _draw_panel(_Panel(axes=axes, heading=heading, x=x, y=y), every, with_legend=place == 0)
    _draw_titles(figure, every, front_rows(every, heading.objectives), heading)
    return figure


def _draw_panel(panel: _Panel, every: Sequence[TrialRow], *, with_legend: bool) -> None:
    axes, heading = panel.axes, panel.heading
    _dress(panel)
    measured, on_front, base = measured_rows(every), front_rows(every, heading.objectives), baseline_row(every)
    if measured:
        _frame(panel, measured if base is None or base in measured else [*measured, base])
        _draw_points(panel, measured, on_front, base)
        if with_legend:
            axes.legend(
                loc="best", frameon=True, framealpha=0.92, edgecolor=GRID, fontsize=9, labelcolor=INK, borderpad=0.7
            )
        _draw_labels(panel, on_front, measured)
    else:
        axes.text(0.5, 0.5, "nothing measured yet", transform=axes.transAxes, ha="center", color=FAINT, fontsize=13)


def _dress(panel: _Panel) -> None:
    axes = panel.axes
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_color(POINT)
    axes.grid(visible=True, color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(colors=INK, labelsize=9.5, length=3, color=POINT)
    first, second = panel.objectives
    axes.set_xlabel(_axis_words(first), color=INK, fontsize=11, labelpad=7)
    axes.set_ylabel(_axis_words(second), color=INK, fontsize=11, labelpad=8)


def _axis_words(objective: Objective) -> str:
    name = metric_words(objective.name)
    if objective.name == AGGREGATE_THROUGHPUT:
        name = f"peak {name}"
    unit = f" [{objective.unit}]" if objective.unit else ""
    better = "" if objective.direction is Direction.MAXIMIZE else ", less is better"
    return f"{name}{unit}{better}"


def _draw_points(
    panel: _Panel,
    measured: Sequence[TrialRow],
    on_front: Sequence[TrialRow],
    base: TrialRow | None,
) -> None:
    axes = panel.axes
    others = [row for row in measured if row not in on_front and row is not base]
    _scatter(panel, others, OTHER_MARK)
    if on_front and panel.is_whole:
        points = [panel.point(row) for row in on_front]
        # The edges where an objective is worst: below and left of the steps where both are maximised.
        worst = [0 if objective.direction is Direction.MAXIMIZE else 1 for objective in panel.objectives]
        side, floor = axes.get_xlim()[worst[0]], axes.get_ylim()[worst[1]]
        xs = [side, *(x for x, _ in points), points[-1][0]]
        ys = [points[0][1], *(y for _, y in points), floor]
        # Everything on the worse side of the steps is reached or beaten by some trial.
        axes.step(xs, ys, where="pre", color=FRONT, linewidth=1.6, alpha=0.8, zorder=3)
        axes.fill_between(xs, ys, floor, step="pre", color=FRONT, alpha=0.05, linewidth=0, zorder=1)
    _scatter(panel, [row for row in on_front if row is not base], FRONT_MARK)
    if base is not None:
        label = f"trial {base.number}: as it runs today" + (" (on the front)" if base in on_front else "")
        _scatter(panel, [base], _Mark(colour=BASELINE, size=9.5, shape="D", label=label))


def _scatter(panel: _Panel, rows: Sequence[TrialRow], mark: _Mark) -> None:
    if not rows:
        return
    pairs = [estimates(row, panel.objectives) or () for row in rows]
    panel.axes.errorbar(
        [pair[0].value for pair in pairs],
        [pair[1].value for pair in pairs],
        xerr=_arms([pair[0] for pair in pairs]),
        yerr=_arms([pair[1] for pair in pairs]),
        fmt=mark.shape,
        markersize=mark.size,
        color=mark.colour,
        markeredgecolor="white",
        markeredgewidth=0.9,
        elinewidth=1.1,
        capsize=2.2,
        zorder=4 if mark is OTHER_MARK else 5,
        label=mark.label,
    )


def _arms(found: Sequence[Estimate]) -> list[list[float]]:
    """Return the error bars' arms, shape (2, n); no arm where there is no interval."""
    below = [0.0 if one.low is None else max(0.0, one.value - one.low) for one in found]
    above = [0.0 if one.high is None else max(0.0, one.high - one.value) for one in found]
    return [below, above]


def _frame(panel: _Panel, shown: Sequence[TrialRow]) -> None:
    """Leave room for the labels at the right and above, and never show negative values where none are."""
    for index, setter in ((0, panel.axes.set_xlim), (1, panel.axes.set_ylim)):
        found = [pair[index] for row in shown if (pair := estimates(row, panel.objectives)) is not None]
        low = min(one.value if one.low is None else one.low for one in found)
        high = max(one.value if one.high is None else one.high for one in found)
        span = (high - low) or abs(high) or 1.0
        setter(max(0.0, low - 0.10 * span) if low >= 0 else low - 0.10 * span, high + 0.17 * span)


def _draw_titles(figure: Figure, rows: Sequence[TrialRow], on_front: Sequence[TrialRow], heading: Heading) -> None:
    simulated = " (simulated)" if heading.simulated else ""
    title = f"{heading.study}{simulated}: {_title(heading.objectives)}"
    figure.text(0.03, 0.945, title, fontsize=15, fontweight="bold", color=INK)
    parts = [heading.engine, f"{len(measured_rows(rows))} measured", f"{len(on_front)} on the front"]
    if heading.simulated:
        parts.insert(1, "on the SIMULATED GPU host, not on hardware")
    _line(figure, 0.903, "  ·  ".join(parts), colour=BASELINE if heading.simulated else FAINT)
    dead = infeasible_rows(rows)
    reasons = ", ".join(f"{count} {words(cause)}" for cause, count in causes(rows))
    names = " / ".join(short_names(heading.parameters).values())
    key = f"labels: {names if len(heading.objectives) == 2 else 'trial'}"
    _line(figure, 0.018, f"{key}  ·  {len(dead)} infeasible, not shown{': ' if dead else ''}{reasons}", colour=FAINT)


def _title(objectives: Sequence[Objective]) -> str:
    if tuple(objectives) == OBJECTIVES:
        return "single-request against aggregate throughput"
    return " against ".join(metric_words(objective.name) for objective in objectives)


LINE_CHARACTERS: Final = 140
"""What fits on a line of the picture at the usual size; longer lines are set smaller."""


def _line(figure: Figure, y: float, text: str, *, colour: str) -> None:
    figure.text(0.03, y, text, fontsize=9.5 * min(1.0, LINE_CHARACTERS / len(text)), color=colour)


# ---------------------------------------------------------------------------- labels


@dataclass(frozen=True, slots=True, kw_only=True)
class _Obstacles:
    """What a label must not cover, in pixels."""

    markers: list[Bbox]
    labels: list[Bbox]
    limits: Bbox

    def cost(self, box: Bbox) -> float:
        """Count what ``box`` would cover; a label outside of the axes is the worst."""
        covered = sum(1.0 for marker in self.markers if box.overlaps(marker))
        covered += sum(4.0 for label in self.labels if box.overlaps(label))
        outside = box.x0 < self.limits.x0 or box.x1 > self.limits.x1 or box.y0 < self.limits.y0
        return covered + (10.0 if outside or box.y1 > self.limits.y1 else 0.0)


def _draw_labels(panel: _Panel, on_front: Sequence[TrialRow], measured: Sequence[TrialRow]) -> None:
    """Write each front point's settings, or its trial where panels are small, beside it: where it covers the least."""
    axes = panel.axes
    scale = axes.figure.dpi / 72
    half = 6 * scale
    centres = axes.transData.transform([panel.point(row) for row in measured])
    legend = axes.get_legend()
    obstacles = _Obstacles(
        markers=[Bbox.from_extents(x - half, y - half, x + half, y + half) for x, y in centres],
        labels=[] if legend is None else [legend.get_window_extent()],
        limits=axes.get_window_extent(),
    )
    for row in on_front:
        text = _settings(row, panel.heading) if panel.is_whole else str(row.number)
        measure = axes.text(0, 0, text, fontsize=LABEL_SIZE)
        extent = measure.get_window_extent().padded(3 * scale)
        measure.remove()
        x, y = axes.transData.transform(panel.point(row))
        boxes = {
            offset: _placed(extent, x + offset[0] * scale, y + offset[1] * scale, to_the_right=offset[0] > 0)
            for offset in LABEL_OFFSETS
        }
        best = min(LABEL_OFFSETS, key=lambda offset: obstacles.cost(boxes[offset]))
        obstacles.labels.append(boxes[best])
        axes.annotate(
            text,
            panel.point(row),
            xytext=best,
            textcoords="offset points",
            ha="left" if best[0] > 0 else "right",
            va="center",
            fontsize=LABEL_SIZE,
            color=INK,
            zorder=6,
            bbox={"boxstyle": "round,pad=0.18", "facecolor": "white", "edgecolor": "none", "alpha": 0.82},
            arrowprops={"arrowstyle": "-", "color": FAINT, "linewidth": 0.7, "shrinkA": 0, "shrinkB": 4},
        )


def _placed(extent: Bbox, x: float, y: float, *, to_the_right: bool) -> Bbox:
    """Return the pixels a label of that extent covers when it is attached at (x, y)."""
    left = x if to_the_right else x - extent.width
    return Bbox.from_bounds(left, y - extent.height / 2, extent.width, extent.height)


def _settings(row: TrialRow, heading: Heading) -> str:
    return " / ".join(value_text(row.assignment.get(name)) for name in heading.parameters)
