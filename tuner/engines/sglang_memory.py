"""Reads figures out of SGLang's and PyTorch's lines about memory."""

from __future__ import annotations

import re

_ALLOCATION = re.compile(
    r"Tried to allocate ([\d.]+) ([KMGT]?i?B|bytes).*?of which ([\d.]+) ([KMGT]?i?B|bytes) is free", re.IGNORECASE
)
_HOLDER = re.compile(r"\bProcess \d+ has ([\d.]+) ([KMGT]?i?B|bytes) memory in use")
_OURS = re.compile(r"([\d.]+) ([KMGT]?i?B|bytes) is allocated by PyTorch")
_VIABLE = re.compile(r"Raise --mem-fraction-static above ([\d.]*\d)")
_REST = re.compile(r"total_rest_memory=(-?[\d.]*\d)")
_STATE = re.compile(r"mamba_cache_per_req=([\d.]*\d)")
_SMALL_BYTES = 256 * 1024**2
"""What another process may hold without being the cause: a CUDA context is as large."""

_UNITS = {"B": 1, "BYTES": 1}
_UNITS |= {unit: 1 << 10 * power for power, units in enumerate(("KIB KB", "MIB MB", "GIB GB", "TIB TB"), start=1)
           for unit in units.split()}  # fmt: skip


def shortfall_bytes(line: str) -> int | None:
    """Return how many bytes an allocation lacked; None: the line does not say, or only one piece was too small."""
    found = _ALLOCATION.search(line)
    if found is None:
        return None
    missing = _bytes(found.group(1), found.group(2)) - _bytes(found.group(3), found.group(4))
    # Fragmentation: enough was free, though not in one piece; then nothing is known to be missing.
    return round(missing) if missing > 0 else None


def viable_fraction(line: str) -> float | None:
    """Return the smallest fraction that the server itself calls viable; None: it names none."""
    found = _VIABLE.search(line)
    return float(found.group(1)) if found else None


def is_left(line: str) -> bool:
    """Whether there was memory for a state pool at all, as far as its line says."""
    rest = _REST.search(line)
    return rest is None or float(rest.group(1)) > 0


def state_shortfall_bytes(line: str) -> int | None:
    """Return how many bytes were missing at least for the state of one request; None: the line does not say.

    Where there was room for one, what was missing depends on settings that the line does not name.
    """
    rest, state = _REST.search(line), _STATE.search(line)
    if rest is None or state is None:
        return None
    missing = _bytes(state.group(1), "MB") - _bytes(rest.group(1), "GB")
    return round(missing) if missing > 0 else None


def other_holder(line: str, missing_bytes: int | None) -> bool:
    """Whether PyTorch names another process that held at least what was missing on this GPU.

    In a container it may not know its own number. Then its own process stands among the others, as one
    that holds what PyTorch has allocated, at least.
    """
    held = sorted(_bytes(*found) for found in _HOLDER.findall(line))
    if held and "this process has" not in line:
        allocated = _OURS.search(line)
        least = _bytes(*allocated.groups()) if allocated is not None else held[-1]
        held.remove(next((size for size in held if size >= least), held[-1]))
    return sum(held) >= max(missing_bytes or 0, _SMALL_BYTES)


def _bytes(value: str, unit: str) -> float:
    return float(value) * _UNITS[unit.upper()]
