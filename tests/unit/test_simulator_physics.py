"""Acceptance and step time: the table of measurements, and laws that hold everywhere."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tuner.simulator import memory
from tuner.simulator.arguments import ServerArgs, parse
from tuner.simulator.physics import (
    acceptance,
    acceptance_length,
    draw_accepted,
    draw_difficulty,
    draw_step_time_s,
    prefill_time_s,
    serving_workspace_bytes,
    step_time_s,
)
from tuner.simulator.profile import Profile, load, names

CALIBRATED = load("qwen3.5-122b-a10b-4gpu")
DENSE = load("qwen3-32b-1gpu")

# design.md section 1: steps, single-request tok/s, peak aggregate tok/s.
TABLE = [(1, 123, 1582), (2, 186, 1844), (3, 234, 1979), (4, 277, 1817), (5, 282, 1273)]


def server(profile: Profile, steps: int, topk: int = 1, tokens: int | None = None, *more: str) -> ServerArgs:
    argv = [profile.model.name, "--tp-size", str(profile.gpu.count), "--mem-fraction-static", "0.8"]
    argv += ["--chunked-prefill-size", "8192", "--max-running-requests", "48", *more]
    argv += ["--attention-backend", "flashinfer", "--page-size", "1"]
    if steps:
        argv += ["--speculative-algorithm", "NEXTN", "--speculative-num-steps", str(steps)]
        argv += ["--speculative-eagle-topk", str(topk)]
        argv += ["--speculative-num-draft-tokens", str(steps + 1 if tokens is None else tokens)]
    return parse(argv, profile)


def single(profile: Profile, args: ServerArgs) -> float:
    return acceptance_length(profile, args) / step_time_s(profile, args, 1)


def aggregate(profile: Profile, args: ServerArgs, running: int) -> float:
    """tok/s of requests of 200 prompt and 512 output tokens, each prefill stalling the rest."""
    decode_s = 511 / acceptance_length(profile, args) * step_time_s(profile, args, running)
    return running * 512 / (decode_s + running * prefill_time_s(profile, args, 200))


@pytest.mark.parametrize(("steps", "one", "peak"), TABLE)
def test_the_equations_give_the_measured_table_within_5_percent(steps: int, one: int, peak: int) -> None:
    args = server(CALIBRATED, steps)
    plan = memory.plan(CALIBRATED, args, CALIBRATED.gpu.memory_bytes)
    assert single(CALIBRATED, args) == pytest.approx(one, rel=0.05)
    levels = [min(level, plan.max_running_requests) for level in (1, 4, 16, 32, 64)]
    assert max(aggregate(CALIBRATED, args, level) for level in levels) == pytest.approx(peak, rel=0.05)


def test_ten_steps_reach_the_measured_single_request_throughput_and_accept_rate() -> None:
    args = server(CALIBRATED, 10)
    assert 270 <= single(CALIBRATED, args) <= 293
    assert (acceptance_length(CALIBRATED, args) - 1) / 10 == pytest.approx(0.92, abs=0.01)


def test_without_speculation_a_step_gives_one_token() -> None:
    args = server(CALIBRATED, 0)
    assert acceptance(CALIBRATED, args) == ()
    assert acceptance_length(CALIBRATED, args) == 1.0
    assert single(CALIBRATED, args) == pytest.approx(62, rel=0.08)


@settings(deadline=None)
@given(st.sampled_from(names()), st.integers(1, 16), st.sampled_from([1, 2, 4, 8]), st.integers(2, 64))
def test_acceptance_is_a_chance_per_step_and_never_grows_with_depth(
    name: str, steps: int, topk: int, tokens: int
) -> None:
    profile = load(name)
    chances = acceptance(profile, server(profile, steps, topk, tokens))
    assert len(chances) == steps
    assert all(0.0 <= chance < 1.0 for chance in chances)
    assert list(chances) == sorted(chances, reverse=True)


def test_a_tree_is_never_deeper_than_its_tokens() -> None:
    args = server(DENSE, 8, 2, 4)
    assert acceptance(DENSE, args)[3:] == (0.0,) * 5
    assert acceptance_length(DENSE, args) < 4


def test_trees_pay_for_a_weak_draft_and_not_for_a_strong_one() -> None:
    weak = single(DENSE, server(DENSE, 3, 4, 16)) / single(DENSE, server(DENSE, 3))
    strong = single(CALIBRATED, server(CALIBRATED, 3, 4, 16)) / single(CALIBRATED, server(CALIBRATED, 3))
    assert 1.1 < weak < 1.5
    assert strong < 1


def test_further_branches_gain_less_and_less() -> None:
    lengths = [acceptance_length(DENSE, server(DENSE, 3, topk, 3 * topk + 1)) for topk in (1, 2, 4, 8)]
    assert lengths == sorted(lengths)
    gains = [(later - sooner) / topk for sooner, later, topk in zip(lengths, lengths[1:], (1, 2, 4), strict=False)]
    assert gains == sorted(gains, reverse=True)


def test_a_wide_tree_costs_many_requests_more_than_it_costs_one() -> None:
    chain, tree = server(DENSE, 3), server(DENSE, 3, 4, 16)
    alone = step_time_s(DENSE, tree, 1) / step_time_s(DENSE, chain, 1)
    crowd = step_time_s(DENSE, tree, 48) / step_time_s(DENSE, chain, 48)
    assert crowd > 2 * alone


@settings(deadline=None)
@given(
    st.sampled_from(names()),
    st.integers(1, 15),
    st.sampled_from([2, 4, 8]),
    st.integers(2, 63),
    st.integers(1, 47),
)
def test_a_step_never_gets_shorter_with_more_requests_tokens_or_steps(
    name: str, steps: int, topk: int, tokens: int, running: int
) -> None:
    profile = load(name)
    args = server(profile, steps, topk, tokens)
    here = step_time_s(profile, args, running)
    assert here <= step_time_s(profile, args, running + 1)
    assert here < step_time_s(profile, server(profile, steps, topk, tokens + 1), running)
    assert here < step_time_s(profile, server(profile, steps + 1, topk, tokens), running)


@settings(deadline=None)
@given(st.sampled_from(names()), st.integers(0, 16), st.integers(1, 47))
def test_a_further_request_never_costs_more_than_the_first(name: str, steps: int, running: int) -> None:
    profile = load(name)
    args = server(profile, steps)
    further = step_time_s(profile, args, running + 1) - step_time_s(profile, args, running)
    assert 0 <= further <= step_time_s(profile, args, 1)


def test_fewer_gpus_take_longer_and_a_batch_outside_the_graphs_too() -> None:
    whole, half = server(CALIBRATED, 3), server(CALIBRATED, 3, 1, None, "--tp-size", "2")
    assert step_time_s(CALIBRATED, half, 4) == pytest.approx(2 * step_time_s(CALIBRATED, whole, 4))
    eager = server(CALIBRATED, 3, 1, None, "--cuda-graph-max-bs-decode", "8")
    assert step_time_s(CALIBRATED, eager, 8) == step_time_s(CALIBRATED, whole, 8)
    assert step_time_s(CALIBRATED, eager, 9) > step_time_s(CALIBRATED, whole, 9) + 0.01


def test_drawn_steps_accept_as_often_as_the_expectation_says() -> None:
    rng = random.Random(7)
    for profile in (CALIBRATED, DENSE):
        args = server(profile, 5)
        chances = acceptance(profile, args)
        draws = [draw_accepted(rng, chances, 1.0) for _ in range(20_000)]
        assert 0 <= min(draws) <= max(draws) == 5
        assert 1 + sum(draws) / len(draws) == pytest.approx(acceptance_length(profile, args), rel=0.02)


def test_a_harder_prompt_accepts_less_and_prompts_are_about_equally_hard() -> None:
    chances = acceptance(DENSE, server(DENSE, 5))
    easy = sum(draw_accepted(random.Random(seed), chances, 0.5) for seed in range(2000))
    hard = sum(draw_accepted(random.Random(seed), chances, 2.0) for seed in range(2000))
    assert easy > 1.5 * hard
    rng = random.Random(3)
    drawn = [draw_difficulty(rng, DENSE) for _ in range(20_000)]
    assert sum(drawn) / len(drawn) == pytest.approx(1.0, rel=0.02)
    assert min(drawn) > 0


def test_the_same_seed_draws_the_same_server() -> None:
    args = server(CALIBRATED, 3)
    first, second = random.Random(11), random.Random(11)
    draws = [draw_step_time_s(first, CALIBRATED, args, 4) for _ in range(50)]
    assert draws == [draw_step_time_s(second, CALIBRATED, args, 4) for _ in range(50)]
    assert len(set(draws)) == 50
    assert sum(draws) / 50 == pytest.approx(step_time_s(CALIBRATED, args, 4), rel=0.01)


def test_a_prompt_longer_than_a_chunk_takes_more_passes() -> None:
    args = server(CALIBRATED, 3)
    pass_s = CALIBRATED.speed.prefill_base_s
    twice = prefill_time_s(CALIBRATED, args, 8193) - prefill_time_s(CALIBRATED, args, 8192)
    assert twice > pass_s
    assert prefill_time_s(CALIBRATED, args, 200) < 0.01


@settings(deadline=None)
@given(st.sampled_from(names()), st.integers(1, 15), st.integers(2, 63), st.integers(0, 47))
def test_workspace_grows_with_every_request_and_every_draft_token(
    name: str, steps: int, tokens: int, running: int
) -> None:
    profile = load(name)
    args = server(profile, steps, 4, tokens)
    here = serving_workspace_bytes(profile, args, running)
    assert here < serving_workspace_bytes(profile, args, running + 1)
    assert here <= serving_workspace_bytes(profile, server(profile, steps, 4, tokens + 1), running)
