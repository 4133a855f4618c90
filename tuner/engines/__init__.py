"""One adapter an engine: pure. A new engine is one file and one line in ``ENGINES``."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from types import MappingProxyType

from tuner.engines.llamacpp import LlamaCppAdapter
from tuner.engines.sglang import SglangAdapter
from tuner.errors import UsageError
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
