"""What a request asks the model: one text or a conversation, and what kind of task it is."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final

CLASSES: Final = ("chat", "code", "reasoning", "summarising", "json")
"""The kinds of tasks of the shipped prompts."""
BUILTIN: Final = "builtin"
SHIPPED: Final = (BUILTIN, *(f"{BUILTIN}:{name}" for name in (*CLASSES, "long", "all")))
"""The sets that are shipped: prompts of all classes as long as people's usually are; those of one class in all
lengths; the long ones of all classes; everything."""


def is_shipped(source: str) -> bool:
    """Whether ``prompts = source`` means a shipped set, a misspelt one included, and not a file."""
    return source == BUILTIN or source.startswith(f"{BUILTIN}:")


class Api(Enum):
    """By which endpoint requests are sent."""

    CHAT = "chat"  # /v1/chat/completions: the model's own chat template, as production is asked
    COMPLETIONS = "completions"  # /v1/completions: the bare text, for models without a template


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One turn of a conversation; ``role`` is ``system``, ``user``, ``assistant`` or ``tool``."""

    role: str
    content: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """What one request asks.

    Attributes:
        id: names it in the records: its own id, or file and line.
        turns: at least one, the last of them a user's.
        prompt_class: kind of task (``chat``, ``code``, …); empty: none was given.
        output_tokens: how many tokens this one asks for; None: as many as the workload says.
    """

    id: str
    turns: tuple[Turn, ...]
    prompt_class: str = ""
    output_tokens: int | None = None

    @property
    def text(self) -> str:
        """The turns as one text, without a template: joined by blank lines."""
        return "\n\n".join(turn.content for turn in self.turns)


def plain_prompt(text: str, *, name: str = "") -> Prompt:
    """Return the prompt of one user turn."""
    return Prompt(id=name, turns=(Turn(role="user", content=text),))
