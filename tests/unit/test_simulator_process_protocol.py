"""Bodies in and out, without a server."""

from __future__ import annotations

import random
from typing import Any

import orjson
import pytest

from tuner.simulator.protocol import BadRequest, Dialect, Generation, Limits, Reply, parse_generation
from tuner.simulator.request import Request

LIMITS = Limits(context_length=1000, max_input_tokens=900)


def parsed(body: dict[str, Any], dialect: Dialect = Dialect.COMPLETION) -> Generation:
    return parse_generation(orjson.dumps(body), dialect, LIMITS)


def test_a_completion_is_read() -> None:
    generation = parsed(
        {
            "prompt": "a b c",
            "max_tokens": 7,
            "ignore_eos": True,
            "temperature": 0,
            "seed": 3,
            "stop": "x",
            "stream": True,
            "stream_options": {"include_usage": True, "continuous_usage_stats": True},
        }
    )
    assert generation.tokens == ("a", " b", " c")
    assert generation.sampling.max_new_tokens == 7
    assert generation.sampling.ignore_eos
    assert generation.sampling.stop == ("x",)
    assert (generation.stream, generation.usage_at_end, generation.usage_always) == (True, True, True)


def test_defaults_differ_by_endpoint() -> None:
    assert parsed({"prompt": "a"}).sampling.max_new_tokens == 16
    assert parsed({"text": "a"}, Dialect.NATIVE).sampling.max_new_tokens == 128
    chat = parsed({"messages": [{"role": "user", "content": "a"}]}, Dialect.CHAT)
    assert chat.sampling.max_new_tokens == 1000 - len(chat.tokens)


def test_token_ids_are_taken_as_they_are() -> None:
    assert parsed({"prompt": [5, 6]}).tokens == (5, 6)
    assert parsed({"input_ids": [5, 6]}, Dialect.NATIVE).tokens == (5, 6)
    assert parsed({"text": ["one"]}, Dialect.NATIVE).tokens == ("one",)


@pytest.mark.parametrize(
    ("body", "dialect", "said"),
    [
        (b"{", Dialect.COMPLETION, "Invalid JSON"),
        (b"[]", Dialect.COMPLETION, "must be a JSON object"),
        (b"{}", Dialect.COMPLETION, "prompt must be one string"),
        (b'{"prompt": ["a", "b"]}', Dialect.COMPLETION, "prompt must be one string"),
        (b'{"prompt": ""}', Dialect.COMPLETION, "empty"),
        (b'{"prompt": "a", "max_tokens": 0}', Dialect.COMPLETION, "at least 1"),
        (b'{"prompt": "a", "max_tokens": true}', Dialect.COMPLETION, "at least 1"),
        (b'{"prompt": "a", "n": 2}', Dialect.COMPLETION, "only n=1"),
        (b'{"prompt": "a", "temperature": -1}', Dialect.COMPLETION, "non-negative"),
        (b'{"prompt": "a", "max_tokens": 1000}', Dialect.COMPLETION, "maximum context length of 1000"),
        (b'{"prompt": "a", "stream_options": 1}', Dialect.COMPLETION, "stream_options"),
        (b'{"messages": []}', Dialect.CHAT, "not empty"),
        (b'{"messages": [1]}', Dialect.CHAT, "role"),
        (b'{"text": "a", "sampling_params": 1}', Dialect.NATIVE, "sampling_params"),
    ],
)
def test_a_body_that_cannot_be_served_says_why(body: bytes, dialect: Dialect, said: str) -> None:
    with pytest.raises(BadRequest, match=said):
        parse_generation(body, dialect, LIMITS)


def test_a_prompt_longer_than_the_context_is_refused_with_both_numbers() -> None:
    with pytest.raises(BadRequest, match=r"\(901 tokens\) is longer than the model's context length \(900 tokens\)"):
        parsed({"prompt": list(range(901))})


def reply(dialect: Dialect, **options: object) -> tuple[Reply, Request]:
    body = {"prompt": "a b", "text": "a b", "messages": [{"role": "user", "content": "a b"}], **options}
    generation = parsed(body, dialect)
    request = Request(
        rid="r1",
        tokens=generation.tokens,
        sampling=generation.sampling,
        natural_tokens=10,
        difficulty=1.0,
        rng=random.Random(1),
        streamed=generation.stream,
        changed=lambda: None,
        arrived_s=1.0,
    )
    return Reply(generation, request, model="m", cache_report=True), request


def payloads(content: bytes) -> list[Any]:
    events = content.decode().split("\n\n")
    assert events[-1] == ""
    return ["DONE" if text == "data: [DONE]" else orjson.loads(text.removeprefix("data: ")) for text in events[:-1]]


def test_every_event_of_a_completion_counts_the_tokens_so_far_when_asked() -> None:
    built, request = reply(Dialect.COMPLETION, stream=True, max_tokens=5, stream_options={"continuous_usage_stats": 1})
    request.append(1, 2.0)
    [first] = payloads(built.chunk(request.parts[-1]))
    request.append(9, 3.0)
    [last] = payloads(built.chunk(request.parts[-1]))
    assert [first["usage"]["completion_tokens"], last["usage"]["completion_tokens"]] == [1, 5]
    assert [first["choices"][0]["finish_reason"], last["choices"][0]["finish_reason"]] == [None, "length"]
    assert payloads(built.closing()) == ["DONE"]


def test_usage_comes_once_at_the_end_when_only_that_is_asked() -> None:
    built, request = reply(Dialect.COMPLETION, stream=True, stream_options={"include_usage": True})
    request.append(3, 2.0)
    [chunk] = payloads(built.chunk(request.parts[-1]))
    assert chunk["usage"] is None
    usage, done = payloads(built.closing())
    assert (usage["choices"], usage["usage"]["prompt_tokens"], usage["usage"]["completion_tokens"]) == ([], 2, 3)
    assert done == "DONE"


def test_a_chat_stream_opens_with_the_role_and_closes_with_an_empty_delta() -> None:
    built, request = reply(Dialect.CHAT, stream=True, max_tokens=2)
    [opening] = payloads(built.opening())
    request.append(2, 2.0)
    content, closing = payloads(built.chunk(request.parts[-1]))
    assert opening["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert opening["object"] == "chat.completion.chunk"
    assert content["choices"][0]["delta"]["content"] == request.parts[-1]
    assert (closing["choices"][0]["delta"], closing["choices"][0]["finish_reason"]) == ({}, "length")


def test_the_native_body_has_the_speculation_of_this_request() -> None:
    built, request = reply(Dialect.NATIVE, sampling_params={"max_new_tokens": 8})
    request.append(1, 2.0)
    assert "spec_verify_ct" not in built.native()["meta_info"]
    for accepted in (3, 2):
        request.verified(accepted, 3)
        request.append(accepted + 1, 2.5)
    meta = built.native()["meta_info"]
    assert meta["spec_verify_ct"] == 2
    assert meta["spec_correct_drafts_histogram"] == [0, 0, 1, 1]
    assert (meta["spec_num_correct_drafts"], meta["spec_num_proposed_drafts"]) == (5, 6)
    assert meta["spec_accept_length"] == 8 / 2
    assert meta["finish_reason"] == {"type": "length", "length": 8}
    assert meta["e2e_latency"] == 1.5


def test_a_stream_ends_with_what_speculation_and_the_cache_did_for_it_when_asked() -> None:
    asked = {"return_spec_tokens_details": True, "return_cached_tokens_details": True}
    built, request = reply(Dialect.COMPLETION, stream=True, max_tokens=8, stream_options={"include_usage": 1}, **asked)
    request.cached_tokens = 1
    request.append(1, 2.0)
    for accepted in (3, 2):
        request.verified(accepted, 3)
        request.append(accepted + 1, 2.5)
    told, usage, done = payloads(built.closing())
    assert (told["choices"], done) == ([], "DONE")
    assert told["sglext"]["cached_tokens_details"] == {"device": 1, "host": 0}
    assert told["sglext"]["spec_tokens_details"]["spec_verify_ct"] == 2
    assert told["sglext"]["spec_tokens_details"]["spec_correct_drafts_histogram"] == [0, 0, 1, 1]
    assert usage["usage"]["completion_tokens"] == 8


def test_a_stream_of_a_server_that_drafts_nothing_tells_of_no_speculation() -> None:
    built, request = reply(Dialect.CHAT, stream=True, max_tokens=2, return_spec_tokens_details=True)
    request.append(2, 2.0)
    assert payloads(built.closing()) == ["DONE"]
