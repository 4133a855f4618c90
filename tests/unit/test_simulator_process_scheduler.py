"""Continuous batching, step by step, without a clock."""

from __future__ import annotations

import dataclasses
import random
from dataclasses import dataclass, field

import pytest

from tuner.simulator import arguments, memory, physics, profile
from tuner.simulator.arguments import ServerArgs
from tuner.simulator.request import Request, Sampling, persona
from tuner.simulator.scheduler import LAST_REQUEST_ABORTED, Hooks, OutOfWorkspace, Scheduler

SHAPE = profile.load("qwen3.5-122b-a10b-4gpu")


def arguments_for(steps: int, *more: str) -> ServerArgs:
    speculation = (
        f"--speculative-algorithm NEXTN --speculative-num-steps {steps} --speculative-eagle-topk 1 "
        f"--speculative-num-draft-tokens {steps + 1}"
        if steps
        else ""
    )
    line = f"--model-path m --tp 4 --attention-backend flashinfer --page-size 1 --mem-fraction-static 0.8 {speculation}"
    return arguments.parse([*line.split(), *more], SHAPE)


@dataclass
class Bench:
    """A scheduler with a clock of its own and a memory of what it said."""

    steps: int = 3
    max_total_num_tokens: int | None = None
    max_running_requests: int | None = None
    available_after_bytes: int | None = None
    more: tuple[str, ...] = ()
    now_s: float = 0.0
    log: list[str] = field(default_factory=list)
    finished: list[Request] = field(default_factory=list)
    kinds: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.args = arguments_for(self.steps, *self.more)
        plan = memory.plan(SHAPE, self.args, SHAPE.gpu.memory_bytes)
        changes = {
            name: getattr(self, name)
            for name in ("max_total_num_tokens", "max_running_requests", "available_after_bytes")
            if getattr(self, name) is not None
        }
        self.plan = dataclasses.replace(plan, **changes)
        self.scheduler = Scheduler(
            profile=SHAPE,
            args=self.args,
            plan=self.plan,
            rng=random.Random(1),
            slow=1.0,
            hooks=Hooks(log=self.log.append, finished=self.finished.append),
        )

    def submit(self, prompt: tuple[str | int, ...], tokens: int, *, ignore_eos: bool = True) -> Request:
        sampling = Sampling(max_new_tokens=tokens, ignore_eos=ignore_eos, temperature=0.0)
        who = persona(prompt, sampling, seed=0, profile=SHAPE)
        request = Request(
            rid=f"r{len(prompt)}-{prompt[0]}",
            tokens=prompt,
            sampling=sampling,
            natural_tokens=who.natural_tokens,
            difficulty=who.difficulty,
            rng=who.rng,
            streamed=False,
            changed=lambda: None,
            arrived_s=self.now_s,
        )
        self.scheduler.submit(request)
        return request

    def step(self) -> bool:
        step = self.scheduler.plan_step()
        if step is None:
            return False
        self.kinds.append(step.kind)
        self.now_s += step.seconds
        self.scheduler.complete(step, self.now_s)
        return True

    def drain(self) -> None:
        while self.step():
            pass


def prompt(number: int, tokens: int = 100) -> tuple[str | int, ...]:
    return tuple(range(number * 1000, number * 1000 + tokens))


def test_a_request_gets_exactly_its_tokens_and_takes_the_time_of_its_steps() -> None:
    bench = Bench(steps=3)
    request = bench.submit(prompt(1), 400)
    bench.drain()
    assert (request.generated, len(request.output_ids), request.finish) == (400, 400, "length")
    assert bench.finished == [request]
    assert bench.kinds == ["prefill"] + ["decode"] * request.verify_steps
    expected_s = physics.prefill_time_s(SHAPE, bench.args, 100) + request.verify_steps * physics.step_time_s(
        SHAPE, bench.args, 1
    )
    assert bench.now_s == pytest.approx(expected_s, rel=0.02)


def test_the_histogram_counts_every_verify_step_and_no_draft_beyond_the_depth() -> None:
    bench = Bench(steps=3)
    request = bench.submit(prompt(1), 4000)
    bench.drain()
    assert sum(request.histogram) == request.verify_steps
    assert len(request.histogram) <= 4
    assert request.proposed_drafts == 3 * request.verify_steps
    length = 1 + request.correct_drafts / request.verify_steps
    assert length == pytest.approx(physics.acceptance_length(SHAPE, bench.args), rel=0.03)


def test_without_speculation_every_step_gives_one_token_and_nothing_is_verified() -> None:
    bench = Bench(steps=0)
    request = bench.submit(prompt(1), 50)
    bench.drain()
    assert bench.kinds == ["prefill"] + ["decode"] * 49
    assert (request.verify_steps, request.histogram) == (0, [])


def test_requests_beyond_the_limit_wait_and_start_in_order() -> None:
    bench = Bench(max_running_requests=2)
    requests = [bench.submit(prompt(number), 40) for number in range(1, 5)]
    bench.step()
    assert bench.scheduler.running == requests[:2]
    assert list(bench.scheduler.waiting) == requests[2:]
    bench.drain()
    firsts = [request.first_s for request in requests]
    assert firsts == sorted(firsts, key=lambda first: first or 0.0)
    assert all(request.finish == "length" for request in requests)


def test_a_prefill_interrupts_decoding_as_a_step_of_its_own() -> None:
    bench = Bench()
    bench.submit(prompt(1), 100)
    for _ in range(3):
        bench.step()
    bench.submit(prompt(2), 10)
    bench.step()
    assert bench.kinds == ["prefill", "decode", "decode", "prefill"]


def test_a_prompt_seen_before_skips_its_prefill_until_the_cache_is_flushed() -> None:
    bench = Bench()
    first, second = bench.submit(prompt(1), 5), None
    bench.drain()
    second = bench.submit(prompt(1), 5)
    bench.drain()
    bench.scheduler.flush()
    third = bench.submit(prompt(1), 5)
    bench.drain()
    assert (first.cached_tokens, second.cached_tokens, third.cached_tokens) == (0, 96, 0)


def test_a_model_stops_by_itself_unless_told_not_to() -> None:
    bench = Bench()
    request = bench.submit(prompt(1), 100_000, ignore_eos=False)
    bench.drain()
    assert request.finish == "stop"
    assert request.generated == request.natural_tokens < 100_000


def test_the_same_prompt_is_answered_the_same() -> None:
    first, second = Bench(), Bench()
    texts = []
    for bench in (first, second):
        bench.submit(prompt(9), 30)
        request = bench.submit(prompt(1), 60)
        bench.drain()
        texts.append("".join(request.parts))
    assert texts[0] == texts[1]


def test_a_full_pool_retracts_who_generated_least_and_everyone_still_finishes() -> None:
    bench = Bench(max_total_num_tokens=700)
    requests = [bench.submit(prompt(number, 50), 300) for number in range(1, 4)]
    bench.drain()
    assert bench.scheduler.retractions >= 1
    assert any(line.startswith("KV cache pool is full. Retract requests. #retracted_reqs: 1") for line in bench.log)
    assert [request.generated for request in requests] == [300] * 3
    assert {request.finish for request in requests} == {"length"}


def test_the_last_request_that_does_not_fit_is_aborted_as_the_servers_fault() -> None:
    bench = Bench(max_total_num_tokens=200)
    request = bench.submit(prompt(1, 100), 300)
    bench.drain()
    assert (request.finish, request.failed, request.message) == ("abort", True, LAST_REQUEST_ABORTED)


def test_many_requests_with_deep_speculation_run_out_of_memory_where_one_does_not() -> None:
    bench = Bench(steps=10)
    bench.submit(prompt(1), 30)
    bench.drain()
    for number in range(2, 12):
        bench.submit(prompt(number), 30)
    with pytest.raises(OutOfWorkspace) as caught:
        bench.drain()
    assert caught.value.needed_bytes > caught.value.free_bytes == bench.plan.available_after_bytes


def test_an_aborted_request_leaves_the_batch_at_once() -> None:
    bench = Bench(max_running_requests=1)
    running, waiting = bench.submit(prompt(1), 1000), bench.submit(prompt(2), 10)
    bench.step()
    bench.scheduler.abort(running, "Abort by test")
    bench.drain()
    assert (running.finish, running.message, running.failed) == ("abort", "Abort by test", False)
    assert waiting.finish == "length"
    bench.scheduler.abort(waiting, "too late")
    assert waiting.finish == "length"
    assert bench.finished == [running, waiting]


def test_acceptance_is_read_every_forty_iterations_only_and_a_flush_forgets_it() -> None:
    bench = Bench()
    bench.submit(prompt(1), 10_000)
    for _ in range(1 + 39):
        bench.step()
    assert bench.scheduler.readings.accept_length is None
    assert not any(line.startswith("Decode batch") for line in bench.log)
    bench.step()
    assert bench.scheduler.readings.accept_length == pytest.approx(3.9, abs=0.15)
    [line] = [line for line in bench.log if line.startswith("Decode batch")]
    assert "#running-req: 1, #full token: " in line
    assert "accept len: 3." in line
    assert "cuda graph: True" in line
    bench.scheduler.flush()
    assert bench.scheduler.readings.accept_length is None


def test_a_stop_string_ends_the_text_before_it() -> None:
    probe = Bench()
    whole = probe.submit(prompt(1), 60)
    probe.drain()
    text = "".join(whole.parts)
    needle = text[30:34]
    bench = Bench()
    request = bench.submit(prompt(1), 60)
    request.sampling = dataclasses.replace(request.sampling, stop=(needle,))
    bench.drain()
    assert request.finish == "stop"
    assert text.startswith("".join(request.parts))
    assert needle not in "".join(request.parts)
