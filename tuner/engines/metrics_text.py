"""Reads a few numbers out of Prometheus' text format, which may be long: once a second beside a running leg."""

from __future__ import annotations

from collections.abc import Collection, Iterator


def totals(body: bytes, names: Collection[str]) -> dict[str, float]:
    """Sum each named metric over all its labels; a metric that is not there is not in the result.

    Only the lines that begin with a name are read: of a page with a hundred kilobytes of histograms that
    takes tenths of a millisecond.

    Args:
        body: a ``/metrics`` reply.
        names: exact metric names, with prefix and suffix.
    """
    found = {name: values(body, name) for name in names}
    return {name: sum(read) for name, read in found.items() if read}


def values(body: bytes, name: str) -> tuple[float, ...]:
    """Return a metric's value for each set of its labels; empty: it is not there."""
    read = []
    for rest in _lines_of(body, name.encode()):
        try:
            read.append(float(rest.split()[0]))
        except (IndexError, ValueError):
            continue
    return tuple(read)


def _lines_of(page: bytes, name: bytes) -> Iterator[bytes]:
    """Yield what stands behind name and labels in each of the metric's lines."""
    at = page.find(name)
    while at >= 0:
        behind = at + len(name)
        if at == 0 or page[at - 1 : at] == b"\n":
            end = page.find(b"\n", behind)
            line = page[behind:] if end < 0 else page[behind:end]
            if line.startswith(b"{"):
                yield line.rpartition(b"}")[2]
            elif line[:1].isspace():
                yield line
        at = page.find(name, behind)
