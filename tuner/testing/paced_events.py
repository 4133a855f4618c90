"""The bytes of a paced stream, made before it starts: one template a chunk.

A template lacks only what is known when it is sent: the reply's number and the time of the send,
both of fixed width, so that the length in front of the chunk holds. They are filled in by one
``%``: ``template % (number, sent_ns)``.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from functools import cache
from typing import Any

import orjson

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
MODEL = "paced"
PROMPT_TOKENS = 7  # of every prompt
_NUMBER_MARK = "#number#"  # becomes %08d
_STAMP_MARK = "#####sent_ns#####"  # with its quotes it becomes %19d: JSON allows blanks before a number, not zeros
_LAST = b"0\r\n\r\n"
_WORD = " word"


class Route(Enum):
    """The protocols of the streams."""

    COMPLETION = "/v1/completions"
    CHAT = "/v1/chat/completions"
    GENERATE = "/generate"


_KIND = {Route.COMPLETION: "text_completion", Route.CHAT: "chat.completion.chunk"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """What of a stream its bytes depend on.

    Attributes:
        tokens: of the whole reply.
        first_tokens: of the first chunk.
        tokens_per_chunk: of each later chunk; the last may have fewer.
        has_usage: the last event is the usage (``include_usage``); /generate always says it.
        has_running_usage: every chunk says the usage so far (``continuous_usage_stats``).
    """

    route: Route
    tokens: int
    first_tokens: int
    tokens_per_chunk: int
    has_usage: bool
    has_running_usage: bool


def totals(shape: Shape) -> tuple[int, ...]:
    """Return the running token total after each chunk; empty for no tokens."""
    before = range(min(shape.first_tokens, shape.tokens), shape.tokens, shape.tokens_per_chunk)
    return (*before, shape.tokens) if shape.tokens else ()


@cache
def templates(shape: Shape) -> tuple[bytes, ...]:
    """Return a template for each chunk."""
    ends = totals(shape)
    starts = (0, *ends[:-1])
    made = enumerate(zip(starts, ends, strict=True))
    return tuple(
        _template(_chunk(_event(shape, k, end, end - start, "length" if end == shape.tokens else None)))
        for k, (start, end) in made
    )


@cache
def _tail(shape: Shape) -> bytes:
    usage = _chunk(_last_usage(shape)) if shape.has_usage and shape.route is not Route.GENERATE else b""
    return usage + _framed(b"data: [DONE]\n\n") + _LAST


def tail(shape: Shape, number: int) -> bytes:
    """Return what follows the last chunk of reply ``number``."""
    return _tail(shape).replace(_NUMBER_MARK.encode(), b"%08d" % number)


@cache
def blocks(shape: Shape, chunks: int) -> tuple[tuple[bytes, int], ...]:
    """Return the templates joined, ``chunks`` at a time, each with the chunks it has."""
    every = templates(shape)
    cut = [every[start : start + chunks] for start in range(0, len(every), chunks)]
    return tuple((b"".join(some), len(some)) for some in cut)


def whole_reply(shape: Shape, number: int) -> dict[str, Any]:
    """Return the reply to a request that does not stream."""
    text, name = _WORD * shape.tokens, f"paced-{number:08d}"
    if shape.route is Route.GENERATE:
        return {"text": text, "meta_info": {"id": name, **_meta(shape.tokens, len(totals(shape)), "length")}}
    content: dict[str, Any] = {"text": text}
    if shape.route is Route.CHAT:
        content = {"message": {"role": "assistant", "content": text}}
    choice = {"index": 0, **content, "logprobs": None, "finish_reason": "length"}
    kind = _KIND[shape.route].removesuffix(".chunk")
    head = {"id": name, "object": kind, "created": 0, "model": MODEL}
    return {**head, "choices": [choice], "usage": _usage(shape.tokens)}


def _usage(total: int) -> dict[str, int]:
    return {
        "prompt_tokens": PROMPT_TOKENS,
        "completion_tokens": total,
        "total_tokens": PROMPT_TOKENS + total,
    }


def _meta(total: int, steps: int, finish: str | None) -> dict[str, Any]:
    return {
        "finish_reason": {"type": finish, "length": total} if finish else None,
        "prompt_tokens": PROMPT_TOKENS,
        "completion_tokens": total,
        "cached_tokens": 0,
        "spec_verify_ct": steps,
    }


def _event(shape: Shape, index: int, total: int, made: int, finish: str | None) -> dict[str, Any]:
    text = _WORD * made
    name = {"id": f"paced-{_NUMBER_MARK}", "sent_ns": _STAMP_MARK}
    if shape.route is Route.GENERATE:  # the text of this chunk alone, as with --incremental-streaming-output
        return {"text": text, "meta_info": {**name, **_meta(total, index, finish)}}
    content: dict[str, Any] = {"text": text}
    if shape.route is Route.CHAT:
        content = {"delta": {"role": "assistant" if index == 0 else None, "content": text}}
    choice = {"index": 0, **content, "logprobs": None, "finish_reason": finish, "matched_stop": None}
    event = {**name, "object": _KIND[shape.route], "created": 0, "model": MODEL, "choices": [choice]}
    return {**event, "usage": _usage(total)} if shape.has_running_usage else event


def _last_usage(shape: Shape) -> dict[str, Any]:
    head = {"id": f"paced-{_NUMBER_MARK}", "object": _KIND[shape.route], "created": 0, "model": MODEL}
    return {**head, "choices": [], "usage": _usage(shape.tokens)}


def _chunk(event: dict[str, Any]) -> bytes:
    """Return an event in its chunk; the marks in it are as wide as what replaces them."""
    return _framed(b"data: " + orjson.dumps(event) + b"\n\n")


def _framed(payload: bytes) -> bytes:
    return b"%x\r\n" % len(payload) + payload + b"\r\n"


def _template(chunk: bytes) -> bytes:
    return chunk.replace(_NUMBER_MARK.encode(), b"%08d").replace(b'"%b"' % _STAMP_MARK.encode(), b"%19d")
