"""The load generator against a server whose every token, chunk and gap is known.

Server and client share one process and one clock, so the server's own notes are the
truth of what it really sent, however busy the machine is.
"""

from __future__ import annotations

import asyncio
import random
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest

from tuner.load.client import HttpLoadGenerator
from tuner.load.http import HttpControlClient
from tuner.model.http import HttpCall
from tuner.model.record import LegResult, RequestRecord, RequestStatus
from tuner.model.workload import Workload
from tuner.ports import Leg, Target
from tuner.stats.batches import required_batches
from tuner.testing.fake_engine import FakeEngine
from tuner.testing.golden_server import Flaw, GoldenServer, Script, Sent, Usage, serving

TOKENS = 48
LEG = Leg(concurrency=4, min_s=0.5, max_s=1.5, interval=0.05, salt="leg")
TOLERANCE = 0.03


@dataclass(frozen=True, slots=True)
class Run:
    """What a leg gave, beside the server that knows the truth."""

    server: GoldenServer
    result: LegResult
    records: tuple[RequestRecord, ...]

    def of(self, status: RequestStatus) -> list[RequestRecord]:
        return [record for record in self.records if record.status is status]

    def true_aggregate(self) -> float:
        """What the server sent in the window, which opened at the c-th end of a complete request."""
        ends = sorted(r.ended_s for r in self.records if r.status in (RequestStatus.OK, RequestStatus.SHORT))
        start_s = ends[self.result.concurrency - 1]
        return self.server.tokens_between(start_s, start_s + self.result.window_s) / self.result.window_s

    def true_single(self) -> float:
        """Decode speed of the window's requests by the server's stamps: of what it sent at their times."""
        inside = [self._sent_as(record) for record in self.records if record.in_window]
        tokens = sum(s.totals[-1] - s.totals[0] for s in inside)
        return tokens / sum(s.stamps_s[-1] - s.stamps_s[0] for s in inside)

    def _sent_as(self, record: RequestRecord) -> Sent:
        assert record.first_s is not None
        assert record.last_s is not None
        first_s, last_s = record.first_s, record.last_s
        whole = [s for s in self.server.sent if s.totals and s.totals[-1] == TOKENS]
        return min(whole, key=lambda s: abs(s.stamps_s[0] - first_s) + abs(s.stamps_s[-1] - last_s))


def drive(
    script: Script | Callable[[int], Script],
    *,
    leg: Leg = LEG,
    batch: int = 256,
    warm_up: int = 2,
    timeout_s: float = 10.0,
    ignore_eos: bool = True,
) -> Run:
    async def run() -> Run:
        server = GoldenServer((lambda _: script) if isinstance(script, Script) else script, batch=batch)
        workload = Workload(output_tokens=TOKENS, request_timeout_s=timeout_s, ignore_eos=ignore_eos)
        async with serving(server) as url:
            target = Target(base_url=url, engine=FakeEngine(), workload=workload, seed=5)
            generator = HttpLoadGenerator()
            control = HttpControlClient(url)
            await generator.warm_up(target, warm_up, 1, lambda _: None)
            server.sent.clear()
            server.prompts.clear()
            result, records = await generator.measure(target, leg, control, lambda *_: None)
            await control.close()
        return Run(server, result, records)

    return asyncio.run(run())


def value(estimate: object) -> float:
    assert estimate is not None
    return float(getattr(estimate, "value"))  # noqa: B009 - narrows Estimate | None in one place


def flawed_every(third: Script) -> Callable[[int], Script]:
    """Answer every third request with ``third``, the warm-up not."""
    return lambda number: third if number % 3 == 2 else Script()


# ------------------------------------------------------------------ throughput


def test_a_lone_request_s_speed_is_the_server_s() -> None:
    run = drive(Script(gap_s=0.012), leg=replace(LEG, concurrency=1, min_s=1.0, max_s=8.0))
    assert value(run.result.single_request_throughput) == pytest.approx(run.true_single(), rel=TOLERANCE)
    assert value(run.result.single_request_throughput) == pytest.approx(47 / (12 * 0.012), rel=0.08)
    assert value(run.result.aggregate_throughput) == pytest.approx(run.true_aggregate(), rel=TOLERANCE)
    assert run.result.converged
    assert run.server.most_running == 1


@pytest.mark.parametrize(("concurrency", "tokens_per_chunk"), [(4, 1), (4, 4), (16, 4)])
def test_the_aggregate_is_what_the_server_sent_in_the_window(concurrency: int, tokens_per_chunk: int) -> None:
    script = Script(gap_s=0.01 * tokens_per_chunk, tokens_per_chunk=tokens_per_chunk)
    run = drive(script, leg=replace(LEG, concurrency=concurrency))
    assert value(run.result.aggregate_throughput) == pytest.approx(run.true_aggregate(), rel=TOLERANCE)
    assert value(run.result.single_request_throughput) == pytest.approx(run.true_single(), rel=TOLERANCE)
    assert run.server.most_running == concurrency
    assert run.server.connections <= concurrency + 1  # one more for the warm-up
    assert run.result.failed == 0


def uneven(seed: int) -> Callable[[int], Script]:
    """Answer each request at a speed of its own, some 5 % apart."""
    source = random.Random(seed)
    return lambda _: Script(first_s=0.005, gap_s=0.01 * source.gauss(1.0, 0.05))


def test_over_several_legs_the_aggregate_is_off_to_neither_side() -> None:
    errors = []
    for seed, concurrency in enumerate((4, 4, 4, 8, 8, 8, 16)):
        run = drive(uneven(seed), leg=replace(LEG, concurrency=concurrency, min_s=1.0, max_s=1.5))
        errors.append(value(run.result.aggregate_throughput) / run.true_aggregate() - 1)
    # A quiet machine keeps 0.2 %; server and client share a loop here, and edges are as late as it is.
    assert abs(statistics.median(errors)) < 0.01


@pytest.mark.parametrize("concurrency", [4, 16])
def test_the_interval_holds_what_the_server_sent(concurrency: int) -> None:
    run = drive(uneven(concurrency), leg=replace(LEG, concurrency=concurrency, min_s=1.0, max_s=4.0, interval=0.02))
    aggregate = run.result.aggregate_throughput
    assert aggregate is not None
    assert aggregate.low is not None
    assert aggregate.high is not None
    assert aggregate.low <= run.true_aggregate() <= aggregate.high
    assert aggregate.samples >= (required_batches(concurrency) if run.result.converged else 3)
    assert 0.3 <= (run.result.occupancy or 0) <= 1.0


def test_a_leg_too_short_for_its_batches_has_a_value_and_says_that_it_is_not_converged() -> None:
    run = drive(Script(gap_s=0.05), leg=replace(LEG, concurrency=16, min_s=0.3, max_s=0.5))
    assert value(run.result.aggregate_throughput) == pytest.approx(run.true_aggregate(), rel=0.05)
    assert not run.result.converged


def test_the_speed_of_each_prompt_is_kept_of_the_lone_request_s_leg_alone() -> None:
    alone = drive(Script(), leg=replace(LEG, concurrency=1)).result
    assert [speed for _, speed in alone.by_prompt] == pytest.approx([47 / 0.12] * len(alone.by_prompt), rel=0.5)
    assert len(alone.by_prompt) == (
        0 if alone.single_request_throughput is None else alone.single_request_throughput.samples
    )
    assert drive(Script(), leg=replace(LEG, max_s=0.6)).result.by_prompt == ()


def test_a_server_that_queues_is_measured_in_its_own_steady_state() -> None:
    run = drive(Script(gap_s=0.02), leg=replace(LEG, concurrency=24, min_s=1.0, max_s=1.0), batch=6)
    assert run.server.most_running == 6
    steady_s = max(r.ended_s for r in run.of(RequestStatus.CANCELLED)) - 0.3
    truth = run.server.tokens_between(steady_s - 0.8, steady_s) / 0.8
    assert value(run.result.aggregate_throughput) == pytest.approx(truth, rel=0.05)
    assert run.result.window_s <= 1.2
    assert run.result.ttft_s is not None
    assert run.result.ttft_s.p50 > 0.5  # the queue, and not the prefill


def test_tokens_are_exact_whatever_a_chunk_holds() -> None:
    run = drive(Script(first_tokens=3, tokens_per_chunk=5))
    complete = run.of(RequestStatus.OK)
    assert complete
    for record in complete:
        assert record.tokens == TOKENS
        assert record.chunk_tokens == (3, *[5] * 9)
        assert record.first_chunk_tokens == 3
        assert record.prompt_tokens == 7
    assert run.result.speculation is not None
    assert run.result.speculation.acceptance_length == pytest.approx(TOKENS / 9, rel=0.05)


def test_chunks_without_text_whose_usage_grew_are_arrivals() -> None:
    run = drive(Script(empty_every=3))
    assert {record.chunk_tokens for record in run.of(RequestStatus.OK)} == {(1, *[4] * 11, 3)}
    assert value(run.result.aggregate_throughput) == pytest.approx(run.true_aggregate(), rel=TOLERANCE)


def test_stamps_are_the_server_s_within_the_noise_of_the_machine() -> None:
    run = drive(Script(gap_s=0.02), leg=replace(LEG, concurrency=1))
    late = sorted(
        got - sent
        for record, truth in zip(run.records, run.server.sent, strict=True)
        if not record.merged  # their stamps are estimates
        for got, sent in zip(record.chunk_s, truth.stamps_s, strict=False)
    )
    assert late[0] >= -0.001  # of a wall clock that is set meanwhile
    assert late[len(late) // 2] < 0.005


def test_a_slow_first_token_is_waiting_and_no_decoding() -> None:
    run = drive(Script(first_s=0.25, gap_s=0.005), leg=replace(LEG, concurrency=1, max_s=2.5))
    assert run.result.ttft_s is not None
    assert run.result.ttft_s.p50 == pytest.approx(0.25, abs=0.05)
    assert value(run.result.single_request_throughput) == pytest.approx(run.true_single(), rel=0.05)
    assert value(run.result.single_request_throughput) > 2 * value(run.result.aggregate_throughput)


def test_a_server_that_counts_only_at_the_end_gives_the_same_throughput() -> None:
    run = drive(Script(usage=Usage.FINAL, first_tokens=4))
    assert {(r.tokens, r.chunk_tokens, r.first_chunk_tokens) for r in run.of(RequestStatus.OK)} == {(TOKENS, (), None)}
    assert value(run.result.aggregate_throughput) == pytest.approx(run.true_aggregate(), rel=TOLERANCE)
    assert value(run.result.single_request_throughput) == pytest.approx(run.true_single(), rel=TOLERANCE)


# ------------------------------------------------------------------ failures


@pytest.mark.parametrize(
    ("flaw", "status", "complaint"),
    [
        (Flaw.CUT, RequestStatus.CUT, "RemoteProtocolError"),
        (Flaw.OPEN_END, RequestStatus.CUT, "end marker"),
        (Flaw.SHORT, RequestStatus.SHORT, "24 of 48 tokens"),
        (Flaw.EMPTY, RequestStatus.EMPTY, "not one token"),
        (Flaw.HTTP_500, RequestStatus.HTTP_ERROR, "HTTP 500: golden failure"),
        (Flaw.ERROR_EVENT, RequestStatus.HTTP_ERROR, "golden error"),
        (Flaw.GARBAGE, RequestStatus.HTTP_ERROR, "broken"),
        (Flaw.GZIP, RequestStatus.HTTP_ERROR, "content-encoding gzip"),
    ],
)
def test_each_flaw_has_its_status_and_the_other_requests_are_measured(
    flaw: Flaw, status: RequestStatus, complaint: str
) -> None:
    run = drive(flawed_every(Script(flaw=flaw)), leg=replace(LEG, max_s=0.8))
    failed = run.of(status)
    assert run.result.failed == len(failed) > 0
    assert all(complaint in (record.error or "") for record in failed)
    assert run.result.completed == len(run.of(RequestStatus.OK)) > 0
    assert run.result.offered == run.result.completed + run.result.failed
    assert value(run.result.single_request_throughput) == pytest.approx(47 / 0.12, rel=0.25)


def test_the_tokens_of_a_request_that_failed_later_were_delivered() -> None:
    run = drive(flawed_every(Script(flaw=Flaw.SHORT)))
    assert value(run.result.aggregate_throughput) == pytest.approx(run.true_aggregate(), rel=TOLERANCE)


def test_a_server_that_says_no_counts_gives_no_throughput_and_never_the_length_asked_for() -> None:
    run = drive(Script(usage=Usage.NEVER), leg=replace(LEG, max_s=0.6))
    assert run.of(RequestStatus.UNCOUNTED)
    assert run.result.completed == 0
    assert run.result.aggregate_throughput is None
    assert run.result.single_request_throughput is None
    assert all(record.tokens is None for record in run.records)


def test_a_silent_server_s_requests_time_out() -> None:
    leg = replace(LEG, concurrency=2, max_s=0.6)
    run = drive(Script(flaw=Flaw.SILENT), leg=leg, warm_up=0, timeout_s=0.2)
    timed_out = run.of(RequestStatus.TIMED_OUT)
    assert run.result.failed == len(timed_out) >= 2
    # The call's time began before the request was written.
    assert all(record.ended_s - record.sent_s >= 0.15 for record in timed_out)
    assert run.result.aggregate_throughput is None


def test_an_idle_connection_that_the_server_closed_costs_no_request() -> None:
    closed: list[int] = []

    def script(number: int) -> Script:
        # Once, after the connection has carried whole replies; its replay is answered.
        if number == 3 and not closed:
            closed.append(number)
            return Script(flaw=Flaw.CLOSED)
        return Script()

    run = drive(script, leg=replace(LEG, concurrency=1))
    assert closed
    assert run.result.failed == 0
    assert sum("sent again" in (record.error or "") for record in run.records) == 1


def test_a_dead_server_refuses_and_is_not_hammered() -> None:
    async def run() -> tuple[LegResult, tuple[RequestRecord, ...]]:
        async with serving(GoldenServer(lambda _: Script())) as url:
            pass  # the port was free a moment ago and nobody listens now
        target = Target(base_url=url, engine=FakeEngine(), workload=Workload(output_tokens=TOKENS), seed=5)
        control = HttpControlClient(url)
        leg = replace(LEG, concurrency=2, min_s=0.3, max_s=0.4)
        measured = await HttpLoadGenerator().measure(target, leg, control, lambda *_: None)
        reply = await control.call(HttpCall(path="/health"))
        assert (reply.status, reply.error) == (None, "refused")
        await control.close()
        return measured

    result, records = asyncio.run(run())
    assert {record.status for record in records} <= {RequestStatus.REFUSED, RequestStatus.CANCELLED}
    assert 2 <= result.failed <= 40
    assert (result.completed, result.aggregate_throughput, result.speculation) == (0, None, None)


# ------------------------------------------------------------------ stopping


def test_a_cancelled_leg_leaves_no_connection_and_no_running_request() -> None:
    async def run() -> float:
        server = GoldenServer(lambda _: Script(gap_s=0.05))
        async with serving(server) as url:
            target = Target(base_url=url, engine=FakeEngine(), workload=Workload(output_tokens=4000), seed=5)
            control = HttpControlClient(url)
            leg = replace(LEG, concurrency=8)
            task = asyncio.create_task(HttpLoadGenerator().measure(target, leg, control, lambda *_: None))
            await asyncio.wait_for(server.has_decoded.wait(), 10)
            began_s = time.perf_counter()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            took_s = time.perf_counter() - began_s
            for _ in range(100):
                counters = FakeEngine().counters(await control.call(HttpCall(path="/counters")))
                if counters.running == 0:
                    break
                await asyncio.sleep(0.02)
            assert counters.running == 0
            await control.close()
        return took_s

    assert asyncio.run(run()) < 1.0


def test_two_legs_send_no_common_prefix_and_the_same_prompts_in_the_same_order() -> None:
    first = drive(Script(), leg=replace(LEG, salt="one", max_s=0.6)).server.prompts
    second = drive(Script(), leg=replace(LEG, salt="two", max_s=0.6)).server.prompts
    shared = min(len(first), len(second))
    assert shared > 8
    assert {prompt[:10] for prompt in first}.isdisjoint(prompt[:10] for prompt in second)
    assert [p.split("] ", 1)[1] for p in first[:shared]] == [p.split("] ", 1)[1] for p in second[:shared]]
