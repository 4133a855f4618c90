"""The shapes that a prompt of a user's file may have; pure.

::

    {"prompt": "…"}    {"text": "…"}
    {"messages": [{"role": "user", "content": "…"}, …]}          as OpenAI's chat endpoint takes it
    {"conversations": [{"from": "human", "value": "…"}, …]}      ShareGPT

Beside these ``id`` (a text), ``class`` (a text), and ``output_tokens`` (a whole number) are read; other keys
are ignored. A conversation is sent up to its last user's turn: the model is to answer.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tuner.model.prompt import Prompt, Turn

SHAPES = '"prompt": text, "text": text, "messages": [{"role", "content"}, …] or "conversations": [{"from", "value"}, …]'
MOST_OUTPUT_TOKENS = 1_000_000
_ROLES = frozenset({"system", "developer", "user", "assistant", "tool"})
_SHARED = {"human": "user", "user": "user", "gpt": "assistant", "chatgpt": "assistant", "bing": "assistant"} | {
    "assistant": "assistant",
    "bard": "assistant",
    "system": "system",
    "tool": "tool",
}
"""ShareGPT's speakers -> roles."""
_LONGEST_SHOWN = 40


class PromptFormatError(Exception):
    """A value is no prompt; the message says what is wrong and what to write."""


def prompt_of(value: object, name: str) -> Prompt:
    """Read one prompt.

    Args:
        value: parsed JSON.
        name: what it is called unless it has an ``id``.

    Raises:
        PromptFormatError: it is none.
    """
    if not isinstance(value, dict):
        raise PromptFormatError(f"{type(value).__name__} found; write a JSON object with {SHAPES}")
    turns = _up_to_last_question(_turns(value))
    if not any(turn.content.strip() for turn in turns if turn.role == "user"):
        raise PromptFormatError("the prompt is empty; write what the model is asked, or remove it")
    return Prompt(
        id=_word(value, "id") or name,
        turns=turns,
        prompt_class=_word(value, "class"),
        output_tokens=_output_tokens(value),
    )


def _turns(value: Mapping[str, Any]) -> tuple[Turn, ...]:
    for key in ("prompt", "text"):
        if key in value:
            if not isinstance(value[key], str):
                raise PromptFormatError(f'"{key}" is {type(value[key]).__name__}, not text; write it in quotes')
            return (Turn(role="user", content=value[key]),)
    if "messages" in value:
        return tuple(
            Turn(role=_role(turn, place), content=_content(turn.get("content"), place))
            for turn, place in _listed(value["messages"], "messages")
        )
    if "conversations" in value:
        return tuple(_shared(turn, place) for turn, place in _listed(value["conversations"], "conversations"))
    known = ", ".join(sorted(value)) or "nothing"
    raise PromptFormatError(f"has {known}; write {SHAPES}")


def _listed(value: object, field: str) -> list[tuple[Mapping[str, Any], str]]:
    if not isinstance(value, list):
        raise PromptFormatError(f'"{field}" is {type(value).__name__}, not a list of turns; write {SHAPES}')
    found: list[tuple[Mapping[str, Any], str]] = []
    for position, turn in enumerate(value):
        place = f'"{field}"[{position}]'
        if not isinstance(turn, dict):
            raise PromptFormatError(f"{place} is {type(turn).__name__}, not a turn; write {SHAPES}")
        found.append((turn, place))
    return found


def _role(turn: Mapping[str, Any], place: str) -> str:
    role = turn.get("role")
    if not isinstance(role, str) or role not in _ROLES:
        raise PromptFormatError(f'{place} has "role" {_shown(role)}; write one of {", ".join(sorted(_ROLES))}')
    return role


def _content(content: object, place: str) -> str:
    """Read a text, or the parts of one; images and sounds are refused, because nothing here can send them."""
    if isinstance(content, str):
        return content
    if isinstance(content, list) and all(
        isinstance(part, dict) and part.get("type") == "text" and isinstance(part.get("text"), str) for part in content
    ):
        return "".join(part["text"] for part in content)
    what = "parts that are not text" if isinstance(content, list) else type(content).__name__
    raise PromptFormatError(f'{place} has "content" of {what}; write the text in quotes')


def _shared(turn: Mapping[str, Any], place: str) -> Turn:
    speaker, said = turn.get("from"), turn.get("value")
    if not isinstance(speaker, str) or not isinstance(said, str):
        raise PromptFormatError(f'{place} needs "from" and "value", both text')
    if speaker not in _SHARED:
        raise PromptFormatError(f'{place} has "from" {_shown(speaker)}; write one of {", ".join(sorted(_SHARED))}')
    return Turn(role=_SHARED[speaker], content=said)


def _up_to_last_question(turns: tuple[Turn, ...]) -> tuple[Turn, ...]:
    """Cut a conversation after its last user's turn, and what a model said before the first of them."""
    asked = [position for position, turn in enumerate(turns) if turn.role == "user"]
    if not asked:
        raise PromptFormatError('has no turn of role "user" ("human"): nobody asks anything; add one')
    first, last = asked[0], asked[-1]
    opening = tuple(turn for turn in turns[:first] if turn.role in ("system", "developer"))
    return (*opening, *turns[first : last + 1])


def _word(value: Mapping[str, Any], key: str) -> str:
    """Return an optional text; empty: it is not there."""
    word = value.get(key)
    if word is None:
        return ""
    if isinstance(word, int) and not isinstance(word, bool):
        return str(word)
    if not isinstance(word, str):
        raise PromptFormatError(f'"{key}" is {type(word).__name__}, not text; write it in quotes, or leave it out')
    return word.strip()


def _output_tokens(value: Mapping[str, Any]) -> int | None:
    tokens = value.get("output_tokens")
    if tokens is None:
        return None
    if type(tokens) is not int or not 2 <= tokens <= MOST_OUTPUT_TOKENS:
        allowed = f"write a whole number from 2 to {MOST_OUTPUT_TOKENS:,}, or leave it out"
        raise PromptFormatError(f'"output_tokens" is {_shown(tokens)}; {allowed}')
    return tokens


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _LONGEST_SHOWN else text[: _LONGEST_SHOWN - 1] + "…"
