"""One adapter an engine: pure. A new engine is one file and one line in ``ENGINES``."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from types import MappingProxyType

from tuner.engines.llamacpp import LlamaCppAdapter
from tuner.engines.sglang import SglangAdapter
from tuner.errors import UsageError
from tuner.model.outcome import Ending, Verdict
from tuner.ports import EngineAdapter

ENGINES: Mapping[str, EngineAdapter] = MappingProxyType(
    {adapter.name: adapter for adapter in (SglangAdapter(), LlamaCppAdapter())}
)


def engine(name: str) -> EngineAdapter:
    """Return the engine called ``name``.

    Raises:
        UsageError: there is none; names those there are, and the nearest.
    """
    found = ENGINES.get(name)
    if found is not None:
        return found
    near = difflib.get_close_matches(name, ENGINES, n=1, cutoff=0.5)
    meant = f"; did you mean {near[0]!r}?" if near else ""
    raise UsageError(f"unknown engine {name!r}: there is {', '.join(sorted(ENGINES))}{meant}")


def diagnose(name: str, lines: Iterable[str], ending: Ending | None = None) -> Verdict:
    """Say why a server died, from the lines of its log and from how it ended; pure.

    Args:
        name: of the engine that wrote the log.
        lines: with or without their line ends; read one by one, so that the log may be of any size.
        ending: as far as it is known; None: nobody knows whether it has ended.

    Raises:
        UsageError: there is no such engine.
    """
    reader = engine(name).log_reader()
    for line in lines:
        reader.feed(line if line.endswith("\n") else f"{line}\n")
    return reader.diagnose(ending if ending is not None else Ending(has_ended=False))
