"""What the comparison of load clients makes of its runs."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType

import pytest

from tuner.load.exactness import exactness
from tuner.load.paced import SentStream
from tuner.model.record import RequestRecord, RequestStatus

SCRIPTS = Path(__file__).parents[2] / "scripts"


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(SCRIPTS))
    for name in [name for name in sys.modules if name.partition(".")[0] in ("bench_client", "bench_peers")]:
        monkeypatch.delitem(sys.modules, name)
    return importlib.import_module("bench_client")


def record(
    name: str,
    stamps_s: tuple[float, ...],
    *,
    tokens: int = 3,
    status: RequestStatus = RequestStatus.OK,
    merged: int = 0,
) -> RequestRecord:
    return RequestRecord(
        concurrency=1,
        slot=0,
        prompt_id=name,
        sent_s=10.0,
        first_s=stamps_s[0],
        last_s=stamps_s[-1],
        ended_s=stamps_s[-1],
        tokens=tokens,
        first_chunk_tokens=1,
        prompt_tokens=None,
        chunk_s=stamps_s,
        chunk_tokens=(),
        status=status,
        in_window=False,
        merged=merged,
    )


SENT = SentStream(name="a story about number 7", read_s=10.25, tokens=3, chunks=3, sent_s=(11.0, 12.0, 13.0))


def test_lateness_is_the_stamp_less_the_send_of_the_same_chunk() -> None:
    found = exactness([record("7", (11.5, 12.5, 13.5), merged=1)], [SENT])
    assert (found.late_p50_s, found.late_p99_s) == (0.5, 0.5)
    assert (found.requests, found.unlike, found.chunks) == (1, 0, 3)
    assert found.merged_share == pytest.approx(1 / 3)


def test_the_error_of_ttft_is_what_the_client_saw_more_than_the_server() -> None:
    assert exactness([record("7", (11.5, 12.5, 13.5))], [SENT]).ttft_error_p50_s == pytest.approx(0.75)


def test_a_constant_lateness_is_no_error_of_the_rate_and_a_growing_one_is() -> None:
    assert exactness([record("7", (11.5, 12.5, 13.5))], [SENT]).rate_error_p99 == pytest.approx(0.0)
    assert exactness([record("7", (11.0, 12.0, 15.0))], [SENT]).rate_error_p99 == pytest.approx(0.5)


@pytest.mark.parametrize(
    "wrong",
    [
        record("7", (11.0, 12.0, 13.0), tokens=2),
        record("7", (11.0, 12.0)),
        record("7", (11.0, 12.0, 13.0), status=RequestStatus.CUT),
        record("8", (11.0, 12.0, 13.0)),
    ],
    ids=["tokens", "chunks", "cut", "unknown"],
)
def test_what_is_not_as_it_was_sent_is_counted(wrong: RequestRecord) -> None:
    assert exactness([wrong], [SENT]).unlike == 1


def test_without_one_comparable_request_nothing_is_known() -> None:
    found = exactness([], [SENT])
    assert (found.late_p99_s, found.ttft_error_p99_s, found.rate_error_p99, found.merged_share) == (None,) * 4


def run(bench: ModuleType, client: str, cost: float | None, **other: object) -> object:
    loads = sys.modules["bench_peers.loads"]
    return bench.Run(client=client, scenario=loads.IN_STEP, cpu_s_per_chunk=cost, **other)


def test_a_ratio_is_taken_within_a_round_and_a_bar_is_judged_by_the_better_one(bench: ModuleType) -> None:
    load = sys.modules["bench_peers.loads"].IN_STEP
    rounds = [
        {(load, "tuner"): run(bench, "tuner", 10e-6), (load, "httpx-lines"): run(bench, "httpx-lines", 45e-6)},
        {(load, "tuner"): run(bench, "tuner", 20e-6), (load, "httpx-lines"): run(bench, "httpx-lines", 110e-6)},
    ]
    lines = bench.bar_lines(rounds)
    assert f"met      CPU a chunk of httpx-lines / tuner's, {load}: 5.5x (at least 5x)" in lines
    assert f"not run  CPU a chunk of AIPerf / tuner's, {load}: at least 3x" in lines
    assert any(line.startswith("NOT MET") for line in bench.bar_lines(rounds[:1]))


def test_a_client_that_failed_is_named_with_the_reason_and_has_no_figures(bench: ModuleType) -> None:
    loads = sys.modules["bench_peers.loads"]
    failed = run(bench, "aiohttp", None, why="exit status 1, 0 whole requests: no output")
    found = {(loads.IN_STEP, "tuner"): run(bench, "tuner", 10e-6), (loads.IN_STEP, "aiohttp"): failed}
    lines = bench.table(loads.SCENARIOS[loads.IN_STEP], [found])
    assert lines[-1].split(maxsplit=1) == ["aiohttp", "exit status 1, 0 whole requests: no output"]
    assert "-" in lines[-2]


def test_cores_that_are_not_there_are_refused(bench: ModuleType) -> None:
    for text in ("0", "0,0", "a,b", "0,100000"):
        with pytest.raises(Exception, match="write two of them"):
            bench.cores_of(text)


def test_a_load_says_how_many_chunks_a_request_has(bench: ModuleType) -> None:
    loads = sys.modules["bench_peers.loads"]
    assert bench.SCENARIOS[loads.SPECULATIVE].chunks == 151
    assert bench.SCENARIOS[loads.IN_STEP].chunks == 400
    assert bench.SCENARIOS[loads.FLOOD].offered is None


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (("--rounds", "0"), "--rounds 0: at least 1"),
        (("--json", "/nowhere/at/all.json"), "there is no such folder"),
        (("--only", "everything"), "invalid choice"),
    ],
    ids=["no_rounds", "no_folder", "unknown_load"],
)
def test_what_cannot_be_run_is_said_in_a_line_before_anything_runs(
    bench: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    options: tuple[str, ...],
    why: str,
) -> None:
    monkeypatch.setattr(sys, "argv", ["bench_client", *options])
    with pytest.raises(SystemExit) as exit_:
        bench.main()
    assert exit_.value.code == 2
    assert why in capsys.readouterr().err
