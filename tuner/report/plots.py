"""The front as a picture."""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.transforms import Bbox

from tuner.model.metric import Estimate
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


OTHER_MARK: Final = _Mark(colour=POINT, size=5.5, label="measured, with 95 % intervals")
FRONT_MARK: Final = _Mark(colour=FRONT, size=8, label="front")


def render_front(rows: Iterable[TrialRow], heading: Heading) -> bytes:
    """Return the picture as PNG."""
    buffer = io.BytesIO()
    build_figure(rows, heading).savefig(buffer, format="png")
    return buffer.getvalue()


def build_figure(rows: Iterable[TrialRow], heading: Heading) -> Figure:
    """Compose the picture: every measured trial with its intervals, the front, the baseline."""
    every = tuple(rows)
    figure = Figure(figsize=(10, 6.4), dpi=160, facecolor="white")
    FigureCanvasAgg(figure)  # attaches itself: no display is ever looked for
    axes = figure.add_axes((0.085, 0.135, 0.885, 0.735))
    _dress(axes, heading)
    measured, on_front, base = measured_rows(every), front_rows(every, heading.objectives), baseline_row(every)
    _draw_titles(figure, every, on_front, heading)
    if measured:
        _frame(axes, measured, heading)
        _draw_points(axes, measured, on_front, base, heading)
        axes.legend(
            loc="best", frameon=True, framealpha=0.92, edgecolor=GRID, fontsize=9, labelcolor=INK, borderpad=0.7
        )
        _draw_labels(axes, on_front, measured, heading)
    else:
        axes.text(0.5, 0.5, "nothing measured yet", transform=axes.transAxes, ha="center", color=FAINT, fontsize=13)
    return figure


def _dress(axes: Axes, heading: Heading) -> None:
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_color(POINT)
    axes.grid(visible=True, color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(colors=INK, labelsize=9.5, length=3, color=POINT)
    first, second = heading.objectives
    axes.set_xlabel(f"{words(first.name)} [{first.unit}]", color=INK, fontsize=11, labelpad=7)
    axes.set_ylabel(f"peak {words(second.name)} [{second.unit}]", color=INK, fontsize=11, labelpad=8)


def _draw_points(
    axes: Axes,
    measured: Sequence[TrialRow],
    on_front: Sequence[TrialRow],
    base: TrialRow | None,
    heading: Heading,
) -> None:
    others = [row for row in measured if row not in on_front and row is not base]
    _scatter(axes, others, heading, OTHER_MARK)
    if on_front:
        points = [_point(row) for row in on_front]
        left, bottom = axes.get_xlim()[0], axes.get_ylim()[0]
        xs = [left, *(x for x, _ in points), points[-1][0]]
        ys = [points[0][1], *(y for _, y in points), bottom]
        # Everything below and left of the steps is reached or beaten by some trial.
        axes.step(xs, ys, where="pre", color=FRONT, linewidth=1.6, alpha=0.8, zorder=3)
        axes.fill_between(xs, ys, bottom, step="pre", color=FRONT, alpha=0.05, linewidth=0, zorder=1)
    _scatter(axes, [row for row in on_front if row is not base], heading, FRONT_MARK)
    if base is not None:
        label = f"trial {base.number}: as it runs today" + (" (on the front)" if base in on_front else "")
        _scatter(axes, [base], heading, _Mark(colour=BASELINE, size=9.5, shape="D", label=label))


def _scatter(axes: Axes, rows: Sequence[TrialRow], heading: Heading, mark: _Mark) -> None:
    if not rows:
        return
    pairs = [estimates(row, heading.objectives) or () for row in rows]
    axes.errorbar(
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


def _point(row: TrialRow) -> tuple[float, float]:
    assert row.values is not None
    return row.values[0], row.values[1]


def _frame(axes: Axes, measured: Sequence[TrialRow], heading: Heading) -> None:
    """Leave room for the labels at the right and above, and never show negative throughput."""
    for index, setter in ((0, axes.set_xlim), (1, axes.set_ylim)):
        found = [pair[index] for row in measured if (pair := estimates(row, heading.objectives)) is not None]
        low = min(one.value if one.low is None else one.low for one in found)
        high = max(one.value if one.high is None else one.high for one in found)
        span = (high - low) or abs(high) or 1.0
        setter(max(0.0, low - 0.10 * span) if low >= 0 else low - 0.10 * span, high + 0.17 * span)


def _draw_titles(figure: Figure, rows: Sequence[TrialRow], on_front: Sequence[TrialRow], heading: Heading) -> None:
    simulated = " (simulated)" if heading.simulated else ""
    title = f"{heading.study}{simulated}: single-request against aggregate throughput"
    figure.text(0.03, 0.945, title, fontsize=15, fontweight="bold", color=INK)
    parts = [heading.engine, f"{len(measured_rows(rows))} measured", f"{len(on_front)} on the front"]
    if heading.simulated:
        parts.insert(1, "on the SIMULATED GPU host, not on hardware")
    _line(figure, 0.903, "  ·  ".join(parts), colour=BASELINE if heading.simulated else FAINT)
    dead = infeasible_rows(rows)
    reasons = ", ".join(f"{count} {words(cause)}" for cause, count in causes(rows))
    key = f"labels: {' / '.join(short_names(heading.parameters).values())}"
    _line(figure, 0.018, f"{key}  ·  {len(dead)} infeasible, not shown{': ' if dead else ''}{reasons}", colour=FAINT)


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


def _draw_labels(axes: Axes, on_front: Sequence[TrialRow], measured: Sequence[TrialRow], heading: Heading) -> None:
    """Write each front point's settings beside it, where it covers the least."""
    scale = axes.figure.dpi / 72
    half = 6 * scale
    centres = axes.transData.transform([_point(row) for row in measured])
    legend = axes.get_legend()
    obstacles = _Obstacles(
        markers=[Bbox.from_extents(x - half, y - half, x + half, y + half) for x, y in centres],
        labels=[] if legend is None else [legend.get_window_extent()],
        limits=axes.get_window_extent(),
    )
    for row in on_front:
        text = _settings(row, heading)
        measure = axes.text(0, 0, text, fontsize=LABEL_SIZE)
        extent = measure.get_window_extent().padded(3 * scale)
        measure.remove()
        x, y = axes.transData.transform(_point(row))
        boxes = {
            offset: _placed(extent, x + offset[0] * scale, y + offset[1] * scale, to_the_right=offset[0] > 0)
            for offset in LABEL_OFFSETS
        }
        best = min(LABEL_OFFSETS, key=lambda offset: obstacles.cost(boxes[offset]))
        obstacles.labels.append(boxes[best])
        axes.annotate(
            text,
            _point(row),
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
