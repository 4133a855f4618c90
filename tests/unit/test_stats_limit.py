"""What kept a leg's aggregate from being higher."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tuner.model.account import ClientHealth, Limit, ServerLoad
from tuner.model.metric import Estimate
from tuner.model.record import LegResult
from tuner.stats.limit import limit


def leg(concurrency: int, aggregate: float | None, server: ServerLoad | None = None) -> LegResult:
    throughput = None if aggregate is None else Estimate(value=aggregate, low=None, high=None, samples=6)
    return LegResult(
        concurrency=concurrency,
        single_request_throughput=None,
        aggregate_throughput=throughput,
        window_s=20.0,
        offered=100,
        completed=100,
        failed=0,
        converged=True,
        client=ClientHealth(cpu_share=0.1),
        server=server,
    )


def load(running: float, queued: float, kv: float | None, retractions: float | None = 0.0) -> ServerLoad:
    return ServerLoad(running=running, queued=queued, kv_usage=kv, retractions=retractions)


BELOW = leg(16, 1000.0)
ROOM = load(32, 0, 0.3)


@pytest.mark.parametrize(
    ("measured", "below", "max_running", "named"),
    [
        pytest.param(leg(1, 200.0, load(1, 0, 0.1)), None, 21, Limit.LOAD, id="one-request-alone"),
        pytest.param(leg(32, 1500.0, ROOM), BELOW, 48, Limit.LOAD, id="more-still-bring-more"),
        pytest.param(leg(32, 1020.0, ROOM), BELOW, 48, Limit.COMPUTE, id="all-run-and-bring-no-more"),
        pytest.param(leg(32, 900.0, ROOM), BELOW, 48, Limit.COMPUTE, id="all-run-and-bring-less"),
        pytest.param(leg(32, 1500.0, load(21, 11, 0.5)), BELOW, 21, Limit.REQUEST_CAP, id="as-many-run-as-may"),
        pytest.param(leg(32, 1500.0, load(20.3, 11.7, 0.8)), BELOW, 21, Limit.REQUEST_CAP, id="a-slot-was-empty"),
        pytest.param(leg(32, 1500.0, load(14, 18, 0.96)), BELOW, 21, Limit.KV_POOL, id="no-room-below-the-cap"),
        pytest.param(leg(32, 1500.0, load(14, 18, 0.75)), BELOW, 21, Limit.KV_POOL, id="room-held-for-the-future"),
        pytest.param(leg(32, 1500.0, load(21, 11, 0.97, 3)), BELOW, 21, Limit.KV_POOL, id="retractions"),
        pytest.param(leg(32, 1500.0, load(31, 1, 0.3)), BELOW, 48, Limit.LOAD, id="a-few-wait-for-their-prefill"),
        pytest.param(leg(32, 1010.0, load(31, 1, 0.3)), BELOW, 48, Limit.COMPUTE, id="prefill-is-compute-too"),
        pytest.param(leg(32, 1500.0, load(16, 16, 0.4)), BELOW, None, Limit.REQUEST_CAP, id="a-cap-nobody-told"),
        pytest.param(leg(32, 1500.0, load(16, 16, 0.95)), BELOW, None, Limit.KV_POOL, id="full-and-no-cap-told"),
        pytest.param(leg(32, 1500.0), BELOW, 21, Limit.REQUEST_CAP, id="no-counters-beyond-the-cap"),
        pytest.param(leg(16, 1010.0), leg(4, 1000.0), 21, Limit.COMPUTE, id="no-counters-below-the-cap"),
        pytest.param(leg(16, None), leg(4, 1000.0), 21, None, id="no-throughput"),
        pytest.param(leg(16, 1000.0), leg(4, None), 21, None, id="no-throughput-below"),
        pytest.param(leg(16, 1000.0), None, None, None, id="a-first-level-of-many"),
    ],
)
def test_the_limit_is_named_by_what_the_server_said(
    measured: LegResult, below: LegResult | None, max_running: int | None, named: Limit | None
) -> None:
    assert limit(measured, below, max_running) is named


def test_a_client_without_time_left_is_named_before_the_server() -> None:
    busy = replace(leg(32, 1500.0, load(21, 11, 0.97, 3)), client=ClientHealth(cpu_share=0.7))
    assert limit(busy, BELOW, 21) is Limit.CLIENT
