from __future__ import annotations

import orjson
import pytest

from tuner.testing.paced_events import Route, Shape, blocks, tail, templates, totals, whole_reply
from tuner.testing.paced_http import BadRequestError, generation, take_request

SENT_NS = 44_483_579_125_444


def shape(route: Route = Route.COMPLETION, *, tokens: int = 10, usage: bool = True) -> Shape:
    return Shape(
        route=route, tokens=tokens, first_tokens=1, tokens_per_chunk=4, has_usage=usage, has_running_usage=usage
    )


def unframed(data: bytes) -> list[bytes]:
    """Decode a chunked body, strictly."""
    found = []
    while data:
        size, _, rest = data.partition(b"\r\n")
        length = int(size, 16)
        assert rest[length : length + 2] == b"\r\n"
        found.append(rest[:length])
        data = rest[length + 2 :]
    return found


def events(made: Shape, number: int = 12) -> list[bytes]:
    body = b"".join(template % (number, SENT_NS) for template in templates(made)) + tail(made, number)
    *framed, last = unframed(body)
    assert last == b""
    return [piece.removeprefix(b"data: ").removesuffix(b"\n\n") for piece in framed]


@pytest.mark.parametrize("route", Route, ids=lambda route: route.name)
def test_every_chunk_has_the_length_in_front_of_it_and_its_number_and_time_in_it(route: Route) -> None:
    *chunks, done = events(shape(route, usage=False))
    assert done == b"[DONE]"
    for chunk in map(orjson.loads, chunks):
        said = chunk["meta_info"] if route is Route.GENERATE else chunk
        assert (said["id"], said["sent_ns"]) == ("paced-00000012", SENT_NS)
    assert len(chunks) == len(totals(shape(route)))


def test_a_stream_says_the_usage_so_far_with_each_chunk_and_all_of_it_at_the_end() -> None:
    *chunks, last, _ = (event if event == b"[DONE]" else orjson.loads(event) for event in events(shape()))
    assert [chunk["usage"]["completion_tokens"] for chunk in chunks] == [1, 5, 9, 10]
    assert last["usage"]["completion_tokens"] == 10
    assert last["choices"] == []


def test_without_stream_options_no_event_has_a_usage() -> None:
    assert all(b"usage" not in event for event in events(shape(usage=False)))


def test_the_words_of_a_chunk_are_as_many_as_its_tokens() -> None:
    texts = [orjson.loads(event)["choices"][0]["text"] for event in events(shape())[:4]]
    assert [text.count("word") for text in texts] == [1, 4, 4, 1]


def test_generate_says_its_counts_and_verification_steps() -> None:
    last = orjson.loads(events(shape(Route.GENERATE))[-2])["meta_info"]
    assert (last["completion_tokens"], last["spec_verify_ct"], last["finish_reason"]["type"]) == (10, 3, "length")


@pytest.mark.parametrize("tokens", [1, 2, 5, 6])
def test_the_last_chunk_has_what_is_left(tokens: int) -> None:
    assert totals(shape(tokens=tokens))[-1] == tokens
    assert totals(shape(tokens=tokens))[0] == 1


def test_blocks_are_the_same_chunks_joined() -> None:
    made = shape(tokens=100)
    joined = blocks(made, 7)
    assert b"".join(block for block, _ in joined) == b"".join(templates(made))
    assert [chunks for _, chunks in joined] == [7, 7, 7, 5]


def test_a_whole_reply_counts_the_same_tokens() -> None:
    assert whole_reply(shape(Route.CHAT), 3)["usage"]["completion_tokens"] == 10
    assert whole_reply(shape(Route.GENERATE), 3)["meta_info"]["completion_tokens"] == 10


REQUEST = b"POST /v1/completions?x=1 HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\nbody"


def test_a_request_is_taken_once_it_is_whole() -> None:
    for cut in range(len(REQUEST)):
        assert take_request(REQUEST[:cut]) is None
    taken = take_request(REQUEST + b"GET ")
    assert taken is not None
    request, rest = taken
    assert (request.method, request.path, request.query, request.body) == ("POST", "/v1/completions", "x=1", b"body")
    assert (request.is_closing, rest) == (False, b"GET ")


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"hello\r\n\r\n", "not a request line"),
        (b"POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n", "content-length"),
        (b"POST / HTTP/1.1\r\ncontent-length: -1\r\n\r\n", "not a content-length"),
    ],
    ids=["no_http", "chunked", "negative_length"],
)
def test_what_is_no_request_is_refused_with_the_reason(data: bytes, why: str) -> None:
    with pytest.raises(BadRequestError, match=why):
        take_request(data)


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b"{", "not JSON"),
        (b"[]", "not a JSON object"),
        (b'{"max_tokens": 3}', "no prompt"),
        (b'{"prompt": "a", "max_tokens": "many"}', "not a number of tokens"),
        (b'{"prompt": "a", "max_tokens": -1}', "not a number of tokens"),
    ],
    ids=["broken", "list", "no_prompt", "word", "negative"],
)
def test_a_body_that_asks_for_nothing_is_refused_with_the_reason(body: bytes, why: str) -> None:
    with pytest.raises(BadRequestError, match=why):
        generation(Route.COMPLETION, body, first_tokens=1, tokens_per_chunk=1)


def test_each_route_says_in_its_own_words_how_many_tokens_it_wants() -> None:
    bodies = {
        Route.COMPLETION: {"prompt": "a", "max_tokens": 9},
        Route.CHAT: {"messages": [{"content": "a"}], "max_completion_tokens": 9},
        Route.GENERATE: {"text": "a", "sampling_params": {"max_new_tokens": 9}},
    }
    for route, body in bodies.items():
        asked = generation(route, orjson.dumps(body), first_tokens=1, tokens_per_chunk=1)
        assert (asked.shape.tokens, asked.name) == (9, "a")
