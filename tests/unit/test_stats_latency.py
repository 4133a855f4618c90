"""Percentiles and decode speeds."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tuner.model.record import RequestRecord, RequestStatus
from tuner.stats.latency import (
    decode_s,
    decode_throughput,
    decode_tokens,
    e2e_s,
    gaps_s,
    percentile,
    spread,
    tpot_s,
    ttft_s,
)

RECORD = RequestRecord(
    concurrency=1,
    slot=0,
    prompt_id="p",
    sent_s=10.0,
    first_s=10.5,
    last_s=12.5,
    ended_s=12.6,
    tokens=9,
    first_chunk_tokens=1,
    prompt_tokens=7,
    chunk_s=(10.5, 11.5, 12.5),
    chunk_tokens=(1, 4, 4),
    status=RequestStatus.OK,
    in_window=True,
)
CHUNKLESS = replace(RECORD, first_s=None, last_s=None, chunk_s=(), chunk_tokens=(), first_chunk_tokens=None)


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=40), st.floats(0, 1))
def test_a_percentile_is_numpy_s(values: list[float], share: float) -> None:
    assert percentile(values, share) == pytest.approx(float(np.quantile(values, share)), abs=1e-6)


def test_the_percentile_of_nothing_is_not_measured() -> None:
    assert percentile([], 0.5) is None


def test_a_share_that_is_a_percentage_is_refused() -> None:
    with pytest.raises(ValueError, match="99"):
        percentile([1.0], 99)


def test_the_first_chunk_s_tokens_are_not_decode() -> None:
    assert decode_tokens(RECORD) == 8
    assert decode_tokens(replace(RECORD, first_chunk_tokens=5)) == 4


def test_without_running_count_the_first_chunk_is_an_even_share() -> None:
    assert decode_tokens(replace(RECORD, first_chunk_tokens=None, chunk_tokens=())) == pytest.approx(6.0)


def test_what_the_server_did_not_count_has_no_speed() -> None:
    uncounted = replace(RECORD, tokens=None, first_chunk_tokens=None, chunk_tokens=())
    assert decode_tokens(uncounted) is None
    assert decode_throughput([uncounted]) is None


def test_times_exclude_what_came_before_the_first_chunk() -> None:
    assert ttft_s(RECORD) == 0.5
    assert decode_s(RECORD) == 2.0


def test_a_request_without_chunks_has_no_times() -> None:
    assert ttft_s(CHUNKLESS) is None
    assert decode_s(CHUNKLESS) is None
    assert decode_s(replace(RECORD, last_s=10.5)) is None
    assert decode_tokens(CHUNKLESS) is None


def test_the_decode_speed_is_the_ratio_of_sums_over_requests() -> None:
    slow = replace(RECORD, last_s=14.5, chunk_s=(10.5, 11.5, 14.5))
    estimate = decode_throughput([RECORD, slow, CHUNKLESS])
    assert estimate is not None
    assert estimate.value == pytest.approx(16 / 6)
    assert estimate.samples == 2


def test_a_token_s_time_leaves_the_first_chunk_out() -> None:
    assert tpot_s(RECORD) == pytest.approx(2.0 / 8)
    assert tpot_s(CHUNKLESS) is None
    assert tpot_s(replace(RECORD, tokens=None, first_chunk_tokens=None, chunk_tokens=())) is None


def test_a_reply_of_one_chunk_has_no_time_a_token() -> None:
    assert tpot_s(replace(RECORD, tokens=1, last_s=10.5, chunk_s=(10.5,), chunk_tokens=(1,))) is None


def test_end_to_end_is_until_the_last_content_and_not_until_the_connection_is_done() -> None:
    assert e2e_s(RECORD) == pytest.approx(2.5)
    assert e2e_s(CHUNKLESS) is None


def test_gaps_are_those_of_chunks_whatever_tokens_they_hold() -> None:
    assert gaps_s(RECORD) == [1.0, 1.0]
    assert gaps_s(CHUNKLESS) == []


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=40))
def test_a_spread_is_that_of_its_values_in_any_order(values: list[float]) -> None:
    found = spread(values)
    assert found is not None
    assert found == spread(sorted(values))
    assert found.p99 == pytest.approx(float(np.quantile(values, 0.99)), abs=1e-6)
    assert found.samples == len(values)


def test_the_spread_of_nothing_is_not_measured() -> None:
    assert spread([]) is None
