"""Tells which engine wrote a log, from words that only this engine writes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from tuner.errors import UsageError

SIGNS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "sglang": (
            "sglang",
            "launch_server",
            "server_args=",
            "Load weight ",
            "Memory pool end.",
            "Cache is allocated",
            "Decode batch, #running-req",
            "Scheduler hit an exception",
            "mem_fraction_static",
            "--mem-fraction-static",
            "--speculative-num-steps",
            "flashinfer_python is installed with version",  # all there is before its first line of its own
        ),
        "llamacpp": (
            "llama-server",
            "llama-server: ",
            "usage: llama-server",
            "llama_model_load",
            "llama_context",
            "llama.cpp",
            "ggml_",
            "gguf_",
            "srv  ",
        ),
    }
)
"""An engine that is not here is known by its name."""
_SURE = 3
"""Different signs after which more log changes nothing, where no other engine has more than one."""
_ALONE = 100
"""Signs of whatever kind after which more log changes nothing, where no other engine has any."""


class Guess:
    """Counts the signs of each engine while a log arrives.

    Different signs count before many: a shipper may write a name in front of every line.
    """

    def __init__(self, engines: Sequence[str]) -> None:
        """Choose among ``engines``."""
        self._found = {name: dict.fromkeys(SIGNS.get(name, (name,)), 0) for name in engines}

    def feed(self, text: str) -> None:
        """Take the next piece of log."""
        for signs in self._found.values():
            for sign in signs:
                signs[sign] += text.count(sign)

    @property
    def is_sure(self) -> bool:
        """Whether more log would hardly change it."""
        (first, all_of_it), *others = sorted(map(self._weight, self._found), reverse=True)
        most = max((different for different, _ in others), default=0)
        return (first >= _SURE and most <= 1) or (all_of_it >= _ALONE and most == 0)

    def engine(self, log: str) -> str:
        """Return the engine whose signs are the most.

        Raises:
            UsageError: there are none, or as many of another.
        """
        ranking = sorted(self._found, key=self._weight, reverse=True)
        most = self._weight(ranking[0])
        if most == (0, 0) or (len(ranking) > 1 and self._weight(ranking[1]) == most):
            options = " or ".join(f"--engine {name}" for name in sorted(self._found))
            raise UsageError(f"{log}: cannot tell which engine wrote it; give {options}")
        return ranking[0]

    def _weight(self, engine: str) -> tuple[int, int]:
        counts = self._found[engine].values()
        return sum(count > 0 for count in counts), sum(counts)
