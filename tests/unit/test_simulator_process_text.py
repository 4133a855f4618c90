"""Tokens, text and the prefix cache."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from tuner.simulator.text import VOCABULARY, PrefixCache, decode, draw, fingerprint, tokenize


@given(st.text())
def test_the_tokens_of_a_text_joined_are_the_text(text: str) -> None:
    assert "".join(tokenize(text)) == text


def test_prose_has_about_as_many_tokens_as_a_tokenizer_makes() -> None:
    prose = "The engineer serves a large model on a host with four accelerators and wonders why it is slow. " * 10
    assert 0.15 < len(tokenize(prose)) / len(prose) < 0.35


def test_the_same_random_numbers_write_the_same_text() -> None:
    first, second = (draw(random.Random(7), 50) for _ in range(2))
    assert first == second
    assert len(first) == 50
    assert set(decode(first).replace(" ", "")) <= set("abdefgiklmnoprstuvz")


def test_the_vocabulary_has_no_piece_twice() -> None:
    assert len(set(VOCABULARY)) == len(VOCABULARY)


def test_a_fingerprint_tells_prompts_apart_and_is_the_same_everywhere() -> None:
    assert fingerprint(("a", "b")) != fingerprint(("ab",))
    assert fingerprint(("a", "b")) == 0xF84C4D669FE0D410


def test_a_repeated_prompt_is_cached_but_its_last_token_is_computed() -> None:
    cache = PrefixCache(10_000)
    prompt = tuple(range(64))
    assert cache.match(prompt) == 0
    cache.insert(prompt)
    assert cache.match(prompt) == 48
    assert cache.match((*prompt, 1, 2)) == 64
    assert cache.match((99, *prompt)) == 0
    cache.clear()
    assert cache.match(prompt) == 0


def test_what_was_used_longest_ago_leaves_the_cache_first() -> None:
    cache = PrefixCache(64)
    old, new = tuple(range(33)), tuple(range(100, 133))
    cache.insert(old)
    cache.insert(new)
    assert cache.match(old) == cache.match(new) == 32
    cache.match(old)
    cache.insert(tuple(range(200, 233)))
    assert cache.match(new) == 0
    assert cache.match(old) == 32
