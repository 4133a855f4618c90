"""The part of OpenAI's completion protocol that the engines share: events, usage, errors."""

from __future__ import annotations

from typing import Any

import orjson

from tuner.model.http import HttpReply, StreamDelta

_DONE = b"[DONE]"


def parse_any(body: bytes) -> object:
    """Parse JSON; None when it is none."""
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError:
        return None


def parse(event: bytes) -> dict[str, Any] | None:
    """Parse a JSON object; None when it is none."""
    found = parse_any(event)
    return found if isinstance(found, dict) else None


def read_event(event: bytes) -> StreamDelta:
    """Read one ``data:`` payload of a completion or chat-completion stream.

    ``tokens_total`` is ``usage.completion_tokens``, cumulative where the server repeats it.
    """
    payload = event.strip()
    if payload == _DONE:
        return StreamDelta(done=True)
    message = parse(payload)
    if message is None:
        return StreamDelta(error=f"unreadable event: {payload[:120].decode(errors='replace')}")
    return delta_of(message)


def delta_of(message: dict[str, Any]) -> StreamDelta:
    """Read a parsed event."""
    error = _error_of(message)
    if error is not None:
        return StreamDelta(error=error)
    choices = message.get("choices")
    choice = choices[0] if isinstance(choices, list) and choices and isinstance(choices[0], dict) else {}
    finish = choice.get("finish_reason")
    return StreamDelta(
        has_content=bool(_text_of(choice)),
        tokens_total=_usage(message, "completion_tokens"),
        prompt_tokens=_usage(message, "prompt_tokens"),
        finish_reason=finish if isinstance(finish, str) else None,
    )


def completion_tokens(reply: HttpReply) -> int | None:
    """Count the tokens of a complete reply; None unless it is a 200 with a choice and a count."""
    if reply.status != 200:
        return None
    message = parse(reply.body)
    if message is None or not message.get("choices"):
        return None
    return _usage(message, "completion_tokens")


def _text_of(choice: dict[str, Any]) -> str:
    delta = choice.get("delta")
    text = delta.get("content") or delta.get("reasoning_content") if isinstance(delta, dict) else choice.get("text")
    return text if isinstance(text, str) else ""


def _usage(message: dict[str, Any], field: str) -> int | None:
    usage = message.get("usage")
    count = usage.get(field) if isinstance(usage, dict) else None
    return count if isinstance(count, int) and not isinstance(count, bool) else None


def _error_of(message: dict[str, Any]) -> str | None:
    """Find the message of an error object in either form servers send it."""
    error = message.get("error")
    if error is None and message.get("object") == "error":
        error = message
    if error is None:
        return None
    text = error.get("message") if isinstance(error, dict) else error
    return str(text) if text else "the server reported an error without a message"
