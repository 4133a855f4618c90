"""Sentences with gaps, and a drawer that fills them so that no sentence comes twice in a prompt."""

from __future__ import annotations

import random
import re
from collections.abc import Mapping, Sequence

_GAP = re.compile(r"\{(\w+)\}")
_TRIES = 200


class Writer:
    """Fills gaps from lists of words; remembers what it wrote.

    Args:
        source: of chance.
        words: gap -> what may stand there.
    """

    def __init__(self, source: random.Random, words: Mapping[str, Sequence[str]]) -> None:
        self.source = source
        self._words = words
        self._written: set[str] = set()

    def sentence(self, patterns: Sequence[str], **given: str) -> str:
        """Return a sentence that was not written before; ``{n}`` is a number, ``{many}`` a large one.

        Raises:
            ValueError: every pattern is used up.
        """
        for _ in range(_TRIES):
            text = _GAP.sub(lambda gap: given.get(gap[1]) or self._drawn(gap[1]), self.source.choice(patterns))
            if text not in self._written:
                self._written.add(text)
                return text
        raise ValueError(f"nothing new to say: {patterns[0]}")

    def sentences(self, patterns: Sequence[str], count: int, **given: str) -> list[str]:
        """Return sentences of ``count`` different patterns, as far as there are so many."""
        chosen = self.source.sample(patterns, min(count, len(patterns)))
        return [self.sentence((pattern,), **given) for pattern in chosen]

    def _drawn(self, name: str) -> str:
        if name == "n":
            return str(self.source.randint(2, 48))
        if name == "many":
            return f"{self.source.randint(103, 9870) * 10:,}"
        if name == "share":
            return str(self.source.randint(3, 91))
        if name == "time":
            return f"{self.source.randint(6, 21)}:{self.source.randint(0, 59):02}"
        return self.source.choice(self._words[name])
