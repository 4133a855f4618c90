"""Legs of the load generator over made-up connections: no socket, the whole control flow."""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest

from tuner.errors import MeasurementFault, StudyFileError, UsageError
from tuner.load.client import HttpLoadGenerator
from tuner.load.health import ClientLimits
from tuner.load.loop import FAILURE_PAUSE_S
from tuner.load.stream import Failure, ReadCounts, StreamEnd, StreamSink
from tuner.model.account import ClientHealth
from tuner.model.http import HttpCall, HttpReply
from tuner.model.record import LegResult, RequestRecord, RequestStatus
from tuner.model.workload import Workload
from tuner.ports import Leg, LoadProgress, Target
from tuner.testing.fake_engine import FakeEngine

TARGET = Target(
    base_url="http://fake", engine=FakeEngine(), workload=Workload(output_tokens=5, request_timeout_s=5.0), seed=3
)
LEG = Leg(concurrency=2, min_s=0.1, max_s=0.3, interval=0.5, salt="leg")
Behaviour = Callable[[HttpCall, StreamSink], Awaitable[StreamEnd]]


def usage(total: int, text: str = "x") -> bytes:
    event = {"choices": [{"text": text}], "usage": {"completion_tokens": total}}
    return b"data: " + json.dumps(event).encode() + b"\n\n"


async def answer(_: HttpCall, sink: StreamSink) -> StreamEnd:
    """Send five tokens in two chunks 10 ms apart."""
    sink.sent(time.perf_counter())
    sink.feed(usage(1), time.perf_counter())
    await asyncio.sleep(0.01)
    sink.feed(usage(5) + b"data: [DONE]\n\n", time.perf_counter())
    return StreamEnd(ended_s=time.perf_counter(), status=200)


async def refuse(_: HttpCall, sink: StreamSink) -> StreamEnd:
    sink.sent(time.perf_counter())
    return StreamEnd(ended_s=time.perf_counter(), status=None, failure=Failure.REFUSED, detail="ConnectError")


async def hang(_: HttpCall, sink: StreamSink) -> StreamEnd:
    sink.sent(time.perf_counter())
    sink.feed(usage(1), time.perf_counter())
    await asyncio.Event().wait()
    raise AssertionError("woken")


class Connections:
    """Makes slots that all behave alike, and remembers them."""

    def __init__(self, behaviour: Behaviour) -> None:
        self._behaviour = behaviour
        self.calls: list[HttpCall] = []
        self.opened = 0
        self.closed = 0
        self.counts = ReadCounts()

    def __call__(self, _: str) -> Connections:
        self.opened += 1
        return self

    async def open(self) -> None:
        """There is nothing to connect."""

    async def stream(self, call: HttpCall, sink: StreamSink) -> StreamEnd:
        self.calls.append(call)
        return await self._behaviour(call, sink)

    async def close(self) -> None:
        self.closed += 1


class Control:
    """A server that counts nothing; it answers with ``status``."""

    def __init__(self, status: int = 501) -> None:
        self._status = status
        self.paths: list[str] = []

    async def call(self, call: HttpCall) -> HttpReply:
        self.paths.append(call.path)
        return HttpReply(status=self._status, body=self.counts())

    def counts(self) -> bytes:
        return b"{}"

    async def close(self) -> None:
        """Nothing is open."""


class Counting(Control):
    """Counts what ``answer`` sends, four tokens a step, and what others get: ``factor`` - 1 of it."""

    def __init__(self, factor: float = 1.0) -> None:
        super().__init__(status=200)
        self._factor = factor
        self.generated = 1000

    async def answer(self, _: HttpCall, sink: StreamSink) -> StreamEnd:
        self.generated += 1
        sink.sent(time.perf_counter())
        sink.feed(usage(1), time.perf_counter())
        await asyncio.sleep(0.01)
        self.generated += 4
        sink.feed(usage(5) + b"data: [DONE]\n\n", time.perf_counter())
        return StreamEnd(ended_s=time.perf_counter(), status=200)

    def counts(self) -> bytes:
        generated = 1000 + round((self.generated - 1000) * self._factor)
        return json.dumps({"generated_tokens": generated, "verify_steps": generated / 4}).encode()


def measure(
    behaviour: Behaviour, leg: Leg = LEG, target: Target = TARGET, control: Control | None = None
) -> tuple[LegResult, tuple[RequestRecord, ...], Connections]:
    connections = Connections(behaviour)
    generator = HttpLoadGenerator(connect=connections)
    result, records = asyncio.run(generator.measure(target, leg, control or Control(), lambda *_: None))
    assert connections.closed == connections.opened == leg.concurrency
    return result, records, connections


def failing(every: int) -> Behaviour:
    numbers = itertools.count()

    async def behave(call: HttpCall, sink: StreamSink) -> StreamEnd:
        return await (refuse if next(numbers) % every == every - 1 else answer)(call, sink)

    return behave


def test_a_leg_counts_what_it_offered_and_cuts_the_rest() -> None:
    result, records, connections = measure(answer)
    cancelled = [r for r in records if r.status is RequestStatus.CANCELLED]
    assert len(cancelled) <= 2
    assert result.offered == result.completed == len(records) - len(cancelled)
    assert len(records) == len(connections.calls)
    assert result.failed == 0
    assert result.aggregate_throughput is not None
    assert result.single_request_throughput is not None
    assert 0 < result.window_s <= 1.0
    assert any(record.in_window for record in records)
    assert {record.slot for record in records} == {0, 1}


def test_every_request_asks_for_its_fixed_length_with_a_prompt_of_its_own() -> None:
    _, _, connections = measure(answer)
    bodies = [call.body for call in connections.calls if call.body is not None]
    assert len(bodies) == len(connections.calls)
    assert {body["max_tokens"] for body in bodies} == {5}
    assert {body["ignore_eos"] for body in bodies} == {True}
    assert {call.timeout_s for call in connections.calls} == {5.0}
    assert len({body["messages"][0]["content"][:14] for body in bodies}) == len(bodies)
    assert len({body["seed"] for body in bodies}) == len(bodies)


def test_the_headers_of_the_target_go_with_every_request() -> None:
    key = (("authorization", "Bearer secret"),)
    _, _, connections = measure(answer, target=replace(TARGET, headers=key))
    assert {call.headers for call in connections.calls} == {key}


def test_the_acceptance_length_comes_from_the_counters_of_this_leg() -> None:
    control = Counting()
    result, _, _ = measure(control.answer, control=control)
    assert control.paths[-1] == "/abort"
    assert result.speculation is not None
    assert result.speculation.acceptance_length == 4.0
    assert result.single_request_throughput is not None
    assert result.speculation.step_time_s == pytest.approx(4.0 / result.single_request_throughput.value)


def test_replies_and_counters_that_agree_are_kept_with_the_leg() -> None:
    control = Counting()
    result, _, _ = measure(control.answer, control=control)
    assert result.tokens is not None
    assert result.tokens.difference == 0
    assert result.tokens.counters > 0


def test_a_leg_beside_another_client_of_the_server_is_void() -> None:
    control = Counting(factor=1.5)
    with pytest.raises(MeasurementFault, match=r"concurrency 2: the replies count \d+ tokens and the server's own"):
        measure(control.answer, control=control)


def test_a_failed_request_leaves_the_tokens_unchecked() -> None:
    control = Counting(factor=1.5)
    calls = itertools.count()

    async def some_fail(call: HttpCall, sink: StreamSink) -> StreamEnd:
        return await (refuse(call, sink) if next(calls) == 3 else control.answer(call, sink))

    result, _, _ = measure(some_fail, control=control)
    assert result.failed == 1
    assert result.tokens is None


def test_counters_that_cannot_be_read_are_not_measured() -> None:
    result, _, _ = measure(answer, control=Control(status=503))
    assert result.speculation is None


def test_a_failing_request_does_not_stop_the_leg_and_is_counted() -> None:
    result, records, _ = measure(failing(every=3))
    refused = [r for r in records if r.status is RequestStatus.REFUSED]
    assert result.failed == len(refused) > 0
    assert result.completed > 0
    assert result.offered == result.completed + result.failed
    assert result.aggregate_throughput is not None
    assert not any(record.in_window for record in refused)


def test_a_dead_server_is_not_hammered_and_measures_nothing() -> None:
    leg = replace(LEG, concurrency=1)
    result, records, connections = measure(refuse, leg)
    assert len(connections.calls) <= 0.5 / FAILURE_PAUSE_S + 1 + (records[-1].ended_s - records[0].sent_s) / 0.05
    gaps = [after.sent_s - before.ended_s for before, after in itertools.pairwise(records)]
    assert min(gaps) >= FAILURE_PAUSE_S * 0.9
    assert (result.aggregate_throughput, result.single_request_throughput, result.ttft_s) == (None, None, None)
    assert (result.completed, result.window_s, result.converged) == (0, 0.0, False)
    assert result.failed == result.offered > 0


def test_a_leg_whose_requests_stall_ends_at_its_longest_time() -> None:
    started = itertools.count()

    async def stall(call: HttpCall, sink: StreamSink) -> StreamEnd:
        return await (answer if next(started) < 3 else hang)(call, sink)

    result, records, _ = measure(stall)
    assert sum(r.status is RequestStatus.CANCELLED for r in records) == 2
    assert not result.converged
    assert result.window_s >= 0.25
    assert result.aggregate_throughput is not None
    assert result.aggregate_throughput.value < 50


def test_a_lone_request_converges_on_eight_requests() -> None:
    result, _, _ = measure(answer, replace(LEG, concurrency=1, min_s=0.05, max_s=5.0))
    assert result.converged
    assert result.single_request_throughput is not None
    assert result.single_request_throughput.samples >= 8


def test_a_lone_request_longer_than_its_leg_is_measured_all_the_same() -> None:
    async def slow(call: HttpCall, sink: StreamSink) -> StreamEnd:
        await asyncio.sleep(0.2)
        return await answer(call, sink)

    result, _, _ = measure(slow, replace(LEG, concurrency=1, min_s=0.01, max_s=0.02))
    assert result.single_request_throughput is not None
    assert result.single_request_throughput.samples == 1
    assert not result.converged


def test_progress_is_reported_while_a_leg_runs() -> None:
    seen: list[LoadProgress] = []
    generator = HttpLoadGenerator(connect=Connections(answer))
    leg = replace(LEG, min_s=0.5, max_s=0.5)
    asyncio.run(generator.measure(TARGET, leg, Control(), seen.append))
    assert seen
    assert [at.elapsed_s for at in seen] == sorted(at.elapsed_s for at in seen)
    assert (seen[-1].throughput or 0) > 0
    assert max(at.in_flight for at in seen) <= 2
    assert max(at.silent_s for at in seen) < 0.4


async def stall(_: HttpCall, sink: StreamSink) -> StreamEnd:
    """Accept the request and never send anything."""
    sink.sent(time.perf_counter())
    await asyncio.sleep(3600.0)
    raise AssertionError("woken")


async def give_up(_: HttpCall, sink: StreamSink) -> StreamEnd:
    """Send nothing until we wait no longer."""
    sink.sent(time.perf_counter())
    await asyncio.sleep(0.1)
    return StreamEnd(ended_s=time.perf_counter(), status=None, failure=Failure.TIMED_OUT, detail="no end")


@pytest.mark.parametrize("behaviour", [stall, hang, give_up])
def test_silence_grows_while_no_stream_brings_anything(behaviour: Behaviour) -> None:
    seen: list[LoadProgress] = []
    generator = HttpLoadGenerator(connect=Connections(behaviour))
    target = replace(TARGET, workload=replace(TARGET.workload, request_timeout_s=0.4))
    asyncio.run(generator.measure(target, replace(LEG, max_s=1.5), Control(), seen.append))
    silences = [at.silent_s for at in seen if at.in_flight]
    assert silences == sorted(silences)
    assert silences[-1] > 0.3


def test_a_server_that_refuses_is_not_silent() -> None:
    seen: list[LoadProgress] = []
    asyncio.run(
        HttpLoadGenerator(connect=Connections(refuse)).measure(TARGET, replace(LEG, max_s=0.7), Control(), seen.append)
    )
    assert seen
    assert max(at.silent_s for at in seen) < 0.4


def test_one_stream_that_flows_ends_the_silence_of_all() -> None:
    numbers = itertools.count()
    seen: list[LoadProgress] = []

    async def behave(call: HttpCall, sink: StreamSink) -> StreamEnd:
        return await (answer if next(numbers) % 2 else slow)(call, sink)

    async def slow(call: HttpCall, sink: StreamSink) -> StreamEnd:
        sink.sent(time.perf_counter())
        await asyncio.sleep(0.3)
        return await answer(call, sink)

    generator = HttpLoadGenerator(connect=Connections(behave))
    asyncio.run(generator.measure(TARGET, replace(LEG, min_s=0.8, max_s=0.8), Control(), seen.append))
    assert max(at.silent_s for at in seen) < 0.35


def test_a_warm_up_that_brings_nothing_tells_of_its_silence() -> None:
    seen: list[LoadProgress] = []

    async def run() -> None:
        is_told = asyncio.Event()

        def see(at: LoadProgress) -> None:
            seen.append(at)
            if at.silent_s > 0.4:
                is_told.set()

        task = asyncio.create_task(HttpLoadGenerator(connect=connections).warm_up(TARGET, 4, 2, see))
        async with asyncio.timeout(20.0):
            await is_told.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    connections = Connections(stall)
    asyncio.run(run())
    assert connections.closed == 2
    assert seen[-1].in_flight == 2
    assert seen[-1].throughput is None


def slowing(per_request_s: float) -> Behaviour:
    """Return a server each of whose answers takes longer than the one before."""
    numbers = itertools.count()

    async def behave(_: HttpCall, sink: StreamSink) -> StreamEnd:
        sink.sent(time.perf_counter())
        sink.feed(usage(1), time.perf_counter())
        await asyncio.sleep(0.01 + per_request_s * next(numbers))
        sink.feed(usage(5) + b"data: [DONE]\n\n", time.perf_counter())
        return StreamEnd(ended_s=time.perf_counter(), status=200)

    return behave


def test_a_leg_that_is_to_become_steady_goes_on_while_throughput_drifts() -> None:
    leg = replace(LEG, min_s=0.5, max_s=1.2, interval=0.05, until_steady=True)
    drifting, _, _ = measure(slowing(0.002), leg)
    assert not drifting.converged
    assert drifting.window_s > 0.9
    steady, _, _ = measure(answer, replace(leg, max_s=10.0, interval=0.5))
    assert steady.converged
    assert steady.window_s < 5.0


def test_cancelling_a_leg_closes_every_connection_at_once() -> None:
    connections = Connections(hang)

    async def run() -> float:
        generator = HttpLoadGenerator(connect=connections)
        task = asyncio.create_task(generator.measure(TARGET, LEG, Control(), lambda *_: None))
        await asyncio.sleep(0.05)
        began = time.perf_counter()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert len(asyncio.all_tasks()) == 1
        return time.perf_counter() - began

    assert asyncio.run(run()) < 1.0
    assert connections.closed == connections.opened == 2


def test_an_error_of_the_person_s_ends_the_leg_and_closes_its_connections() -> None:
    async def mistaken(_: HttpCall, sink: StreamSink) -> StreamEnd:
        sink.sent(time.perf_counter())
        raise UsageError("no such scheme")

    connections = Connections(mistaken)
    with pytest.raises(UsageError, match="no such scheme"):
        asyncio.run(HttpLoadGenerator(connect=connections).measure(TARGET, LEG, Control(), lambda *_: None))
    assert connections.closed == 2


def test_prompts_that_cannot_be_read_are_said_before_anything_is_sent() -> None:
    connections = Connections(answer)
    target = replace(TARGET, workload=replace(TARGET.workload, prompts="nowhere.jsonl"))
    with pytest.raises(StudyFileError, match=r"nowhere\.jsonl"):
        asyncio.run(HttpLoadGenerator(connect=connections).measure(target, LEG, Control(), lambda *_: None))
    assert connections.opened == 0


def test_a_client_beyond_its_limits_is_a_fault_of_the_measurement() -> None:
    generator = HttpLoadGenerator(connect=Connections(answer), limits=ClientLimits(lag_p99_s=-1.0, cpu_share=0.0))
    with pytest.raises(MeasurementFault, match="concurrency 2: the client was the bottleneck"):
        asyncio.run(generator.measure(TARGET, LEG, Control(), lambda *_: None))


def test_a_client_is_the_bottleneck_only_when_it_is_both_late_and_busy() -> None:
    limits = ClientLimits()
    assert limits.why_bound(ClientHealth(cpu_share=0.95, lag_p99_s=0.06)) is not None
    assert limits.why_bound(ClientHealth(cpu_share=0.85, lag_p99_s=0.06)) is None
    assert limits.why_bound(ClientHealth(cpu_share=0.95, lag_p99_s=0.04)) is None
    assert limits.why_bound(ClientHealth(cpu_share=0.95, lag_p99_s=None)) is None


TOLERANT = replace(TARGET, workload=replace(TARGET.workload, interval=100.0))
"""Whatever the speed of its requests is, they are alike."""


def test_a_warm_up_sends_its_requests_and_counts_for_nothing() -> None:
    connections = Connections(answer)
    records = asyncio.run(HttpLoadGenerator(connect=connections).warm_up(TOLERANT, 7, 3, lambda _: None))
    assert 7 <= len(records) == len(connections.calls) <= 9  # a slot may send before the last answer is in
    assert not any(record.in_window for record in records)
    assert connections.closed == connections.opened == 3


def test_a_warm_up_goes_on_while_requests_become_faster_and_ends_when_they_no_longer_do() -> None:
    waits_s = itertools.chain((0.5, 0.3, 0.15), itertools.repeat(0.05))

    async def warming(_: HttpCall, sink: StreamSink) -> StreamEnd:
        sink.sent(time.perf_counter())
        sink.feed(usage(1), time.perf_counter())
        await asyncio.sleep(next(waits_s))
        sink.feed(usage(5) + b"data: [DONE]\n\n", time.perf_counter())
        return StreamEnd(ended_s=time.perf_counter(), status=200)

    target = replace(TARGET, workload=replace(TARGET.workload, interval=0.35))
    records = asyncio.run(HttpLoadGenerator(connect=Connections(warming)).warm_up(target, 2, 1, lambda _: None))
    assert 5 <= len(records) <= 8
    assert {record.status for record in records} == {RequestStatus.OK}


def test_a_warm_up_of_a_server_that_never_becomes_steady_ends() -> None:
    records = asyncio.run(
        HttpLoadGenerator(connect=Connections(slowing(0.05))).warm_up(TARGET, 2, 1, lambda _: None),
    )
    assert len(records) == 8


def test_no_more_connections_warm_up_than_there_are_requests() -> None:
    connections = Connections(answer)
    generator = HttpLoadGenerator(connect=connections)
    assert 2 <= len(asyncio.run(generator.warm_up(TOLERANT, 2, 64, lambda _: None))) <= 3
    assert connections.opened == 2
    assert asyncio.run(generator.warm_up(TARGET, 0, 4, lambda _: None)) == ()


def test_a_warm_up_against_a_dead_server_ends_with_its_failures() -> None:
    records = asyncio.run(HttpLoadGenerator(connect=Connections(refuse)).warm_up(TARGET, 3, 1, lambda _: None))
    assert [record.status for record in records] == [RequestStatus.REFUSED] * 3
