"""The study as CSV, as JSON, and the gain in words. Only the CLI prints; the wiring writes the files."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any, Final

import pandas as pd

from tuner.model.metric import Direction
from tuner.model.outcome import Faulted, Infeasible, Interrupted, Measured
from tuner.model.space import Value
from tuner.model.study import TrialRow
from tuner.report.confidence import chances, confidence_lines
from tuner.report.doubts import doubts
from tuner.report.front import Gain, Heading, baseline_row, best_gain, causes, estimates, front_rows, infeasible_rows
from tuner.report.metric_words import metric_words, value_words, with_unit

Cell = Value | bool | None
ACRONYMS = frozenset({"oom", "kv", "cuda"})
_NOTHING: Final[Mapping[int, float]] = MappingProxyType({})


def record(row: TrialRow, heading: Heading, chance: float | None = None) -> dict[str, Cell]:
    """Return a trial as one flat row; what was not measured is None.

    Columns: trial, baseline, repeat_of, purpose, every parameter, each objective with the ends of its 95 %
    interval (over all starts where it was measured again), starts, front_probability, peak_concurrency, outcome,
    cause, died_in, died_at_concurrency, host, duration_s, the server's capacity, simulated.

    Args:
        row: the trial.
        heading: of its study.
        chance: probability that it belongs to the front; None: not known, or not asked.
    """
    cells: dict[str, Cell] = {
        "trial": row.number,
        "baseline": row.baseline,
        "repeat_of": None if row.repeat is None else row.repeat.of,
        "purpose": None if row.repeat is None else row.repeat.purpose.value,
    }
    cells |= {name: row.assignment.get(name) for name in heading.parameters}
    found = estimates(row, heading.objectives) or (None,) * len(heading.objectives)
    for objective, estimate in zip(heading.objectives, found, strict=True):
        cells[objective.name] = None if estimate is None else estimate.value
        cells[f"{objective.name}_low"] = None if estimate is None else estimate.low
        cells[f"{objective.name}_high"] = None if estimate is None else estimate.high
    cells["starts"] = None if found == (None,) * len(found) else max(1, len(row.starts))
    cells["front_probability"] = None if chance is None else round(chance, 4)
    cells |= _verdict(row)
    capacity = row.capacity
    return cells | {
        "host": row.host,
        "duration_s": None if row.duration_s is None else round(row.duration_s, 3),
        "max_total_num_tokens": None if capacity is None else capacity.max_total_num_tokens,
        "max_running_requests": None if capacity is None else capacity.max_running_requests,
        "available_gpu_mem_bytes": None if capacity is None else capacity.available_gpu_mem_bytes,
        "simulated": heading.simulated,
    }


def _verdict(row: TrialRow) -> dict[str, Cell]:
    cells: dict[str, Cell] = {
        "peak_concurrency": None,
        "outcome": None,
        "cause": None,
        "died_in": None,
        "died_at_concurrency": None,
    }
    match row.outcome:
        case Measured(peak_concurrency=peak):
            return cells | {"peak_concurrency": peak, "outcome": "measured"}
        case Infeasible() as end:
            return cells | {
                "peak_concurrency": None if end.measured is None else end.measured.peak_concurrency,
                "outcome": "infeasible",
                "cause": end.verdict.cause.value,
                "died_in": end.state.value,
                "died_at_concurrency": end.level,
            }
        case Faulted() as end:
            return cells | {"outcome": "faulted", "cause": end.error, "died_in": end.state.value}
        case Interrupted() as end:
            return cells | {"outcome": "interrupted", "died_in": end.state.value}
        case None:
            return cells | {"outcome": "waiting" if row.host is None else "running"}


def columns(heading: Heading) -> tuple[str, ...]:
    """Return the names of the columns of :func:`record`, also of a study without trials."""
    objectives = [f"{objective.name}{end}" for objective in heading.objectives for end in ("", "_low", "_high")]
    return (
        "trial",
        "baseline",
        "repeat_of",
        "purpose",
        *heading.parameters,
        *objectives,
        "starts",
        "front_probability",
        "peak_concurrency",
        "outcome",
        "cause",
        "died_in",
        "died_at_concurrency",
        "host",
        "duration_s",
        "max_total_num_tokens",
        "max_running_requests",
        "available_gpu_mem_bytes",
        "simulated",
    )


# ---------------------------------------------------------------------------- files and strings


def to_csv(rows: Iterable[TrialRow], heading: Heading, likely: Mapping[int, float] = _NOTHING) -> str:
    """Return rows as CSV with a header; an empty cell was not measured. ``likely``: see :func:`chances`."""
    # dtype=object keeps whole numbers whole in a column with gaps.
    cells = [record(row, heading, likely.get(row.number)) for row in rows]
    frame = pd.DataFrame(cells, columns=list(columns(heading)), dtype=object)
    text = frame.to_csv(index=False, lineterminator="\n")
    assert isinstance(text, str)
    return text


def to_json(rows: Iterable[TrialRow], heading: Heading) -> str:
    """Return the front as JSON: the study, whether it is simulated, the gain, and the rows."""
    every = tuple(rows)
    likely = chances(every, heading)
    content: dict[str, Any] = {
        "study": heading.study,
        "engine": heading.engine,
        "simulated": heading.simulated,
        "objectives": [
            {"name": objective.name, "direction": objective.direction.value, "unit": objective.unit}
            for objective in heading.objectives
        ],
        "front": [record(row, heading, likely.get(row.number)) for row in front_rows(every, heading.objectives)],
        "baseline": None if (base := baseline_row(every)) is None else record(base, heading, likely.get(base.number)),
        "gain": [
            {
                "objective": gain.objective.name,
                "baseline": gain.baseline,
                "best": gain.best,
                "percent": gain.percent,
                "percent_low": gain.percent_low,
                "percent_high": gain.percent_high,
                "trial": gain.trial,
            }
            for gain in best_gain(every, heading.objectives)
        ],
        "infeasible": dict(causes(every)),
        "confidence": list(confidence_lines(every, heading)),
    }
    return json.dumps(content, indent=2, allow_nan=False)


# ---------------------------------------------------------------------------- words


def gain_lines(rows: Iterable[TrialRow], heading: Heading) -> tuple[str, ...]:
    """Return what was gained against the baseline, and what could not run, in plain words."""
    every = tuple(rows)
    gains = best_gain(every, heading.objectives)
    today = baseline_row(every)
    lines = [_gain_line(gain, is_today=today is not None and gain.trial == today.number) for gain in gains]
    lines += doubts(every, heading)
    lines += confidence_lines(every, heading)
    if not gains:
        why = "the command line as it stands was not measured" if today is None else "no trial is within the limits"
        lines.append(f"no gain can be stated: {why}")
    if today is not None and isinstance(today.outcome, Infeasible):
        lines.append(f"today's settings are outside the study's limits: {'; '.join(today.outcome.verdict.evidence)}")
    dead = infeasible_rows(every)
    if dead:
        reasons = ", ".join(f"{words(cause)} {count}" for cause, count in causes(every))
        lines.append(f"{len(dead)} infeasible: {reasons}")
    return tuple(lines)


def _gain_line(gain: Gain, *, is_today: bool) -> str:
    unit = gain.objective.unit
    best = f"best {metric_words(gain.objective.name)}: {with_unit(gain.best, unit)} in trial {gain.trial}"
    if is_today:
        return f"{best}: today's settings are the best measured so far"
    return f"{best}, {_percent(gain)} against today's {value_words(gain.baseline, unit)}"


def _percent(gain: Gain) -> str:
    if gain.percent is None:
        return "not comparable"
    # A gain is above 0 whatever the direction; a reader of a latency wants to see that it fell.
    sign = 1 if gain.objective.direction is Direction.MAXIMIZE else -1
    if gain.percent_low is None or gain.percent_high is None:
        return f"{sign * gain.percent:+.1f} %"
    low, high = sorted((sign * gain.percent_low, sign * gain.percent_high))
    return f"{sign * gain.percent:+.1f} % ({low:+.1f} to {high:+.1f} %)"


def words(name: str) -> str:
    """Return a metric's or cause's name as a reader would write it."""
    spaced = name.replace("single_request", "single-request").replace("_", " ")
    return " ".join(word.upper() if word in ACRONYMS else word for word in spaced.split(" "))


def value_text(value: Value | None) -> str:
    """Return a setting for the reader; a dash where the parameter does not apply."""
    return "-" if value is None else str(value)
