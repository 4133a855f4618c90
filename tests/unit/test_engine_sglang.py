"""SGLang's rules, command line and protocol."""

from __future__ import annotations

import random
from pathlib import Path

import orjson
import pytest

from tuner.config.space_file import read_space
from tuner.engines import engine
from tuner.errors import AssignmentRejected, UsageError
from tuner.model.http import HttpReply
from tuner.model.outcome import Cause, Ending, TrialState
from tuner.model.prompt import plain_prompt
from tuner.model.record import Counters
from tuner.model.space import Assignment, Value
from tuner.model.trial import Capacity, Command
from tuner.model.workload import Workload

SGLANG = engine("sglang")
SPACE = read_space(Path(__file__).parents[2], "sglang-mtp")
MODEL = ("sglang", "serve", "--model-path", "Qwen/Qwen3.5-122B-A10B-FP8")


def assignment(steps: Value, topk: Value | None = None, draft: Value | None = None, **more: Value) -> Assignment:
    values = {"speculative_eagle_topk": topk, "speculative_num_draft_tokens": draft}
    given = {name: value for name, value in values.items() if value is not None}
    return Assignment.of({"speculative_num_steps": steps, **given, **more})


def settings(*argv: str) -> Assignment:
    return SGLANG.settings_of(Command(argv=(*MODEL, "--mem-fraction-static", "0.8", *argv)))


def test_ten_thousand_drawn_assignments_keep_every_rule() -> None:
    choose = random.Random(20261130)
    forms: dict[Assignment, tuple[str, ...]] = {}
    rejected = 0
    base = Command(argv=(*MODEL, "--mem-fraction-static", "0.8"))
    for _ in range(10_000):
        drawn = Assignment.of({parameter.name: choose.choice(parameter.values()) for parameter in SPACE.parameters})
        steps, topk, draft = (int(drawn[name]) for name in list(SGLANG_TRIPLE))
        nodes = topk + (steps - 1) * topk * topk
        must_fit = steps == 0 or topk == 1 or (draft - 1 <= nodes and draft > steps)
        try:
            found = SGLANG.canonical(drawn)
        except AssignmentRejected:
            rejected += 1
            assert not must_fit
            continue
        assert must_fit
        assert found["mem_fraction_static"] == drawn["mem_fraction_static"]
        assert found["speculative_num_steps"] == steps
        if steps == 0:
            assert set(found) == {"speculative_num_steps", "mem_fraction_static"}
        elif topk == 1:
            assert (found["speculative_eagle_topk"], found["speculative_num_draft_tokens"]) == (1, steps + 1)
        else:
            assert (found["speculative_eagle_topk"], found["speculative_num_draft_tokens"]) == (topk, draft)
        assert SGLANG.canonical(found) == found
        assert SPACE.outside(found) is None
        argv = SGLANG.command(base, found).argv
        assert forms.setdefault(found, argv) == argv
    assert len(set(forms.values())) == len(forms)  # no two assignments launch the same server
    assert 500 < rejected < 9_500  # both sides of the rule were tried


SGLANG_TRIPLE = ("speculative_num_steps", "speculative_eagle_topk", "speculative_num_draft_tokens")


@pytest.mark.parametrize(
    ("asked", "rule"),
    [
        (assignment(1, 2, 4), "needs 3 drafted nodes, but 1 steps of topk 2 draft only 2"),
        (assignment(2, 2, 8), "needs 7 drafted nodes, but 2 steps of topk 2 draft only 6"),
        (assignment(5, 4, 5), "must be at least 6"),
        (assignment(3, 2), "speculative_num_draft_tokens is missing"),
        (assignment(3), "speculative_eagle_topk is missing"),
        (assignment(-1, 1), "must be 0 .* or more"),
        (assignment(3, 0, 4), "must be 1 or more"),
        (assignment(3.0, 1), "must be a whole number"),
        (Assignment.of({"speculative_eagle_topk": 1}), "speculative_num_steps is missing"),
        (Assignment.of({"mem_fraction_static": 1.0}), "between 0 and 1"),
        (Assignment.of({"mem_fraction_static": "0.8"}), "between 0 and 1"),
    ],
)
def test_what_sglang_would_refuse_is_rejected_with_the_rule(asked: Assignment, rule: str) -> None:
    with pytest.raises(AssignmentRejected, match=rule):
        SGLANG.canonical(asked)


@pytest.mark.parametrize("asked", [assignment(1, 2, 3), assignment(2, 2, 7), assignment(5, 4, 6)])
def test_trees_at_the_edge_of_the_rule_are_taken(asked: Assignment) -> None:
    assert SGLANG.canonical(asked) == asked


def test_a_chain_forces_the_number_of_draft_tokens() -> None:
    assert SGLANG.canonical(assignment(3, 1, 64)) == SGLANG.canonical(assignment(3, 1)) == assignment(3, 1, 4)


def test_speculation_off_drops_what_does_not_apply() -> None:
    assert SGLANG.canonical(assignment(0, 8, 64)) == assignment(0)


def test_an_algorithm_alone_gets_sglang_s_own_numbers() -> None:
    assert settings("--speculative-algorithm", "NEXTN") == assignment(3, 1, 4, mem_fraction_static=0.8)


@pytest.mark.parametrize("model", ["meta-llama/Llama-3.1-8B-Instruct", "xai-org/grok-1"])
def test_llama_and_grok_have_numbers_of_their_own(model: str) -> None:
    tail = ("--speculative-algorithm", "EAGLE", "--mem-fraction-static", "0.8")
    for argv in (("sglang", "serve", model), ("python", "-m", "sglang.launch_server", "--model", model)):
        assert SGLANG.settings_of(Command(argv=(*argv, *tail))) == assignment(5, 4, 8, mem_fraction_static=0.8)


def test_no_algorithm_is_no_speculation_even_with_numbers() -> None:
    assert settings() == settings("--speculative-num-steps", "3") == assignment(0, mem_fraction_static=0.8)


@pytest.mark.parametrize("flag", ["--speculative-algo", "--speculative-algorithm"])
@pytest.mark.parametrize("name", ["nextn", "EAGLE", "EAGLE3"])
def test_the_eagle_family_reads_the_three_numbers(flag: str, name: str) -> None:
    found = settings(flag, name, "--speculative-num-steps=2", "--speculative-eagle-topk=1")
    assert found == assignment(2, 1, 3, mem_fraction_static=0.8)


@pytest.mark.parametrize(
    ("argv", "reason"),
    [
        (("--speculative-algorithm", "NGRAM"), "NGRAM does not use these settings"),
        (("--speculative-algorithm", "EAGLE", "--speculative-num-steps", "3"), "give all of"),
        (("--speculative-algorithm", "EAGLE", "--speculative-eagle-topk", "1"), "give all of"),
        (("--speculative-algorithm", "EAGLE", "--speculative-num-steps", "x"), "whole number, not 'x'"),
        (
            ("--speculative-algorithm", "EAGLE", "--speculative-num-steps", "0", "--speculative-eagle-topk", "1"),
            "remove the --speculative flags",
        ),
        (("--mem-fraction-static", "much"), "needs a number, not 'much'"),
        (("--config", "server.yaml"), "--config hides settings"),
        (("--speculative-draft", "x"), "ambiguous"),
    ],
)
def test_a_base_command_that_cannot_be_known_is_refused_with_the_reason(argv: tuple[str, ...], reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        settings(*argv)


def test_an_unpinned_fraction_is_refused_because_its_default_depends_on_the_host() -> None:
    with pytest.raises(UsageError, match="pin --mem-fraction-static"):
        SGLANG.settings_of(Command(argv=MODEL))


def test_turning_speculation_off_takes_away_all_that_depends_on_it() -> None:
    tail = ("--speculative-draft-model", "draft", "--speculative-num-steps=3", "--speculative-eagle-topk=1")
    base = Command(argv=(*MODEL, "--speculative-algo", "EAGLE3", *tail, "--tp", "4", "--mem-fraction-static", "0.8"))
    assert SGLANG.command(base, assignment(0, mem_fraction_static=0.7)).argv == (
        *MODEL,
        *("--tp", "4", "--mem-fraction-static", "0.7"),
    )


def test_turning_speculation_on_names_an_algorithm_only_where_there_is_none() -> None:
    off = Command(argv=(*MODEL, "--mem-fraction-static", "0.8"))
    on = SGLANG.command(off, assignment(2, 1, 3)).argv
    assert on[len(off.argv) :] == (
        *("--speculative-algorithm", "NEXTN", "--speculative-num-steps", "2"),
        *("--speculative-eagle-topk", "1", "--speculative-num-draft-tokens", "3"),
    )
    eagle = Command(argv=(*MODEL, "--speculative-algorithm", "EAGLE3", "--mem-fraction-static", "0.8"))
    assert "EAGLE3" in SGLANG.command(eagle, assignment(2, 1, 3)).argv
    assert "NEXTN" not in SGLANG.command(eagle, assignment(2, 1, 3)).argv


def test_the_port_is_30000_unless_the_command_says_otherwise() -> None:
    assert SGLANG.port(Command(argv=MODEL)) == 30000


def info(**fields: object) -> HttpReply:
    return HttpReply(status=200, body=orjson.dumps(fields))


def test_the_running_configuration_is_read_back() -> None:
    state = {"effective_max_running_requests_per_dp": 17, "memory_usage": {"startup_available": 19.5}}
    found = SGLANG.effective(
        [
            info(
                version="0.5.23",
                model_path="Qwen/Qwen3.5",
                speculative_algorithm="EAGLE",
                speculative_num_steps=3,
                speculative_eagle_topk=1,
                speculative_num_draft_tokens=4,
                mem_fraction_static=0.8,
                max_total_num_tokens=295931,
                max_running_requests=48,
                internal_states=[state, {**state, "effective_max_running_requests_per_dp": 16}],
            )
        ]
    )
    assert dict(found.settings) == dict(assignment(3, 1, 4, mem_fraction_static=0.8))
    assert found.capacity == Capacity(
        max_total_num_tokens=295931, max_running_requests=16, available_gpu_mem_bytes=round(19.5 * 2**30)
    )
    assert (found.version, found.model) == ("0.5.23", "Qwen/Qwen3.5")


def test_speculation_that_is_off_reads_as_zero_steps() -> None:
    found = SGLANG.effective([info(speculative_algorithm=None, speculative_num_steps=None, mem_fraction_static=0.8)])
    assert dict(found.settings)["speculative_num_steps"] == 0
    assert dict(found.settings)["speculative_eagle_topk"] is None


def test_tokens_count_up_on_every_chunk() -> None:
    event = {
        "choices": [{"index": 0, "text": " a b", "finish_reason": "length"}],
        "usage": {"prompt_tokens": 9, "completion_tokens": 6, "total_tokens": 15},
    }
    found = SGLANG.read_event(orjson.dumps(event))
    assert (found.has_content, found.tokens_total, found.prompt_tokens, found.finish_reason) == (True, 6, 9, "length")


def test_counters_sum_over_labels_and_ignore_names_that_only_begin_alike() -> None:
    body = b"""\
# HELP sglang:generation_tokens_total Number of generation tokens processed.
# TYPE sglang:generation_tokens_total counter
sglang:generation_tokens_total{is_streaming="true",model_name="a}b"} 120.0
sglang:generation_tokens_total{is_streaming="false",model_name="a}b"} 8.0
sglang:generation_tokens_total_created{model_name="m"} 1.7e+09
sglang:spec_verify_calls_total{model_name="m"} 4e1
sglang:num_running_reqs{model_name="m",tp_rank="0"} 3.0
"""
    assert SGLANG.counters(HttpReply(status=200, body=body)) == Counters(
        generated_tokens=128.0, verify_steps=40.0, running=3.0, queued=None, retractions=0.0
    )


def test_counters_tell_what_the_queue_the_cache_and_the_drafts_did() -> None:
    body = b"""\
sglang:prompt_tokens_total{is_streaming="true"} 900.0
sglang:cached_tokens_total{cache_source="device"} 30.0
sglang:cached_tokens_total{cache_source="host"} 6.0
sglang:num_retracted_reqs{tp_rank="0"} 1.0
sglang:num_retracted_requests_total{tp_rank="0"} 4.0
sglang:queue_time_seconds_bucket{le="0.1",tp_rank="0"} 3.0
sglang:queue_time_seconds_sum{tp_rank="0"} 2.5
sglang:queue_time_seconds_count{tp_rank="0"} 5.0
sglang:token_usage{dp_rank="0"} 0.41
sglang:token_usage{dp_rank="1"} 0.93
sglang:full_token_usage{dp_rank="0"} 0.40
sglang:spec_num_draft_tokens{tp_rank="0"} 4.0
"""
    assert SGLANG.counters(HttpReply(status=200, body=body)) == Counters(
        prompt_tokens=900.0,
        cached_tokens=36.0,
        retractions=4.0,
        queue_time_s=2.5,
        queue_waits=5.0,
        kv_usage=0.93,
        drafts_a_step=3.0,
    )


def test_a_server_without_a_prefix_hit_does_not_print_their_total_and_had_none() -> None:
    assert SGLANG.counters(HttpReply(status=200, body=b"sglang:prompt_tokens_total 9\n")).cached_tokens == 0.0
    assert SGLANG.counters(HttpReply(status=200, body=b"sglang:num_queue_reqs 0\n")).cached_tokens is None


def test_a_stream_asks_for_what_speculation_and_the_prefix_cache_did_for_it_and_reads_it() -> None:
    call = SGLANG.generation_call(plain_prompt("x"), max_tokens=1, workload=Workload(), stream=True, seed=0)
    assert call.body is not None
    assert (call.body["return_spec_tokens_details"], call.body["return_cached_tokens_details"]) == (True, True)
    event = {
        "choices": [],
        "sglext": {
            "cached_tokens_details": {"device": 4, "host": 2},
            "spec_tokens_details": {"spec_verify_ct": 10, "spec_correct_drafts_histogram": [1, 2, 7]},
        },
    }
    found = SGLANG.read_event(orjson.dumps(event))
    assert (found.cached_tokens, found.verify_steps, found.accepted) == (6, 10, (1, 2, 7))
    assert (found.has_content, found.tokens_total, found.error) == (False, None, None)


@pytest.mark.parametrize(
    "extension",
    [None, 3, {"spec_tokens_details": [1]}, {"spec_tokens_details": {"spec_correct_drafts_histogram": ["1"]}}],
    ids=["null", "a-number", "of-several-replies", "no-counts"],
)
def test_what_else_an_extension_says_is_passed_over(extension: object) -> None:
    found = SGLANG.read_event(orjson.dumps({"choices": [], "sglext": extension}))
    assert (found.verify_steps, found.accepted, found.error) == (None, (), None)


def test_the_usage_says_how_much_of_the_prompt_was_in_the_cache() -> None:
    usage = {"completion_tokens": 6, "prompt_tokens": 9, "prompt_tokens_details": {"cached_tokens": 5}}
    assert SGLANG.read_event(orjson.dumps({"choices": [], "usage": usage})).cached_tokens == 5


def test_the_names_of_flags_in_the_line_of_settings_are_no_cause() -> None:
    reader = SGLANG.log_reader()
    reader.feed("[2026-11-30 12:00:00] server_args={'mamba_track_interval': 256, 'enable_nccl_nvls': False}\n")
    reader.feed("[2026-11-30 12:00:09 TP0] Load weight begin. avail mem=44.0 GB\n")
    verdict = reader.diagnose(Ending(exit_status=1, exit_signal=None, state=TrialState.LOADING, signals_sent=()))
    assert verdict.cause is Cause.UNKNOWN


def test_fewer_gpus_than_the_command_asks_for_is_the_hosts_and_not_a_kernels_fault() -> None:
    reader = SGLANG.log_reader()
    reader.feed("[2026-11-30 12:00:00] server_args={'tp_size': 4}\n")
    reader.feed("[2026-11-30 12:00:02 TP1] Scheduler hit an exception: Traceback (most recent call last):\n")
    reader.feed("torch.AcceleratorError: CUDA error: invalid device ordinal\n")
    verdict = reader.diagnose(Ending(exit_status=1, exit_signal=None, state=TrialState.DEPLOYING, signals_sent=()))
    assert verdict.cause is Cause.DEPENDENCY_MISMATCH
    assert verdict.config_fault is False
    assert "--tp-size" in verdict.advice


@pytest.mark.parametrize("lives", [1, 2])
def test_memory_that_a_second_life_lacks_proves_nothing_against_the_configuration(lives: int) -> None:
    reader = SGLANG.log_reader()
    for life in range(lives):
        reader.feed(f"[2026-11-30 12:00:0{life}] server_args={{'tp_size': 4}}\n")
    reader.feed("[2026-11-30 12:00:02 TP1] Scheduler hit an exception: Traceback (most recent call last):\n")
    reader.feed("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has a total\n")
    verdict = reader.diagnose(Ending(exit_status=1, exit_signal=None, state=TrialState.LOADING, signals_sent=()))
    assert verdict.cause is Cause.OOM_WEIGHTS
    assert verdict.config_fault is (True if lives == 1 else None)
