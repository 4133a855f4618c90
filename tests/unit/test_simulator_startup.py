"""The start-up script: SGLang's lines in SGLang's order, with the plan's numbers."""

from __future__ import annotations

import itertools
import re

import pytest

from tuner.simulator.arguments import ServerArgs, parse
from tuner.simulator.memory import MemoryPlan, plan
from tuner.simulator.profile import Profile, load
from tuner.simulator.startup import Step, script

CALIBRATED = load("qwen3.5-122b-a10b-4gpu")
DENSE = load("qwen3-32b-1gpu")
MTP = (
    "--speculative-algorithm NEXTN --speculative-num-steps {steps} --speculative-eagle-topk 1 "
    "--speculative-num-draft-tokens {tokens}"
)


def start(profile: Profile, steps: int, fraction: float = 0.8) -> tuple[ServerArgs, MemoryPlan, tuple[Step, ...]]:
    text = f"a/model --tp-size {profile.gpu.count} --mem-fraction-static {fraction} --api-key secret --port 31000 "
    if steps:
        text += MTP.format(steps=steps, tokens=steps + 1)
    args = parse(text.split(), profile)
    layout = plan(profile, args, profile.gpu.memory_bytes)
    return args, layout, script(profile, args, layout, 4321)


def lines_of(steps: tuple[Step, ...], rank: int = 0) -> list[str]:
    return [line for step in steps if step.rank in {None, rank} for line in step.lines]


ORDER = [
    r"Max running requests is reset to 48 for speculative decoding\.",
    r"server_args=\{'model_path': 'a/model', .*'api_key': 'secret'",
    r"Memory baseline taken\. mem usage=\d+\.\d\d GB$",
    r"Load weight begin\. avail mem=\d+\.\d\d GB$",
    r"Load weight end\. elapsed=\d+\.\d\d s, type=Qwen3_5MoeForConditionalGeneration, avail mem=.* mem usage=.* GB\.$",
    r"Load weight begin\.",
    r"Load weight end\. elapsed=\d+\.\d\d s, type=Qwen3_5ForCausalLMMTP, ",
    (
        r"Mamba Cache is allocated\. max_mamba_cache_size: 17, conv_state size: .*GB, ssm_state size: .*GB "
        r"intermediate_ssm_state_cache size: \d+\.\d\dGB "
    ),
    r"KV Cache is allocated\. dtype: .*, #tokens: \d+, K size: .* GB, V size: .* GB$",
    r"Memory pool end\. avail mem=",
    r"Capture target verify CUDA graph begin\. backend=\w+, num_tokens_per_req=4, avail mem=",
    r"Capture target verify CUDA graph end\. bs=\[1, 2, 3, .*17\], elapsed=.* s, mem usage=.* GB, avail mem=.* GB\.$",
    r"Capture draft decode CUDA graph begin\.",
    r"Capture draft decode CUDA graph end\.",
    r"Capture draft extend CUDA graph begin\.",
    r"Capture draft extend CUDA graph end\.",
    r"max_running_requests is capped to 17 by the mamba state cache \(max_mamba_cache_size=17, ",
    (
        r"max_total_num_tokens=\d+, chunked_prefill_size=4096, max_prefill_tokens=16384, max_running_requests=17, "
        r"context_len=262144, available_gpu_mem=\d+\.\d\d GB$"
    ),
    r"INFO: +Started server process \[4321\]$",
    r"INFO: +Waiting for application startup\.$",
    r"INFO: +Application startup complete\.$",
    r"INFO: +Uvicorn running on http://127\.0\.0\.1:31000 \(Press CTRL\+C to quit\)$",
    r"The server is fired up and ready to roll!$",
]


def test_a_good_start_prints_every_line_once_in_sglangs_order() -> None:
    lines = lines_of(start(CALIBRATED, 3)[2])
    assert len(lines) == len(ORDER)
    for line, pattern in zip(lines, ORDER, strict=True):
        assert re.match(pattern, line), line


def test_one_step_needs_no_draft_decode_graph() -> None:
    lines = lines_of(start(CALIBRATED, 1)[2])
    assert not any("Capture draft decode" in line for line in lines)
    assert any("Capture draft extend CUDA graph end" in line for line in lines)


def test_without_speculation_the_target_decodes_and_nothing_is_drafted() -> None:
    lines = lines_of(start(CALIBRATED, 0)[2])
    assert sum(line.startswith("Load weight begin") for line in lines) == 1
    assert any(line.startswith("Capture target decode CUDA graph begin") for line in lines)
    assert not any("draft" in line for line in lines if not line.startswith("server_args="))


def test_a_model_without_linear_attention_allocates_no_state() -> None:
    args, layout, steps = start(DENSE, 3)
    lines = lines_of(steps)
    assert not any("Mamba" in line for line in lines)
    assert f"max_running_requests={layout.max_running_requests}," in " ".join(lines)
    assert args.context_length == 40_960


def test_every_rank_prints_its_own_lines_and_the_time_passes_once() -> None:
    steps = start(CALIBRATED, 3)[2]
    for text in ("Load weight begin", "Load weight end", "KV Cache is allocated", "Capture target verify"):
        assert {step.rank for step in steps for line in step.lines if line.startswith(text)} == {0, 1, 2, 3}
    assert all(step.seconds == 0 for step in steps if step.rank in {1, 2, 3})
    assert 100 < sum(step.seconds for step in steps) < 300


def test_gpu_memory_grows_to_what_the_plan_leaves_and_shrinks_only_by_the_freed_vocabulary() -> None:
    for profile in (CALIBRATED, DENSE):
        _, layout, steps = start(profile, 3)
        held = [step.gpu_bytes for step in steps]
        assert held[0] == 0
        falls = [before - after for before, after in itertools.pairwise(held) if after < before]
        assert falls == [layout.draft_freed_bytes - profile.memory.pool_overhead_bytes]
        assert held[-1] == pytest.approx(layout.held_bytes, abs=64)


def test_the_numbers_are_the_plans() -> None:
    _, layout, steps = start(CALIBRATED, 2)
    text = "\n".join(lines_of(steps))
    assert f"#tokens: {layout.max_total_num_tokens}," in text
    assert f"max_total_num_tokens={layout.max_total_num_tokens}," in text
    assert f"available_gpu_mem={layout.available_after_bytes / 2**30:.2f} GB" in text


@pytest.mark.parametrize(
    ("steps", "fraction", "last_stage", "seen", "unseen"),
    [
        (3, 0.60, "pool", "Load weight end", "KV Cache is allocated"),
        (16, 0.65, "pool", "Load weight end", "Mamba Cache is allocated"),
        (3, 0.99, "pool", "Mamba Cache is allocated", "KV Cache is allocated"),
        (3, 0.95, "capture", "Capture target verify CUDA graph begin", "Capture target verify CUDA graph end"),
    ],
)
def test_a_failing_start_ends_with_its_failure_at_the_right_stage(
    steps: int, fraction: float, last_stage: str, seen: str, unseen: str
) -> None:
    _, layout, script_steps = start(CALIBRATED, steps, fraction)
    assert layout.failure is not None
    assert script_steps[-1].stage == layout.failure.stage == last_stage
    assert script_steps[-1].lines == layout.failure.lines
    lines = lines_of(script_steps[:-1])
    assert any(line.startswith(seen) for line in lines)
    assert not any(line.startswith(unseen) for line in lines)
    assert not any("fired up" in line for line in lines)


def test_more_gpus_than_the_host_has_fail_before_anything_is_loaded() -> None:
    args = parse(["a/model", "--tp-size", "8", "--mem-fraction-static", "0.8"], CALIBRATED)
    steps = script(CALIBRATED, args, plan(CALIBRATED, args, CALIBRATED.gpu.memory_bytes), 1)
    assert [step.stage for step in steps] == ["args", "baseline"]
    assert "torch.AcceleratorError: CUDA error: invalid device ordinal" in steps[-1].lines
    assert steps[-1].gpu_bytes == 0


def test_weights_that_do_not_fit_leave_the_load_unfinished() -> None:
    args = parse(["a/model", "--tp-size", "2", "--mem-fraction-static", "0.8"], CALIBRATED)
    layout = plan(CALIBRATED, args, CALIBRATED.gpu.memory_bytes)
    lines = lines_of(script(CALIBRATED, args, layout, 1))
    assert "Load weight begin" in " ".join(lines)
    assert "Load weight end" not in " ".join(lines)
    assert any(line.startswith("torch.OutOfMemoryError: CUDA out of memory") for line in lines)
