"""Tells which engine wrote a log, from words that only this engine writes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from tuner.errors import UsageError

SIGNS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "sglang": (
            "sglang",
            "server_args=",
            "Load weight begin",
            "mem_fraction_static",
            "mem-fraction-static",
            "flashinfer_python is installed with version",  # all there is before its first line of its own
        ),
        "llamacpp": ("llama-server", "llama_model_load", "llama_context", "ggml_", "gguf_", "llama.cpp", "srv  "),
    }
)
"""An engine that is not here is known by its name."""
_SURE = 8


class Guess:
    """Counts the signs of each engine while a log arrives."""

    def __init__(self, engines: Sequence[str]) -> None:
        """Choose among ``engines``."""
        self._found = dict.fromkeys(engines, 0)

    def feed(self, text: str) -> None:
        """Take the next piece of log."""
        for name in self._found:
            self._found[name] += sum(text.count(sign) for sign in SIGNS.get(name, (name,)))

    @property
    def is_sure(self) -> bool:
        """Whether more log would hardly change it."""
        first, *others = sorted(self._found.values(), reverse=True)
        return first >= _SURE and (not others or first >= _SURE * others[0])

    def engine(self, log: str) -> str:
        """Return the engine whose signs are the most.

        Raises:
            UsageError: there are none, or as many of another.
        """
        ranking = sorted(self._found, key=lambda name: -self._found[name])
        most = self._found[ranking[0]]
        if most == 0 or (len(ranking) > 1 and self._found[ranking[1]] == most):
            options = " or ".join(f"--engine {name}" for name in sorted(self._found))
            raise UsageError(f"{log}: cannot tell which engine wrote it; give {options}")
        return ranking[0]
