"""Short names of parameters, the same in every table, line and picture; files keep the full ones."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

_SAYS_LITTLE = frozenset({"num", "eagle", "mem", "static", "tokens"})
"""Words beside which another one tells the setting: ``eagle_topk``, ``mem_fraction_static``."""


def short_names(parameters: Sequence[str]) -> dict[str, str]:
    """Shorten parameter names for narrow columns, keeping them distinct.

    A first word that several parameters share says nothing (``speculative_…``) where two are
    left; nor do a few words of the engines' own. Names that would become alike stay long.
    """
    shared = Counter(name.partition("_")[0] for name in parameters)
    short = {}
    for name in parameters:
        first, _, rest = name.partition("_")
        words = (rest if shared[first] > 1 and "_" in rest else name).split("_")
        telling = [word for word in words if word not in _SAYS_LITTLE] or words
        short[name] = "_".join(telling)
    alike = Counter(short.values())
    return {name: name if alike[shorter] > 1 else shorter for name, shorter in short.items()}
