"""One adapter an engine: pure. A new engine is one file and one line in ``ENGINES``."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from types import MappingProxyType

from tuner.engines.llamacpp import LlamaCppAdapter
from tuner.engines.openai import OpenAiApi
from tuner.engines.sglang import SglangAdapter
from tuner.errors import UsageError
from tuner.model.outcome import Ending, Verdict
from tuner.ports import EngineAdapter, EngineApi

ENGINES: Mapping[str, EngineAdapter] = MappingProxyType(
    {adapter.name: adapter for adapter in (SglangAdapter(), LlamaCppAdapter())}
)
ONLY_MEASURED: Mapping[str, EngineApi] = MappingProxyType({api.name: api for api in (OpenAiApi(),)})
"""Engines whose running servers can be measured; how they are started is not known."""


def engine(name: str) -> EngineAdapter:
    """Return the engine called ``name``.

    Raises:
        UsageError: there is none; names those there are, and the nearest.
    """
    found = ENGINES.get(name)
    if found is not None:
        return found
    there = ", ".join(sorted(ENGINES))
    if name in ONLY_MEASURED:
        raise UsageError(f"engine {name!r} can be measured, not started: there is {there}")
    raise UsageError(f"unknown engine {name!r}: there is {there}{_meant(name, ENGINES)}")


def measurable(name: str) -> EngineApi:
    """Return how servers of the engine called ``name`` are spoken to, whether tuner can start them or not.

    Raises:
        UsageError: there is none; names those there are, and the nearest.
    """
    known: Mapping[str, EngineApi] = {**ENGINES, **ONLY_MEASURED}
    if name not in known:
        raise UsageError(f"unknown engine {name!r}: there is {', '.join(sorted(known))}{_meant(name, known)}")
    return known[name]


def _meant(name: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    return f"; did you mean {near[0]!r}?" if near else ""


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
