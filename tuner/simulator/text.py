"""Tokens of a simulated model: one word piece each, and text that can be pronounced."""

from __future__ import annotations

import hashlib
import itertools
import random
import re
from collections import OrderedDict
from collections.abc import Sequence

_PIECE = re.compile(r"\s?\w{1,6}|[^\w\s]|\s+")
_BLOCK_TOKENS = 16
_ONSETS = ("b", "d", "f", "g", "k", "l", "m", "n", "p", "r", "s", "t", "v", "z", "st", "tr")
_RIMES = ("a", "e", "i", "o", "u", "an", "el", "in", "or", "us", "ai", "eo")

VOCABULARY = tuple(
    (" " if number % 2 else "") + onset + rime
    for number, (onset, rime) in enumerate(itertools.product(_ONSETS, _RIMES))
)
"""The pieces the model writes; every other one begins a word."""


def tokenize(text: str) -> tuple[str, ...]:
    """Cut text into pieces of at most six letters with the blank before them.

    About as many as a real tokenizer makes of prose; joined they give the text again.
    """
    return tuple(_PIECE.findall(text))


def fingerprint(tokens: Sequence[str | int]) -> int:
    """Return a number that is the same for the same prompt in every process."""
    joined = "\x1f".join(map(str, tokens)).encode(errors="surrogatepass")
    return int.from_bytes(hashlib.blake2b(joined, digest_size=8).digest(), "big")


def draw(rng: random.Random, tokens: int) -> list[int]:
    """Return the ids of the next ``tokens`` tokens."""
    return rng.choices(range(len(VOCABULARY)), k=tokens)


def decode(ids: Sequence[int]) -> str:
    """Return the text of token ids the model wrote."""
    return "".join(VOCABULARY[number] for number in ids)


class PrefixCache:
    """Which prompt prefixes the server still holds, in blocks of 16 tokens; least recently used go first.

    Args:
        capacity_tokens: size of the KV pool.
    """

    def __init__(self, capacity_tokens: int) -> None:
        self._capacity = max(1, capacity_tokens // _BLOCK_TOKENS)
        self._blocks: OrderedDict[int, None] = OrderedDict()

    def match(self, tokens: Sequence[str | int]) -> int:
        """Return how many leading tokens are cached; at least one is always left to compute."""
        matched = 0
        for block in self._chain(tokens[:-1]):
            if block not in self._blocks:
                break
            self._blocks.move_to_end(block)
            matched += _BLOCK_TOKENS
        return matched

    def insert(self, tokens: Sequence[str | int]) -> None:
        """Keep the prefix blocks of a prompt."""
        for block in self._chain(tokens):
            self._blocks[block] = None
            self._blocks.move_to_end(block)
        while len(self._blocks) > self._capacity:
            self._blocks.popitem(last=False)

    def clear(self) -> None:
        """Forget everything."""
        self._blocks.clear()

    @staticmethod
    def _chain(tokens: Sequence[str | int]) -> list[int]:
        chain, value = [], 0
        for start in range(0, len(tokens) - _BLOCK_TOKENS + 1, _BLOCK_TOKENS):
            value = hash((value, tuple(tokens[start : start + _BLOCK_TOKENS])))
            chain.append(value)
        return chain
