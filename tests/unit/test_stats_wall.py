"""Wall-clock throughput and requests a second."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tuner.model.record import RequestRecord, RequestStatus
from tuner.stats.wall import requests_per_s, wall_throughput
from tuner.stats.window import Window


def request(sent_s: float, ended_s: float, *, tokens: int | None = 100) -> RequestRecord:
    return RequestRecord(
        concurrency=2,
        slot=0,
        prompt_id="p",
        sent_s=sent_s,
        first_s=sent_s + 0.1,
        last_s=ended_s,
        ended_s=ended_s,
        tokens=tokens,
        first_chunk_tokens=1,
        prompt_tokens=10,
        chunk_s=(sent_s + 0.1, ended_s),
        chunk_tokens=(1, 99),
        status=RequestStatus.OK,
        in_window=True,
    )


# Two slots, one of them begun half a request later: a request ends every half second.
LOOP = [request(slot / 2 + turn, slot / 2 + turn + 1) for turn in range(10) for slot in range(2)]


def test_wall_clock_throughput_has_the_ramp_in_it_and_is_too_low() -> None:
    assert wall_throughput(LOOP) == pytest.approx(20 * 100 / 10.5)  # 200 tok/s in truth


def test_what_was_cut_at_the_end_counts_no_tokens_and_no_time() -> None:
    cut = replace(request(10.0, 10.6), status=RequestStatus.CANCELLED)
    assert wall_throughput([*LOOP, cut]) == wall_throughput(LOOP)


def test_without_a_counted_request_there_is_no_throughput() -> None:
    assert wall_throughput([]) is None
    assert wall_throughput([request(0.0, 1.0, tokens=None)]) is None


def test_requests_a_second_are_those_that_ended_inside_the_window() -> None:
    found = requests_per_s(LOOP, Window(start_s=2.0, end_s=8.0))
    assert found is not None
    assert found.value == pytest.approx(2.0)
    assert found.samples == 6
    assert found.low is not None
    assert found.low <= 2.0 <= (found.high or 0.0)


def test_a_short_window_has_a_rate_and_no_interval() -> None:
    found = requests_per_s(LOOP, Window(start_s=2.0, end_s=4.0))
    assert found is not None
    assert (found.value, found.low, found.high) == (pytest.approx(2.0), None, None)


def test_without_a_window_or_a_request_there_is_no_rate() -> None:
    assert requests_per_s(LOOP, Window(start_s=2.0, end_s=2.0)) is None
    assert requests_per_s([], Window(start_s=2.0, end_s=8.0)) is None
