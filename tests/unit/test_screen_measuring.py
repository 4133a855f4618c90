"""How a measurement comes along, as lines and on a terminal."""

from __future__ import annotations

import io
from dataclasses import replace
from datetime import UTC

from rich.console import Console

from tuner.model.measurement import LegKind, Level, ServerFacts
from tuner.model.metric import Estimate
from tuner.model.record import LegResult
from tuner.model.trial import Capacity
from tuner.ports import LoadProgress
from tuner.screen.measuring import LiveMeasuring, PlainMeasuring, doing_line, facts_line, level_line

FACTS = ServerFacts(base_url="http://s:1", engine="sglang", is_recognised=True, model="qwen", version="0.5.9")
RESULT = LegResult(
    concurrency=16,
    single_request_throughput=Estimate(value=150.0, low=148.5, high=151.5, samples=80),
    aggregate_throughput=Estimate(value=1979.0, low=None, high=None, samples=2),
    window_s=12.0,
    offered=80,
    completed=80,
    failed=0,
    converged=True,
)
PROGRESS = LoadProgress(elapsed_s=7.0, throughput=1850.4, in_flight=16, silent_s=0.0)


def test_a_server_is_written_with_what_it_says_of_itself() -> None:
    assert facts_line(replace(FACTS, version=None)) == "http://s:1 · sglang · qwen"
    capacity = Capacity(max_running_requests=21, max_total_num_tokens=377_207)
    expected = "http://s:1 · sglang 0.5.9 · qwen · 21 requests at once · 377,207 tokens of cache"
    assert facts_line(replace(FACTS, capacity=capacity)) == expected


def test_the_end_of_a_level_is_one_line() -> None:
    level = Level(concurrency=16, result=RESULT)
    assert level_line(level) == "measuring 16: 1,979 tok/s together · 150 ±1.0% each · 80 requests in 12 s"
    wide = replace(level, result=replace(RESULT, failed=2, converged=False))
    assert level_line(wide).endswith("80 requests in 12 s · 2 failed · not settled")
    held = replace(wide, kind=LegKind.SOAK)
    assert level_line(held).startswith("holding 16: ")
    assert level_line(held).endswith("still drifts")
    assert level_line(Level(concurrency=64, why="void")) == "measuring 64: no result: void"


def test_what_runs_is_written_with_what_it_has_measured_so_far() -> None:
    assert doing_line("warming up", None, None) == "warming up …"
    assert doing_line("measuring 16", 60.0, PROGRESS) == (
        "measuring 16 · 7 s of about 1 min at most · 16 in flight · 1,850 tok/s so far …"
    )
    hung = replace(PROGRESS, throughput=None, silent_s=9.0)
    assert doing_line("measuring 16", None, hung) == "measuring 16 · 7 s · 16 in flight · silent for 9 s …"


def test_plain_lines_have_the_time_and_are_one_an_event() -> None:
    lines: list[str] = []
    with PlainMeasuring(lines.append, now=lambda: 3723.0, zone=UTC) as screen:
        screen.found(FACTS)
        screen.warming_up(4)
        screen.level_begins(16, LegKind.LADDER, 60.0)
        screen.progress(PROGRESS)
        screen.level_ended(Level(concurrency=16, result=RESULT))
        screen.remark("two\nlines")
    assert lines == [
        "01:02:03 http://s:1 · sglang 0.5.9 · qwen",
        "01:02:03 warming up with 4 requests",
        "01:02:03 measuring 16: 1,979 tok/s together · 150 ±1.0% each · 80 requests in 12 s",
        "01:02:03 two lines",
    ]


def test_a_terminal_keeps_what_was_found_and_drops_what_ran() -> None:
    screen_text = io.StringIO()
    console = Console(file=screen_text, force_terminal=True, width=120)
    with LiveMeasuring(console) as screen:
        screen.found(FACTS)
        screen.level_begins(16, LegKind.LADDER, 60.0)
        screen.progress(PROGRESS)
        screen.level_ended(Level(concurrency=16, result=RESULT))
        screen.remark("the server counts at the end")
    last = screen_text.getvalue().split("http://s:1")[-1]
    assert "1,979 tok/s together" in last
    assert "the server counts at the end" in last
    assert "so far" not in last
