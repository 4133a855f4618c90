"""Real Ray workers: streaming, stopping, killing, and a cluster that is already there."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import os
import signal
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import pytest
import ray.exceptions
import ray.util
from ray.cluster_utils import Cluster

from tuner.engines import engine
from tuner.errors import ExecutorFault, PreflightError
from tuner.execution.ray_executor import Building, RayExecutor
from tuner.model.lease import Holder
from tuner.model.outcome import Interrupted, Measured, TrialState
from tuner.model.study import HostSpec, ProcessHostSpec, Reach, SimulatedHostSpec
from tuner.model.trial import Command, LegProgress, StateEntered, TrialEvent, TrialFinished, TrialRequest
from tuner.model.workload import Workload
from tuner.testing.base_command import sglang_arguments
from tuner.testing.project import processes_of
from tuner.wiring.host import build_host

HOLDER = Holder(owner="me@here", study="s", directory="/s", machine="m", pid=1, since_s=0.0)
BASE = Command(argv=("sglang", *sglang_arguments(30100)))


def request(*, level_s: float = 0.5) -> TrialRequest:
    adapter = engine("sglang")
    return TrialRequest(
        study="s",
        number=0,
        assignment=adapter.settings_of(BASE),
        command=BASE,
        engine="sglang",
        workload=Workload(
            output_tokens=24,
            ladder=(1, 4),
            level_min_s=level_s,
            level_max_s=level_s,
            soak_s=0.3,
            warmup_requests=1,
            request_timeout_s=20,
            load_timeout_s=60,
        ),
        seed=1,
    )


def host(folder: Path, name: str = "sim0") -> dict[str, HostSpec]:
    return {
        name: SimulatedHostSpec(
            name=name,
            address="127.0.0.1",
            state_dir=str(folder / name),
            profile="qwen3.5-122b-a10b-4gpu",
            speed=200.0,
        )
    }


def building() -> Building:
    return Building(host=partial(build_host, holder=HOLDER), engine=engine, restored=("sglang", Workload(), 1))


@contextlib.asynccontextmanager
async def opened(hosts: dict[str, HostSpec], address: str | None = None) -> AsyncIterator[RayExecutor]:
    executor = RayExecutor(hosts, building=building(), address=address)
    await executor.open()
    try:
        yield executor
    finally:
        await executor.close()


def outcome(events: list[TrialEvent]) -> object:
    assert isinstance(events[-1], TrialFinished)
    return events[-1].result.outcome


async def kill_worker_while_measuring(executor: RayExecutor) -> None:
    async for event in executor.run("sim0", request(level_s=30.0)):
        if isinstance(event, StateEntered) and event.state is TrialState.MEASURING:
            os.kill((await executor.worker_pids())["sim0"], signal.SIGKILL)


def test_events_arrive_while_the_trial_runs_and_a_worker_that_is_killed_is_replaced(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(host(tmp_path)) as executor:
            events = [event async for event in executor.run("sim0", request())]
            assert isinstance(outcome(events), Measured)
            assert any(isinstance(event, LegProgress) for event in events)

            with pytest.raises(ExecutorFault, match="sim0"):
                await kill_worker_while_measuring(executor)

            again = [event async for event in executor.run("sim0", request())]
            assert isinstance(outcome(again), Measured)

    asyncio.run(main())
    assert not processes_of(tmp_path)


def test_a_stop_is_heard_while_the_trial_runs(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(host(tmp_path)) as executor:
            events = []
            async for event in executor.run("sim0", request(level_s=30.0)):
                events.append(event)
                if isinstance(event, StateEntered) and event.state is TrialState.MEASURING:
                    await executor.stop("sim0")
            assert isinstance(outcome(events), Interrupted)

    asyncio.run(main())
    assert not processes_of(tmp_path)


def test_a_cluster_that_is_already_there_is_used_and_stays(tmp_path: Path) -> None:
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "include_dashboard": False})
    try:

        async def main() -> None:
            async with opened(host(tmp_path), cluster.address) as executor:
                events = [event async for event in executor.run("sim0", request())]
                assert isinstance(outcome(events), Measured)

        asyncio.run(main())
        assert cluster.head_node.any_processes_alive()
    finally:
        cluster.shutdown()
    assert not processes_of(tmp_path)


def test_a_cluster_that_cannot_be_reached_is_one_line_that_says_what_to_check(tmp_path: Path) -> None:
    executor = RayExecutor(host(tmp_path), building=building(), address="127.0.0.1:9")
    with pytest.raises(PreflightError, match=r"127\.0\.0\.1:9.*--ray-address") as caught:
        asyncio.run(executor.open())
    assert "\n" not in str(caught.value)


def test_a_node_that_the_cluster_lacks_is_named_and_not_waited_for(tmp_path: Path) -> None:
    spec = ProcessHostSpec(name="gpu01", state_dir=str(tmp_path), reach=Reach(ray_node="192.0.2.7"))
    executor = RayExecutor({"gpu01": spec}, building=building())
    with pytest.raises(PreflightError, match=r"gpu01: ray_node 192\.0\.2\.7 is none of its nodes"):
        asyncio.run(executor.open())


def test_a_worker_runs_on_the_node_that_its_host_names(tmp_path: Path) -> None:
    async def main() -> None:
        node = ray.util.get_node_ip_address()
        spec = ProcessHostSpec(name="gpu01", state_dir=str(tmp_path), reach=Reach(ray_node=node))
        async with opened({"gpu01": spec}) as executor:
            assert set(await executor.worker_pids()) == {"gpu01"}

    asyncio.run(main())


def test_every_exception_of_ray_is_one_that_the_executor_maps() -> None:
    foreign = [kind for _, kind in inspect.getmembers(ray.exceptions, inspect.isclass) if issubclass(kind, Exception)]
    foreign = [kind for kind in foreign if kind.__module__ == "ray.exceptions"]
    assert len(foreign) > 20
    assert [kind for kind in foreign if not issubclass(kind, ray.exceptions.RayError)] == []
