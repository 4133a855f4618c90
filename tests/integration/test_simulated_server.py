"""The simulated server as a process: its start, its log, its endpoints."""

from __future__ import annotations

import itertools
import json
import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tuner.simulator import host, profile
from tuner.testing.simulated_host import (
    COMMAND,
    SimulatedHost,
    SimulatedServer,
    simulated_host,
    speculation,
    wait_until,
)

SHAPE = profile.load("qwen3.5-122b-a10b-4gpu")
PROMPT = "Tell me about the sea and about every fish that swims in it, from the small to the great. "


@pytest.fixture
def sim(tmp_path: Path) -> Iterator[SimulatedHost]:
    with simulated_host(tmp_path / "host", "127.0.0.23") as opened:
        yield opened


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SimulatedServer]:
    """One healthy server for all tests that do not hurt it."""
    with simulated_host(tmp_path_factory.mktemp("shared") / "host", "127.0.0.23") as opened:
        yield opened.start(*COMMAND, *speculation(3), "--served-model-name", "qwen").wait_ready()


# ------------------------------------------------------------------ start


def test_the_port_is_closed_while_loading_then_starting_then_healthy(sim: SimulatedHost) -> None:
    server = sim.start(*COMMAND, *speculation(3), speed=150.0)
    seen: list[int | None] = []
    while 200 not in seen:
        status = server.call("/health").status
        if not seen or seen[-1] != status:
            seen.append(status)
        assert server.process.poll() is None, server.log
        time.sleep(0.002)
    assert seen == [None, 503, 200]


def test_the_log_has_sglangs_lines_in_sglangs_order(server: SimulatedServer) -> None:
    wanted = (
        r"\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\] server_args=\{",
        r"TP0\] Memory baseline taken",
        r"TP3\] Load weight begin",
        r"TP0\] Load weight end.*type=Qwen3_5MoeForConditionalGeneration",
        r"TP0\] Load weight end.*type=Qwen3_5ForCausalLMMTP",
        r"TP0\] Mamba Cache is allocated",
        r"TP0\] KV Cache is allocated",
        r"TP0\] Memory pool end",
        r"TP0\] Capture target verify CUDA graph begin",
        r"TP0\] Capture draft decode CUDA graph end",
        r"TP0\] max_total_num_tokens=\d+",
        r"\] INFO:     Uvicorn running on http://0\.0\.0\.0:",
        r"\] The server is fired up and ready to roll!",
    )
    position = 0
    for pattern in wanted:
        match = re.compile(pattern).search(server.log, position)
        assert match is not None, f"{pattern} is not after {server.log[:position][-200:]!r}"
        position = match.end()


def test_the_process_tree_has_sglangs_names(server: SimulatedServer) -> None:
    assert sorted(server.children()) == ["sglang::detokenizer", *(f"sglang::scheduler_TP{rank}" for rank in range(4))]
    command = Path(f"/proc/{server.process.pid}/cmdline").read_bytes().split(b"\0")
    assert command[:3] == [b"sglang", b"serve", b"--model-path"]


def test_bad_arguments_are_refused_before_anything_heavy_is_imported(tmp_path: Path) -> None:
    result = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "tuner.simulator", "--model-path", "m", "--cuda-graph-max-bs", "8"],
        env={**os.environ, **host.environment(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 2
    assert "sglang serve: error: ambiguous option: --cuda-graph-max-bs could match" in result.stderr
    imported = set(re.findall(r"\| +([a-z_0-9.]+)$", result.stderr, re.MULTILINE))
    assert "tuner.simulator.arguments" in imported
    assert not imported & {"aiohttp", "numpy", "orjson", "asyncio"}


def test_an_unknown_fault_or_profile_is_refused_in_one_line(tmp_path: Path) -> None:
    for variable, value in ((host.FAULTS, "meteor"), (host.PROFILE, "gpt-99")):
        result = subprocess.run(
            [sys.executable, "-m", "tuner.simulator", "--model-path", "m"],
            env={**os.environ, **host.environment(tmp_path), variable: value},
            capture_output=True,
            text=True,
            check=False,
        )
        assert result.returncode == 2
        assert re.fullmatch(rf"tuner\.simulator: error: {variable}: .*{value}.*\n", result.stderr)


def test_the_module_form_of_the_command_starts_the_same_server(sim: SimulatedHost) -> None:
    server = sim.start("python3", "-u", "-m", "sglang.launch_server", *COMMAND[2:], *speculation(2)).wait_ready()
    assert server.call("/server_info").json()["speculative_num_steps"] == 2
    other = subprocess.run(
        [str(sim.home / "bin" / "python3"), "-c", "print(6 * 7)"], capture_output=True, text=True, check=True
    )
    assert other.stdout == "42\n"


# ------------------------------------------------------------------ endpoints


def test_health_answers_by_generating(server: SimulatedServer) -> None:
    before = server.log.count("Prefill batch")
    assert server.call("/health").status == 200
    assert server.call("/health_generate").status == 200
    assert server.log.count("Prefill batch") == before + 2
    assert server.call("/ready").status == 200


@pytest.mark.parametrize("path", ["/server_info", "/get_server_info"])
def test_server_info_has_arguments_capacity_and_internal_state(server: SimulatedServer, path: str) -> None:
    info = server.call(path).json()
    assert (info["version"], info["speculative_algorithm"], info["speculative_num_steps"]) == ("0.5.23", "EAGLE", 3)
    assert info["mem_fraction_static"] == 0.8
    assert info["launch_command"].startswith("sglang serve --model-path Qwen/")
    [state] = info["internal_states"]
    assert state["effective_max_running_requests_per_dp"] == 17
    assert f"max_total_num_tokens={info['max_total_num_tokens']}," in server.log
    assert state["memory_usage"]["token_capacity"] == info["max_total_num_tokens"]
    assert set(state["memory_usage"]["graph"]) == {"target_verify", "draft_decode", "draft_extend"}


def test_the_model_is_named_as_served(server: SimulatedServer) -> None:
    for path in ("/model_info", "/get_model_info"):
        assert server.call(path).json()["served_model_name"] == "qwen"
    [card] = server.call("/v1/models").json()["data"]
    assert (card["id"], card["root"], card["max_model_len"]) == ("qwen", "Qwen/Qwen3.5-122B-A10B", 262144)
    [load] = server.call("/v1/loads?include=core,spec").json()["loads"]
    assert load["num_running_reqs"] == load["num_waiting_reqs"] == 0


def test_a_completion_stream_carries_several_tokens_an_event_and_counts_them(server: SimulatedServer) -> None:
    body = {
        "prompt": PROMPT,
        "max_tokens": 60,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
    }
    *chunks, usage = server.call("/v1/completions", body).events()
    counts = [chunk["usage"]["completion_tokens"] for chunk in chunks]
    assert counts[0] == 1
    assert counts[-1] == usage["usage"]["completion_tokens"] == 60
    assert counts == sorted(set(counts))
    assert len(chunks) < 30
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks] == [None] * (len(chunks) - 1) + ["length"]
    whole = server.call("/v1/completions", {**body, "stream": False, "stream_options": None}).json()
    assert whole["choices"][0]["text"] == "".join(chunk["choices"][0]["text"] for chunk in chunks)
    assert whole["usage"]["total_tokens"] == usage["usage"]["total_tokens"]


def test_a_chat_answers_streamed_and_whole(server: SimulatedServer) -> None:
    body = {"messages": [{"role": "user", "content": PROMPT}], "max_tokens": 20, "ignore_eos": True, "temperature": 0}
    whole = server.call("/v1/chat/completions", body).json()
    message = whole["choices"][0]["message"]["content"]
    events = server.call("/v1/chat/completions", {**body, "stream": True}).events()
    deltas = [event["choices"][0]["delta"] for event in events]
    assert deltas[0] == {"role": "assistant", "content": ""}
    assert "".join(delta.get("content", "") for delta in deltas) == message


def test_native_streams_carry_all_text_so_far_and_the_speculation(server: SimulatedServer) -> None:
    body = {"text": PROMPT, "sampling_params": {"max_new_tokens": 40, "ignore_eos": True}, "stream": True}
    replies = server.call("/generate", body).events()
    for earlier, later in itertools.pairwise(replies):
        assert later["text"].startswith(earlier["text"])
    meta = replies[-1]["meta_info"]
    assert (meta["completion_tokens"], len(replies[-1]["output_ids"])) == (40, 40)
    assert sum(meta["spec_correct_drafts_histogram"]) == meta["spec_verify_ct"] == len(replies) - 1
    assert meta["finish_reason"] == {"type": "length", "length": 40}


def test_a_model_that_may_stop_stops_by_itself(server: SimulatedServer) -> None:
    body = {"input_ids": [1, 2, 3], "sampling_params": {"max_new_tokens": 100_000, "temperature": 0}}
    meta = server.call("/generate", body).json()["meta_info"]
    assert meta["finish_reason"]["type"] == "stop"
    assert 0 < meta["completion_tokens"] < 5000


def test_a_repeated_prompt_is_cached_until_the_cache_is_flushed(server: SimulatedServer) -> None:
    prompt = "a prompt of this test " * 20
    cached = []
    for flush in (False, False, True):
        if flush:
            assert server.call("/flush_cache", {}).status == 200
        cached.append(server.generate(4, prompt).json()["meta_info"]["cached_tokens"])
    assert cached[0] == cached[2] == 0
    assert cached[1] > 50


def test_a_flush_is_refused_while_requests_are_pending_and_an_abort_ends_them(server: SimulatedServer) -> None:
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(server.generate, 50_000)
        wait_until(lambda: server.running() == 1)
        assert server.call("/flush_cache", {}).status == 400
        assert server.call("/abort_request", {"abort_all": True}).status == 200
        finish = running.result(timeout=20).json()["meta_info"]["finish_reason"]
    assert finish["type"] == "abort"
    assert server.call("/flush_cache?timeout=5", {}).status == 200


def test_a_client_that_goes_away_aborts_its_request(server: SimulatedServer) -> None:
    body = {"prompt": PROMPT, "max_tokens": 50_000, "ignore_eos": True, "stream": True}
    with socket.create_connection((server.address, server.port), timeout=30) as connection:
        content = json.dumps(body).encode()
        connection.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(content))
        connection.sendall(content)
        assert connection.recv(4096).startswith(b"HTTP/1.1 200")
        assert server.running() == 1
    wait_until(lambda: server.running() == 0, what="request still runs")


def test_counters_move_when_requests_finish(server: SimulatedServer) -> None:
    def totals() -> tuple[float, float]:
        page = server.call("/metrics").body.decode()
        generated = re.findall(r"^sglang:generation_tokens_total\{.*\} (\S+)$", page, re.MULTILINE)
        [verified] = re.findall(r"^sglang:spec_verify_calls_total\{.*\} (\S+)$", page, re.MULTILINE)
        return sum(map(float, generated)), float(verified)

    before = totals()
    meta = server.generate(200).json()["meta_info"]
    after = totals()
    assert after[0] - before[0] == 200
    assert after[1] - before[1] == meta["spec_verify_ct"]
    state = server.call("/server_info").json()["internal_states"][0]
    assert 3.0 < state["avg_spec_accept_length"] <= 4.0


def test_only_thresholds_can_be_changed_while_it_runs(server: SimulatedServer) -> None:
    def update(key: str) -> bool:
        reply = server.call("/set_internal_state", {"server_args": {key: 1}})
        return bool(reply.json()["updated"])

    assert update("speculative_accept_threshold_single")
    assert not update("speculative_num_steps")
    assert "Updating speculative_num_steps is not supported." in server.log


def test_bodies_that_cannot_be_served_get_400_and_unknown_paths_404(server: SimulatedServer) -> None:
    for content in (b"{", b'{"prompt": 5}', b'{"prompt": "a", "max_tokens": 999999999}'):
        reply = server.call("/v1/completions", content)
        assert reply.status == 400
        assert reply.json()["type"] == "BadRequestError"
    assert server.call("/nothing").status == 404


def test_keys_guard_everything_but_health_and_metrics(sim: SimulatedHost) -> None:
    server = sim.start(*COMMAND, *speculation(1), "--api-key", "user-key", "--admin-api-key", "admin-key").wait_ready()

    def status(method: str, path: str, key: str | None = None) -> int | None:
        return server.call(path, method=method, key=key).status

    assert [status("GET", path) for path in ("/health", "/ready", "/metrics")] == [200, 200, 200]
    for path in ("/server_info", "/model_info", "/v1/models"):
        assert (status("GET", path), status("GET", path, "wrong"), status("GET", path, "user-key")) == (401, 401, 200)
    assert (status("POST", "/flush_cache", "user-key"), status("POST", "/flush_cache", "admin-key")) == (401, 200)
    assert server.call("/v1/models").json() == {"error": "Unauthorized"}
    assert "'api_key': 'user-key'" in server.log  # the real one prints it, too


def test_metrics_are_not_there_unless_enabled(sim: SimulatedHost) -> None:
    server = sim.start(*(word for word in COMMAND if word != "--enable-metrics")).wait_ready()
    assert server.call("/metrics").status == 404
    assert "spec_verify_ct" not in server.generate(20).json()["meta_info"]  # no speculation either
    assert "avg_spec_accept_length" not in server.call("/server_info").json()["internal_states"][0]
