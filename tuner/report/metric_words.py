"""How metrics and their values are written for a reader."""

from __future__ import annotations

from tuner.model.metric import QUANTITIES


def metric_words(name: str) -> str:
    """Return a metric's name as a reader would write it; others as the study has it."""
    return name.replace("single_request", "single-request").replace("_", " ") if name in QUANTITIES else name


def value_words(value: float, unit: str) -> str:
    """Return a value without its unit: throughputs to a tenth, what is small to four digits."""
    return f"{value:.1f}" if unit == "tok/s" else f"{value:.4g}"


def with_unit(value: float, unit: str) -> str:
    """Return a value with its unit."""
    return f"{value_words(value, unit)} {unit}".rstrip()
