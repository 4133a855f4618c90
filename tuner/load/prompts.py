"""The prompts of a workload: the shipped set, or a user's JSONL file."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

import orjson

from tuner.errors import StudyFileError

BUILTIN = "builtin"
_SHAPES = '"prompt": text, "messages": [{"role", "content"}, …] or "conversations": [{"from", "value"}, …]'
_HUMAN = frozenset({"human", "user"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """One text to send.

    Attributes:
        id: names it in the records: its own id, or file and line.
        text: never blank.
    """

    id: str
    text: str


def load_prompts(source: str) -> tuple[Prompt, ...]:
    """Return the prompts of ``"builtin"`` or of a JSONL file, in the order of the file.

    A line is ``{"prompt": …}``, a chat ``{"messages": […]}`` (its turns up to the last
    user's, joined by blank lines), or ShareGPT's ``{"conversations": […]}`` (the first
    human turn). Other keys are ignored, blank lines skipped.

    Raises:
        StudyFileError: the file cannot be read, a line is none of these, or there is none.
    """
    if source == BUILTIN:
        return _parse((files("tuner.load") / "data" / "prompts.jsonl").read_bytes(), BUILTIN)
    try:
        content = Path(source).read_bytes()
    except OSError as error:
        raise StudyFileError(f"prompts file {source}: {error.strerror}; name a JSONL file or {BUILTIN!r}") from error
    return _parse(content, source)


def _parse(content: bytes, source: str) -> tuple[Prompt, ...]:
    prompts = []
    for number, line in enumerate(content.split(b"\n"), start=1):
        if line.strip():
            prompts.append(_prompt(line, f"prompts file {source}, line {number}", f"{Path(source).stem}:{number}"))
    if not prompts:
        raise StudyFileError(f"prompts file {source}: no prompt in it; write one JSON object a line")
    return tuple(prompts)


def _prompt(line: bytes, place: str, default_id: str) -> Prompt:
    try:
        value = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        raise StudyFileError(f"{place}: not JSON ({error}); write one JSON object a line") from error
    if not isinstance(value, dict):
        raise StudyFileError(f"{place}: {type(value).__name__} found; write one JSON object a line")
    name = value.get("id")
    text = _text(value, place)
    if not text.strip():
        raise StudyFileError(f"{place}: the prompt is empty")
    return Prompt(id=name if isinstance(name, str) and name else default_id, text=text)


def _text(value: dict[str, Any], place: str) -> str:
    if "prompt" in value:
        if not isinstance(value["prompt"], str):
            raise StudyFileError(f'{place}: "prompt" is {type(value["prompt"]).__name__}, not text')
        return value["prompt"]
    if "messages" in value:
        return _chat(value["messages"], place)
    if "conversations" in value:
        return _share(value["conversations"], place)
    known = ", ".join(sorted(value)) or "nothing"
    raise StudyFileError(f"{place}: has {known}; write {_SHAPES}")


def _turns(value: Any, place: str, keys: tuple[str, str, str]) -> list[tuple[str, str]]:  # noqa: ANN401 - parsed text
    field, who, what = keys
    if not isinstance(value, list):
        raise StudyFileError(f'{place}: "{field}" is {type(value).__name__}, not a list of turns')
    turns = []
    for position, turn in enumerate(value):
        if not isinstance(turn, dict) or not isinstance(turn.get(who), str) or not isinstance(turn.get(what), str):
            raise StudyFileError(f'{place}: "{field}"[{position}] needs "{who}" and "{what}", both text')
        turns.append((turn[who], turn[what]))
    return turns


def _chat(value: Any, place: str) -> str:  # noqa: ANN401 - parsed text
    turns = _turns(value, place, ("messages", "role", "content"))
    users = [position for position, (role, _) in enumerate(turns) if role == "user"]
    if not users:
        raise StudyFileError(f'{place}: "messages" has no turn of role "user"')
    return "\n\n".join(text for _, text in turns[: users[-1] + 1])


def _share(value: Any, place: str) -> str:  # noqa: ANN401 - parsed text
    for who, text in _turns(value, place, ("conversations", "from", "value")):
        if who in _HUMAN:
            return text
    raise StudyFileError(f'{place}: "conversations" has no turn from "human" or "user"')
