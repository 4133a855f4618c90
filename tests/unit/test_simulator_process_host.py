"""What a process knows of its host, nvidia-smi's answers and the metrics page."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tuner.simulator import host, nvidia_smi, profile
from tuner.simulator.book import Book, Holding
from tuner.simulator.metrics import Metrics
from tuner.simulator.request import Request, Sampling

SHAPE = profile.load("qwen3.5-122b-a10b-4gpu")
MIB = 1024**2
TOTAL = SHAPE.gpu.memory_bytes // MIB


def test_the_environment_says_everything_and_reads_back(tmp_path: Path) -> None:
    environ = host.environment(tmp_path, "p", 12.5, "127.0.0.9", ("slow-gpu:2", "no-newline"))
    facts = host.read_facts(environ)
    assert (facts.home, facts.profile, facts.speed, facts.address) == (tmp_path, "p", 12.5, "127.0.0.9")
    assert facts.faults.slow_gpu == 2.0
    assert facts.faults.no_newline
    assert facts.scaled(25.0) == 2.0


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({host.HOME: ""}, "TUNER_SIM_HOME is not set"),
        ({host.SPEED: "fast"}, "TUNER_SIM_SPEED: 'fast' is not a number"),
        ({host.SPEED: "0"}, "not a positive number"),
        ({host.FAULTS: "meteor"}, "TUNER_SIM_FAULTS: unknown fault 'meteor'"),
    ],
)
def test_an_environment_that_is_no_host_is_refused(tmp_path: Path, change: dict[str, str], said: str) -> None:
    with pytest.raises(host.HostError, match=said):
        host.read_facts({**host.environment(tmp_path), **change})


def test_prepare_makes_commands_that_carry_the_hosts_facts(tmp_path: Path) -> None:
    home = tmp_path / "a host"
    folder = host.prepare(home, "/opt/py thon", host.environment(home, "p"))
    assert {path.name for path in folder.iterdir()} == {"sglang", "nvidia-smi", "python", "python3"}
    for path in folder.iterdir():
        assert path.stat().st_mode & 0o777 == 0o755
        text = path.read_text()
        assert "'/opt/py thon'" in text
        assert "TUNER_SIM_PROFILE=${TUNER_SIM_PROFILE-p}\n" in text
        assert f"TUNER_SIM_HOME=${{TUNER_SIM_HOME-'{home}'}}\n" in text


HOLDINGS = (
    Holding(pid=12, name="sglang::scheduler_TP0", bytes_per_gpu={0: 100 * MIB}, alive=True, foreign=False),
    Holding(pid=13, name="sglang::scheduler_TP1", bytes_per_gpu={1: 50 * MIB}, alive=False, foreign=False),
)


def test_the_gpus_are_listed_as_asked() -> None:
    text = nvidia_smi.answer(
        ["--query-gpu=index,memory.used,memory.total", "--format=csv,noheader,nounits"], SHAPE, HOLDINGS
    )
    assert text.splitlines() == [f"0, 100, {TOTAL}", f"1, 50, {TOTAL}", f"2, 0, {TOTAL}", f"3, 0, {TOTAL}"]


def test_a_gpu_whose_memory_a_living_process_fills_draws_the_power_of_one_that_serves() -> None:
    gib = 1024**3
    held = [
        Holding(pid=7, name="server", bytes_per_gpu={0: 80 * gib, 1: gib}, alive=True, foreign=False),
        Holding(pid=8, name="dead", bytes_per_gpu={2: 80 * gib}, alive=False, foreign=False),
    ]
    text = nvidia_smi.answer(["--query-gpu=power.draw", "--format=csv,noheader,nounits"], SHAPE, held)
    assert text.splitlines() == ["420.00", "72.00", "72.00", "72.00"]


def test_header_and_units_are_printed_unless_refused() -> None:
    text = nvidia_smi.answer(["--query-gpu=name,memory.free,utilization.gpu", "--format=csv"], SHAPE, HOLDINGS)
    assert text.splitlines()[:3] == [
        "name, memory.free [MiB], utilization.gpu [%]",
        f"{SHAPE.gpu.name}, {TOTAL - 100} MiB, [N/A]",
        f"{SHAPE.gpu.name}, {TOTAL - 50} MiB, [N/A]",
    ]


@pytest.mark.parametrize("family", ["clocks_event_reasons", "clocks_throttle_reasons"])
@pytest.mark.parametrize(
    ("hot", "said"), [(False, "[N/A], Not Active, Not Active"), (True, "1200, Active, Not Active")]
)
def test_clocks_are_told_only_of_a_gpu_that_is_too_hot(family: str, hot: bool, said: str) -> None:
    query = f"--query-gpu=clocks.current.sm,{family}.hw_thermal_slowdown,{family}.sw_power_cap"
    text = nvidia_smi.answer([query, "--format=csv,noheader,nounits"], SHAPE, HOLDINGS, hot=hot)
    assert text.splitlines()[0] == said


def test_processes_are_listed_and_the_dead_have_no_name() -> None:
    text = nvidia_smi.answer(
        ["--query-compute-apps=pid,process_name,used_memory", "--format=csv,noheader,nounits"], SHAPE, HOLDINGS
    )
    assert text.splitlines() == ["12, sglang::scheduler_TP0, 100", "13, [Not Found], 50"]


@pytest.mark.parametrize(
    "argv",
    [
        ["--query-gpu=index"],
        ["--query-gpu=index", "--format=xml"],
        ["--query-gpu=index,flavour", "--format=csv"],
        ["--format=csv"],
        ["-pl", "300"],
    ],
)
def test_what_nvidia_smi_does_not_know_is_refused(argv: list[str]) -> None:
    with pytest.raises(nvidia_smi.UsageError):
        nvidia_smi.answer(argv, SHAPE, HOLDINGS)


def test_the_command_answers_from_the_book_and_fails_like_a_command(tmp_path: Path) -> None:
    Book(tmp_path).foreign(7, name="other", bytes_per_gpu={2: 5 * MIB})
    environ, out = host.environment(tmp_path), list[str]()
    query = ["--query-compute-apps=pid,process_name,used_memory,gpu_uuid", "--format=csv,noheader,nounits"]
    assert nvidia_smi.main(query, environ, out.append) == 0
    assert out == ["7, other, 5, GPU-5d1c0000-51a1-4f6e-9e0d-000000000002\n"]
    out.clear()
    assert nvidia_smi.main([], environ, out.append) == 0
    assert f"5MiB / {TOTAL}MiB" in out[0]
    assert "other" in out[0]
    assert nvidia_smi.main(["--nonsense"], environ, out.append) == 2
    assert nvidia_smi.main([], {}, out.append) == 2


def finished_request(tokens: int, *, streamed: bool) -> Request:
    request = Request(
        rid="r",
        tokens=(1, 2, 3),
        sampling=Sampling(max_new_tokens=tokens, ignore_eos=True),
        natural_tokens=1,
        difficulty=1.0,
        rng=random.Random(1),
        streamed=streamed,
        changed=lambda: None,
        arrived_s=0.0,
    )
    request.append(1, 0.03)
    request.verified(1, 3)
    request.append(tokens - 1, 0.13)
    return request


def test_the_metrics_page_counts_finished_requests_only() -> None:
    metrics = Metrics('a "model"')
    metrics.observe(finished_request(11, streamed=True))
    metrics.observe(finished_request(5, streamed=False))
    page = metrics.page(gauges={"num_running_reqs": 2}, totals={"num_retracted_requests_total": 3})
    lines = page.splitlines()
    labels = 'engine_type="unified",model_name="a \\"model\\""'
    assert f'sglang:generation_tokens_total{{{labels},is_streaming="true"}} 11.0' in lines
    assert f'sglang:generation_tokens_total{{{labels},is_streaming="false"}} 5.0' in lines
    assert f"sglang:spec_verify_calls_total{{{labels}}} 2.0" in lines
    assert f"sglang:prompt_tokens_total{{{labels}}} 6.0" in lines
    assert f'sglang:num_running_reqs{{{labels},moe_ep_rank="0",pp_rank="0",tp_rank="0"}} 2.0' in lines
    assert f'sglang:time_to_first_token_seconds_bucket{{{labels},le="0.05"}} 2.0' in lines
    assert f'sglang:time_to_first_token_seconds_bucket{{{labels},le="0.02"}} 0.0' in lines
    assert f"sglang:e2e_request_latency_seconds_count{{{labels}}} 2.0" in lines
    assert f"sglang:num_retracted_requests_total{{{labels}}} 3.0" in lines
    assert "# TYPE sglang:generation_tokens_total counter" in lines
