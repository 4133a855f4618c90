"""Memory plans: the observed capacities, SGLang's failures, and laws that hold everywhere."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tuner.simulator.arguments import ServerArgs, parse
from tuner.simulator.memory import GIB, MemoryPlan, graph_batch_sizes, plan
from tuner.simulator.physics import serving_workspace_bytes
from tuner.simulator.profile import Profile, load, names

CALIBRATED = load("qwen3.5-122b-a10b-4gpu")
LARGE = load("qwen3.5-122b-a10b-4gpu-80gb")
DENSE = load("qwen3-32b-1gpu")


def server(
    profile: Profile, steps: int, fraction: float = 0.8, topk: int = 1, tokens: int | None = None, more: str = ""
) -> ServerArgs:
    argv = [profile.model.name, "--tp-size", str(profile.gpu.count), "--mem-fraction-static", str(fraction)]
    argv += ["--chunked-prefill-size", "8192", "--max-running-requests", "48"]
    argv += ["--attention-backend", "flashinfer", "--page-size", "1", *more.split()]
    if steps:
        argv += ["--speculative-algorithm", "NEXTN", "--speculative-num-steps", str(steps)]
        argv += ["--speculative-eagle-topk", str(topk)]
        argv += ["--speculative-num-draft-tokens", str(steps + 1 if tokens is None else tokens)]
    return parse(argv, profile)


def planned(profile: Profile, args: ServerArgs) -> MemoryPlan:
    return plan(profile, args, profile.gpu.memory_bytes)


def dies_at(profile: Profile, args: ServerArgs) -> int | None:
    """How many running requests are too many; None: as many as may run fit."""
    layout = planned(profile, args)
    assert layout.failure is None
    for running in range(1, layout.max_running_requests + 1):
        if serving_workspace_bytes(profile, args, running) > layout.available_after_bytes:
            return running
    return None


def failure_of(profile: Profile, args: ServerArgs) -> tuple[str, str]:
    failure = planned(profile, args).failure
    assert failure is not None
    assert failure.lines[0] == "Traceback (most recent call last):"
    return failure.stage, "\n".join(failure.lines)


@pytest.mark.parametrize(("steps", "tokens"), [(1, 455_357), (2, 377_207), (3, 295_931)])
def test_the_kv_pool_has_the_observed_size_within_5_percent(steps: int, tokens: int) -> None:
    assert planned(CALIBRATED, server(CALIBRATED, steps)).max_total_num_tokens == pytest.approx(tokens, rel=0.05)


@pytest.mark.parametrize(("steps", "requests"), [(2, 21), (3, 17)])
def test_as_many_requests_run_as_observed(steps: int, requests: int) -> None:
    assert planned(CALIBRATED, server(CALIBRATED, steps)).max_running_requests == requests


@pytest.mark.parametrize("steps", [0, 1, 2, 3, 4, 5])
def test_up_to_five_steps_a_full_load_fits(steps: int) -> None:
    assert dies_at(CALIBRATED, server(CALIBRATED, steps)) is None


def test_ten_steps_start_and_serve_four_requests_and_die_of_more() -> None:
    assert dies_at(CALIBRATED, server(CALIBRATED, 10)) in range(5, 8)


def test_ten_steps_fit_at_a_lower_fraction_with_fewer_requests() -> None:
    lower = server(CALIBRATED, 10, 0.72)
    assert dies_at(CALIBRATED, lower) is None
    assert (
        planned(CALIBRATED, lower).max_running_requests
        < planned(CALIBRATED, server(CALIBRATED, 10)).max_running_requests
    )


def test_a_higher_fraction_runs_more_requests_until_there_is_no_room_to_serve_them() -> None:
    assert planned(CALIBRATED, server(CALIBRATED, 3, 0.83)).max_running_requests > 17
    assert dies_at(CALIBRATED, server(CALIBRATED, 3, 0.83)) is None
    assert dies_at(CALIBRATED, server(CALIBRATED, 3, 0.90)) is not None


def test_a_fraction_below_the_weights_says_how_far_to_raise_it_and_there_it_gets_further() -> None:
    stage, text = failure_of(CALIBRATED, server(CALIBRATED, 3, 0.6))
    assert stage == "pool"
    assert "ValueError: Loaded weights leave no GPU memory for the KV cache under --mem-fraction-static=0.6." in text
    found = re.search(r"Raise --mem-fraction-static above (\S+) \(minimum viable", text)
    assert found is not None
    bound = float(found.group(1))
    assert "leave no GPU memory" in failure_of(CALIBRATED, server(CALIBRATED, 3, round(bound - 0.002, 3)))[1]
    assert planned(CALIBRATED, server(CALIBRATED, 3, bound + 0.02)).failure is None


def test_between_too_low_and_enough_the_state_of_one_request_does_not_fit() -> None:
    stage, text = failure_of(CALIBRATED, server(CALIBRATED, 16, 0.65))
    assert stage == "pool"
    assert "RuntimeError: Not enough GPU memory for hybrid (mamba/linear-attention) state cache. Computed" in text
    stage, text = failure_of(CALIBRATED, server(CALIBRATED, 4, 0.64))
    assert stage == "pool"
    assert "RuntimeError: Hybrid (mamba/linear-attention) state cache is too small to serve any requests." in text


def test_a_dense_model_with_no_room_for_a_token_is_told_to_raise_the_fraction() -> None:
    # Weights and draft need 69.67e9 of 150.02e9 bytes: 0.4644.
    stage, text = failure_of(DENSE, server(DENSE, 3, 0.465))
    assert stage == "pool"
    assert text.endswith(
        "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static. "
        "Current value: mem_fraction_static=0.465"
    )


def test_a_fraction_too_high_fails_in_graph_capture_with_the_hints() -> None:
    stage, text = failure_of(CALIBRATED, server(CALIBRATED, 3, 0.95))
    assert stage == "capture"
    assert "\nException: Capture cuda graph failed: CUDA out of memory. Tried to allocate " in text
    assert "\ntorch.OutOfMemoryError: CUDA out of memory. Tried to allocate " in text
    assert "\nPossible solutions:\n1. set --mem-fraction-static to a smaller value (e.g., 0.8 or 0.7)\n" in text


def test_a_fraction_near_one_fails_while_the_kv_pool_is_allocated() -> None:
    stage, text = failure_of(CALIBRATED, server(CALIBRATED, 3, 0.99))
    assert stage == "pool"
    assert "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate " in text
    assert "GPU 0 has a total capacity of 44.99 GiB of which " in text


def test_weights_that_do_not_fit_fail_while_they_load() -> None:
    stage, text = failure_of(CALIBRATED, server(CALIBRATED, 3, more="--tp-size 2"))
    assert stage == "load_weights"
    assert "torch.OutOfMemoryError: CUDA out of memory" in text
    failure = plan(CALIBRATED, server(CALIBRATED, 3), int(28.2 * GIB)).failure
    assert failure is not None
    assert failure.stage == "load_draft"


@pytest.mark.parametrize(
    ("steps", "topk", "tokens", "inner"),
    [
        (2, 2, 8, "selected index k out of range"),
        (1, 4, 6, "selected index k out of range"),
    ],
)
def test_a_tree_larger_than_its_scores_fails_in_capture_for_another_reason_than_memory(
    steps: int, topk: int, tokens: int, inner: str
) -> None:
    stage, text = failure_of(CALIBRATED, server(CALIBRATED, steps, 0.8, topk, tokens))
    assert stage == "capture"
    assert f"Exception: Capture cuda graph failed: {inner}\nPossible solutions:" in text
    assert "out of memory" not in text
    assert planned(CALIBRATED, server(CALIBRATED, steps, 0.8, topk, tokens - 1)).failure is None


def test_speculation_with_no_steps_has_nothing_to_verify() -> None:
    more = "--speculative-algorithm EAGLE --speculative-num-steps 0 --speculative-eagle-topk 1"
    stage, text = failure_of(CALIBRATED, server(CALIBRATED, 0, more=more))
    assert stage == "capture"
    assert "Capture cuda graph failed: torch.cat(): expected a non-empty list of Tensors" in text


def test_leftovers_of_another_process_shrink_the_pools() -> None:
    args = server(CALIBRATED, 3)
    clean = planned(CALIBRATED, args)
    dirty = plan(CALIBRATED, args, CALIBRATED.gpu.memory_bytes - 4 * GIB)
    assert dirty.failure is None
    assert dirty.max_total_num_tokens < 0.7 * clean.max_total_num_tokens
    assert plan(CALIBRATED, args, CALIBRATED.gpu.memory_bytes - 12 * GIB).failure is not None
    assert plan(CALIBRATED, args, 0).failure is not None


def test_every_byte_of_a_plan_is_accounted_for() -> None:
    for profile in (CALIBRATED, DENSE):
        layout = planned(profile, server(profile, 3))
        held = (
            layout.weights_bytes
            + layout.draft_bytes
            - layout.draft_freed_bytes
            + layout.conv_bytes
            + layout.ssm_bytes
            + layout.intermediate_bytes
            + layout.kv_bytes
            + layout.graphs_bytes
            + layout.draft_graphs_bytes
            + profile.memory.pool_overhead_bytes
        )
        assert layout.pre_bytes - held == pytest.approx(layout.available_after_bytes, abs=64)
        assert layout.held_bytes + layout.available_after_bytes == profile.gpu.memory_bytes


def test_a_request_limit_leaves_what_it_spares_to_the_kv_pool() -> None:
    free, limited = server(CALIBRATED, 3), server(CALIBRATED, 3, more="--max-running-requests 8")
    assert planned(CALIBRATED, limited).max_running_requests == 8
    assert planned(CALIBRATED, limited).max_total_num_tokens > 1.5 * planned(CALIBRATED, free).max_total_num_tokens


def test_cache_settings_change_what_fits() -> None:
    base = planned(CALIBRATED, server(CALIBRATED, 3))
    halved = planned(CALIBRATED, server(CALIBRATED, 3, more="--mamba-ssm-dtype bfloat16"))
    assert halved.max_running_requests > base.max_running_requests
    packed = planned(DENSE, server(DENSE, 3, more="--kv-cache-dtype fp8_e4m3"))
    assert packed.max_total_num_tokens == pytest.approx(
        2 * planned(DENSE, server(DENSE, 3)).max_total_num_tokens, rel=0.001
    )
    user = planned(DENSE, server(DENSE, 3, more="--max-total-tokens 5000 --page-size 64"))
    assert user.max_total_num_tokens == 4992


def test_without_speculation_there_is_no_draft_and_no_intermediate_state() -> None:
    off = planned(CALIBRATED, server(CALIBRATED, 0))
    assert (off.draft_bytes, off.intermediate_bytes, off.draft_graphs_bytes) == (0, 0, 0)
    assert off.max_running_requests == 48
    assert planned(DENSE, server(DENSE, 0)).max_mamba_cache_size is None


def test_the_same_model_on_larger_gpus_runs_more_and_deeper() -> None:
    large = planned(LARGE, server(LARGE, 3))
    assert large.max_running_requests > planned(CALIBRATED, server(CALIBRATED, 3)).max_running_requests
    assert dies_at(LARGE, server(LARGE, 10, 0.6)) is None


@pytest.mark.parametrize("name", names())
def test_every_profile_has_working_settings_and_failing_ones(name: str) -> None:
    profile = load(name)
    verdicts = set()
    for fraction in (0.3, 0.45, 0.6, 0.7, 0.8, 0.9, 0.95):
        for steps, topk, tokens in ((0, 1, 1), (1, 1, 2), (3, 1, 4), (10, 1, 11), (5, 8, 64)):
            args = server(profile, steps, fraction, topk, tokens)
            failure = planned(profile, args).failure
            if failure is not None:
                verdicts.add(failure.stage)
            else:
                verdicts.add("serving" if dies_at(profile, args) else "works")
    assert {"works", "serving", "pool", "capture"} <= verdicts


points = st.tuples(st.integers(1, 15), st.integers(2, 63), st.integers(60, 94))


@settings(deadline=None)
@given(st.sampled_from(names()), points)
def test_more_draft_tokens_never_free_memory(name: str, point: tuple[int, int, int]) -> None:
    profile = load(name)
    steps, tokens, percent = point
    here = planned(profile, server(profile, steps, percent / 100, 8, tokens))
    more = planned(profile, server(profile, steps, percent / 100, 8, tokens + 1))
    assert more.max_total_num_tokens <= here.max_total_num_tokens
    assert more.max_running_requests <= here.max_running_requests
    if here.failure is None and more.failure is None:
        assert more.available_after_bytes <= here.available_after_bytes


@settings(deadline=None)
@given(st.sampled_from(names()), points)
def test_a_higher_fraction_never_lowers_the_pools_nor_leaves_more_beside_them(
    name: str, point: tuple[int, int, int]
) -> None:
    profile = load(name)
    steps, tokens, percent = point
    here = planned(profile, server(profile, steps, percent / 100, 8, tokens))
    more = planned(profile, server(profile, steps, (percent + 1) / 100, 8, tokens))
    assert more.max_total_num_tokens >= here.max_total_num_tokens
    assert more.max_running_requests >= here.max_running_requests
    if here.failure is None and more.failure is None:
        assert more.available_after_bytes < here.available_after_bytes


def test_graphs_are_captured_up_to_the_request_pool_in_the_documented_sizes() -> None:
    sizes = graph_batch_sizes(server(CALIBRATED, 3), 17)
    assert sizes == (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 17)
    assert graph_batch_sizes(server(CALIBRATED, 3, more="--cuda-graph-max-bs-decode 4"), 17) == (1, 2, 3, 4)
    assert graph_batch_sizes(server(CALIBRATED, 0, more="--disable-cuda-graph"), 17) == ()
