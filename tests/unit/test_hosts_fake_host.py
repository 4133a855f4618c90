"""The scripted host does what its script says: the runtime's tests stand on it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine
from typing import Any, TypeVar

import pytest

from tuner.errors import MeasurementFault, TransportFault
from tuner.model.host import Activity, ProcessEntry
from tuner.model.http import HttpCall
from tuner.model.outcome import TrialState
from tuner.model.record import RequestStatus
from tuner.model.trial import Command
from tuner.model.workload import Workload
from tuner.ports import Leg, Target
from tuner.testing.fake_engine import FakeEngine
from tuner.testing.fake_host import GIB, Death, FakeHost, OldServer, Start

T = TypeVar("T")
ENGINE = FakeEngine()
COMMAND = Command(argv=("serve", "--batch", "8", "--draft", "3"))
TARGET = Target(base_url="http://host", engine=ENGINE, workload=Workload(output_tokens=32), seed=1)


def leg(concurrency: int) -> Leg:
    return Leg(concurrency=concurrency, min_s=10.0, max_s=30.0, interval=0.02, salt="")


def run(work: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(work)


async def health(host: FakeHost) -> tuple[int | None, str | None]:
    reply = await host.ports().control("http://host").call(ENGINE.health_call())
    return reply.status, reply.error


async def measure(host: FakeHost, concurrency: int) -> tuple[int, int, float | None]:
    result, records = await host.load.measure(TARGET, leg(concurrency), host.ports().control(""), lambda *_: None)
    assert len(records) == result.offered
    assert sum(record.status is RequestStatus.OK for record in records) == result.completed
    aggregate = result.aggregate_throughput
    return result.completed, result.failed, None if aggregate is None else aggregate.value


def test_the_port_is_closed_until_the_server_is_ready() -> None:
    async def scenario() -> None:
        host = FakeHost(ENGINE, Start(ready_s=5.0))
        assert await health(host) == (None, "refused")
        await host.service.start(COMMAND)
        await host.clock.sleep(4.9)
        assert await health(host) == (None, "refused")
        await host.clock.sleep(0.2)
        assert await health(host) == (200, None)
        await host.service.stop(grace_s=1.0)
        assert await health(host) == (None, "refused")

    run(scenario())


def test_log_lines_appear_at_their_times_and_not_after_a_death() -> None:
    script = Start(
        log=((1.0, "one\n"), (2.0, "two\n"), (9.0, "never\n")), death=Death(after_s=3.0, exit_status=1, log="last\n")
    )

    async def scenario() -> list[str]:
        host = FakeHost(ENGINE, script)
        await host.service.start(COMMAND)
        texts, cursor = [], None
        for _ in range(5):
            await host.clock.sleep(1.0)
            chunk = await host.service.read_log(cursor)
            cursor = chunk.cursor
            texts.append(chunk.text)
        await host.clock.sleep(20.0)
        return [*texts, (await host.service.read_log(cursor)).text]

    assert run(scenario()) == ["one\n", "two\n", "last\n", "", "", ""]


def test_it_reports_what_was_asked_unless_it_lies() -> None:
    async def settings(script: Start) -> dict[str, Any]:
        host = FakeHost(ENGINE, script)
        await host.service.start(COMMAND)
        await host.clock.sleep(6.0)
        control = host.ports().control("")
        replies = [await control.call(call) for call in ENGINE.info_calls()]
        return dict(ENGINE.effective(replies).settings)

    assert run(settings(Start())) == {"batch": 8, "draft": 3}
    assert run(settings(Start(lies={"draft": 1}))) == {"batch": 8, "draft": 1}


@pytest.mark.parametrize("level", [1, 4])
def test_it_dies_at_the_level_of_its_script_and_at_no_other(level: int) -> None:
    async def scenario() -> list[tuple[int, int, float | None]]:
        host = FakeHost(
            ENGINE, Start(death=Death(at=TrialState.MEASURING, level=level, after_s=2.0, exit_signal=9), ready_s=0.0)
        )
        await host.service.start(COMMAND)
        legs = [await measure(host, concurrency) for concurrency in (1, 4)]
        state = await host.service.state()
        assert (state.activity, state.exit_signal, state.stop_requested) == (Activity.FAILED, 9, False)
        return legs

    dead_1, dead_4 = (0, 1, None), (0, 4, None)
    assert run(scenario()) == ([dead_1, dead_4] if level == 1 else [(1, 0, 100.0), dead_4])


@pytest.mark.parametrize("at", [TrialState.WARMING_UP, TrialState.SOAKING, TrialState.JUDGING])
def test_it_dies_in_the_state_of_its_script(at: TrialState) -> None:
    assert run(first_failure(at)) == at.value


async def first_failure(at: TrialState) -> str | None:
    host = FakeHost(ENGINE, Start(death=Death(at=at, after_s=0.5, exit_status=1), ready_s=0.0))
    await host.service.start(COMMAND)
    first: str | None = None
    for name in ("warming_up", "measuring", "soaking", "judging"):
        if name == "warming_up":
            await host.load.warm_up(TARGET, 4, 2, lambda _: None)
        elif name == "judging":
            await host.clock.sleep(1.0)
        else:
            await measure(host, 4)
        if first is None and (await host.service.state()).activity is Activity.FAILED:
            first = name
    return first


def test_a_loop_is_healthy_in_between_and_another_server_each_time() -> None:
    async def scenario() -> tuple[int, set[str], set[int | None]]:
        loop = Start(ready_s=1.0, death=Death(at=TrialState.READY, after_s=1.0, exit_signal=9), restart_s=1.0)
        host = FakeHost(ENGINE, loop)
        await host.service.start(COMMAND)
        invocations, statuses = set(), set()
        for _ in range(200):
            await host.clock.sleep(0.1)
            state = await host.service.state()
            assert state.identity is not None
            invocations.add(state.identity.invocation_id)
            statuses.add((await health(host))[0])
        return (await host.service.state()).restarts, invocations, statuses

    restarts, invocations, statuses = run(scenario())
    assert restarts == 6  # a life of 2 s and a pause of 1 s
    assert len(invocations) == 7
    assert statuses == {None, 200}


def test_an_old_server_answers_until_it_is_killed() -> None:
    async def scenario() -> None:
        host = FakeHost(ENGINE, old_server=OldServer(settings={"batch": 1, "draft": 0}))
        assert await health(host) == (200, None)
        assert [entry.command for entry in await host.service.leftovers()] == ["old server"]
        await host.service.start(COMMAND)
        reply = await host.ports().control("").call(ENGINE.info_calls()[0])
        assert dict(ENGINE.effective([reply]).settings) == {"batch": 1, "draft": 0}
        await host.service.stop(grace_s=1.0)
        await host.service.kill_leftovers()
        assert await health(host) == (None, "refused")

    run(scenario())


async def used(host: FakeHost) -> int:
    (reading,) = await host.gpu.read()
    return reading.memory_used_bytes


@pytest.mark.parametrize(("returns_s", "after"), [(0.0, [0, 0, 0]), (3.0, [10, 10, 0]), (None, [10, 10, 10])])
def test_gpu_memory_comes_back_when_the_script_says(returns_s: float | None, after: list[int]) -> None:
    async def scenario() -> list[int]:
        host = FakeHost(ENGINE, Start(gpu_bytes=10 * GIB, gpu_returns_s=returns_s), baseline_bytes=0)
        await host.service.start(COMMAND)
        assert await used(host) == 10 * GIB
        assert len(await host.gpu.processes()) == 1
        await host.service.stop(grace_s=1.0)
        assert await host.gpu.processes() == ()
        seen = []
        for seconds in (0.0, 2.0, 2.0):
            await host.clock.sleep(seconds)
            seen.append(await used(host) // GIB)
        return seen

    assert run(scenario()) == after


def test_what_a_server_leaves_holds_its_memory_until_killed_and_a_foreign_process_stays() -> None:
    child = ProcessEntry(pid=77, command="scheduler", ours=True)
    foreign = ProcessEntry(pid=66, command="somebody", ours=False)

    async def scenario() -> None:
        host = FakeHost(
            ENGINE,
            Start(gpu_bytes=10 * GIB, leaves=(child,)),
            leftovers=(foreign,),
            leftover_gpu_bytes=GIB,
            baseline_bytes=0,
        )
        await host.service.start(COMMAND)
        assert await host.service.leftovers() == ()
        await host.service.stop(grace_s=1.0)
        assert await host.service.leftovers() == (foreign, child)
        assert await used(host) == 11 * GIB
        await host.service.kill_leftovers()
        assert await host.service.leftovers() == (foreign,)
        assert await used(host) == GIB

    run(scenario())


def test_a_hang_is_healthy_and_generates_nothing() -> None:
    async def scenario() -> None:
        host = FakeHost(ENGINE, Start(ready_s=1.0, hangs_after_s=5.0))
        await host.service.start(COMMAND)
        await host.clock.sleep(2.0)
        call = HttpCall(path="/v1/completions", body={"max_tokens": 3}, timeout_s=7.0)
        control = host.ports().control("")
        assert ENGINE.generated_tokens(await control.call(call)) == 3
        await host.clock.sleep(5.0)
        assert await health(host) == (200, None)
        began_s = host.clock.monotonic_s()
        reply = await control.call(call)
        assert (reply.status, reply.error) == (None, "timed_out")
        assert host.clock.monotonic_s() - began_s >= 7.0
        assert await measure(host, 4) == (0, 4, None)

    run(scenario())


def test_failed_requests_a_slow_client_and_a_lost_host_are_told_apart() -> None:
    async def scenario() -> None:
        host = FakeHost(
            ENGINE,
            Start(ready_s=0.0, failed_requests={4: 3}, client_bound=frozenset({16}), unreachable_s=(100.0, 200.0)),
        )
        await host.service.start(COMMAND)
        assert await measure(host, 1) == (1, 0, 100.0)
        assert await measure(host, 4) == (4, 3, 400.0)
        with pytest.raises(MeasurementFault):
            await measure(host, 16)
        await host.clock.sleep(100.0)
        with pytest.raises(TransportFault):
            await host.service.state()
        with pytest.raises(TransportFault):
            await host.gpu.read()
        assert (await health(host))[0] is None
        await host.clock.sleep(100.0)
        assert (await host.service.state()).activity is Activity.RUNNING

    run(scenario())


@pytest.mark.parametrize(
    "wrong",
    [
        {"exit_status": 1, "exit_signal": 9},
        {},
        {"exit_status": 1, "at": TrialState.MEASURING},
        {"exit_status": 1, "level": 4},
    ],
)
def test_a_death_that_makes_no_sense_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="death"):
        Death(**wrong)


def test_two_runs_of_one_script_are_the_same_to_the_last_call() -> None:
    async def night(host: FakeHost) -> None:
        for _ in range(20):
            await host.service.start(COMMAND)
            while (await health(host))[0] != 200:
                await host.clock.sleep(0.5)
            for concurrency in (1, 4, 16, 32, 64):
                await measure(host, concurrency)
            await host.service.stop(grace_s=1.0)

    hosts = [FakeHost(ENGINE, Start(ready_s=3.0)) for _ in range(2)]
    began_s = time.monotonic()
    for host in hosts:
        run(night(host))
    assert time.monotonic() - began_s < 30.0, "forty trials take well under a second on a quiet machine"
    assert hosts[0].calls == hosts[1].calls
    assert hosts[0].clock.monotonic_s() == hosts[1].clock.monotonic_s() > 1000.0
