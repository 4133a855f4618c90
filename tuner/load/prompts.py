"""The prompts of a workload: a shipped set, or a user's file."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable
from dataclasses import replace
from importlib.resources import files
from pathlib import Path

import orjson

from tuner.errors import StudyFileError
from tuner.load.prompt_formats import PromptFormatError, prompt_of
from tuner.model.prompt import BUILTIN, CLASSES, SHIPPED, Prompt, is_shipped

MOST_PROMPTS = 200_000
LONGEST_CHARACTERS = 4_000_000
_MOST_BYTES = 2 * 1024**3
SHORT_TOKENS, LONG_TOKENS = 40, 1500
"""Shipped prompts between these are in ``builtin``, those above in ``builtin:long``."""
_FILES = ("prompts.jsonl", "long.jsonl")


def load_prompts(source: str) -> tuple[Prompt, ...]:
    """Return the prompts of a shipped set or of a file, in the order of the file.

    A file has one JSON object a line, or is one JSON array of them (as the ShareGPT data set is). For the
    shapes of an object see :mod:`tuner.load.prompt_formats`. Blank lines are skipped; in an array so are
    conversations without a human's turn, of which that data set has some.

    Raises:
        StudyFileError: there is no such set, the file cannot be read, something in it is no prompt, or
            there is none in it; one line with file, line, what and what to do.
    """
    if is_shipped(source):
        return _shipped(source)
    try:
        size = Path(source).stat().st_size
        if size > _MOST_BYTES:
            raise StudyFileError(f"prompts file {source}: {size / 1024**3:.1f} GiB; name a part of it of at most 2 GiB")
        content = Path(source).read_bytes()
    except OSError as error:
        remedy = f"name a file, or a shipped set: {', '.join(SHIPPED)}"
        raise StudyFileError(f"prompts file {source}: {error.strerror}; {remedy}") from error
    return _required(_parse(content, source), source)


def estimated_tokens(prompt: Prompt) -> int:
    """Estimate the length without the model's tokenizer: 4 characters a token, 1.5 of scripts without spaces."""
    text = prompt.text
    dense = sum(ord(letter) >= _FIRST_DENSE for letter in text)
    return round((len(text) - dense) / 4 + dense / 1.5)


_FIRST_DENSE = 0x2E80
"""Chinese, Japanese and Korean begin here."""


def _shipped(source: str) -> tuple[Prompt, ...]:
    if source not in SHIPPED:
        guess = difflib.get_close_matches(source, SHIPPED, n=1)
        meant = f"; did you mean {guess[0]}?" if guess else ""
        raise StudyFileError(f"prompts {source}: there is no such set{meant} (known: {', '.join(SHIPPED)})")
    folder = files("tuner.load") / "data"
    prompts = [prompt for name in _FILES for prompt in _parse((folder / name).read_bytes(), name)]
    wanted = source.partition(":")[2]
    if wanted in CLASSES:
        return tuple(prompt for prompt in prompts if prompt.prompt_class == wanted)
    if wanted == "all":
        return tuple(prompts)
    low, high = (SHORT_TOKENS, LONG_TOKENS) if source == BUILTIN else (LONG_TOKENS, math.inf)
    return tuple(prompt for prompt in prompts if low <= estimated_tokens(prompt) < high)


def _parse(content: bytes, source: str) -> list[Prompt]:
    content = content.removeprefix(b"\xef\xbb\xbf")
    name = f"prompts file {source}"
    if content.lstrip()[:1] == b"[":
        return _array(content, name, Path(source).stem)
    prompts: list[Prompt] = []
    for number, line in enumerate(content.split(b"\n"), start=1):
        if not line.strip():
            continue
        place = f"{name}, line {number}"
        try:
            value = orjson.loads(line)
        except orjson.JSONDecodeError as error:
            raise StudyFileError(f"{place}: not JSON ({error}); write one JSON object a line") from error
        prompts.append(_checked(value, place, f"{Path(source).stem}:{number}"))
        _require_few(len(prompts), name)
    return prompts


def _array(content: bytes, name: str, stem: str) -> list[Prompt]:
    try:
        values = orjson.loads(content)
    except orjson.JSONDecodeError as error:
        told = f"begins with [ but is no JSON array ({error})"
        raise StudyFileError(f"{name}: {told}; write one JSON object a line, or one array of them") from error
    _require_few(len(values), name)
    found: dict[str, Prompt] = {}
    for number, value in enumerate(values, start=1):
        if not _is_silent(value):
            prompt = _checked(value, f"{name}, item {number}", f"{stem}:{number}")
            own = f"{prompt.id}:{number}" if prompt.id in found else prompt.id
            found[own] = replace(prompt, id=own)
    return list(found.values())


def _is_silent(value: object) -> bool:
    """Whether nobody asks anything in a conversation of an array."""
    turns = value.get("conversations") if isinstance(value, dict) else None
    if not isinstance(turns, list):
        return False
    return not any(isinstance(turn, dict) and turn.get("from") in ("human", "user") for turn in turns)


def _checked(value: object, place: str, name: str) -> Prompt:
    try:
        prompt = prompt_of(value, name)
    except PromptFormatError as error:
        raise StudyFileError(f"{place}: {error}") from error
    if len(prompt.text) > LONGEST_CHARACTERS:
        told = f"the prompt has {len(prompt.text):,} characters, more than any model reads"
        raise StudyFileError(f"{place}: {told}; shorten it to {LONGEST_CHARACTERS:,}")
    return prompt


def _require_few(count: int, name: str) -> None:
    if count > MOST_PROMPTS:
        raise StudyFileError(f"{name}: more than {MOST_PROMPTS:,} prompts; a night needs some hundreds: take a sample")


def _required(prompts: list[Prompt], source: str) -> tuple[Prompt, ...]:
    if not prompts:
        raise StudyFileError(f"prompts file {source}: no prompt in it; write one JSON object a line")
    double = _first_double(prompt.id for prompt in prompts)
    if double is not None:
        raise StudyFileError(f"prompts file {source}: two prompts have the id {double!r}; give each its own")
    return tuple(prompts)


def _first_double(names: Iterable[str]) -> str | None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            return name
        seen.add(name)
    return None
