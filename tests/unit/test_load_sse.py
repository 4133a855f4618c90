"""The splitter of server-sent events."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tuner.load.sse import EventSplitter


def split(*pieces: bytes) -> list[bytes]:
    splitter = EventSplitter()
    return [event for piece in pieces for event in splitter.feed(piece)]


def test_each_event_gives_its_payload() -> None:
    assert split(b'data: {"a": 1}\n\ndata: [DONE]\n\n') == [b'{"a": 1}', b"[DONE]"]


@pytest.mark.parametrize(
    ("stream", "events"),
    [
        (b"data:x\n\n", [b"x"]),
        (b"data:  x\n\n", [b" x"]),
        (b"data: x\r\n\r\n", [b"x"]),
        (b": a comment\n\ndata: x\n\n", [b"x"]),
        (b"event: message\nid: 7\nretry: 10\ndata: x\n\n", [b"x"]),
        (b"data: one\ndata: two\n\n", [b"one\ntwo"]),
        (b"data:\n\ndata: x\n\n", [b"x"]),
        (b"\n\n\ndata: x\n\n", [b"x"]),
        (b"data: x\n\ndata: cut off", [b"x"]),
        (b"data: x\n", []),
        (b"database: x\n\n", []),
    ],
    ids=[
        "no space",
        "two spaces",
        "CRLF",
        "comment",
        "other fields",
        "two lines",
        "empty data",
        "empty lines",
        "cut off",
        "no empty line",
        "other name",
    ],
)
def test_the_rules_of_the_standard_hold(stream: bytes, events: list[bytes]) -> None:
    assert split(stream) == events


@given(st.lists(st.text(alphabet="abc: ü漢", min_size=1), max_size=5), st.lists(st.integers(0, 120)), st.booleans())
def test_where_the_stream_is_cut_changes_nothing(texts: list[str], cuts: list[int], is_crlf: bool) -> None:
    end = b"\r\n" if is_crlf else b"\n"
    stream = b"".join(b"data: " + text.encode() + end * 2 for text in texts)
    places = sorted({0, len(stream), *(cut for cut in cuts if cut < len(stream))})
    pieces = [stream[a:b] for a, b in itertools.pairwise(places)]
    assert split(*pieces) == [text.encode() for text in texts]
