"""What this machine's client can do, as lines."""

from __future__ import annotations

from collections.abc import Sequence

from tuner.model.account import Stamps
from tuner.model.selftest import SPEED, SelfTest, SelfTestStep

_HEAD = (
    "streams", "chunks/s offered", "got", "us/chunk", "core", "late p50 ms", "p99", "TTFT error p50 ms", "p99",
    "rate error p99", "merged", "stamps",
)  # fmt: skip
_ROUND = 1000


def selftest_lines(result: SelfTest) -> list[str]:
    """Return the table, why a load was too much, and up to where this machine can measure."""
    steps = (*result.steps, *result.stress)
    bound = [f"{_load(step)}: too much for the client: {step.bound}" for step in steps if step.bound is not None]
    return [*_table([_HEAD, *(_row(step) for step in steps)]), *bound, *_stamps(steps), _verdict(result)]


def _row(step: SelfTestStep) -> tuple[str, ...]:
    exact = step.exact
    return (
        str(step.streams),
        f"{step.offered:,.0f}",
        f"{step.got:,.0f}",
        _cell(step.cpu_s_per_chunk, ".1f", 1e6),
        f"{step.cpu_share:.0%}",
        _cell(exact.late_p50_s, ".3f", 1e3),
        _cell(exact.late_p99_s, ".3f", 1e3),
        _cell(exact.ttft_error_p50_s, ".2f", 1e3),
        _cell(exact.ttft_error_p99_s, ".2f", 1e3),
        _cell(exact.rate_error_p99, ".2%"),
        _cell(exact.merged_share, ".2%"),
        step.stamps.value,
    )


def _cell(value: float | None, form: str, scale: float = 1.0) -> str:
    return "-" if value is None else format(value * scale, form)


def _table(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(row[k]) for row in rows) for k in range(len(_HEAD))]
    return ["  ".join(f"{cell:>{width}}" for cell, width in zip(row, widths, strict=True)) for row in rows]


def _load(step: SelfTestStep) -> str:
    return f"{step.streams} streams at {step.offered / step.streams:,.0f} chunks/s"


def _stamps(steps: Sequence[SelfTestStep]) -> list[str]:
    if all(step.stamps is Stamps.KERNEL for step in steps):
        return []
    return ["The kernel does not stamp what it receives here: stamps are this process's own, later by what it waits."]


def _verdict(result: SelfTest) -> str:
    most = result.most_chunks_per_s
    if most is None:
        return (
            "This machine cannot measure even one fast stream now: it is too busy or too slow. "
            "Run the client where two cores are free."
        )
    whole = int(most // _ROUND * _ROUND) or int(most)
    least = "" if result.is_client_limit else "at least "
    streams = max(1, int(most / SPEED))
    few = "; with one core it shares it with what else runs here" if result.cores == 1 else ""
    return (
        f"This machine can measure {least}{whole:,} chunks/s: {streams:,} streams at {SPEED:.0f} chunks/s each, "
        f"or 64 streams at {most / 64:,.0f}{few}."
    )
