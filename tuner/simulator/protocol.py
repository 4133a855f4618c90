"""What clients may send and what they get: the OpenAI bodies and SGLang's native one."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

import orjson

from tuner.simulator.request import Request, Sampling
from tuner.simulator.text import tokenize

DEFAULT_COMPLETION_TOKENS = 16
DEFAULT_NATIVE_TOKENS = 128


class Dialect(Enum):
    """Which endpoint a generation came by."""

    COMPLETION = "text_completion"  # /v1/completions
    CHAT = "chat.completion"  # /v1/chat/completions
    NATIVE = "native"  # /generate


class BadRequest(Exception):
    """The body cannot be served; the message goes to the client with status 400."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What one request may hold.

    Attributes:
        context_length: prompt and reply together.
        max_input_tokens: ``max_req_input_len`` of /server_info.
    """

    context_length: int
    max_input_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """A request body that can be served.

    Attributes:
        usage_at_end: a last event with the token counts.
        usage_always: token counts in every event.
        spec_details: a stream ends with what speculation did for it.
        cached_details: and with where its cached prompt tokens were.
    """

    dialect: Dialect
    tokens: tuple[str | int, ...]
    sampling: Sampling
    rid: str | None
    stream: bool
    usage_at_end: bool
    usage_always: bool
    spec_details: bool = False
    cached_details: bool = False


def parse_object(body: bytes) -> dict[str, Any]:
    """Read a JSON object.

    Raises:
        BadRequest: it is none.
    """
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise BadRequest(f"Invalid JSON: {error}") from error
    if not isinstance(value, dict):
        raise BadRequest("The request body must be a JSON object.")
    return value


def parse_generation(body: bytes, dialect: Dialect, limits: Limits, *, usage_default: bool = False) -> Generation:
    """Read a generation request.

    Args:
        body: JSON.
        dialect: of the endpoint.
        limits: of this server.
        usage_default: streams end with the token counts unless told otherwise.

    Raises:
        BadRequest: something in it is wrong or too long.
    """
    fields = parse_object(body)
    tokens = _prompt(fields, dialect)
    if not tokens:
        raise BadRequest("The prompt is empty.")
    room = limits.context_length - len(tokens)
    if len(tokens) > limits.max_input_tokens or room < 1:
        raise BadRequest(
            f"The input ({len(tokens)} tokens) is longer than the model's context length "
            f"({min(limits.max_input_tokens, limits.context_length)} tokens)."
        )
    sampling = _sampling(fields, dialect, room)
    if sampling.max_new_tokens > room:
        raise BadRequest(
            f"Requested token count exceeds the model's maximum context length of {limits.context_length} tokens. "
            f"You requested a total of {len(tokens) + sampling.max_new_tokens} tokens: {len(tokens)} tokens from the "
            f"input messages and {sampling.max_new_tokens} tokens for the completion."
        )
    options = fields.get("stream_options") or {}
    if not isinstance(options, dict):
        raise BadRequest("stream_options must be an object.")
    rid = fields.get("rid")
    return Generation(
        dialect=dialect,
        tokens=tokens,
        sampling=sampling,
        rid=None if rid is None else str(rid),
        stream=fields.get("stream") is True,
        usage_at_end=bool(options.get("include_usage", usage_default)),
        usage_always=bool(options.get("continuous_usage_stats", False)),
        spec_details=fields.get("return_spec_tokens_details") is True,
        cached_details=fields.get("return_cached_tokens_details") is True,
    )


def _prompt(fields: Mapping[str, Any], dialect: Dialect) -> tuple[str | int, ...]:
    if dialect is Dialect.CHAT:
        return tokenize(_conversation(fields.get("messages")))
    given = fields.get("prompt") if dialect is Dialect.COMPLETION else fields.get("text", fields.get("input_ids"))
    if isinstance(given, list) and len(given) == 1 and isinstance(given[0], str | list):
        given = given[0]
    if isinstance(given, str):
        return tokenize(given)
    if isinstance(given, list) and all(type(item) is int for item in given):
        return tuple(given)
    name = "prompt" if dialect is Dialect.COMPLETION else "text or input_ids"
    raise BadRequest(f"{name} must be one string or one list of token ids.")


def _conversation(messages: object) -> str:
    if not isinstance(messages, list) or not messages:
        raise BadRequest("messages must be a list that is not empty.")
    turns = []
    for message in messages:
        if not isinstance(message, dict) or "role" not in message:
            raise BadRequest("every message must be an object with a role.")
        content = message.get("content") or ""
        if isinstance(content, list):
            content = "".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
        turns.append(f"<|im_start|>{message['role']}\n{content}<|im_end|>\n")
    return "".join(turns) + "<|im_start|>assistant\n"


def _sampling(fields: Mapping[str, Any], dialect: Dialect, room: int) -> Sampling:
    if dialect is Dialect.NATIVE:
        source = fields.get("sampling_params") or {}
        if not isinstance(source, dict):
            raise BadRequest("sampling_params must be an object.")
        wanted = source.get("max_new_tokens", DEFAULT_NATIVE_TOKENS)
        seed = source.get("sampling_seed")
    else:
        source = fields
        wanted = fields.get("max_tokens")
        if dialect is Dialect.CHAT:
            # Without a limit a chat reply may fill what is left of the context.
            wanted = fields.get("max_completion_tokens") or wanted or room
        elif wanted is None:
            wanted = DEFAULT_COMPLETION_TOKENS
        seed = fields.get("seed")
        if fields.get("n") not in (None, 1):
            raise BadRequest("only n=1 is simulated.")
    if type(wanted) is not int or wanted < 1:
        raise BadRequest(f"max_new_tokens must be at least 1, got {wanted}.")
    temperature = source.get("temperature", 1.0)
    if not isinstance(temperature, int | float) or temperature < 0:
        raise BadRequest(f"temperature must be non-negative, got {temperature}.")
    stop = source.get("stop") or ()
    return Sampling(
        max_new_tokens=wanted,
        ignore_eos=bool(source.get("ignore_eos", False)),
        temperature=float(temperature),
        seed=seed if type(seed) is int else None,
        stop=(stop,) if isinstance(stop, str) else tuple(map(str, stop)),
    )


def event(payload: Mapping[str, Any]) -> bytes:
    """Return one server-sent event."""
    return b"data: " + orjson.dumps(payload) + b"\n\n"


DONE = b"data: [DONE]\n\n"


def error_body(message: str, status: int) -> dict[str, Any]:
    """Return SGLang's error object."""
    kind = "BadRequestError" if status < 500 else "InternalServerError"
    return {"object": "error", "message": message, "type": kind, "param": None, "code": status}


class Reply:
    """Builds the bodies of one generation's reply.

    Args:
        model: as served.
        cache_report: token counts tell how many were cached.
    """

    def __init__(self, generation: Generation, request: Request, *, model: str, cache_report: bool) -> None:
        self._generation = generation
        self._request = request
        self._cache_report = cache_report
        chat = generation.dialect is Dialect.CHAT
        kind = "chat.completion" if chat else generation.dialect.value
        self._head = {
            "id": request.rid,
            "object": f"{kind}.chunk" if chat and generation.stream else kind,
            "created": int(time.time()),
            "model": model,
        }

    def opening(self) -> bytes:
        """Return what a stream starts with before any token."""
        if self._generation.dialect is not Dialect.CHAT:
            return b""
        return event(self._chat_chunk({"role": "assistant", "content": ""}, None))

    def chunk(self, fresh: str) -> bytes:
        """Return the event of the tokens one step made."""
        finish = self._request.finish
        match self._generation.dialect:
            case Dialect.NATIVE:
                return event(self.native())
            case Dialect.CHAT:
                content = event(self._chat_chunk({"content": fresh}, None)) if fresh else b""
                return content if finish is None else content + event(self._chat_chunk({}, finish))
            case Dialect.COMPLETION:
                choice = {"index": 0, "text": fresh, "logprobs": None, "finish_reason": finish, "matched_stop": None}
                return event({**self._head, "choices": [choice], "usage": self._running_usage()})

    def closing(self) -> bytes:
        """Return what a stream ends with."""
        return self._extension() + self._counts()

    def _counts(self) -> bytes:
        if self._generation.usage_at_end and self._generation.dialect is not Dialect.NATIVE:
            return event({**self._head, "choices": [], "usage": self._usage()}) + DONE
        return DONE

    def _extension(self) -> bytes:
        """Return SGLang's own fields, in an event without choices before the last usage; empty: none were asked for."""
        if self._generation.dialect is Dialect.NATIVE:
            return b""
        extension: dict[str, Any] = {}
        if self._generation.cached_details:
            extension["cached_tokens_details"] = {"device": self._request.cached_tokens, "host": 0}
        if self._generation.spec_details and self._request.verify_steps:
            extension["spec_tokens_details"] = self._speculation()
        return event({**self._head, "choices": [], "sglext": extension}) if extension else b""

    def _speculation(self) -> dict[str, Any]:
        request = self._request
        return {
            "spec_accept_length": request.generated / request.verify_steps,
            "spec_accept_rate": _share(request.correct_drafts, request.proposed_drafts),
            "spec_num_correct_drafts": request.correct_drafts,
            "spec_num_proposed_drafts": request.proposed_drafts,
            "spec_verify_ct": request.verify_steps,
            "spec_correct_drafts_histogram": list(request.histogram),
        }

    def whole(self) -> dict[str, Any]:
        """Return the body of a reply that is not streamed."""
        request = self._request
        text = "".join(request.parts)
        match self._generation.dialect:
            case Dialect.NATIVE:
                return self.native()
            case Dialect.CHAT:
                message = {"role": "assistant", "content": text, "reasoning_content": None, "tool_calls": None}
                choice = {"index": 0, "message": message, "logprobs": None}
            case Dialect.COMPLETION:
                choice = {"index": 0, "text": text, "logprobs": None}
        choice |= {"finish_reason": request.finish, "matched_stop": None}
        return {**self._head, "choices": [choice], "usage": self._usage(), "metadata": {"weight_version": "default"}}

    def native(self) -> dict[str, Any]:
        """Return SGLang's own body; text and ids are everything so far."""
        request = self._request
        meta: dict[str, Any] = {
            "id": request.rid,
            "finish_reason": _native_finish(request),
            "prompt_tokens": len(request.tokens),
            "weight_version": "default",
            "completion_tokens": request.generated,
            "cached_tokens": request.cached_tokens,
        }
        if request.verify_steps:
            meta |= self._speculation()
        if request.finish is not None and request.last_s is not None:
            meta["e2e_latency"] = request.last_s - request.arrived_s
        return {"text": "".join(request.parts), "output_ids": list(request.output_ids), "meta_info": meta}

    def _chat_chunk(self, delta: dict[str, Any], finish: str | None) -> dict[str, Any]:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish, "matched_stop": None}
        return {**self._head, "choices": [choice], "usage": self._running_usage()}

    def _running_usage(self) -> dict[str, Any] | None:
        return self._usage() if self._generation.usage_always else None

    def _usage(self) -> dict[str, Any]:
        request = self._request
        prompt, completion = len(request.tokens), request.generated
        return {
            "prompt_tokens": prompt,
            "total_tokens": prompt + completion,
            "completion_tokens": completion,
            "prompt_tokens_details": {"cached_tokens": request.cached_tokens} if self._cache_report else None,
            "reasoning_tokens": 0,
        }


def _native_finish(request: Request) -> dict[str, Any] | None:
    match request.finish:
        case None:
            return None
        case "length":
            return {"type": "length", "length": request.sampling.max_new_tokens}
        case "stop":
            return {"type": "stop", "matched": None}
        case "abort":
            return {"type": "abort", "message": request.message}


def _share(part: int, whole: int) -> float:
    return part / whole if whole else 0.0
