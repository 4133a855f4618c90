"""What a leg says of the server beside its throughput, measured on the simulated one."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator

import pytest

from tuner.engines.sglang import SglangAdapter
from tuner.errors import MeasurementFault
from tuner.load.client import HttpLoadGenerator
from tuner.load.health import ClientLimits
from tuner.load.http import HttpControlClient
from tuner.model.account import Limit
from tuner.model.http import HttpCall
from tuner.model.record import LegResult
from tuner.model.workload import Workload
from tuner.ports import Leg, Target
from tuner.stats.limit import limit
from tuner.testing.simulated_host import COMMAND, SimulatedServer, simulated_host, speculation

AT_ONCE = 4
TOKENS = 96
UNBOUND = ClientLimits(lag_p99_s=60.0, cpu_share=60.0)  # the machine of the tests is shared


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SimulatedServer]:
    with simulated_host(tmp_path_factory.mktemp("account") / "host", "127.0.0.27") as opened:
        command = (*COMMAND, *speculation(3), "--max-running-requests", str(AT_ONCE))
        yield opened.start(*command).wait_ready()


def measure(server: SimulatedServer, *, concurrency: int, disturb: bool = False) -> LegResult:
    url = f"http://{server.address}:{server.port}"
    workload = Workload(output_tokens=TOKENS, request_timeout_s=60.0)
    target = Target(base_url=url, engine=SglangAdapter(), workload=workload, seed=3)
    leg = Leg(concurrency=concurrency, min_s=3.0, max_s=8.0, interval=0.2, salt=f"{concurrency}-{time.monotonic_ns()}")

    async def others(control: HttpControlClient) -> None:
        body = {"prompt": "Somebody else's.", "max_tokens": 400, "ignore_eos": True}
        while True:
            await control.call(HttpCall(path="/v1/completions", body=body, timeout_s=60.0))

    async def run() -> LegResult:
        control, stranger = HttpControlClient(url), HttpControlClient(url)
        generator = HttpLoadGenerator(limits=UNBOUND)
        await generator.warm_up(target, 2, 2, lambda _: None)
        other = asyncio.create_task(others(stranger)) if disturb else None
        try:
            result, _ = await generator.measure(target, leg, control, lambda _: None)
        finally:
            if other is not None:
                other.cancel()
                await asyncio.gather(other, return_exceptions=True)
            await control.close()
            await stranger.close()
        return result

    return asyncio.run(run())


def test_a_leg_knows_its_tokens_its_speculation_its_queue_and_its_limit(server: SimulatedServer) -> None:
    result = measure(server, concurrency=2 * AT_ONCE)
    assert result.tokens is not None
    assert abs(result.tokens.difference) <= 0.01
    assert result.tokens.counters >= TOKENS * AT_ONCE
    told = result.speculation
    assert told is not None
    assert len(told.accepted_at) == 3
    assert 1.0 > told.accepted_at[0] >= told.accepted_at[1] >= told.accepted_at[2] > 0.3
    assert told.draft_share == pytest.approx(sum(told.accepted_at) / 3)
    assert told.acceptance_length == pytest.approx(1 + sum(told.accepted_at), rel=0.1)
    load = result.server
    assert load is not None
    assert load.running == pytest.approx(AT_ONCE, abs=1)
    assert load.queued == pytest.approx(AT_ONCE, abs=1)
    assert load.queue_time_s is not None
    assert load.queue_time_s > 0.05
    assert (load.retractions, load.cached_share) == (0.0, pytest.approx(0.0, abs=0.05))
    assert limit(result, None, AT_ONCE) is Limit.REQUEST_CAP
    assert {each.name for each in result.classes} != set()
    assert sum(each.requests for each in result.classes) > 0
    assert all(each.speculation is not None and each.speculation.accepted_at for each in result.classes)


def test_a_lone_request_has_room_beside_it(server: SimulatedServer) -> None:
    result = measure(server, concurrency=1)
    assert result.server is not None
    assert result.server.queued == pytest.approx(0.0, abs=0.2)
    assert limit(result, None, AT_ONCE) is Limit.LOAD


def test_somebody_else_s_requests_void_the_leg_and_are_named(server: SimulatedServer) -> None:
    with pytest.raises(MeasurementFault, match=r"the server's own counters \d+ \(-\d+\.\d %\): another client"):
        measure(server, concurrency=2, disturb=True)
