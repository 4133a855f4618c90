"""The simulated server as a process: its log, port, endpoints, deaths, signals and memory."""

from __future__ import annotations

import itertools
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import orjson
import pytest

from tuner.simulator import host, profile
from tuner.simulator.book import Book

ADDRESS = "127.0.0.23"
SPEED = 1000.0
SHAPE = profile.load("qwen3.5-122b-a10b-4gpu")
BASE = (
    "--model-path",
    "Qwen/Qwen3.5-122B-A10B",
    "--host",
    "0.0.0.0",
    "--attention-backend",
    "flashinfer",
    "--page-size",
    "1",
    "--tp",
    "4",
    "--enable-metrics",
)
FAST_CRASH = {"SGLANG_CUDA_COREDUMP_BEFORE_CRASH": "0", "SGLANG_PYSPY_DUMP_BEFORE_CRASH": "0"}
PROMPT = "Tell me about the sea and about every fish that swims in it, from the small to the great. "


def speculation(steps: int) -> tuple[str, ...]:
    return (
        "--speculative-algorithm",
        "NEXTN",
        "--speculative-num-steps",
        str(steps),
        "--speculative-eagle-topk",
        "1",
        "--speculative-num-draft-tokens",
        str(steps + 1),
        "--mem-fraction-static",
        "0.8",
    )


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind((ADDRESS, 0))
        return int(probe.getsockname()[1])


def wait_until(condition: Callable[[], bool], *, within_s: float = 20.0, what: str = "") -> None:
    end = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < end, f"not within {within_s} s: {what}"
        time.sleep(0.01)


@dataclass
class Server:
    """A server process that a test started."""

    process: subprocess.Popen[bytes]
    log_path: Path
    home: Path
    port: int
    client: httpx.Client = field(init=False)

    def __post_init__(self) -> None:
        self.client = httpx.Client(base_url=f"http://{ADDRESS}:{self.port}", timeout=30.0, trust_env=False)

    @property
    def log(self) -> str:
        return self.log_path.read_text()

    def children(self) -> dict[str, int]:
        """Pids by title, of the living children."""
        found = {}
        for path in Path("/proc").glob("[0-9]*"):
            try:
                stat = (path / "stat").read_text().rpartition(")")[2].split()
                title = (path / "cmdline").read_bytes().rstrip(b"\0").decode()
            except (FileNotFoundError, ProcessLookupError):
                continue
            if int(stat[1]) == self.process.pid and stat[0] != "Z":
                found[title] = int(path.name)
        return found

    def get(self, path: str) -> httpx.Response:
        return self.client.get(path)

    def status(self) -> int | None:
        """The status of /health; None: connection refused."""
        try:
            return self.client.get("/health").status_code
        except httpx.ConnectError:
            return None

    def wait_ready(self) -> Server:
        def ready() -> bool:
            assert self.process.poll() is None, self.log
            return "fired up and ready to roll" in self.log

        wait_until(ready, what=self.log)
        return self

    def wait_exit(self, within_s: float = 20.0) -> int:
        return self.process.wait(within_s)

    def generate(self, tokens: int, prompt: str = PROMPT) -> httpx.Response:
        body = {"text": prompt, "sampling_params": {"max_new_tokens": tokens, "ignore_eos": True}}
        return self.client.post("/generate", json=body)


@dataclass
class Host:
    """A simulated host of one test."""

    home: Path
    servers: list[Server] = field(default_factory=list)

    def start(
        self,
        *argv: str,
        command: Sequence[str] = ("sglang", "serve"),
        speed: float = SPEED,
        faults: Sequence[str] = (),
        env: dict[str, str] | None = None,
        port: int | None = None,
    ) -> Server:
        port = port or free_port()
        facts = host.environment(self.home, SHAPE.name, speed, ADDRESS, faults)
        folder = host.prepare(self.home, sys.executable)
        log_path = self.home / f"server{len(self.servers)}.log"
        with log_path.open("wb") as log:
            process = subprocess.Popen(
                [str(folder / command[0]), *command[1:], *BASE, "--port", str(port), *argv],
                env={"PATH": f"{folder}:{os.environ['PATH']}", **facts, **(env or {})},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        server = Server(process=process, log_path=log_path, home=self.home, port=port)
        self.servers.append(server)
        return server

    def close(self) -> None:
        for server in self.servers:
            server.client.close()
            if server.process.poll() is None:
                os.killpg(server.process.pid, signal.SIGKILL)
                server.process.wait()

    @property
    def book(self) -> Book:
        return Book(self.home)


@contextmanager
def opened_host(home: Path) -> Iterator[Host]:
    opened = Host(home)
    try:
        yield opened
    finally:
        opened.close()


@pytest.fixture
def sim(tmp_path: Path) -> Iterator[Host]:
    with opened_host(tmp_path / "host") as opened:
        yield opened


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One healthy server for all tests that do not hurt it."""
    with opened_host(tmp_path_factory.mktemp("shared") / "host") as opened:
        yield opened.start(*speculation(3), "--served-model-name", "qwen").wait_ready()


# ------------------------------------------------------------------ start


def test_the_port_is_closed_while_loading_then_starting_then_healthy(sim: Host) -> None:
    server = sim.start(*speculation(3), speed=150.0)
    seen: list[int | None] = []
    while 200 not in seen:
        status = server.status()
        if not seen or seen[-1] != status:
            seen.append(status)
        assert server.process.poll() is None, server.log
        time.sleep(0.002)
    assert seen == [None, 503, 200]


def test_the_log_has_sglangs_lines_in_sglangs_order(server: Server) -> None:
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


def test_the_process_tree_has_sglangs_names(server: Server) -> None:
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


def test_the_module_form_of_the_command_starts_the_same_server(sim: Host) -> None:
    server = sim.start(*speculation(2), command=("python3", "-u", "-m", "sglang.launch_server")).wait_ready()
    assert server.get("/server_info").json()["speculative_num_steps"] == 2
    other = subprocess.run(
        [str(sim.home / "bin" / "python3"), "-c", "print(6 * 7)"], capture_output=True, text=True, check=True
    )
    assert other.stdout == "42\n"


# ------------------------------------------------------------------ endpoints


def test_health_answers_by_generating(server: Server) -> None:
    before = server.log.count("Prefill batch")
    assert server.get("/health").status_code == 200
    assert server.get("/health_generate").status_code == 200
    assert server.log.count("Prefill batch") == before + 2
    assert server.get("/ready").status_code == 200


@pytest.mark.parametrize("path", ["/server_info", "/get_server_info"])
def test_server_info_has_arguments_capacity_and_internal_state(server: Server, path: str) -> None:
    info = server.get(path).json()
    assert (info["version"], info["speculative_algorithm"], info["speculative_num_steps"]) == ("0.5.23", "EAGLE", 3)
    assert info["mem_fraction_static"] == 0.8
    assert info["launch_command"].startswith("sglang serve --model-path Qwen/")
    [state] = info["internal_states"]
    assert state["effective_max_running_requests_per_dp"] == 17
    assert f"max_total_num_tokens={info['max_total_num_tokens']}," in server.log
    assert state["memory_usage"]["token_capacity"] == info["max_total_num_tokens"]
    assert set(state["memory_usage"]["graph"]) == {"target_verify", "draft_decode", "draft_extend"}


def test_the_model_is_named_as_served(server: Server) -> None:
    for path in ("/model_info", "/get_model_info"):
        assert server.get(path).json()["served_model_name"] == "qwen"
    [card] = server.get("/v1/models").json()["data"]
    assert (card["id"], card["root"], card["max_model_len"]) == ("qwen", "Qwen/Qwen3.5-122B-A10B", 262144)
    [load] = server.get("/v1/loads?include=core,spec").json()["loads"]
    assert load["num_running_reqs"] == load["num_waiting_reqs"] == 0


def test_a_completion_stream_carries_several_tokens_an_event_and_counts_them(server: Server) -> None:
    body = {
        "prompt": PROMPT,
        "max_tokens": 60,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
    }
    with server.client.stream("POST", "/v1/completions", json=body) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        lines = [line for line in response.iter_lines() if line]
    assert lines[-1] == "data: [DONE]"
    events = [orjson.loads(line.removeprefix("data: ")) for line in lines[:-1]]
    *chunks, usage = events
    counts = [chunk["usage"]["completion_tokens"] for chunk in chunks]
    assert counts[0] == 1
    assert counts[-1] == usage["usage"]["completion_tokens"] == 60
    assert counts == sorted(set(counts))
    assert len(chunks) < 30
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks] == [None] * (len(chunks) - 1) + ["length"]
    whole = server.client.post("/v1/completions", json={**body, "stream": False, "stream_options": None}).json()
    assert whole["choices"][0]["text"] == "".join(chunk["choices"][0]["text"] for chunk in chunks)
    assert whole["usage"]["total_tokens"] == usage["usage"]["total_tokens"]


def test_a_chat_answers_streamed_and_whole(server: Server) -> None:
    body = {"messages": [{"role": "user", "content": PROMPT}], "max_tokens": 20, "ignore_eos": True, "temperature": 0}
    whole = server.client.post("/v1/chat/completions", json=body).json()
    message = whole["choices"][0]["message"]["content"]
    with server.client.stream("POST", "/v1/chat/completions", json={**body, "stream": True}) as response:
        lines = [line.removeprefix("data: ") for line in response.iter_lines() if line]
    deltas = [orjson.loads(line)["choices"][0]["delta"] for line in lines[:-1]]
    assert deltas[0] == {"role": "assistant", "content": ""}
    assert "".join(delta.get("content", "") for delta in deltas) == message
    assert lines[-1] == "[DONE]"


def test_native_streams_carry_all_text_so_far_and_the_speculation(server: Server) -> None:
    body = {"text": PROMPT, "sampling_params": {"max_new_tokens": 40, "ignore_eos": True}, "stream": True}
    with server.client.stream("POST", "/generate", json=body) as response:
        lines = [line.removeprefix("data: ") for line in response.iter_lines() if line]
    replies = [orjson.loads(line) for line in lines[:-1]]
    for earlier, later in itertools.pairwise(replies):
        assert later["text"].startswith(earlier["text"])
    meta = replies[-1]["meta_info"]
    assert (meta["completion_tokens"], len(replies[-1]["output_ids"])) == (40, 40)
    assert sum(meta["spec_correct_drafts_histogram"]) == meta["spec_verify_ct"] == len(replies) - 1
    assert meta["finish_reason"] == {"type": "length", "length": 40}


def test_a_model_that_may_stop_stops_by_itself(server: Server) -> None:
    body = {"input_ids": [1, 2, 3], "sampling_params": {"max_new_tokens": 100_000, "temperature": 0}}
    meta = server.client.post("/generate", json=body).json()["meta_info"]
    assert meta["finish_reason"]["type"] == "stop"
    assert 0 < meta["completion_tokens"] < 5000


def test_a_repeated_prompt_is_cached_until_the_cache_is_flushed(server: Server) -> None:
    prompt = "a prompt of this test " * 20
    cached = []
    for flush in (False, False, True):
        if flush:
            assert server.client.post("/flush_cache").status_code == 200
        cached.append(server.generate(4, prompt).json()["meta_info"]["cached_tokens"])
    assert cached[0] == cached[2] == 0
    assert cached[1] > 50


def test_a_flush_is_refused_while_requests_are_pending_and_an_abort_ends_them(server: Server) -> None:
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(server.generate, 50_000)
        wait_until(lambda: server.get("/v1/loads").json()["loads"][0]["num_running_reqs"] == 1)
        assert server.client.post("/flush_cache").status_code == 400
        assert server.client.post("/abort_request", json={"abort_all": True}).status_code == 200
        finish = running.result(timeout=20).json()["meta_info"]["finish_reason"]
    assert finish["type"] == "abort"
    assert server.client.post("/flush_cache?timeout=5").status_code == 200


def test_a_client_that_goes_away_aborts_its_request(server: Server) -> None:
    body = {"prompt": PROMPT, "max_tokens": 50_000, "ignore_eos": True, "stream": True}
    with server.client.stream("POST", "/v1/completions", json=body) as response:
        next(response.iter_lines())
    wait_until(lambda: server.get("/v1/loads").json()["loads"][0]["num_total_reqs"] == 0, what="request still runs")


def test_counters_move_when_requests_finish(server: Server) -> None:
    def totals() -> tuple[float, float]:
        page = server.get("/metrics").text
        generated = re.findall(r"^sglang:generation_tokens_total\{.*\} (\S+)$", page, re.MULTILINE)
        [verified] = re.findall(r"^sglang:spec_verify_calls_total\{.*\} (\S+)$", page, re.MULTILINE)
        return sum(map(float, generated)), float(verified)

    before = totals()
    meta = server.generate(200).json()["meta_info"]
    after = totals()
    assert after[0] - before[0] == 200
    assert after[1] - before[1] == meta["spec_verify_ct"]
    state = server.get("/server_info").json()["internal_states"][0]
    assert 3.0 < state["avg_spec_accept_length"] <= 4.0


def test_only_thresholds_can_be_changed_while_it_runs(server: Server) -> None:
    def update(key: str) -> bool:
        reply = server.client.post("/set_internal_state", json={"server_args": {key: 1}})
        return bool(reply.json()["updated"])

    assert update("speculative_accept_threshold_single")
    assert not update("speculative_num_steps")
    assert "Updating speculative_num_steps is not supported." in server.log


def test_bodies_that_cannot_be_served_get_400_and_unknown_paths_404(server: Server) -> None:
    for content in (b"{", b'{"prompt": 5}', b'{"prompt": "a", "max_tokens": 999999999}'):
        reply = server.client.post("/v1/completions", content=content)
        assert reply.status_code == 400
        assert reply.json()["type"] == "BadRequestError"
    assert server.get("/nothing").status_code == 404


def test_keys_guard_everything_but_health_and_metrics(sim: Host) -> None:
    server = sim.start(*speculation(1), "--api-key", "user-key", "--admin-api-key", "admin-key").wait_ready()

    def status(method: str, path: str, key: str | None = None) -> int:
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        return server.client.request(method, path, headers=headers).status_code

    assert [status("GET", path) for path in ("/health", "/ready", "/metrics")] == [200, 200, 200]
    for path in ("/server_info", "/model_info", "/v1/models"):
        assert (status("GET", path), status("GET", path, "wrong"), status("GET", path, "user-key")) == (401, 401, 200)
    assert (status("POST", "/flush_cache", "user-key"), status("POST", "/flush_cache", "admin-key")) == (401, 200)
    assert server.get("/v1/models").json() == {"error": "Unauthorized"}
    assert "'api_key': 'user-key'" in server.log  # the real one prints it, too


def test_metrics_are_not_there_unless_enabled(sim: Host) -> None:
    base = tuple(item for item in BASE if item != "--enable-metrics")
    port = free_port()
    folder = host.prepare(sim.home, sys.executable)
    log_path = sim.home / "bare.log"
    with log_path.open("wb") as log:
        process = subprocess.Popen(
            [str(folder / "sglang"), "serve", *base, "--port", str(port)],
            env={"PATH": os.environ["PATH"], **host.environment(sim.home, SHAPE.name, SPEED, ADDRESS)},
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    server = Server(process=process, log_path=log_path, home=sim.home, port=port)
    sim.servers.append(server)
    server.wait_ready()
    assert server.get("/metrics").status_code == 404
    assert "spec_verify_ct" not in server.generate(20).json()["meta_info"]  # no speculation either
    assert "avg_spec_accept_length" not in server.get("/server_info").json()["internal_states"][0]


# ------------------------------------------------------------------ deaths


def test_a_fraction_too_low_ends_with_status_1_the_first_time_and_by_sigkill_the_second(sim: Host) -> None:
    first = sim.start(*speculation(3), "--mem-fraction-static", "0.3")
    assert first.wait_exit() == 1
    log = first.log
    cause = log.index("TP0] Scheduler hit an exception: Traceback")
    assert "Loaded weights leave no GPU memory for the KV cache under --mem-fraction-static=0.3. Raise" in log
    assert cause < log.index("TP1] Scheduler hit an exception: Traceback")  # consequences come later
    assert "RuntimeError: Rank 0 scheduler died during initialization (exit code: 1)." in log
    wait_until(lambda: not sim.book.holdings(), what="memory back")
    second = sim.start(*speculation(3), "--mem-fraction-static", "0.3")
    assert second.wait_exit() == -signal.SIGKILL
    assert "] Received sigquit from a child process. It usually means the child failed." in second.log
    assert second.children() == {}


def test_deep_speculation_serves_one_request_and_dies_under_load(sim: Host) -> None:
    server = sim.start(*speculation(10), env=FAST_CRASH).wait_ready()
    assert server.generate(30).status_code == 200
    answers: list[str] = []

    def ask(number: int) -> None:
        try:
            answers.append(str(server.generate(400, f"{number} {PROMPT}").status_code))
        except httpx.TransportError as error:
            answers.append(type(error).__name__)

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(12)]
    for thread in threads:
        thread.start()
    assert server.wait_exit() == -signal.SIGKILL
    for thread in threads:
        thread.join()
    log = server.log
    ready = log.index("fired up")
    cause = log.index("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate")
    assert ready < cause < log.index("SIGQUIT received. signum=3")
    assert "200" not in answers
    held = sim.book.used_bytes(0)
    assert held > SHAPE.gpu.memory_bytes / 2  # the killed hold their memory a while
    wait_until(lambda: sim.book.used_bytes(0) == 0, what="memory back")


def test_a_killed_scheduler_takes_the_server_with_it_within_a_second(sim: Host) -> None:
    server = sim.start(*speculation(3), env=FAST_CRASH).wait_ready()
    pid = server.children()["sglang::scheduler_TP2"]
    os.kill(pid, signal.SIGKILL)
    assert server.wait_exit(5) == -signal.SIGKILL
    assert (
        f"Subprocess scheduler_2 (pid={pid}) crashed with exit code -9. Triggering SIGQUIT for cleanup..." in server.log
    )
    assert server.children() == {}


def test_a_scheduler_killed_while_loading_ends_the_start_with_status_1(sim: Host) -> None:
    server = sim.start(*speculation(3), speed=1.0)
    wait_until(lambda: len(server.children()) == 5, what="children")
    os.kill(server.children()["sglang::scheduler_TP1"], signal.SIGKILL)
    assert server.wait_exit(5) == 1
    assert "Rank 1 scheduler died during initialization (exit code: -9)" in server.log


def test_a_taken_port_shows_only_after_loading(sim: Host) -> None:
    with socket.socket() as other:
        other.bind((ADDRESS, 0))
        other.listen()
        port = other.getsockname()[1]
        server = sim.start(*speculation(3), port=port)
        assert server.wait_exit() == 1
    log = server.log
    assert log.index("max_total_num_tokens=") < log.index(
        f"ERROR:    [Errno 98] error while attempting to bind on address ('0.0.0.0', {port}): address already in use"
    )
    assert "fired up" not in log
    assert sim.book.holdings() == ()


# ------------------------------------------------------------------ signals


def test_sigterm_while_loading_is_immediate_death(sim: Host) -> None:
    server = sim.start(*speculation(3), speed=1.0)
    wait_until(lambda: "Memory baseline" in server.log or len(server.children()) == 5)
    children = server.children()
    server.process.send_signal(signal.SIGTERM)
    assert server.wait_exit(5) == -signal.SIGTERM
    wait_until(lambda: not any(Path(f"/proc/{pid}/cmdline").exists() for pid in children.values()), what="children")


def test_sigterm_drains_without_limit_and_still_takes_requests(sim: Host) -> None:
    server = sim.start(*speculation(3)).wait_ready()
    with ThreadPoolExecutor(2) as pool:
        running = pool.submit(server.generate, 50_000)
        wait_until(lambda: server.get("/v1/loads").json()["loads"][0]["num_running_reqs"] == 1)
        os.killpg(server.process.pid, signal.SIGTERM)  # as a service manager does: to every process
        wait_until(lambda: server.status() == 503, what="draining")
        assert server.generate(10, "another").status_code == 200
        assert server.process.poll() is None
        wait_until(lambda: "Gracefully exiting... Remaining number of requests 1." in server.log)
        server.client.post("/abort_request", json={"abort_all": True})
        assert running.result(timeout=20).status_code == 200
    assert server.wait_exit() == 0
    log = server.log
    assert log.index("SIGTERM received. signum=15") < log.index(
        "Remaining number of requests 1. Remaining requests rem"
    )
    assert "Remaining number of requests 0." in log
    assert sim.book.holdings() == ()


def test_sigterm_with_the_force_switch_does_not_drain(sim: Host) -> None:
    server = sim.start(*speculation(3), env={"SGL_FORCE_SHUTDOWN": "1"}).wait_ready()
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(server.generate, 50_000)
        wait_until(lambda: server.get("/v1/loads").json()["loads"][0]["num_running_reqs"] == 1)
        server.process.send_signal(signal.SIGTERM)
        assert server.wait_exit() == 0
        assert isinstance(running.exception(timeout=20), httpx.TransportError)
    assert "Traceback" not in server.log


# ------------------------------------------------------------------ memory


def test_nvidia_smi_shows_what_is_held_and_what_a_killed_server_leaves(sim: Host) -> None:
    server = sim.start(*speculation(3)).wait_ready()

    def smi(*argv: str) -> list[str]:
        result = subprocess.run(
            [str(sim.home / "bin" / "nvidia-smi"), *argv, "--format=csv,noheader,nounits"],
            env={"PATH": os.environ["PATH"]},
            capture_output=True,
            text=True,
            check=True,
        )
        return result.stdout.splitlines()

    children = server.children()
    rows = [row.split(", ") for row in smi("--query-gpu=index,memory.used,memory.total")]
    assert [row[0] for row in rows] == ["0", "1", "2", "3"]
    assert all(0.7 * int(row[2]) < int(row[1]) < int(row[2]) for row in rows)
    apps = [row.split(", ") for row in smi("--query-compute-apps=pid,process_name,used_memory")]
    assert {row[1]: int(row[0]) for row in apps} == {
        name: pid for name, pid in children.items() if name.startswith("sglang::scheduler")
    }
    server.process.kill()
    server.wait_exit()
    wait_until(lambda: not any(Path(f"/proc/{pid}/cmdline").exists() for pid in children.values()), what="children")
    assert [row.split(", ")[1] for row in smi("--query-gpu=index,memory.used")] == [row[1] for row in rows]
    wait_until(lambda: smi("--query-gpu=memory.used") == ["0"] * 4, what="memory back")


def test_memory_left_by_others_shrinks_the_pool_of_the_next_server(sim: Host) -> None:
    sim.book.foreign(1, name="other", bytes_per_gpu={3: 2 * 1024**3})
    server = sim.start(*speculation(3)).wait_ready()
    assert server.get("/server_info").json()["max_total_num_tokens"] < 280_000


# ------------------------------------------------------------------ faults


def test_starts_that_flake_say_nccl_and_the_next_one_is_healthy(sim: Host) -> None:
    sim.start(*speculation(3), faults=["nccl-flake:0.5"]).wait_ready().process.send_signal(signal.SIGTERM)
    assert sim.servers[0].wait_exit() == 0
    second = sim.start(*speculation(3), faults=["nccl-flake:0.5"])
    assert second.wait_exit() == -signal.SIGKILL
    assert "NCCL error: unhandled system error (run with NCCL_DEBUG=INFO for details)" in second.log
    assert "Load weight end" not in second.log


def test_a_hanging_load_says_nothing_more(sim: Host) -> None:
    server = sim.start(*speculation(3), faults=["hang-loading"])
    wait_until(lambda: "TP3] Memory baseline" in server.log)
    time.sleep(0.7)
    assert server.process.poll() is None
    assert "Load weight end" not in server.log
    assert server.status() is None
    server.process.send_signal(signal.SIGTERM)
    assert server.wait_exit(5) == -signal.SIGTERM


def test_a_server_that_hangs_still_looks_healthy_and_never_finishes_its_drain(sim: Host) -> None:
    server = sim.start(*speculation(3), faults=["hang-serving:0"]).wait_ready()
    with pytest.raises(httpx.ReadTimeout):
        server.client.post("/generate", json={"text": "a"}, timeout=1.0)
    assert server.status() == 200
    with ThreadPoolExecutor(1) as pool:
        stuck = pool.submit(server.generate, 5)
        wait_until(lambda: server.get("/v1/loads").json()["loads"][0]["num_total_reqs"] == 1)
        server.process.send_signal(signal.SIGTERM)
        wait_until(lambda: "Remaining number of requests 1." in server.log)
        assert server.process.poll() is None
        os.killpg(server.process.pid, signal.SIGKILL)
        assert isinstance(stuck.exception(timeout=10), httpx.TransportError)


def test_a_server_that_dies_while_serving_names_the_cause_first(sim: Host) -> None:
    server = sim.start(*speculation(3), faults=["die-serving:0.1"], env=FAST_CRASH)
    assert server.wait_exit() == -signal.SIGKILL
    log = server.log
    assert log.index("fired up") < log.index("TP3] Scheduler hit an exception") < log.index("SIGQUIT received")
    assert "CUDA error: an illegal memory access was encountered" in log


def test_a_slow_gpu_takes_that_many_times_as_long(server: Server, sim: Host) -> None:
    slow = sim.start(*speculation(3), faults=["slow-gpu:4"]).wait_ready()
    usual_s, slow_s = (
        min(one.generate(40).json()["meta_info"]["e2e_latency"] for _ in range(2)) for one in (server, slow)
    )
    assert slow_s == pytest.approx(4 * usual_s, rel=0.15)


def test_a_log_without_line_ends_has_none(sim: Host) -> None:
    server = sim.start(*speculation(3), faults=["no-newline"]).wait_ready()
    assert server.generate(5).status_code == 200
    assert "\n" not in server.log


def test_a_flood_of_log_is_as_long_as_asked_and_the_server_serves(sim: Host) -> None:
    server = sim.start(*speculation(3), faults=["log-flood:3"]).wait_ready()
    assert 3_000_000 < server.log_path.stat().st_size < 3_500_000
    assert server.status() == 200


@pytest.mark.parametrize(
    ("stage", "last", "never"),
    [
        ("args", "", "server_args="),
        ("pool", "Load weight end", "Mamba Cache is allocated"),
        ("ready", "Uvicorn running", "fired up"),
    ],
)
def test_an_exit_at_a_stage_leaves_no_word_of_a_cause(sim: Host, stage: str, last: str, never: str) -> None:
    server = sim.start(*speculation(3), faults=[f"exit-at:{stage}"])
    assert server.wait_exit() == 1
    assert last in server.log
    assert never not in server.log
    assert "Traceback" not in server.log
    assert server.children() == {}


def test_frightening_lines_come_from_a_healthy_server(sim: Host) -> None:
    server = sim.start(*speculation(3), faults=["frightening-log"]).wait_ready()
    wait_until(lambda: server.log.count("KV cache pool is full. Retract requests.") >= 2)
    assert server.generate(20).json()["meta_info"]["completion_tokens"] == 20


def test_a_health_check_without_an_answer_makes_the_server_unhealthy_and_its_stop_forced(sim: Host) -> None:
    server = sim.start(*speculation(3), faults=["slow-gpu:30"], env={"SGLANG_HEALTH_CHECK_TIMEOUT": "0.1"})
    server.wait_ready()
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(server.generate, 50_000)
        wait_until(lambda: server.get("/v1/loads").json()["loads"][0]["num_running_reqs"] == 1)
        wait_until(lambda: server.status() == 503, what="unhealthy")
        server.process.send_signal(signal.SIGTERM)
        assert server.wait_exit() == 0
        assert isinstance(running.exception(timeout=10), httpx.TransportError)
    assert "Health check failed. Server couldn't get a response from detokenizer for last 0.1 seconds." in server.log
    assert "Signal SIGTERM received while health check failed. Force exiting." in server.log
