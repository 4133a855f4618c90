"""What servers, proxies and networks do to a stream: none hangs, none becomes a wrong number."""

from __future__ import annotations

import asyncio
import gzip
import time
from collections.abc import Sequence
from dataclasses import dataclass

import pytest

from tuner.load.client import HttpLoadGenerator
from tuner.load.http import HttpControlClient, HttpSlot
from tuner.load.loop import ClosedLoop
from tuner.load.prompts import load_prompts
from tuner.load.queue import PromptQueue
from tuner.model.record import LegResult, RequestRecord, RequestStatus
from tuner.model.workload import Workload
from tuner.ports import Leg, Target
from tuner.testing.fake_engine import FakeEngine
from tuner.testing.rough_server import DONE, END, STREAM, Act, Answer, Step, chunk, event, events, head, rough

TOKENS = 24
TIMEOUT_S = 1.5
PATIENCE_S = 20.0  # a request that hangs takes far longer than TIMEOUT_S
WHOLE = events(TOKENS)
BODY = b"".join(WHOLE)
PACKED = gzip.compress(BODY)
REFUSAL = b'data: {"error": {"message": "the queue is full"}}\n\n'
OK = [STREAM, *map(chunk, WHOLE), END]


def sized(body: bytes, **fields: str) -> bytes:
    """Return a reply's head for a body of known length."""
    return head(content_length=str(len(body)), **({"content_type": "text/event-stream"} | fields))


def ok(number: int) -> list[Step]:
    """Return a whole reply of its own name."""
    return [STREAM, *map(chunk, events(TOKENS, reply=f"next-{number}")), END]


def counting(*totals: object) -> list[Step]:
    """Return a whole reply whose events carry these counts."""
    return [STREAM, *(chunk(event(total=total)) for total in totals), chunk(DONE), END]


@dataclass(frozen=True, slots=True)
class Leg1:
    """What a leg gave."""

    result: LegResult
    records: tuple[RequestRecord, ...]
    took_s: float


def ask(answer: Answer, requests: int = 1, *, host: str = "127.0.0.1", name: str = "127.0.0.1") -> list[RequestRecord]:
    """Send requests one after the other on one connection."""

    async def run() -> list[RequestRecord]:
        async with rough(answer, host=host) as (_, port):
            return await sent(f"http://{name}:{port}", requests)

    return asyncio.run(asyncio.wait_for(run(), PATIENCE_S))


async def sent(url: str, requests: int = 1) -> list[RequestRecord]:
    """Send requests to an address, one after the other."""
    prompts = PromptQueue(load_prompts("builtin"), seed=1, salt="rough", limit=requests)
    async with ClosedLoop(target(url), concurrency=1, prompts=prompts, connect=HttpSlot, request_s=0.0) as loop:
        while not await loop.wait(0.1):
            pass
    return loop.records


def target(url: str) -> Target:
    workload = Workload(output_tokens=TOKENS, request_timeout_s=TIMEOUT_S)
    return Target(base_url=url, engine=FakeEngine(), workload=workload, seed=5)


def measure(answer: Answer, concurrency: int = 4, max_s: float = 1.0) -> Leg1:
    """Run a leg."""

    async def run() -> Leg1:
        async with rough(answer) as (_, port):
            url = f"http://127.0.0.1:{port}"
            control = HttpControlClient(url)
            leg = Leg(concurrency=concurrency, min_s=0.5, max_s=max_s, interval=0.05, salt="leg")
            began_s = time.monotonic()
            result, records = await HttpLoadGenerator().measure(target(url), leg, control, lambda _: None)
            took_s = time.monotonic() - began_s
            await control.close()
            return Leg1(result, records, took_s)

    return asyncio.run(asyncio.wait_for(run(), PATIENCE_S))


def always(*steps: Step) -> Answer:
    return lambda _number, _asked: steps


def paced(number: int, asked: int) -> Sequence[Step]:
    """Answer as a server does: an event every 10 ms."""
    steps: list[Step] = [STREAM]
    for each in events(asked, reply=f"cmpl-{number}"):
        steps += [0.01, chunk(each)]
    return [*steps, END]


WELL = {
    "chunked": OK,
    "content_length": [sized(BODY), BODY],
    "until_the_end_of_the_connection": [head(content_type="text/event-stream"), BODY, Act.CLOSE],
    "http_1_0": [head(version="1.0", content_type="text/event-stream"), BODY, Act.CLOSE],
    "byte_by_byte": [STREAM, *(bytes([byte]) for byte in b"".join([*map(chunk, WHOLE), END])), 0.0],
    "crlf": [STREAM, chunk(BODY.replace(b"\n", b"\r\n")), END],
    "comments": [STREAM, chunk(b": ping\n\n"), *(chunk(b": keep-alive\n" + each) for each in WHOLE), END],
    "fields_nobody_needs": [STREAM, *(chunk(b"event: x\nid: 3\nretry: 10\n" + each) for each in WHOLE), END],
    "no_blank_after_the_colon": [STREAM, chunk(BODY.replace(b"data: ", b"data:")), END],
    "chunk_extension_and_trailer": [
        STREAM,
        b"%x;name=value\r\n%s\r\n" % (len(BODY), BODY),
        b"0\r\nx-checksum: 1\r\n\r\n",
    ],
    "chunk_size_in_capitals_with_zeros": [STREAM, b"000%X\r\n%s\r\n" % (len(BODY), BODY), END],
    "an_early_hint_first": [head("103 Early Hints", link="</x>"), *OK],
    "continue_first": [b"HTTP/1.1 100 Continue\r\n\r\n", *OK],
    "head_split": [STREAM[:9], 0.05, STREAM[9:-1], 0.05, STREAM[-1:], *map(chunk, WHOLE), END],
    "identity_said": [
        head(content_type="text/event-stream", transfer_encoding="chunked", content_encoding="identity"),
        *map(chunk, WHOLE),
        END,
    ],
}


@pytest.mark.parametrize("steps", WELL.values(), ids=WELL)
def test_a_whole_reply_is_counted_however_it_is_packed(steps: list[Step]) -> None:
    (record,) = ask(always(*steps))
    assert record.status is RequestStatus.OK, record.error
    assert record.tokens == TOKENS
    assert sum(record.chunk_tokens) == TOKENS
    assert list(record.chunk_s) == sorted(record.chunk_s)


@pytest.mark.parametrize("at", range(1, 160, 3), ids=str)
def test_a_reply_cut_into_two_pieces_anywhere_is_the_same_reply(at: int) -> None:
    whole = b"".join([STREAM, *map(chunk, WHOLE), END])
    (record,) = ask(always(whole[:at], 0.005, whole[at:]))
    assert (record.status, record.tokens) == (RequestStatus.OK, TOKENS)


ILL: dict[str, tuple[list[Step], RequestStatus]] = {
    "too_many_requests": ([head("429 Too Many Requests", content_length="4"), b"busy"], RequestStatus.HTTP_ERROR),
    "unavailable": ([head("503 Service Unavailable", content_length="4"), b"down"], RequestStatus.HTTP_ERROR),
    "unavailable_without_a_body_s_end": ([head("503 Down"), b"down", Act.CLOSE], RequestStatus.HTTP_ERROR),
    "moved": ([head("302 Found", location="/login", content_length="0")], RequestStatus.HTTP_ERROR),
    "no_content": ([head("204 No Content")], RequestStatus.HTTP_ERROR),
    "an_error_inside": ([sized(REFUSAL), REFUSAL], RequestStatus.HTTP_ERROR),
    "an_error_in_mid_stream": (
        [STREAM, chunk(WHOLE[0]), chunk(b'data: {"error": {"message": "out of memory"}}\n\n'), chunk(DONE), END],
        RequestStatus.HTTP_ERROR,
    ),
    "a_page_for_people": (
        [head(content_type="text/html", content_length="18"), b"<h1>It works!</h1>"],
        RequestStatus.HTTP_ERROR,
    ),
    "json_and_no_stream": (
        [head(content_type="application/json", content_length="15"), b'{"choices": []}'],
        RequestStatus.HTTP_ERROR,
    ),
    "gzip": ([sized(PACKED, content_encoding="gzip"), PACKED], RequestStatus.HTTP_ERROR),
    "not_http": ([b"SSH-2.0-OpenSSH_9.2p1 Debian-2\r\n", Act.CLOSE], RequestStatus.CUT),
    "closed_at_once": ([Act.CLOSE], RequestStatus.CUT),
    "reset_at_once": ([Act.RESET], RequestStatus.CUT),
    "closed_in_the_head": ([STREAM[:20], Act.CLOSE], RequestStatus.CUT),
    "closed_in_mid_stream": ([STREAM, chunk(WHOLE[0]), Act.CLOSE], RequestStatus.CUT),
    "reset_in_mid_stream": ([STREAM, chunk(WHOLE[0]), 0.05, Act.RESET], RequestStatus.CUT),
    "half_closed_in_mid_stream": ([STREAM, chunk(WHOLE[0]), Act.HALF_CLOSE], RequestStatus.CUT),
    "closed_in_a_chunk": ([STREAM, chunk(WHOLE[0])[:-9], Act.CLOSE], RequestStatus.CUT),
    "closed_before_the_last_chunk": ([STREAM, *map(chunk, WHOLE), Act.CLOSE], RequestStatus.CUT),
    "shorter_than_it_said": ([sized(BODY), BODY[:-30], Act.CLOSE], RequestStatus.CUT),
    "no_end_marker": ([STREAM, chunk(event(total=8)), END], RequestStatus.CUT),
    "a_chunk_size_that_is_none": ([STREAM, b"zz\r\n", Act.HANG], RequestStatus.CUT),
    "silent": ([Act.HANG], RequestStatus.TIMED_OUT),
    "silent_after_the_head": ([STREAM, Act.HANG], RequestStatus.TIMED_OUT),
    "stalled": ([STREAM, chunk(WHOLE[0]), Act.HANG], RequestStatus.TIMED_OUT),
    "a_body_that_does_not_end": ([STREAM, *map(chunk, WHOLE), Act.HANG], RequestStatus.TIMED_OUT),
    "short": ([STREAM, *map(chunk, events(TOKENS // 2)), END], RequestStatus.SHORT),
    "empty": ([STREAM, chunk(DONE), END], RequestStatus.EMPTY),
    "no_usage": (counting(*[None] * 6), RequestStatus.UNCOUNTED),
    "usage_null": (counting(*[...] * 6), RequestStatus.UNCOUNTED),
    "usage_in_words": (counting(*["six"] * 6), RequestStatus.UNCOUNTED),
    "a_count_that_goes_back": (counting(4, 8, 6, 12, TOKENS), RequestStatus.MISCOUNTED),
    "more_than_asked_for": (counting(TOKENS, TOKENS * 2), RequestStatus.MISCOUNTED),
    "a_negative_count": (counting(-4, TOKENS), RequestStatus.MISCOUNTED),
}


@pytest.mark.parametrize(("steps", "status"), ILL.values(), ids=ILL)
def test_a_bad_reply_is_counted_as_what_it_is(steps: list[Step], status: RequestStatus) -> None:
    (record,) = ask(always(*steps))
    assert record.status is status, record.error
    assert record.error
    assert "\n" not in record.error
    assert record.ended_s - record.sent_s < TIMEOUT_S + 3.0


@pytest.mark.parametrize("steps", [steps for steps, _ in ILL.values()], ids=ILL)
def test_the_request_after_a_bad_reply_is_served(steps: list[Step]) -> None:
    first, second = ask(lambda number, _: steps if number == 0 else ok(number), 2)
    # An open connection that ends before one byte of a reply is made anew, once.
    assert first.status is not RequestStatus.OK or "sent again" in (first.error or "")
    assert second.status is RequestStatus.OK, second.error


def test_a_reply_that_comes_twice_is_counted_once() -> None:
    first, second = ask(always(*OK), 2)
    assert first.status is RequestStatus.OK
    assert second.status is RequestStatus.DUPLICATED


def test_a_server_that_ends_in_mid_leg_leaves_no_number_behind() -> None:
    """Its connections break, and no other is taken any more."""

    def answer(number: int, asked: int) -> Sequence[Step]:
        steps = list(paced(number, asked))
        return steps if number < 8 else [*steps[:5], Act.RESET]

    leg = measure(answer)
    assert leg.result.failed > 0
    assert leg.result.offered == leg.result.completed + leg.result.failed
    assert leg.took_s < PATIENCE_S / 2


def test_a_server_that_stalls_is_over_when_the_leg_is() -> None:
    def answer(number: int, asked: int) -> Sequence[Step]:
        steps = paced(number, asked)
        return steps if number < 8 else [*steps[:5], Act.HANG]

    leg = measure(answer)
    assert leg.took_s < PATIENCE_S / 2
    assert not [record for record in leg.records if record.status is RequestStatus.OK and record.tokens != TOKENS]


def test_proxies_of_the_environment_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY", "https_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    (record,) = ask(always(*OK))
    assert record.status is RequestStatus.OK


def test_a_server_on_ipv6_loopback_is_reached_by_its_address() -> None:
    (record,) = ask(always(*OK), host="::1", name="[::1]")
    assert record.status is RequestStatus.OK


def test_localhost_is_reached() -> None:
    (record,) = ask(always(*OK), name="localhost")
    assert record.status is RequestStatus.OK


def test_a_port_nobody_listens_on_refuses() -> None:
    async def run() -> list[RequestRecord]:
        async with rough(always(*OK)) as (_, port):
            pass
        return await sent(f"http://127.0.0.1:{port}")

    (record,) = asyncio.run(asyncio.wait_for(run(), PATIENCE_S))
    assert record.status is RequestStatus.REFUSED


def test_compression_is_not_asked_for() -> None:
    async def run() -> bytes:
        async with rough(always(*OK)) as (server, port):
            await sent(f"http://127.0.0.1:{port}")
            return server.heads[0]

    asked = asyncio.run(run()).lower()
    assert b"accept-encoding: identity" in asked
    assert b"gzip" not in asked


def test_a_kept_connection_that_the_server_has_closed_is_opened_anew_and_told() -> None:
    first, second = ask(lambda number, _: [*ok(number), Act.CLOSE] if number == 0 else ok(number), 2)
    assert (first.status, second.status) == (RequestStatus.OK, RequestStatus.OK)
