"""The simulated server as a process: its deaths, signals, memory and faults."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tuner.simulator import profile
from tuner.testing.simulated_host import (
    COMMAND,
    SimulatedHost,
    SimulatedServer,
    simulated_host,
    speculation,
    wait_until,
)

SHAPE = profile.load("qwen3.5-122b-a10b-4gpu")
FAST_CRASH = {"SGLANG_CUDA_COREDUMP_BEFORE_CRASH": "0", "SGLANG_PYSPY_DUMP_BEFORE_CRASH": "0"}


@pytest.fixture
def sim(tmp_path: Path) -> Iterator[SimulatedHost]:
    with simulated_host(tmp_path / "host", "127.0.0.24") as opened:
        yield opened


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SimulatedServer]:
    """One healthy server for all tests that do not hurt it."""
    with simulated_host(tmp_path_factory.mktemp("shared") / "host", "127.0.0.24") as opened:
        yield opened.start(*COMMAND, *speculation(3), "--served-model-name", "qwen").wait_ready()


# ------------------------------------------------------------------ deaths


def test_a_fraction_too_low_ends_with_status_1_the_first_time_and_by_sigkill_the_second(sim: SimulatedHost) -> None:
    first = sim.start(*COMMAND, *speculation(3), "--mem-fraction-static", "0.3")
    assert first.wait_exit() == 1
    log = first.log
    cause = log.index("TP0] Scheduler hit an exception: Traceback")
    assert "Loaded weights leave no GPU memory for the KV cache under --mem-fraction-static=0.3. Raise" in log
    assert cause < log.index("TP1] Scheduler hit an exception: Traceback")  # consequences come later
    assert "RuntimeError: Rank 0 scheduler died during initialization (exit code: 1)." in log
    wait_until(lambda: not sim.book.holdings(), what="memory back")
    second = sim.start(*COMMAND, *speculation(3), "--mem-fraction-static", "0.3")
    assert second.wait_exit() == -signal.SIGKILL
    assert "] Received sigquit from a child process. It usually means the child failed." in second.log
    assert second.children() == {}


def test_deep_speculation_serves_one_request_and_dies_under_load(sim: SimulatedHost) -> None:
    server = sim.start(*COMMAND, *speculation(10), env=FAST_CRASH).wait_ready()
    assert server.generate(30).status == 200
    with ThreadPoolExecutor(12) as pool:
        replies = [pool.submit(server.generate, 400, f"prompt {number}") for number in range(12)]
        assert server.wait_exit() == -signal.SIGKILL
        assert [reply.result(timeout=20).status for reply in replies] == [None] * 12
    log = server.log
    ready = log.index("fired up")
    cause = log.index("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate")
    assert ready < cause < log.index("SIGQUIT received. signum=3")
    held = sim.book.used_bytes(0)
    assert held > SHAPE.gpu.memory_bytes / 2  # the killed hold their memory a while
    wait_until(lambda: sim.book.used_bytes(0) == 0, what="memory back")


def test_a_killed_scheduler_takes_the_server_with_it_within_a_second(sim: SimulatedHost) -> None:
    server = sim.start(*COMMAND, *speculation(3), env=FAST_CRASH).wait_ready()
    pid = server.children()["sglang::scheduler_TP2"]
    os.kill(pid, signal.SIGKILL)
    assert server.wait_exit(5) == -signal.SIGKILL
    assert (
        f"Subprocess scheduler_2 (pid={pid}) crashed with exit code -9. Triggering SIGQUIT for cleanup..." in server.log
    )
    assert server.children() == {}


def test_a_scheduler_killed_while_loading_ends_the_start_with_status_1(sim: SimulatedHost) -> None:
    server = sim.start(*COMMAND, *speculation(3), speed=1.0)
    wait_until(lambda: len(server.children()) == 5, what="children")
    os.kill(server.children()["sglang::scheduler_TP1"], signal.SIGKILL)
    assert server.wait_exit(5) == 1
    assert "Rank 1 scheduler died during initialization (exit code: -9)" in server.log


def test_a_taken_port_shows_only_after_loading(sim: SimulatedHost) -> None:
    with socket.socket() as other:
        other.bind((sim.address, 0))
        other.listen()
        port = other.getsockname()[1]
        server = sim.start(*COMMAND, *speculation(3), port=port)
        assert server.wait_exit() == 1
    log = server.log
    assert log.index("max_total_num_tokens=") < log.index(
        f"ERROR:    [Errno 98] error while attempting to bind on address ('0.0.0.0', {port}): address already in use"
    )
    assert "fired up" not in log
    assert sim.book.holdings() == ()


# ------------------------------------------------------------------ signals


def test_sigterm_while_loading_is_immediate_death(sim: SimulatedHost) -> None:
    server = sim.start(*COMMAND, *speculation(3), speed=1.0)
    wait_until(lambda: "Memory baseline" in server.log or len(server.children()) == 5)
    children = server.children()
    server.process.send_signal(signal.SIGTERM)
    assert server.wait_exit(5) == -signal.SIGTERM
    wait_until(lambda: not any(Path(f"/proc/{pid}/cmdline").exists() for pid in children.values()), what="children")


def test_sigterm_drains_without_limit_and_still_takes_requests(sim: SimulatedHost) -> None:
    server = sim.start(*COMMAND, *speculation(3)).wait_ready()
    with ThreadPoolExecutor(2) as pool:
        running = pool.submit(server.generate, 50_000)
        wait_until(lambda: server.running() == 1)
        os.killpg(server.process.pid, signal.SIGTERM)  # as a service manager does: to every process
        wait_until(lambda: server.call("/health").status == 503, what="draining")
        assert server.generate(10, "another").status == 200
        assert server.process.poll() is None
        wait_until(lambda: "Gracefully exiting... Remaining number of requests 1." in server.log)
        server.call("/abort_request", {"abort_all": True})
        assert running.result(timeout=20).status == 200
    assert server.wait_exit() == 0
    log = server.log
    assert log.index("SIGTERM received. signum=15") < log.index(
        "Remaining number of requests 1. Remaining requests rem"
    )
    assert "Remaining number of requests 0." in log
    assert sim.book.holdings() == ()


def test_sigterm_with_the_force_switch_does_not_drain(sim: SimulatedHost) -> None:
    server = sim.start(*COMMAND, *speculation(3), env={"SGL_FORCE_SHUTDOWN": "1"}).wait_ready()
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(server.generate, 50_000)
        wait_until(lambda: server.running() == 1)
        server.process.send_signal(signal.SIGTERM)
        assert server.wait_exit() == 0
        assert running.result(timeout=20).status is None
    assert "Traceback" not in server.log


# ------------------------------------------------------------------ memory


def test_nvidia_smi_shows_what_is_held_and_what_a_killed_server_leaves(sim: SimulatedHost) -> None:
    server = sim.start(*COMMAND, *speculation(3)).wait_ready()

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


def test_memory_left_by_others_shrinks_the_pool_of_the_next_server(sim: SimulatedHost) -> None:
    sim.book.foreign(1, name="other", bytes_per_gpu={3: 2 * 1024**3})
    server = sim.start(*COMMAND, *speculation(3)).wait_ready()
    assert server.call("/server_info").json()["max_total_num_tokens"] < 280_000


# ------------------------------------------------------------------ faults


def test_starts_that_flake_say_nccl_and_the_next_one_is_healthy(sim: SimulatedHost) -> None:
    sim.start(*COMMAND, *speculation(3), faults=["nccl-flake:0.5"]).wait_ready().process.send_signal(signal.SIGTERM)
    assert sim.servers[0].wait_exit() == 0
    second = sim.start(*COMMAND, *speculation(3), faults=["nccl-flake:0.5"])
    assert second.wait_exit() == -signal.SIGKILL
    assert "NCCL error: unhandled system error (run with NCCL_DEBUG=INFO for details)" in second.log
    assert "Load weight end" not in second.log


def test_a_hanging_load_says_nothing_more(sim: SimulatedHost) -> None:
    server = sim.start(*COMMAND, *speculation(3), faults=["hang-loading"])
    wait_until(lambda: "TP3] Memory baseline" in server.log)
    time.sleep(0.7)
    assert server.process.poll() is None
    assert "Load weight end" not in server.log
    assert server.call("/health").status is None
    server.process.send_signal(signal.SIGTERM)
    assert server.wait_exit(5) == -signal.SIGTERM


def test_a_server_that_hangs_still_looks_healthy_and_never_finishes_its_drain(sim: SimulatedHost) -> None:
    server = sim.start(*COMMAND, *speculation(3), faults=["hang-serving:0"]).wait_ready()
    assert server.call("/generate", {"text": "a"}, timeout_s=1.0).error == "TimeoutError"
    assert server.call("/health").status == 200
    with ThreadPoolExecutor(1) as pool:
        stuck = pool.submit(server.generate, 5)
        wait_until(lambda: server.running() == 1)
        server.process.send_signal(signal.SIGTERM)
        wait_until(lambda: "Remaining number of requests 1." in server.log)
        assert server.process.poll() is None
        os.killpg(server.process.pid, signal.SIGKILL)
        assert stuck.result(timeout=20).status is None


def test_a_server_that_dies_while_serving_names_the_cause_first(sim: SimulatedHost) -> None:
    server = sim.start(*COMMAND, *speculation(3), faults=["die-serving:0.1"], env=FAST_CRASH)
    assert server.wait_exit() == -signal.SIGKILL
    log = server.log
    assert log.index("fired up") < log.index("TP3] Scheduler hit an exception") < log.index("SIGQUIT received")
    assert "CUDA error: an illegal memory access was encountered" in log


def test_a_slow_gpu_takes_that_many_times_as_long(server: SimulatedServer, sim: SimulatedHost) -> None:
    slow = sim.start(*COMMAND, *speculation(3), faults=["slow-gpu:4"]).wait_ready()
    usual_s, slow_s = (
        min(one.generate(40).json()["meta_info"]["e2e_latency"] for _ in range(2)) for one in (server, slow)
    )
    assert slow_s == pytest.approx(4 * usual_s, rel=0.25)


def test_a_log_without_line_ends_has_none(sim: SimulatedHost) -> None:
    server = sim.start(*COMMAND, *speculation(3), faults=["no-newline"]).wait_ready()
    assert server.generate(5).status == 200
    assert "\n" not in server.log


def test_a_flood_of_log_is_as_long_as_asked_and_the_server_serves(sim: SimulatedHost) -> None:
    server = sim.start(*COMMAND, *speculation(3), faults=["log-flood:3"]).wait_ready()
    assert 3_000_000 < server.log_path.stat().st_size < 3_500_000
    assert server.call("/health").status == 200


@pytest.mark.parametrize(
    ("stage", "last", "never"),
    [
        ("args", "", "server_args="),
        ("pool", "Load weight end", "Mamba Cache is allocated"),
        ("ready", "Uvicorn running", "fired up"),
    ],
)
def test_an_exit_at_a_stage_leaves_no_word_of_a_cause(sim: SimulatedHost, stage: str, last: str, never: str) -> None:
    server = sim.start(*COMMAND, *speculation(3), faults=[f"exit-at:{stage}"])
    assert server.wait_exit() == 1
    assert last in server.log
    assert never not in server.log
    assert "Traceback" not in server.log
    assert server.children() == {}


def test_frightening_lines_come_from_a_healthy_server(sim: SimulatedHost) -> None:
    server = sim.start(*COMMAND, *speculation(3), faults=["frightening-log"]).wait_ready()
    wait_until(lambda: server.log.count("KV cache pool is full. Retract requests.") >= 2)
    assert server.generate(20).json()["meta_info"]["completion_tokens"] == 20


def test_a_health_check_without_an_answer_makes_the_server_unhealthy_and_its_stop_forced(sim: SimulatedHost) -> None:
    server = sim.start(*COMMAND, *speculation(3), faults=["slow-gpu:30"], env={"SGLANG_HEALTH_CHECK_TIMEOUT": "0.1"})
    server.wait_ready()
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(server.generate, 50_000)
        wait_until(lambda: server.running() == 1)
        wait_until(lambda: server.call("/health").status == 503, what="unhealthy")
        server.process.send_signal(signal.SIGTERM)
        assert server.wait_exit() == 0
        assert running.result(timeout=20).status is None
    assert "Health check failed. Server couldn't get a response from detokenizer for last 0.1 seconds." in server.log
    assert "Signal SIGTERM received while health check failed. Force exiting." in server.log
