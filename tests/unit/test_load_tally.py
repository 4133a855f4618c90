"""One request's counts and verdict, from the bytes of its stream."""

from __future__ import annotations

import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tuner.engines import openai_stream
from tuner.engines.sglang import SglangAdapter
from tuner.load.stream import Failure, StreamEnd
from tuner.load.tally import Tally
from tuner.model.http import StreamDelta
from tuner.model.record import RequestStatus
from tuner.model.workload import Workload
from tuner.testing.fake_engine import FakeEngine

WHOLE = StreamEnd(ended_s=9.0, status=200)
DONE = b"data: [DONE]\n\n"


def tally(output_tokens: int = 9, *, ignore_eos: bool = True) -> Tally:
    workload = Workload(output_tokens=output_tokens, ignore_eos=ignore_eos)
    made = Tally(FakeEngine(), workload, concurrency=4, slot=2, prompt_id="p")
    made.sent(1.0)
    return made


def event(text: str = "word", total: int | None = None, finish: str | None = None) -> bytes:
    body: dict[str, object] = {"choices": [{"text": text, "finish_reason": finish}]}
    if total is not None:
        body["usage"] = {"completion_tokens": total, "prompt_tokens": 7}
    return b"data: " + json.dumps(body).encode() + b"\n\n"


def usage(total: int) -> bytes:
    return b"data: " + json.dumps({"choices": [], "usage": {"completion_tokens": total}}).encode() + b"\n\n"


def test_tokens_are_the_growth_of_the_server_s_count_and_not_chunks() -> None:
    request = tally()
    for at, total in ((2.0, 1), (3.0, 5), (4.0, 9)):
        request.feed(event(total=total), at)
    request.feed(usage(9) + DONE, 4.5)
    record = request.record(WHOLE)
    assert record.status is RequestStatus.OK
    assert (record.tokens, record.first_chunk_tokens, record.prompt_tokens) == (9, 1, 7)
    assert (record.chunk_s, record.chunk_tokens) == ((2.0, 3.0, 4.0), (1, 4, 4))
    assert (record.sent_s, record.first_s, record.last_s, record.ended_s) == (1.0, 2.0, 4.0, 9.0)
    assert (record.concurrency, record.slot, record.prompt_id, record.in_window) == (4, 2, "p", False)


def test_a_chunk_without_text_whose_count_grew_is_an_arrival() -> None:
    request = tally()
    request.feed(event(total=1), 2.0)
    request.feed(event("", total=5), 3.0)
    request.feed(event(total=9), 4.0)
    request.feed(DONE, 4.0)
    assert request.record(WHOLE).chunk_tokens == (1, 4, 4)


def test_an_empty_event_before_the_first_token_is_no_chunk() -> None:
    request = tally()
    request.feed(event("", total=0), 1.5)
    request.feed(event(total=9) + DONE, 2.0)
    record = request.record(WHOLE)
    assert record.first_s == 2.0
    assert record.first_chunk_tokens == 9


def test_a_count_that_comes_only_at_the_end_is_the_total_and_no_chunk() -> None:
    request = tally()
    request.feed(event(), 2.0)
    request.feed(event(finish="length"), 3.0)
    request.feed(usage(9) + DONE, 4.0)
    record = request.record(WHOLE)
    assert record.status is RequestStatus.OK
    assert (record.tokens, record.first_chunk_tokens, record.chunk_tokens) == (9, None, ())
    assert record.chunk_s == (2.0, 3.0)


def test_a_final_count_above_the_running_one_is_a_late_arrival() -> None:
    request = tally()
    request.feed(event(total=1), 2.0)
    request.feed(event(total=5), 3.0)
    request.feed(usage(9) + DONE, 4.0)
    record = request.record(WHOLE)
    assert (record.chunk_s, record.chunk_tokens) == ((2.0, 3.0, 4.0), (1, 4, 4))


def test_a_running_count_that_is_missing_once_is_not_used_at_all() -> None:
    request = tally()
    request.feed(event(total=1), 2.0)
    request.feed(event(), 3.0)
    request.feed(event(total=9) + DONE, 4.0)
    record = request.record(WHOLE)
    assert (record.tokens, record.first_chunk_tokens, record.chunk_tokens) == (9, None, ())


def test_events_read_together_share_their_stamp() -> None:
    request = tally()
    request.feed(event(total=1) + event(total=5) + event(total=9) + DONE, 2.0)
    assert request.record(WHOLE).chunk_s == (2.0, 2.0, 2.0)


@pytest.mark.parametrize(
    ("stream", "status", "complaint"),
    [
        (event(total=5) + DONE, RequestStatus.SHORT, "5 of 9 tokens"),
        (event("", total=0) + DONE, RequestStatus.EMPTY, "not one token"),
        (DONE, RequestStatus.EMPTY, "not one token"),
        (event() + DONE, RequestStatus.UNCOUNTED, "how many tokens"),
        (event(total=9), RequestStatus.CUT, "without an end marker"),
        (b"", RequestStatus.CUT, "without an end marker"),
        (event(total=9) + b'data: {"error": {"message": "boom"}}\n\n' + DONE, RequestStatus.HTTP_ERROR, "boom"),
        (event(total=9) + b"data: {broken\n\n" + DONE, RequestStatus.HTTP_ERROR, "broken"),
    ],
)
def test_a_reply_read_to_its_end_can_still_be_a_failure(stream: bytes, status: RequestStatus, complaint: str) -> None:
    request = tally()
    request.feed(stream, 2.0)
    record = request.record(WHOLE)
    assert record.status is status
    assert complaint in (record.error or "")


@pytest.mark.parametrize(
    ("failure", "status"),
    [
        (Failure.REFUSED, RequestStatus.REFUSED),
        (Failure.CUT, RequestStatus.CUT),
        (Failure.TIMED_OUT, RequestStatus.TIMED_OUT),
        (Failure.REJECTED, RequestStatus.HTTP_ERROR),
    ],
)
def test_every_failure_of_the_wire_has_its_status_and_keeps_what_had_arrived(
    failure: Failure, status: RequestStatus
) -> None:
    request = tally()
    request.feed(event(total=5), 2.0)
    record = request.record(StreamEnd(ended_s=3.0, status=None, failure=failure, detail="why"))
    assert (record.status, record.error, record.tokens) == (status, "why", 5)


def test_a_finish_reason_ends_a_stream_whose_server_sends_no_marker() -> None:
    request = tally()
    request.feed(event(total=9, finish="length"), 2.0)
    assert request.record(WHOLE).status is RequestStatus.OK


def test_a_short_reply_is_fine_where_the_model_may_stop() -> None:
    request = tally(ignore_eos=False)
    request.feed(event(total=5, finish="stop") + DONE, 2.0)
    assert request.record(WHOLE).status is RequestStatus.OK


def test_what_we_cut_is_cancelled_and_no_failure() -> None:
    request = tally()
    request.feed(event(total=5), 2.0)
    record = request.cancelled(2.5)
    assert (record.status, record.error, record.tokens, record.ended_s) == (RequestStatus.CANCELLED, None, 5, 2.5)


def test_an_engine_that_cannot_read_an_event_fails_the_request_and_not_the_leg() -> None:
    class Strict(FakeEngine):
        def read_event(self, event: bytes) -> StreamDelta:
            raise ValueError(event)

    request = Tally(Strict(), Workload(), concurrency=1, slot=0, prompt_id="p")
    request.feed(event(total=5), 2.0)
    record = request.record(WHOLE)
    assert record.status is RequestStatus.HTTP_ERROR
    assert "unreadable event" in (record.error or "")


def test_the_curve_of_a_live_request_follows_its_count() -> None:
    request = tally()
    assert request.arrivals(None) is None
    request.feed(event(total=1), 2.0)
    request.feed(event(total=5), 3.0)
    curve = request.arrivals(None)
    assert curve is not None
    assert list(curve.totals) == [1, 5]


def test_the_curve_of_a_live_uncounted_request_is_estimated_from_complete_ones() -> None:
    request = tally()
    request.feed(event(), 2.0)
    request.feed(event(), 3.0)
    assert request.arrivals(None) is None
    curve = request.arrivals(4.0)
    assert curve is not None
    assert list(curve.totals) == [4.0, 8.0]


# ------------------------------------------------------------------ counts that cannot be


@pytest.mark.parametrize(
    ("stream", "complaint"),
    [
        (event(total=5) + event(total=3) + event(total=9) + DONE, "fell"),
        (event(total=-4) + event(total=9) + DONE, "fell"),
        (event(total=9) + event(total=18) + DONE, "18 tokens, but 9"),
        (event(total=1 << 50) + DONE, "was no count"),
    ],
    ids=["falls", "negative", "too many", "absurd"],
)
def test_a_count_that_cannot_be_is_a_failure(stream: bytes, complaint: str) -> None:
    request = tally(ignore_eos=False)
    request.feed(stream, 2.0)
    record = request.record(WHOLE)
    assert record.status is RequestStatus.MISCOUNTED
    assert complaint in (record.error or "")


# ------------------------------------------------------------------ several chunks in one read


def test_chunks_of_one_read_are_spread_over_the_gap_before_it_and_counted() -> None:
    request = tally()
    request.feed(event(total=1), 2.0)
    request.feed(event(total=3) + event(total=5), 4.0)
    request.feed(event(total=7), 4.0)  # the rest of the same read
    request.feed(event(total=9) + DONE, 5.0)
    record = request.record(WHOLE)
    assert record.chunk_s == pytest.approx((2.0, 2.0 + 2 / 3, 2.0 + 4 / 3, 4.0, 5.0))
    assert (record.chunk_tokens, record.merged) == ((1, 2, 2, 2, 2), 2)


def test_nothing_says_when_the_first_of_the_first_read_came() -> None:
    request = tally()
    request.feed(event(total=1) + event(total=9) + DONE, 2.0)
    record = request.record(WHOLE)
    assert (record.chunk_s, record.merged) == ((2.0, 2.0), 1)


# ------------------------------------------------------------------ the quick way and the whole one

SGLANG = SglangAdapter()
TEXTS = st.text(max_size=12) | st.sampled_from(
    ['"finish_reason":null}],"usage":{"prompt_tokens":1,"completion_tokens":99,"total_tokens":9}}', "\\", '"error"', ""]
)
COUNTS = st.integers(-3, 60) | st.sampled_from([None, 1 << 63, 1.5, "six", True])


@st.composite
def messages(draw: st.DrawFn) -> bytes:
    """Make an event as servers send them, and as they should not."""
    text = draw(TEXTS)
    choice: dict[str, object] = {"index": 0}
    choice |= draw(st.sampled_from([{"text": text}, {"delta": {"content": text}}, {"delta": {"role": "assistant"}}]))
    choice |= draw(st.sampled_from([{}, {"logprobs": None}]))
    choice |= draw(st.sampled_from([{}, {"finish_reason": None}, {"finish_reason": None}, {"finish_reason": "stop"}]))
    choice |= draw(st.sampled_from([{}, {"matched_stop": None}, {"stop_reason": None}, {"matched_stop": text}]))
    message: dict[str, object] = draw(st.sampled_from([{}, {"id": "a"}, {"id": "a", "created": 7, "model": text}]))
    message = message | {"choices": [choice]}
    usage: dict[str, object] = draw(st.sampled_from([{}, {"prompt_tokens": 7}]))
    usage = usage | {"completion_tokens": draw(COUNTS)}
    usage |= draw(st.sampled_from([{}, {"total_tokens": 8}, {"prompt_tokens_details": {"cached_tokens": 3}}]))
    message |= draw(st.sampled_from([{}, {"usage": None}, {"usage": usage}, {"usage": usage}]))
    message |= draw(
        st.sampled_from([{}, {}, {"error": {"message": "full"}}, {"metadata": {"x": 1}}, {"object": "error"}])
    )
    blank = draw(st.booleans())
    return json.dumps(
        message, separators=(", ", ": ") if blank else (",", ":"), ensure_ascii=draw(st.booleans())
    ).encode()


@given(messages())
def test_a_quick_count_is_the_count_of_the_whole_event_which_says_nothing_else(payload: bytes) -> None:
    quick = SGLANG.quick_count(payload)
    if quick is not None:
        whole = SGLANG.read_event(payload)
        assert (whole.tokens_total, whole.error, whole.finish_reason, whole.done) == (quick, None, None, False)


def test_the_events_of_a_stream_under_way_are_counted_quickly() -> None:
    sglang = (
        b'{"id":"a","object":"text_completion","created":1,"model":"m","choices":[{"index":0,"text":" word",'
        b'"logprobs":null,"finish_reason":null,"matched_stop":null}],"usage":{"prompt_tokens":7,"total_tokens":19,'
        b'"completion_tokens":12,"prompt_tokens_details":null,"reasoning_tokens":0}}'
    )
    assert SGLANG.quick_count(sglang) == openai_stream.read_event(sglang).tokens_total == 12
    assert SGLANG.quick_count(sglang.replace(b'"finish_reason":null', b'"finish_reason":"length"')) is None
    assert SGLANG.quick_count(b"[DONE]") is None


class Slow(SglangAdapter):
    def quick_count(self, event: bytes) -> int | None:  # noqa: ARG002 - the whole way only
        return None


@given(st.lists(messages(), max_size=8), st.lists(st.integers(0, 4000), max_size=6), st.booleans())
def test_both_ways_make_the_same_record_wherever_the_stream_is_cut(
    payloads: list[bytes], cuts: list[int], is_crlf: bool
) -> None:
    end = b"\r\n\r\n" if is_crlf else b"\n\n"
    body = b"".join(b"data: " + payload + end for payload in payloads) + DONE
    places = sorted({0, len(body), *(cut % (len(body) + 1) for cut in cuts)})
    parts = [body[a:b] for a, b in itertools.pairwise(places)]
    records = []
    for engine in (SglangAdapter(), Slow()):
        request = Tally(engine, Workload(output_tokens=40), concurrency=1, slot=0, prompt_id="p")
        request.sent(0.5)
        for at, part in enumerate(parts):
            request.feed(part, 1.0 + at)
        records.append(request.record(WHOLE))
    assert records[0] == records[1]
