"""Reads running totals out of Prometheus' text format."""

from __future__ import annotations

from collections.abc import Collection


def totals(body: bytes, names: Collection[str]) -> dict[str, float]:
    """Sum each named metric over all its labels; a metric that is not there is not in the result.

    Args:
        body: a ``/metrics`` reply.
        names: exact metric names, with prefix and suffix.
    """
    found: dict[str, float] = {}
    for line in body.decode(errors="replace").splitlines():
        if line.startswith("#"):
            continue
        name, brace, labelled = line.partition("{")
        if brace:
            rest = labelled.rpartition("}")[2]
        else:
            name, _, rest = line.partition(" ")
        name = name.strip()
        if name not in names:
            continue
        try:
            value = float(rest.split()[0])
        except (IndexError, ValueError):
            continue
        found[name] = found.get(name, 0.0) + value
    return found
