"""Heads, bodies and stamps of the wire: bytes cut anywhere, and a wall clock that is set."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tuner.load.wire.body import Body, ChunkedBody, OpenBody, SizedBody, body_of
from tuner.load.wire.head import MAX_HEAD_BYTES, Framing, NotHttpError, split_head
from tuner.load.wire.stamps import KernelClock

CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


def pieces(data: bytes, cuts: list[int]) -> list[bytes]:
    places = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    return [data[a:b] for a, b in itertools.pairwise(places)]


def read(body: Body, parts: list[bytes]) -> bytes:
    return b"".join(body.feed(part) for part in parts)


# ------------------------------------------------------------------ heads


def test_a_head_is_taken_off_what_follows_it() -> None:
    found = split_head(CHUNKED + b"rest")
    assert found is not None
    head, rest = found
    assert (head.status, head.framing, head.is_kept, rest) == (200, Framing.CHUNKED, True, b"rest")
    assert head.value(b"transfer-encoding") == b"chunked"


@given(st.integers(0, len(CHUNKED) - 1))
def test_a_part_of_a_head_is_none_yet(size: int) -> None:
    assert split_head(CHUNKED[:size]) is None


@pytest.mark.parametrize(
    ("lines", "framing", "is_kept"),
    [
        ("HTTP/1.1 200 OK|Content-Length: 5", Framing.LENGTH, True),
        ("HTTP/1.1 200 OK|Content-Length: 5|Content-Length: 5", Framing.LENGTH, True),
        ("HTTP/1.1 200 OK|Content-Length: 5|Connection: Close", Framing.LENGTH, False),
        ("HTTP/1.0 200 OK|Content-Length: 5", Framing.LENGTH, False),
        ("HTTP/1.0 200 OK|Content-Length: 5|Connection: keep-alive", Framing.LENGTH, True),
        ("HTTP/1.1 200 OK", Framing.UNTIL_CLOSE, False),
        ("HTTP/1.1 204 No Content", Framing.NONE, True),
        ("HTTP/1.1 304 Not Modified|Content-Length: 5", Framing.NONE, True),
        ("HTTP/1.1 200", Framing.UNTIL_CLOSE, False),
        ("HTTP/1.1 200 OK|Transfer-Encoding: Chunked|Content-Length: 5", Framing.CHUNKED, True),
    ],
    ids=["sized", "said twice", "closing", "1.0", "1.0 kept", "open", "204", "304", "no reason", "both"],
)
def test_a_head_says_where_its_body_ends_and_whether_the_connection_is_kept(
    lines: str, framing: Framing, is_kept: bool
) -> None:
    found = split_head(lines.replace("|", "\r\n").encode() + b"\r\n\r\n")
    assert found is not None
    assert (found[0].framing, found[0].is_kept) == (framing, is_kept)


@pytest.mark.parametrize(
    "data",
    [
        b"SSH-2.0-OpenSSH",
        b"HTTP/2 200\r\n\r\n",
        b"HTTP/1.1 999 What\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nno header\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nname : value\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nx: " + b"y" * MAX_HEAD_BYTES,
    ],
    ids=["ssh", "http 2", "status", "no colon", "blank", "negative", "two lengths", "coding", "endless"],
)
def test_what_is_no_head_is_refused(data: bytes) -> None:
    with pytest.raises(NotHttpError):
        split_head(data)


# ------------------------------------------------------------------ bodies


@given(
    st.lists(st.binary(min_size=1, max_size=40), max_size=6),
    st.lists(st.integers(0, 400), max_size=8),
    st.sampled_from([b"", b";name=value", b" "]),
    st.sampled_from([b"", b"x-sum: 1\r\n"]),
    st.sampled_from([b"%x", b"%X", b"00%x"]),
)
def test_a_chunked_body_is_the_same_however_it_is_cut(
    chunks: list[bytes], cuts: list[int], extension: bytes, trailer: bytes, size: bytes
) -> None:
    framed = b"".join(size % len(chunk) + extension + b"\r\n" + chunk + b"\r\n" for chunk in chunks)
    body = ChunkedBody()
    assert read(body, pieces(framed + b"0\r\n" + trailer + b"\r\n", cuts)) == b"".join(chunks)
    assert body.is_done
    assert (body.rest, body.end()) == (b"", None)


def test_a_chunk_that_is_one_read_is_its_body() -> None:
    body = ChunkedBody()
    assert body.feed(b"5\r\nhello\r\n") == b"hello"
    assert body.feed(b"5\r\nhello\r\n3\r\nyou\r\n") == b"helloyou"
    assert not body.is_done
    assert body.end() is not None


def test_what_comes_behind_a_body_is_kept_apart() -> None:
    chunked, sized = ChunkedBody(), SizedBody(3)
    assert (chunked.feed(b"1\r\na\r\n0\r\n\r\nHTTP"), chunked.rest) == (b"a", b"HTTP")
    assert (sized.feed(b"abcHTTP"), sized.rest) == (b"abc", b"HTTP")


@pytest.mark.parametrize(
    "data",
    [b"zz\r\n", b"-5\r\nhello\r\n", b"0x5\r\nhello\r\n", b"+5\r\nhello\r\n", b"5\r\nhelloXX", b"\r\n", b"f" * 5000,
     b"1_0\r\n0123456789abcdef\r\n"],
    ids=["letters", "negative", "prefix", "sign", "no end", "empty", "endless", "underscore"],
)  # fmt: skip
def test_a_broken_chunk_is_refused(data: bytes) -> None:
    with pytest.raises(NotHttpError):
        ChunkedBody().feed(data)


@given(st.binary(max_size=60), st.lists(st.integers(0, 60), max_size=5))
def test_a_sized_body_ends_at_its_length_and_an_open_one_with_its_connection(data: bytes, cuts: list[int]) -> None:
    sized, opened = SizedBody(len(data)), OpenBody()
    assert read(sized, pieces(data, cuts)) == read(opened, pieces(data, cuts)) == data
    assert sized.is_done
    assert not opened.is_done
    assert (sized.end(), opened.end(), opened.is_done) == (None, None, True)


def test_a_sized_body_says_what_it_lacks() -> None:
    body = SizedBody(10)
    body.feed(b"1234")
    assert "6 bytes" in (body.end() or "")


def test_the_reply_to_a_head_request_has_no_body() -> None:
    found = split_head(CHUNKED)
    assert found is not None
    assert body_of(found[0], is_to_head=True).is_done
    assert not body_of(found[0]).is_done


# ------------------------------------------------------------------ stamps


class Clocks:
    """A wall clock and a monotonic one; each reading takes a tenth of a microsecond."""

    def __init__(self) -> None:
        self.now_ns = 10**12
        self.ahead_ns = 1_796_000_000 * 10**9

    def mono_ns(self) -> int:
        self.now_ns += 100
        return self.now_ns

    def wall_ns(self) -> int:
        return self.mono_ns() + self.ahead_ns


def stamp_s(clock: KernelClock, wall_ns: int) -> float:
    seconds, nanoseconds = divmod(wall_ns, 10**9)
    return (seconds - clock.base_s) + nanoseconds * 1e-9 + clock.shift_s


def test_a_stamp_of_the_wall_clock_is_told_on_the_monotonic_one() -> None:
    clocks = Clocks()
    clock = KernelClock(clocks.wall_ns, clocks.mono_ns)
    clock.sync()
    assert clock.is_steady
    assert stamp_s(clock, clocks.ahead_ns + clocks.now_ns) == pytest.approx(clocks.now_ns / 1e9, abs=1e-6)


@pytest.mark.parametrize("step_ns", [500_000, -500_000, 3600 * 10**9, -3600 * 10**9], ids=str)
def test_after_the_wall_clock_was_set_only_a_stamp_from_since_the_last_batch_is_used(step_ns: int) -> None:
    clocks = Clocks()
    clock = KernelClock(clocks.wall_ns, clocks.mono_ns)
    clock.sync()
    clocks.now_ns += 100_000
    before_ns = clocks.ahead_ns + clocks.now_ns
    clocks.now_ns += 100_000
    clocks.ahead_ns += step_ns
    after_ns = clocks.ahead_ns + clocks.now_ns
    came_s = clocks.now_ns / 1e9
    clock.sync()
    now_s = clocks.now_ns / 1e9
    assert not clock.is_steady
    assert not clock.is_credible(stamp_s(clock, before_ns), now_s)
    assert clock.is_credible(stamp_s(clock, after_ns), now_s)
    assert stamp_s(clock, after_ns) == pytest.approx(came_s, abs=1e-6)
    clock.sync()
    assert clock.is_steady


def test_a_step_that_could_hide_in_a_long_pause_leaves_its_batch_without_stamps() -> None:
    clocks = Clocks()
    clock = KernelClock(clocks.wall_ns, clocks.mono_ns)
    clock.sync()
    clocks.now_ns += 10**9
    clocks.ahead_ns += 2 * 10**8
    clock.sync()
    assert not clock.is_credible(stamp_s(clock, clocks.ahead_ns + clocks.now_ns - 1000), clocks.now_ns / 1e9)


def test_a_pause_between_the_two_readings_is_no_step_of_the_clock() -> None:
    clocks = Clocks()
    clock = KernelClock(clocks.wall_ns, clocks.mono_ns)
    late = iter([5_000_000])

    def interrupted_ns() -> int:
        at_ns = clocks.wall_ns()
        clocks.now_ns += next(late, 0)
        return at_ns

    clock._wall_ns = interrupted_ns
    clock.sync()
    assert clock.is_steady
