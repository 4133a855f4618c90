"""Time spans as systemd prints them: ``1min 30s``, ``infinity`` (systemd.time(7))."""

from __future__ import annotations

import math
import re

_UNITS = {
    "us": 1e-6,
    "ms": 1e-3,
    "s": 1.0,
    "min": 60.0,
    "h": 3600.0,
    "d": 86400.0,
    "w": 7 * 86400.0,
    "month": 30.44 * 86400.0,
    "y": 365.25 * 86400.0,
}
_PART = re.compile(r"(\d+(?:\.\d+)?)(us|ms|s|min|h|d|w|month|y)")


def seconds(text: str) -> float | None:
    """Return a span in seconds, ``math.inf`` for ``infinity``; None: it is no span."""
    if text == "infinity":
        return math.inf
    if text == "0":
        return 0.0
    parts = [_PART.fullmatch(word) for word in text.split()]
    if not parts or None in parts:
        return None
    return sum(float(part[1]) * _UNITS[part[2]] for part in parts if part is not None)
