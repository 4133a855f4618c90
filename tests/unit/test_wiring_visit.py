"""What a running server is found to be, and what is said of one that cannot be measured."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import orjson
import pytest

from tuner.errors import PreflightError, TunerError, UsageError
from tuner.model.http import HttpCall, HttpReply
from tuner.model.prompt import Api, plain_prompt
from tuner.model.workload import Workload
from tuner.wiring.visit import PROBE_TOKENS, Visited, Wish, visit

KEY = "sk-very-secret"
WISH = Wish(base_url="http://gpu01:8000", workload=Workload(output_tokens=64), seed=3)
Answers = Mapping[str, HttpReply | Callable[[Mapping[str, Any]], HttpReply]]


def reply(body: object, status: int = 200) -> HttpReply:
    return HttpReply(status=status, body=body if isinstance(body, bytes) else orjson.dumps(body))


def models(*names: str, owner: str = "somebody") -> HttpReply:
    return reply({"object": "list", "data": [{"id": name, "owned_by": owner} for name in names]})


def stream(*events: object, done: bool = True) -> HttpReply:
    lines = [b"data: " + orjson.dumps(event) + b"\n\n" for event in events]
    return HttpReply(status=200, body=b"".join(lines) + (b"data: [DONE]\n\n" if done else b""))


def chunk(text: str, tokens: int | None = None) -> dict[str, object]:
    event: dict[str, object] = {"choices": [{"index": 0, "text": text, "finish_reason": None}]}
    return event if tokens is None else {**event, "usage": {"completion_tokens": tokens, "prompt_tokens": 5}}


def usage(tokens: int) -> dict[str, object]:
    return {"choices": [], "usage": {"completion_tokens": tokens, "prompt_tokens": 5}}


RUNNING = stream(chunk("one", 1), chunk(" two three", PROBE_TOKENS), usage(PROBE_TOKENS))
AT_THE_END = stream(chunk("one"), chunk(" two three"), usage(PROBE_TOKENS))


@dataclass
class ScriptedControl:
    """A server of which only the answers exist; everything else is 404."""

    answers: Answers
    calls: list[HttpCall] = field(default_factory=list)

    async def call(self, call: HttpCall) -> HttpReply:
        self.calls.append(call)
        found = self.answers.get(call.path, reply({"detail": "Not Found"}, 404))
        return found(call.body or {}) if callable(found) else found

    async def close(self) -> None:
        pass


def look(answers: Answers, wish: Wish = WISH) -> tuple[Visited, ScriptedControl, list[str]]:
    control, remarks = ScriptedControl(answers), list[str]()
    return asyncio.run(visit(wish, control, remarks.append)), control, remarks


def refused(answers: Answers, wish: Wish = WISH, kind: type[TunerError] = PreflightError) -> str:
    with pytest.raises(kind) as caught:
        look(answers, wish)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def serving(generation: HttpReply | Callable[[Mapping[str, Any]], HttpReply]) -> Answers:
    return {"/v1/models": models("m"), "/v1/chat/completions": generation}


# ------------------------------------------------------------------ what it is


def test_a_server_of_which_only_the_protocol_is_known_is_measured_by_it() -> None:
    visited, control, remarks = look(serving(RUNNING))
    assert (visited.facts.engine, visited.facts.is_recognised, visited.facts.model) == ("openai", False, "m")
    assert (visited.facts.has_running_count, visited.facts.is_length_fixed) == (True, True)
    assert visited.workload == WISH.workload
    assert remarks == []
    assert [call.path for call in control.calls if call.body is not None] == ["/v1/chat/completions"]


def test_sglang_is_known_by_the_owner_of_its_model() -> None:
    info = reply({"version": "0.5.9", "model_path": "q", "max_total_num_tokens": 1000, "internal_states": [{}]})
    answers = {"/v1/models": models("q", owner="sglang"), "/server_info": info, "/v1/chat/completions": RUNNING}
    visited, _, _ = look(answers)
    assert (visited.facts.engine, visited.facts.is_recognised, visited.facts.version) == ("sglang", True, "0.5.9")
    assert visited.facts.capacity is not None
    assert visited.facts.capacity.max_total_num_tokens == 1000


def test_sglang_and_llamacpp_are_known_by_their_own_answers_behind_a_gateway() -> None:
    sglang = {"/get_model_info": reply({"model_path": "q", "is_generation": True})}
    llamacpp = {"/props": reply({"default_generation_settings": {"n_ctx": 512}, "total_slots": 2})}
    assert look({**serving(RUNNING), **sglang})[0].facts.engine == "sglang"
    assert look({**serving(RUNNING), **llamacpp})[0].facts.engine == "llamacpp"


def test_an_engine_that_a_person_names_is_not_asked_for() -> None:
    visited, control, _ = look(serving(RUNNING), replace(WISH, engine="sglang"))
    assert (visited.facts.engine, visited.facts.is_recognised) == ("sglang", False)
    assert "/get_model_info" not in {call.path for call in control.calls}


def test_nothing_that_changes_a_server_is_ever_called() -> None:
    answers = {"/v1/models": models("q", owner="sglang"), "/v1/chat/completions": RUNNING}
    _, control, _ = look(answers)
    assert {call.path for call in control.calls if call.body is not None} == {"/v1/chat/completions"}


# ------------------------------------------------------------------ what it takes


def test_a_server_that_counts_at_the_end_is_measured_and_that_is_said() -> None:
    visited, _, remarks = look(serving(AT_THE_END))
    assert not visited.facts.has_running_count
    assert any("at the end of a stream only" in remark for remark in remarks)


def test_fields_that_a_strict_server_refuses_are_left_out() -> None:
    def strict(body: Mapping[str, Any]) -> HttpReply:
        if "ignore_eos" in body:
            return reply({"error": {"message": "Unrecognized request argument supplied: ignore_eos"}}, 400)
        if "continuous_usage_stats" in body.get("stream_options", {}):
            return reply({"error": {"message": "stream_options.continuous_usage_stats is not permitted"}}, 422)
        return stream(chunk("one"), usage(9))

    visited, control, remarks = look(serving(strict))
    assert len([call for call in control.calls if call.path == "/v1/chat/completions"]) == 3
    assert not visited.workload.ignore_eos
    assert not visited.facts.is_length_fixed
    assert any("9 of 16 tokens" in remark for remark in remarks)
    call = visited.api.generation_call(plain_prompt("?"), max_tokens=9, workload=visited.workload, stream=True, seed=1)
    assert (call.body or {})["stream_options"] == {"include_usage": True}


def test_a_refusal_that_no_field_explains_is_quoted() -> None:
    said = refused(serving(reply({"error": {"message": "the prompt is too long"}}, 400)))
    assert "a generation was refused: HTTP 400" in said
    assert "the prompt is too long" in said


# ------------------------------------------------------------------ what cannot be measured


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        pytest.param(
            HttpReply(status=None, body=b"", error="refused", detail="ConnectError: refused"), "start it", id="nobody"
        ),
        pytest.param(HttpReply(status=None, body=b"", error="timed_out"), "no answer (timed_out)", id="silent"),
        pytest.param(
            HttpReply(status=None, body=b"", error="refused", detail="ConnectError: [SSL: CERTIFICATE_VERIFY_FAILED]"),
            "SSL_CERT_FILE",
            id="unknown-certificate",
        ),
        pytest.param(
            HttpReply(status=None, body=b"", error="cut", detail="RemoteProtocolError: illegal"),
            "http or https",
            id="https-spoken-to-as-http",
        ),
        pytest.param(reply({"detail": "Not Found"}, 404), "not a server that speaks OpenAI's protocol", id="404"),
        pytest.param(reply(b"<html>hello</html>"), "not a server that speaks OpenAI's protocol", id="web-page"),
        pytest.param(reply(b"", 307), "sends elsewhere", id="redirect"),
        pytest.param(reply(b"", 503), "not ready", id="loading"),
        pytest.param(models(), "lists no model", id="no-model"),
    ],
)
def test_a_server_that_is_not_there_or_another_is_named_with_the_remedy(answer: HttpReply, expected: str) -> None:
    assert expected in refused({"/v1/models": answer, "/v1/chat/completions": RUNNING})


@pytest.mark.parametrize(
    ("generation", "expected"),
    [
        pytest.param(stream(chunk("one"), chunk("two")), "does not count its tokens", id="no-usage"),
        pytest.param(stream(chunk("", 0), usage(0)), "without a token", id="no-token"),
        pytest.param(stream({"error": {"message": "out of slots"}}), "failed: out of slots", id="error-inside"),
        pytest.param(reply(b"hello"), "without a stream of events", id="no-stream"),
        pytest.param(reply(b"broken", 500), "refused: HTTP 500: broken", id="500"),
        pytest.param(HttpReply(status=None, body=b"", error="timed_out"), "no answer", id="silent"),
    ],
)
def test_a_generation_that_cannot_be_measured_says_why(generation: HttpReply, expected: str) -> None:
    assert expected in refused(serving(generation))


def test_a_key_that_is_wanted_names_its_option_and_is_never_shown() -> None:
    wanted = {"/v1/models": reply({"error": "Unauthorized"}, 401)}
    assert "--api-key-env" in refused(wanted, kind=UsageError)
    echoing = {"/v1/models": models("m"), "/v1/chat/completions": reply(f"bad key {KEY}".encode(), 500)}
    keyed = replace(WISH, api_key=KEY, key_variable="GPU_KEY")
    assert "in GPU_KEY" in refused(wanted, keyed, UsageError)
    said = refused(echoing, keyed)
    assert KEY not in said
    assert "bad key ***" in said
    assert KEY not in repr(keyed)


def test_one_of_several_models_must_be_named_and_must_be_there() -> None:
    answers = {"/v1/models": models("a", "b"), "/v1/chat/completions": RUNNING}
    assert "--model is needed: the server has a, b" in refused(answers, kind=UsageError)
    assert "--model c: the server has a, b" in refused(answers, replace(WISH, model="c"), UsageError)
    visited, control, _ = look(answers, replace(WISH, model="b"))
    assert visited.facts.model == "b"
    assert {(call.body or {}).get("model") for call in control.calls if call.body} == {"b"}


def test_a_gateway_without_a_list_of_models_is_believed_the_model_it_is_given() -> None:
    wish = replace(WISH, model="m")
    assert look({"/v1/chat/completions": RUNNING}, wish)[0].facts.model == "m"
    assert "--model m: the server does not know it" in refused({}, wish, UsageError)


def test_words_of_a_server_cannot_steer_the_terminal() -> None:
    assert "\x1b" not in refused(serving(reply(b"\x1b[2Jboo\nhoo", 500)))


def test_a_model_without_a_chat_template_is_pointed_to_the_other_endpoint() -> None:
    plain = {"/v1/models": models("m"), "/v1/completions": RUNNING}
    assert "--api completions" in refused(plain)
    visited, control, _ = look(plain, replace(WISH, workload=replace(WISH.workload, api=Api.COMPLETIONS)))
    assert visited.facts.model == "m"
    assert [call.path for call in control.calls if call.body is not None] == ["/v1/completions"]
