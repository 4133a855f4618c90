"""llama.cpp's rules, command line and protocol."""

from __future__ import annotations

import orjson
import pytest

from tuner.engines import engine
from tuner.errors import AssignmentRejected, UsageError
from tuner.model.http import HttpReply
from tuner.model.prompt import plain_prompt
from tuner.model.record import Counters
from tuner.model.space import Assignment, Value
from tuner.model.trial import Capacity, Command
from tuner.model.workload import Workload

LLAMACPP = engine("llamacpp")
PROGRAM = ("python", "-m", "tuner.servers.llamacpp", "--model", "smollm2-135m")
SIZES: dict[str, Value] = {"parallel": 4, "threads": 1, "batch_size": 256, "ubatch_size": 64, "ctx_size": 2048}
FLAGS = ("--parallel", "4", "--threads", "1", "--batch-size", "256", "--ubatch-size", "64", "--ctx-size", "2048")


def canonical(**changes: Value) -> dict[str, Value]:
    return dict(LLAMACPP.canonical(Assignment.of({**SIZES, "spec_type": "none", **changes})))


def test_without_speculation_its_lengths_do_not_apply() -> None:
    assert canonical(draft_max=8, ngram_size=3) == {**SIZES, "spec_type": "none"}


def test_a_draft_model_has_no_ngrams() -> None:
    found = canonical(spec_type="draft-simple", draft_max=8, ngram_size=3)
    assert found == {**SIZES, "spec_type": "draft-simple", "draft_max": 8}


def test_a_micro_batch_is_never_larger_than_its_batch() -> None:
    assert canonical(batch_size=64, ubatch_size=512)["ubatch_size"] == 64


def test_a_batch_is_never_larger_than_the_context() -> None:
    assert canonical(ctx_size=512, parallel=1, batch_size=2048)["batch_size"] == 512


@pytest.mark.parametrize(
    ("context", "parallel", "runs"), [(512, 4, 1024), (512, 8, 2048), (2048, 4, 2048), (1, 1, 256), (1000, 2, 1024)]
)
def test_each_slot_gets_its_share_of_the_context_in_steps_of_256(context: int, parallel: int, runs: int) -> None:
    assert canonical(ctx_size=context, parallel=parallel)["ctx_size"] == runs


@pytest.mark.parametrize(
    ("changes", "rule"),
    [
        ({"spec_type": "eagle"}, "spec_type is 'eagle'; llama.cpp has none"),
        ({"spec_type": "ngram-mod", "draft_max": 8}, "ngram_size is missing"),
        ({"spec_type": "ngram-mod", "ngram_size": 8}, "draft_max is missing"),
        ({"spec_type": "ngram-mod", "ngram_size": 8, "draft_max": 0}, "1 or more"),
        ({"parallel": 0}, "parallel is 0"),
        ({"threads": 1.5}, "threads is 1.5"),
    ],
)
def test_what_llama_cpp_would_refuse_is_rejected_with_the_rule(changes: dict[str, Value], rule: str) -> None:
    with pytest.raises(AssignmentRejected, match=rule):
        canonical(**changes)


def test_lengths_without_a_kind_of_speculation_are_rejected() -> None:
    with pytest.raises(AssignmentRejected, match="spec_type is missing"):
        LLAMACPP.canonical(Assignment.of({"draft_max": 8}))


def test_defaults_are_llama_cpp_s() -> None:
    base = Command(argv=(*PROGRAM, "-t", "2", "-c", "4096", "--spec-type", "ngram-mod"))
    assert dict(LLAMACPP.settings_of(base)) == {
        "batch_size": 2048,
        "ctx_size": 4096,
        "draft_max": 64,
        "ngram_size": 24,
        "parallel": 1,
        "spec_type": "ngram-mod",
        "threads": 2,
        "ubatch_size": 512,
    }


@pytest.mark.parametrize("flag", ["--threads", "--ctx-size"])
@pytest.mark.parametrize("value", ["-1", None])
def test_what_depends_on_host_or_model_must_be_pinned(flag: str, value: str | None) -> None:
    rest = {"--threads": "1", "--ctx-size": "512", flag: value}
    argv = tuple(word for name, given in rest.items() if given is not None for word in (name, given))
    with pytest.raises(UsageError, match=f"pin {flag}"):
        LLAMACPP.settings_of(Command(argv=(*PROGRAM, *argv)))


def test_another_kind_of_speculation_takes_the_first_one_s_flags_away() -> None:
    before = ("--spec-type", "ngram-simple", "--spec-ngram-simple-size-m", "8", "--spec-ngram-simple-size-n", "3")
    base = Command(argv=(*PROGRAM, *FLAGS, *before, "--metrics"))
    wanted = Assignment.of({**SIZES, "spec_type": "ngram-mod", "draft_max": 16, "ngram_size": 4})
    assert LLAMACPP.command(base, wanted).argv == (
        *(*PROGRAM, *FLAGS, "--spec-type", "ngram-mod", "--metrics"),
        *("--spec-ngram-mod-n-max", "16", "--spec-ngram-mod-n-match", "4"),
    )
    off = LLAMACPP.command(base, Assignment.of({**SIZES, "spec_type": "none"}))
    assert off.argv == (*PROGRAM, *FLAGS, "--spec-type", "none", "--metrics")


def test_a_draft_model_must_stand_in_the_base_command() -> None:
    wanted = Assignment.of({**SIZES, "spec_type": "draft-simple", "draft_max": 4})
    with pytest.raises(UsageError, match="names no draft model"):
        LLAMACPP.command(Command(argv=(*PROGRAM, *FLAGS)), wanted)
    base = Command(argv=(*PROGRAM, *FLAGS, "--model-draft", "smollm2-135m"))
    assert LLAMACPP.settings_of(LLAMACPP.command(base, wanted)) == wanted


def reply(body: object) -> HttpReply:
    return HttpReply(status=200, body=orjson.dumps(body))


PROPS = {"total_slots": 4, "default_generation_settings": {"n_ctx": 512}, "model_alias": "m", "build_info": "b1-x"}


@pytest.mark.parametrize(
    ("slots", "kind"),
    [
        ([{"id": 0, "speculative": False}], "none"),
        ([{"id": 0, "speculative": True}], None),
        ([{"speculative": True}, {"speculative": True, "params": {"speculative.types": "ngram-mod"}}], "ngram-mod"),
    ],
)
def test_slots_context_and_speculation_are_read_back(slots: list[object], kind: str | None) -> None:
    found = LLAMACPP.effective([reply(PROPS), reply(slots)])
    settings = dict(found.settings)
    assert (settings["parallel"], settings["ctx_size"], settings["spec_type"]) == (4, 2048, kind)
    assert settings["threads"] is None  # the server does not say
    assert found.capacity == Capacity(max_total_num_tokens=2048, max_running_requests=4)
    assert (found.model, found.version) == ("m", "b1-x")


def test_a_build_that_does_not_know_its_number_has_none() -> None:
    assert LLAMACPP.effective([reply({**PROPS, "build_info": "b0-unknown"}), reply([])]).version is None


def test_tokens_are_counted_by_timings_on_every_chunk_and_by_usage_at_the_end() -> None:
    chunk = {"choices": [{"text": " a", "finish_reason": None}], "timings": {"predicted_n": 5, "prompt_n": 3}}
    found = LLAMACPP.read_event(orjson.dumps(chunk))
    assert (found.has_content, found.tokens_total, found.prompt_tokens) == (True, 5, None)
    usage = {"completion_tokens": 6, "prompt_tokens": 9}
    end = {"choices": [{"text": "", "finish_reason": "length"}], "usage": usage, "timings": {"predicted_n": 6}}
    last = LLAMACPP.read_event(orjson.dumps(end))
    assert (last.has_content, last.tokens_total, last.prompt_tokens, last.finish_reason) == (False, 6, 9, "length")


def test_timings_tell_of_drafts_and_of_the_prompt_cache() -> None:
    timings = {"predicted_n": 40, "draft_n": 30, "draft_n_accepted": 24, "cache_n": 3, "prompt_n": 5}
    found = LLAMACPP.read_event(orjson.dumps({"choices": [{"text": "x"}], "timings": timings}))
    assert (found.tokens_total, found.verify_steps, found.cached_tokens) == (40, 16, 3)


def test_forward_passes_are_tokens_less_the_drafts_that_came_with_them() -> None:
    body = b"""\
llamacpp:tokens_predicted_total 240
llamacpp:spec_decode_num_accepted_tokens_total 122
llamacpp:spec_decode_num_accepted_tokens_per_pos_total{position="0"} 25
llamacpp:requests_processing 1
llamacpp:requests_deferred 0
"""
    assert LLAMACPP.counters(HttpReply(status=200, body=body)) == Counters(
        generated_tokens=240.0, verify_steps=118.0, running=1.0, queued=0.0
    )


def test_requests_do_without_the_prompt_cache_because_no_call_empties_it() -> None:
    call = LLAMACPP.generation_call(plain_prompt("x"), max_tokens=1, workload=Workload(), stream=True, seed=0)
    assert call.body is not None
    assert call.body["cache_prompt"] is False
    assert call.body["timings_per_token"] is True
    assert LLAMACPP.flush_call() is None
