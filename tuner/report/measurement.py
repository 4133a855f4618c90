"""A measurement as JSON and as a table. Only the CLI prints."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tuner import __version__
from tuner.model.account import Spread
from tuner.model.measurement import LegKind, Level, Measurement
from tuner.model.metric import Estimate
from tuner.model.plain import Json, plain, plain_fields
from tuner.model.record import LegResult

SCHEMA = "tuner.measurement"
SCHEMA_VERSION = 1
"""Grows when a field goes away or changes its meaning; new fields do not change it."""

_NOTHING = "-"
_GAP = "  "


# ------------------------------------------------------------------ JSON


def measurement_json(measurement: Measurement) -> str:
    """Write everything; what was not measured is null, and there is no NaN. ``docs/measure.md`` has the fields."""
    return json.dumps(_finite(_document(measurement)), indent=2, ensure_ascii=False, allow_nan=False)


def _document(measurement: Measurement) -> dict[str, Json]:
    return {
        "schema": SCHEMA,
        "version": SCHEMA_VERSION,
        "tuner": __version__,
        "began_unix_s": measurement.began_unix_s,
        "duration_s": measurement.duration_s,
        "is_interrupted": measurement.is_interrupted,
        "gone": measurement.gone,
        "missing_levels": list(measurement.missing),
        "server": plain_fields(measurement.server),
        "workload": plain_fields(measurement.workload),
        "seed": measurement.seed,
        "levels": [_level(level) for level in measurement.levels],
    }


def _level(level: Level) -> dict[str, Json]:
    return {
        "concurrency": level.concurrency,
        "kind": level.kind.value,
        "is_sound": level.is_sound,
        "why": level.why,
        "failures": {status.value: count for status, count in level.failures},
        "error": level.error,
        "result": plain(level.result) if level.result is not None else None,
    }


def _finite(value: Json) -> Json:
    """Return ``value`` with null for what is no number."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, list):
        return [_finite(item) for item in value]
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    return value


# ------------------------------------------------------------------ table


@dataclass(frozen=True, slots=True, kw_only=True)
class _Row:
    """One quantity of all levels.

    Attributes:
        label: with its unit.
        cell: writes it; None: not known.
        always: also where no level has it.
    """

    label: str
    cell: Callable[[LegResult], str | None]
    always: bool = False


def table_lines(measurement: Measurement, *, width: int | None) -> list[str]:
    """Write one column a level; levels beyond ``width`` columns of the terminal go into a further block.

    Args:
        measurement: what there is.
        width: of the terminal; None: lines may be of any length.
    """
    levels = [level for level in measurement.levels if level.result is not None]
    if not levels:
        return []
    rows = [_cells(row, levels) for row in _ROWS]
    shown = [
        (row, cells) for row, cells in zip(_ROWS, rows, strict=True) if row.always or any(c != _NOTHING for c in cells)
    ]
    head = ("at concurrency", [_head(level) for level in levels])
    table = [head, *((row.label, cells) for row, cells in shown)]
    label = max(len(name) for name, _ in table)
    widths = [max(len(cells[k]) for _, cells in table) for k in range(len(levels))]
    lines: list[str] = []
    for first, last in _blocks(widths, None if width is None else width - label):
        lines += [""] if lines else []
        lines += [
            f"{name:<{label}}" + "".join(f"{_GAP}{cells[k]:>{widths[k]}}" for k in range(first, last))
            for name, cells in table
        ]
    return [line.rstrip() for line in lines]


def _cells(row: _Row, levels: Sequence[Level]) -> list[str]:
    return [_NOTHING if level.result is None else row.cell(level.result) or _NOTHING for level in levels]


def _head(level: Level) -> str:
    return f"{level.concurrency} held" if level.kind is LegKind.SOAK else str(level.concurrency)


def _blocks(widths: Sequence[int], room: int | None) -> list[tuple[int, int]]:
    """Cut columns into runs that fit; each has at least one."""
    blocks: list[tuple[int, int]] = []
    first = used = 0
    for k, width in enumerate(widths):
        needed = len(_GAP) + width
        if room is not None and k > first and used + needed > room:
            blocks.append((first, k))
            first, used = k, 0
        used += needed
    return [*blocks, (first, len(widths))]


def _rate(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def _estimate(estimate: Estimate | None) -> str | None:
    """Write a value and its interval's half width in percent."""
    if estimate is None:
        return None
    half = estimate.half_width
    return f"{_rate(estimate.value)} ±{100 * half:.1f}%" if half is not None else f"{_rate(estimate.value)} ±?"


def _ends(spread: Spread | None, factor: float) -> str | None:
    return None if spread is None else f"{_short(spread.p50 * factor)} / {_short(spread.p99 * factor)}"


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def _share(value: float | None, digits: int = 0) -> str | None:
    return None if value is None else f"{100 * value:.{digits}f} %"


def _acceptance(result: LegResult) -> str | None:
    found = None if result.speculation is None else result.speculation.acceptance_length
    return None if found is None else f"{found:.2f}"


def _checked(result: LegResult) -> str | None:
    if result.tokens is None:
        return "no counter"
    difference = result.tokens.difference
    return "exact" if difference == 0 else f"{100 * difference:+.2f} %"


def _merged(result: LegResult) -> str | None:
    return None if result.client is None else _share(result.client.merged_share, 2)


def _lag(result: LegResult) -> str | None:
    lag_s = None if result.client is None else result.client.lag_p99_s
    return None if lag_s is None else f"{_short(lag_s * 1e3)} ms"


def _wall(result: LegResult) -> str | None:
    if result.wall_throughput is None:
        return None
    text = _rate(result.wall_throughput)
    if result.aggregate_throughput is None or result.aggregate_throughput.value == 0:
        return text
    return f"{text} ({100 * (result.wall_throughput / result.aggregate_throughput.value - 1):+.1f} %)"


_ROWS = (
    _Row(label="single request, tok/s", cell=lambda r: _estimate(r.single_request_throughput), always=True),
    _Row(label="aggregate, tok/s", cell=lambda r: _estimate(r.aggregate_throughput), always=True),
    _Row(label="requests/s", cell=lambda r: _estimate(r.requests_per_s)),
    _Row(label="TTFT p50 / p99, ms", cell=lambda r: _ends(r.ttft_s, 1e3), always=True),
    _Row(label="TPOT p50 / p99, ms", cell=lambda r: _ends(r.tpot_s, 1e3)),
    _Row(label="between chunks p50 / p99, ms", cell=lambda r: _ends(r.icl_s, 1e3)),
    _Row(label="E2E p50 / p99, s", cell=lambda r: _ends(r.e2e_s, 1.0)),
    _Row(label="acceptance length", cell=_acceptance),
    _Row(label="limited by", cell=lambda r: None if r.limit is None else r.limit.value.replace("_", " ")),
    _Row(label="ok / failed / offered", cell=lambda r: f"{r.completed} / {r.failed} / {r.offered}", always=True),
    _Row(label="window, s", cell=lambda r: f"{r.window_s:.1f}", always=True),
    _Row(label="interval reached", cell=lambda r: "yes" if r.converged else "no", always=True),
    _Row(label="slots busy", cell=lambda r: _share(r.occupancy)),
    _Row(label="tokens checked", cell=_checked, always=True),
    _Row(label="client: CPU of a core", cell=lambda r: None if r.client is None else _share(r.client.cpu_share)),
    _Row(label="client: late, p99", cell=_lag),
    _Row(label="client: chunks merged", cell=_merged),
    _Row(label="whole leg, tok/s (too low)", cell=_wall),
)


def note_lines(measurement: Measurement) -> list[str]:
    """Say what a reader must know of the table: what is void, failed, or was not reached."""
    lines = [line for level in measurement.levels if (line := _note(level)) is not None]
    if measurement.gone is not None:
        lines.append(f"the server is gone: {measurement.gone}")
    if measurement.missing:
        lines.append(f"not measured: {', '.join(str(level) for level in measurement.missing)}")
    return lines


def _note(level: Level) -> str | None:
    place = f"at {_head(level)}"
    result = level.result
    if result is None:
        return f"{place}: no result: {level.why}"
    if result.failed:
        kinds = ", ".join(f"{count} {status.value}" for status, count in level.failures)
        said = f"; one said: {level.error}" if level.error else ""
        return f"{place}: {result.failed} of {result.offered} requests failed: {kinds}{said}"
    if result.aggregate_throughput is None:
        return (
            f"{place}: no throughput: no window in which all requests ran; give it more time, or ask for fewer tokens"
        )
    if not result.converged:
        held = level.kind is LegKind.SOAK
        what = "the throughput still drifts" if held else "too few requests, or too wide an interval, to be sure of it"
        return f"{place}: {what}; give it more time"
    return None
