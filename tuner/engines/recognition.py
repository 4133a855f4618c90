"""Tells what a running server is by its own answers; pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tuner.engines import openai_stream
from tuner.model.http import HttpCall, HttpReply

MODELS_CALL = HttpCall(path="/v1/models", timeout_s=10.0)
_TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedModel:
    """One entry of ``/v1/models``.

    Attributes:
        id: what requests name.
        owner: who serves it, as the server says; empty: it does not.
    """

    id: str
    owner: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sign:
    """What an engine's server is known by.

    Attributes:
        owner: ``owned_by`` of its models.
        call: that only it answers.
        keys: what the answer has.
    """

    owner: str
    call: HttpCall
    keys: frozenset[str]

    def is_met(self, reply: HttpReply) -> bool:
        """Whether ``reply`` is the answer of such a server."""
        found = openai_stream.parse(reply.body) if reply.status == 200 else None
        return found is not None and self.keys <= found.keys()


SIGNS: Mapping[str, Sign] = {
    "sglang": Sign(
        owner="sglang",
        call=HttpCall(path="/get_model_info", timeout_s=_TIMEOUT_S),
        keys=frozenset({"model_path", "is_generation"}),
    ),
    "llamacpp": Sign(
        owner="llamacpp",
        call=HttpCall(path="/props", timeout_s=_TIMEOUT_S),
        keys=frozenset({"default_generation_settings", "total_slots"}),
    ),
}
"""By the engine's name; asked in this order."""


def models_of(reply: HttpReply) -> tuple[ServedModel, ...] | None:
    """Read ``/v1/models``; None: it is not the answer of a server that speaks OpenAI's protocol."""
    found = openai_stream.parse(reply.body) if reply.status == 200 else None
    entries = found.get("data") if found is not None else None
    if not isinstance(entries, list):
        return None
    return tuple(_served(entry) for entry in entries if isinstance(entry, dict) and isinstance(entry.get("id"), str))


def _served(entry: Mapping[str, Any]) -> ServedModel:
    owner = entry.get("owned_by")
    return ServedModel(id=entry["id"], owner=owner if isinstance(owner, str) else "")


def by_owner(models: tuple[ServedModel, ...]) -> str | None:
    """Name the engine that its models say they are served by; None: they do not."""
    return next((name for name, sign in SIGNS.items() if any(model.owner == sign.owner for model in models)), None)
