"""The steady window: curves, edges, opening, horizon, batches."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tuner.model.record import RequestRecord, RequestStatus
from tuner.stats.window import (
    Arrivals,
    Window,
    aggregate_throughput,
    arrivals_of,
    decode_speeds,
    even_arrivals,
    horizon_s,
    is_in_window,
    mean_gap_s,
    median_decode_s,
    most_at_once,
    opening_s,
    tokens_at,
    tokens_per_chunk,
)


def record(
    sent_s: float,
    first_s: float,
    last_s: float,
    *,
    slot: int = 0,
    status: RequestStatus = RequestStatus.OK,
    counted: bool = True,
) -> RequestRecord:
    return RequestRecord(
        concurrency=1,
        slot=slot,
        prompt_id="p",
        sent_s=sent_s,
        first_s=first_s,
        last_s=last_s,
        ended_s=last_s,
        tokens=9,
        first_chunk_tokens=1 if counted else None,
        prompt_tokens=None,
        chunk_s=(first_s, (first_s + last_s) / 2, last_s),
        chunk_tokens=(1, 4, 4) if counted else (),
        status=status,
        in_window=False,
    )


STREAM = Arrivals(stamps_s=(10.0, 12.0, 14.0), totals=(1, 5, 9))


def test_tokens_grow_in_lines_between_chunks_and_at_once_with_the_first() -> None:
    assert [STREAM.tokens_by(at) for at in (9.99, 10.0, 11.0, 12.0, 13.5, 14.0, 99.0)] == [0, 1, 3, 5, 8, 9, 9]


def test_chunks_that_were_read_together_have_no_line_between_them() -> None:
    stream = Arrivals(stamps_s=(1.0, 2.0, 2.0, 3.0), totals=(1, 2, 6, 7))
    assert stream.tokens_by(1.5) == 1.5
    assert stream.tokens_by(2.0) == 6
    assert stream.tokens_by(2.5) == 6.5


def test_a_chunk_at_an_edge_counts_in_part() -> None:
    estimate = aggregate_throughput([STREAM], Window(start_s=11.0, end_s=13.0), median_decode_s=None)
    assert estimate is not None
    assert estimate.value == pytest.approx((7 - 3) / 2)
    assert estimate.low is None


@given(
    st.lists(st.lists(st.tuples(st.floats(0.01, 2), st.integers(0, 7)), min_size=1, max_size=8), max_size=6),
    st.lists(st.floats(0, 20), min_size=2, max_size=6),
)
def test_counting_at_many_edges_equals_counting_each_stream_at_each_edge(
    streams: list[list[tuple[float, int]]], edges: list[float]
) -> None:
    curves = []
    for stream in streams:
        at, total, stamps, totals = 0.0, 0, [], []
        for gap, tokens in stream:
            at, total = at + gap, total + tokens
            stamps.append(at)
            totals.append(total)
        curves.append(Arrivals(stamps_s=stamps, totals=totals))
    edges.sort()
    assert tokens_at(curves, edges) == pytest.approx([sum(c.tokens_by(edge) for c in curves) for edge in edges])


@given(st.floats(0.5, 29.5))
def test_two_adjacent_windows_share_out_the_tokens_between_them(cut_s: float) -> None:
    streams = [STREAM, Arrivals(stamps_s=(3.0, 3.3, 21.0), totals=(4, 6, 40))]
    parts = [Window(start_s=0.0, end_s=cut_s), Window(start_s=cut_s, end_s=30.0)]
    tokens = 0.0
    for part in parts:
        estimate = aggregate_throughput(streams, part, median_decode_s=1.0)
        assert estimate is not None
        tokens += estimate.value * part.length_s
    assert tokens == pytest.approx(49)


def test_a_steady_stream_gives_its_rate_with_a_narrow_interval() -> None:
    streams = [
        Arrivals(stamps_s=[k * 0.03 + i * 0.1 for i in range(100)], totals=[4 * (i + 1) for i in range(100)])
        for k in range(4)
    ]
    estimate = aggregate_throughput(streams, Window(start_s=1.0, end_s=9.0), median_decode_s=1.0)
    assert estimate is not None
    assert estimate.value == pytest.approx(160.0)
    assert estimate.samples == 8
    assert estimate.half_width == pytest.approx(0.0, abs=1e-9)


def test_batches_are_never_shorter_than_a_decode() -> None:
    streams = [Arrivals(stamps_s=[i * 0.1 for i in range(100)], totals=[i + 1 for i in range(100)])]
    estimate = aggregate_throughput(streams, Window(start_s=0.0, end_s=2.0), median_decode_s=0.41)
    assert estimate is not None
    assert estimate.samples == 4


def test_fewer_than_three_batches_give_a_value_without_interval() -> None:
    estimate = aggregate_throughput([STREAM], Window(start_s=10.0, end_s=14.0), median_decode_s=2.0)
    assert estimate is not None
    assert (estimate.value, estimate.low, estimate.high, estimate.samples) == (2.0, None, None, 2)


def test_a_window_without_known_streams_is_not_measured_and_one_without_tokens_is_zero() -> None:
    window = Window(start_s=20.0, end_s=22.0)
    assert aggregate_throughput([], window, median_decode_s=None) is None
    assert aggregate_throughput([STREAM], Window(start_s=20.0, end_s=20.0), median_decode_s=None) is None
    idle = aggregate_throughput([STREAM], window, median_decode_s=None)
    assert idle is not None
    assert idle.value == 0.0


def test_a_failed_request_s_delivered_tokens_are_counted() -> None:
    curve = arrivals_of(record(0, 1, 3, status=RequestStatus.CUT), None)
    assert curve is not None
    assert list(curve.totals) == [1, 5, 9]


def test_a_stream_counted_only_at_its_end_is_spread_evenly_over_its_chunks() -> None:
    curve = arrivals_of(record(0, 1, 3, counted=False), None)
    assert curve is not None
    assert list(curve.totals) == pytest.approx([3, 6, 9])


def test_an_uncounted_stream_uses_what_complete_ones_had_a_chunk_or_is_left_out() -> None:
    per_chunk = tokens_per_chunk([record(0, 1, 3, counted=False)])
    assert per_chunk == 3
    cut = even_arrivals([1.0, 2.0], None, per_chunk)
    assert cut is not None
    assert list(cut.totals) == [3, 6]
    assert even_arrivals([1.0, 2.0], None, None) is None
    assert tokens_per_chunk([]) is None
    assert tokens_per_chunk([record(0, 1, 3, status=RequestStatus.CUT)]) is None


def test_the_window_opens_when_as_many_requests_have_ended_as_there_are_slots() -> None:
    finished = [record(0, 0.01, 1.0), record(0.25, 0.26, 1.25), record(0.5, 0.51, 1.5)]
    started = [0.0, 0.25, 0.5, 0.75]
    assert opening_s(started, finished, [], concurrency=4, now_s=1.6) is None
    finished.append(record(0.75, 0.76, 1.75))
    assert opening_s(started, finished, [], concurrency=4, now_s=1.8) == 1.75


def test_the_window_does_not_open_before_every_slot_has_started() -> None:
    assert opening_s([0.0], [record(0, 0.1, 1), record(1, 1.1, 2)], [], concurrency=2, now_s=2.5) is None


def test_failed_requests_open_no_window() -> None:
    refused = [record(0, 0.1, 1, status=RequestStatus.REFUSED)] * 2
    assert opening_s([0.0, 0.1], refused, [], concurrency=2, now_s=9) is None


def test_a_queue_opens_the_window_one_service_time_after_the_first_end() -> None:
    finished = [record(0, 0.05, 1.0)]
    waiting = [0.5, 0.6]
    assert opening_s([0.0] * 8, finished, waiting, concurrency=8, now_s=1.9) is None
    assert opening_s([0.0] * 8, finished, waiting, concurrency=8, now_s=2.1) == pytest.approx(2.0)


def test_a_short_wait_for_the_first_token_is_no_queue() -> None:
    assert opening_s([0.0] * 8, [record(0, 0.05, 1.0)], [1.9], concurrency=8, now_s=2.1) is None


def test_the_horizon_is_the_oldest_last_chunk_of_the_decoding_streams() -> None:
    assert horizon_s([[1.0, 2.0, 3.0], [1.5, 2.5], []], now_s=3.2, gap_s=1.0) == 2.5


def test_a_stalled_stream_does_not_hold_the_horizon_back() -> None:
    assert horizon_s([[1.0, 1.1, 1.2], [9.8, 9.9]], now_s=10.0, gap_s=0.1) == 9.9


def test_when_every_stream_has_stalled_their_silence_belongs_to_the_window() -> None:
    assert horizon_s([[1.0], [1.1]], now_s=10.0, gap_s=0.1) == 10.0


def test_without_decoding_streams_everything_until_now_is_known() -> None:
    assert horizon_s([], now_s=5.0, gap_s=0.1) == 5.0
    assert horizon_s([[], [4.5]], now_s=5.0, gap_s=None) == 5.0


def test_the_mean_gap_is_over_gaps_and_not_over_streams() -> None:
    assert mean_gap_s([[1.0, 2.0, 3.0], [0.0, 4.0], [9.0], []]) == pytest.approx(2.0)
    assert mean_gap_s([[9.0], []]) is None


def test_only_whole_requests_with_status_ok_lie_in_the_window() -> None:
    window = Window(start_s=1.0, end_s=3.0)
    assert is_in_window(record(0, 1, 3), window)
    assert not is_in_window(record(0, 0.9, 3), window)
    assert not is_in_window(record(0, 1, 3.1), window)
    assert not is_in_window(record(0, 1, 3, status=RequestStatus.SHORT), window)
    assert not is_in_window(replace(record(0, 1, 3), first_s=None), window)


def test_spans_that_only_touch_do_not_overlap() -> None:
    assert most_at_once([(0.0, 1.0), (1.0, 2.0)]) == 1
    assert most_at_once([(0.0, 1.0), (0.5, 2.0), (0.9, 1.1), (1.5, 1.6)]) == 3
    assert most_at_once([]) == 0


def test_only_whole_requests_have_a_decode_speed() -> None:
    cut = record(0, 1, 3, status=RequestStatus.CUT)
    assert decode_speeds([record(0, 1, 3), cut, replace(record(0, 1, 3), tokens=None), record(0, 2, 6)]) == [4.0, 2.0]


def test_the_median_decode_leaves_out_what_failed() -> None:
    assert median_decode_s([record(0, 1, 3), record(0, 1, 9, status=RequestStatus.CANCELLED)]) == 2.0
    assert median_decode_s([]) is None


def test_a_window_is_never_negative() -> None:
    assert Window(start_s=3.0, end_s=2.0).length_s == 0.0
