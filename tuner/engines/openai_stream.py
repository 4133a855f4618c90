"""The part of OpenAI's completion protocol that the engines share: events, usage, errors."""

from __future__ import annotations

from typing import Any

import orjson

from tuner.model.http import HttpReply, StreamDelta

_DONE = b"[DONE]"
_NOTABLE = ("error", "sglext")


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


def quick_count(event: bytes) -> int | None:
    """Read the running count of an event in mid-stream, which says nothing else of note.

    None: read it with :func:`read_event`, which finds the same count where this finds one. Only its
    parsing is the same; what this leaves out costs more than that.
    """
    try:
        message = orjson.loads(event)
        total = message["usage"]["completion_tokens"]
        is_plain = message["choices"][0]["finish_reason"] is None and message.keys().isdisjoint(_NOTABLE)
    except (ValueError, KeyError, IndexError, TypeError, AttributeError):
        return None
    return total if is_plain and type(total) is int and message.get("object") != "error" else None


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
    speculated = _extension(message, "spec_tokens_details")
    return StreamDelta(
        has_content=bool(_text_of(choice)),
        tokens_total=_usage(message, "completion_tokens"),
        prompt_tokens=_usage(message, "prompt_tokens"),
        cached_tokens=_cached_tokens(message),
        verify_steps=_count(speculated.get("spec_verify_ct")),
        accepted=_counts(speculated.get("spec_correct_drafts_histogram")),
        finish_reason=finish if isinstance(finish, str) else None,
        reply_id=reply_id if isinstance(reply_id := message.get("id"), str) and reply_id else None,
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
    return _count(usage.get(field)) if isinstance(usage, dict) else None


def _extension(message: dict[str, Any], field: str) -> dict[str, Any]:
    """Return an object of SGLang's ``sglext``, which ends a stream that asked for it; empty: it is not there."""
    extension = message.get("sglext")
    found = extension.get(field) if isinstance(extension, dict) else None
    return found if isinstance(found, dict) else {}


def _cached_tokens(message: dict[str, Any]) -> int | None:
    """Count the prompt's tokens from the prefix cache, wherever it is kept (``device``, ``host``, ``storage``)."""
    usage = message.get("usage")
    details = usage.get("prompt_tokens_details") if isinstance(usage, dict) else None
    if isinstance(details, dict):
        return _count(details.get("cached_tokens"))
    places = _extension(message, "cached_tokens_details")
    counts = [count for place in ("device", "host", "storage") if (count := _count(places.get(place))) is not None]
    return sum(counts) if counts else None


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _counts(values: object) -> tuple[int, ...]:
    """Return a list of counts; empty: it is none."""
    if not isinstance(values, list):
        return ()
    counts = [count for value in values if (count := _count(value)) is not None]
    return tuple(counts) if len(counts) == len(values) else ()


def _error_of(message: dict[str, Any]) -> str | None:
    """Find the message of an error object in either form servers send it."""
    error = message.get("error")
    if error is None and message.get("object") == "error":
        error = message
    if error is None:
        return None
    text = error.get("message") if isinstance(error, dict) else error
    return str(text) if text else "the server reported an error without a message"
