"""Servers of which only OpenAI's protocol is known, and engines on servers that are somebody else's."""

from __future__ import annotations

import orjson
import pytest

from tuner.engines import ENGINES, ONLY_MEASURED, engine, measurable
from tuner.engines.guest import Guest
from tuner.engines.openai import Extras, OpenAiApi
from tuner.engines.recognition import SIGNS, ServedModel, by_owner, models_of
from tuner.errors import UsageError
from tuner.model.http import HttpCall, HttpReply
from tuner.model.prompt import plain_prompt
from tuner.model.workload import Workload
from tuner.ports import EngineApi

WORKLOAD = Workload(output_tokens=32, temperature=0.5)


def generation(api: EngineApi, *, stream: bool = True, workload: Workload = WORKLOAD) -> HttpCall:
    return api.generation_call(plain_prompt("Why?"), max_tokens=32, workload=workload, stream=stream, seed=7)


def body_of(extras: Extras, *, stream: bool = True, workload: Workload = WORKLOAD) -> dict[str, object]:
    return dict(generation(OpenAiApi(extras), stream=stream, workload=workload).body or {})


def answer(status: int, body: object) -> HttpReply:
    return HttpReply(status=status, body=orjson.dumps(body))


# ------------------------------------------------------------------ the request


def test_a_stream_asks_for_the_count_with_every_chunk_a_fixed_length_and_a_seed() -> None:
    body = body_of(Extras())
    assert body["stream_options"] == {"include_usage": True, "continuous_usage_stats": True}
    assert (body["ignore_eos"], body["seed"], body["temperature"], body["max_tokens"]) == (True, 7, 0.5, 32)


@pytest.mark.parametrize(
    ("extras", "gone"),
    [
        pytest.param(Extras(ignore_eos=False), "ignore_eos", id="ignore_eos"),
        pytest.param(Extras(seed=False), "seed", id="seed"),
        pytest.param(Extras(final_count=False), "stream_options", id="stream_options"),
    ],
)
def test_what_a_server_does_not_take_is_not_asked_for(extras: Extras, gone: str) -> None:
    assert gone not in body_of(extras)


def test_without_a_running_count_the_final_one_is_still_asked_for() -> None:
    assert body_of(Extras(running_count=False))["stream_options"] == {"include_usage": True}


def test_natural_ends_and_whole_replies_ask_for_less() -> None:
    assert "ignore_eos" not in body_of(Extras(), workload=Workload(ignore_eos=False))
    assert "stream_options" not in body_of(Extras(), stream=False)


# ------------------------------------------------------------------ refusals


@pytest.mark.parametrize(
    ("refusal", "left"),
    [
        pytest.param("Unrecognized request argument: ignore_eos", Extras(ignore_eos=False), id="names-ignore_eos"),
        pytest.param("stream_options.continuous_usage_stats: extra", Extras(running_count=False), id="names-the-inner"),
        pytest.param("unknown field stream_options", Extras(final_count=False), id="names-the-outer"),
        pytest.param("bad request", Extras(running_count=False), id="names-nothing"),
    ],
)
def test_a_refused_field_is_taken_back_by_its_name_or_the_least_known_first(refusal: str, left: Extras) -> None:
    assert Extras().without(refusal) == left


def test_refusals_end_when_nothing_is_left_to_take_back() -> None:
    extras: Extras | None = Extras()
    refusals = 0
    while extras is not None:
        extras = extras.without("no")
        refusals += 1
    assert refusals == 5


# ------------------------------------------------------------------ guests


@pytest.mark.parametrize("name", sorted({**ENGINES, **ONLY_MEASURED}))
def test_a_guest_never_aborts_never_flushes_and_names_its_model(name: str) -> None:
    inner = measurable(name)
    guest = Guest(inner, model="m")
    call = generation(guest)
    assert guest.abort_call() is None
    assert guest.flush_call() is None
    assert (call.body or {})["model"] == "m"
    assert {key: value for key, value in (call.body or {}).items() if key != "model"} == generation(inner).body
    assert (guest.name, guest.counters_call()) == (inner.name, inner.counters_call())


def test_a_guest_flushes_only_when_it_may() -> None:
    sglang = engine("sglang")
    assert Guest(sglang, model="m", may_flush=True).flush_call() == sglang.flush_call()
    assert Guest(sglang, model="m", may_flush=True).abort_call() is None


def test_a_study_cannot_start_a_server_that_can_only_be_measured() -> None:
    with pytest.raises(UsageError, match="engine 'openai' can be measured, not started: there is llamacpp, sglang"):
        engine("openai")
    assert measurable("openai").name == "openai"
    with pytest.raises(UsageError, match="did you mean 'openai'"):
        measurable("opnai")


# ------------------------------------------------------------------ recognition


def test_the_models_of_a_server_are_read_with_their_owner() -> None:
    reply = answer(200, {"object": "list", "data": [{"id": "a", "owned_by": "vllm"}, {"id": "b"}, {"no": "id"}, 3]})
    assert models_of(reply) == (ServedModel(id="a", owner="vllm"), ServedModel(id="b"))


@pytest.mark.parametrize(
    "reply",
    [
        pytest.param(HttpReply(status=200, body=b"<html>welcome</html>"), id="html"),
        pytest.param(answer(200, {"data": "a"}), id="no-list"),
        pytest.param(answer(200, ["a"]), id="list-alone"),
        pytest.param(answer(404, {"data": []}), id="404"),
        pytest.param(HttpReply(status=None, body=b"", error="refused"), id="no-reply"),
    ],
)
def test_what_is_no_list_of_models_is_none(reply: HttpReply) -> None:
    assert models_of(reply) is None


def test_an_engine_is_known_by_the_owner_of_its_models() -> None:
    assert by_owner((ServedModel(id="q", owner="sglang"),)) == "sglang"
    assert by_owner((ServedModel(id="q", owner="llamacpp"),)) == "llamacpp"
    assert by_owner((ServedModel(id="q", owner="vllm"),)) is None
    assert by_owner(()) is None


def test_an_engine_is_known_by_an_answer_that_only_it_gives() -> None:
    sglang = answer(200, {"model_path": "m", "is_generation": True, "tokenizer_path": "m"})
    llamacpp = answer(200, {"default_generation_settings": {}, "total_slots": 4})
    assert SIGNS["sglang"].is_met(sglang)
    assert not SIGNS["sglang"].is_met(llamacpp)
    assert SIGNS["llamacpp"].is_met(llamacpp)
    assert not SIGNS["llamacpp"].is_met(answer(404, {"default_generation_settings": {}, "total_slots": 4}))


def test_every_engine_that_can_be_started_can_be_recognised() -> None:
    assert set(SIGNS) == set(ENGINES)
