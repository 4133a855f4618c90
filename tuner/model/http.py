"""Requests to a server and what comes back, as values: a failed request is one too."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpCall:
    """A request to the server; ``body`` None is a GET, and ``headers`` go with it."""

    path: str
    body: Mapping[str, Any] | None = None
    timeout_s: float = 30.0
    headers: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpReply:
    """Its reply; ``status`` None: no reply came, ``error`` says why (``refused``, …), ``detail`` in one line."""

    status: int | None
    body: bytes
    error: str | None = None
    detail: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamDelta:
    """What one server-sent event of a stream means.

    Attributes:
        has_content: text (or a grown token count) arrived: the event is a chunk.
        tokens_total: completion tokens so far by the server's own count; None: not said.
        prompt_tokens: by the server's own count; None: not said.
        cached_tokens: of these, found in the prefix cache; None: not said.
        verify_steps: verification steps so far; None: not said.
        accepted: how many of these accepted i draft tokens, i = 0, 1, …; empty: not said.
        reply_id: the server's own name for this reply; None: not said.
        finish_reason: set on the last content event.
        done: the stream's end marker.
        error: the server reported an error in the stream.
    """

    has_content: bool = False
    tokens_total: int | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    verify_steps: int | None = None
    accepted: tuple[int, ...] = ()
    reply_id: str | None = None
    finish_reason: str | None = None
    done: bool = False
    error: str | None = None
