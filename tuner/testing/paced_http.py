"""The little of HTTP/1.1 that a paced server needs: requests from bytes, whole replies to bytes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import orjson

from tuner.testing.paced_events import MODEL, Route, Shape

_DEFAULT_TOKENS = 16  # of a request that does not say how many, as in OpenAI's protocol
_NAME_CHARACTERS = 64  # of a prompt's end, by which a client finds its request again
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_REASONS = {200: "OK", 400: "Bad Request", 404: "Not Found"}


class BadRequestError(Exception):
    """A request that cannot be answered; the text says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One whole request."""

    method: str
    path: str
    query: str
    body: bytes
    is_closing: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """What a request to generate asks for; ``name`` is its prompt's end."""

    shape: Shape
    name: str
    is_stream: bool


def take_request(inbox: bytes) -> tuple[Request, bytes] | None:
    """Return the first request and the bytes after it; None while it is not whole.

    Raises:
        BadRequestError: it has no length, or is not HTTP.
    """
    head, mark, rest = inbox.partition(b"\r\n\r\n")
    if not mark:
        return None
    first, *lines = head.decode("latin-1").split("\r\n")
    words = first.split(" ")
    if len(words) != 3 or not words[2].startswith("HTTP/1."):
        raise BadRequestError(f"not a request line: {first[:80]!r}")
    fields = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    if "transfer-encoding" in fields:
        raise BadRequestError("send the body with a content-length")
    given = fields.get("content-length", "0")
    if not given.isdecimal():
        raise BadRequestError(f"not a content-length: {given!r}")
    length = int(given)
    if len(rest) < length:
        return None
    path, _, query = words[1].partition("?")
    is_closing = fields.get("connection", "").lower() == "close" or words[2] == "HTTP/1.0"
    request = Request(method=words[0], path=path, query=query, body=rest[:length], is_closing=is_closing)
    return request, rest[length:]


def generation(route: Route, body: bytes, *, first_tokens: int, tokens_per_chunk: int) -> Generation:
    """Read a request to generate.

    Raises:
        BadRequestError: it is not JSON, or has no prompt.
    """
    try:
        asked = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise BadRequestError(f"the body is not JSON: {error}") from error
    if not isinstance(asked, dict):
        raise BadRequestError("the body is not a JSON object")
    sampling = asked.get("sampling_params") or {} if route is Route.GENERATE else asked
    tokens = sampling.get("max_new_tokens") or sampling.get("max_completion_tokens") or sampling.get("max_tokens")
    if tokens is not None and (not isinstance(tokens, int) or tokens < 1):
        raise BadRequestError(f"not a number of tokens: {tokens!r}")
    options = asked.get("stream_options") or {}
    shape = Shape(
        route=route,
        tokens=tokens or _DEFAULT_TOKENS,
        first_tokens=first_tokens,
        tokens_per_chunk=tokens_per_chunk,
        has_usage=bool(options.get("include_usage")),
        has_running_usage=bool(options.get("continuous_usage_stats")),
    )
    return Generation(shape=shape, name=_prompt_end(route, asked), is_stream=bool(asked.get("stream")))


def _prompt_end(route: Route, asked: dict[str, Any]) -> str:
    match route:
        case Route.GENERATE:
            prompt = asked.get("text") or asked.get("input_ids")
        case Route.CHAT:
            messages = asked.get("messages") or [{}]
            prompt = messages[-1].get("content")
        case Route.COMPLETION:
            prompt = asked.get("prompt")
    if not prompt:
        raise BadRequestError("no prompt")
    return str(prompt)[-_NAME_CHARACTERS:]


def reply(status: int, body: bytes, *, kind: str = "application/json", is_closing: bool = False) -> bytes:
    """Return a whole reply."""
    head = f"HTTP/1.1 {status} {_REASONS[status]}\r\ncontent-type: {kind}\r\ncontent-length: {len(body)}\r\n"
    return head.encode() + (b"connection: close\r\n" if is_closing else b"") + b"\r\n" + body


def side_reply(path: str, *, tokens: int, running: int) -> bytes | None:
    """Answer a call that is no generation; None: there is no such path.

    Args:
        path: of the request.
        tokens: of all replies that have ended.
        running: streams now.
    """
    info = {
        "model_path": MODEL,
        "tokenizer_path": MODEL,
        "served_model_name": MODEL,
        "is_generation": True,
        "version": "0",
        "internal_states": [{}],
    }
    card = {"id": MODEL, "object": "model", "created": 0, "owned_by": MODEL, "root": MODEL, "max_model_len": 1 << 17}
    match path:
        case "/health" | "/health_generate" | "/flush_cache" | "/abort_request" | "/ping":
            return reply(200, b"ok\n", kind="text/plain")
        case "/v1/models":
            return reply(200, orjson.dumps({"object": "list", "data": [card]}))
        case "/get_model_info" | "/model_info" | "/get_server_info" | "/server_info":
            return reply(200, orjson.dumps(info))
        case "/metrics":
            lines = (
                f"sglang:generation_tokens_total {tokens}",
                f"sglang:num_running_reqs {running}",
                "sglang:num_queue_reqs 0",
            )
            return reply(200, "".join(f"{line}\n" for line in lines).encode(), kind="text/plain; version=0.0.4")
        case _:
            return None
