"""A measurement as a table, as JSON and as the notes below it."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest

from tuner.model.account import ClientHealth, Limit, Speculation, Spread, TokenCheck
from tuner.model.measurement import LegKind, Level, Measurement, ServerFacts
from tuner.model.metric import Estimate
from tuner.model.record import LegResult, RequestStatus
from tuner.model.workload import Workload
from tuner.report.measurement import SCHEMA, SCHEMA_VERSION, measurement_json, note_lines, table_lines


def spread(value: float) -> Spread:
    return Spread(mean=value, p50=value, p90=value, p95=value, p99=2 * value, samples=40)


def estimate(value: float) -> Estimate:
    return Estimate(value=value, low=0.99 * value, high=1.01 * value, samples=40)


RESULT = LegResult(
    concurrency=4,
    single_request_throughput=estimate(250.0),
    aggregate_throughput=estimate(1000.0),
    window_s=12.34,
    offered=81,
    completed=80,
    failed=1,
    converged=True,
    client=ClientHealth(cpu_share=0.23, lag_p99_s=0.0004, merged_share=0.001),
    ttft_s=spread(0.05),
    tpot_s=spread(0.004),
    e2e_s=spread(2.0),
    wall_throughput=900.0,
    tokens=TokenCheck(replies=1000, counters=1002),
    speculation=Speculation(acceptance_length=3.14),
    limit=Limit.KV_POOL,
)
LEVEL = Level(
    concurrency=4, result=RESULT, failures=((RequestStatus.CUT, 1),), error="RemoteProtocolError: it went away"
)
BARE = LegResult(
    concurrency=1,
    single_request_throughput=None,
    aggregate_throughput=None,
    window_s=0.0,
    offered=0,
    completed=0,
    failed=0,
    converged=False,
)
MEASUREMENT = Measurement(
    server=ServerFacts(base_url="http://s", engine="sglang", is_recognised=True, model="q"),
    workload=Workload(ladder=(1, 4, 16)),
    seed=5,
    began_unix_s=1.0,
    duration_s=2.0,
    levels=(Level(concurrency=1, result=BARE), LEVEL),
)


def only(level: Level) -> Measurement:
    return replace(MEASUREMENT, levels=(level,), workload=Workload(ladder=(4,)))


def row(label: str, result: LegResult = RESULT) -> str:
    (line,) = [line for line in table_lines(only(replace(LEVEL, result=result)), width=None) if line.startswith(label)]
    return line.removeprefix(label).strip()


# ------------------------------------------------------------------ table


@pytest.mark.parametrize(
    ("label", "cell"),
    [
        ("at concurrency", "4"),
        ("single request, tok/s", "250 ±1.0%"),
        ("aggregate, tok/s", "1,000 ±1.0%"),
        ("TTFT p50 / p99, ms", "50 / 100"),
        ("TPOT p50 / p99, ms", "4 / 8"),
        ("E2E p50 / p99, s", "2 / 4"),
        ("acceptance length", "3.14"),
        ("limited by", "kv pool"),
        ("ok / failed / offered", "80 / 1 / 81"),
        ("window, s", "12.3"),
        ("interval reached", "yes"),
        ("tokens checked", "-0.20 %"),
        ("client: CPU of a core", "23 %"),
        ("client: late, p99", "0.4 ms"),
        ("client: chunks merged", "0.10 %"),
        ("whole leg, tok/s (too low)", "900 (-10.0 %)"),
    ],
)
def test_a_level_is_written_with_its_units(label: str, cell: str) -> None:
    assert row(label) == cell


def test_a_value_without_an_interval_says_so() -> None:
    lonely = replace(RESULT, aggregate_throughput=Estimate(value=50.0, low=None, high=None, samples=1))
    assert row("aggregate, tok/s", lonely) == "50.0 ±?"


def test_what_was_not_measured_is_a_dash_and_never_a_zero() -> None:
    lines = table_lines(replace(MEASUREMENT, levels=(Level(concurrency=1, result=BARE),)), width=None)
    assert [line.split() for line in lines if line.startswith("aggregate")] == [["aggregate,", "tok/s", "-"]]
    assert not any(line.startswith("acceptance") for line in lines)  # nobody has one
    assert any(line.startswith("tokens checked") and line.endswith("no counter") for line in lines)


def test_tokens_that_agree_are_called_exact() -> None:
    assert row("tokens checked", replace(RESULT, tokens=TokenCheck(replies=7, counters=7))) == "exact"


def test_levels_that_do_not_fit_stand_below_one_another() -> None:
    levels = tuple(replace(LEVEL, concurrency=n) for n in (1, 2, 4, 8, 16, 32))
    lines = table_lines(replace(MEASUREMENT, levels=levels), width=80)
    assert max(len(line) for line in lines) <= 80
    heads = [line.split()[2:] for line in lines if line.startswith("at concurrency")]
    assert [head for block in heads for head in block] == ["1", "2", "4", "8", "16", "32"]
    assert len(heads) > 1
    assert table_lines(replace(MEASUREMENT, levels=levels), width=10)  # a column a block, however narrow


def test_a_level_without_a_result_has_no_column_and_a_note() -> None:
    void = Level(concurrency=64, why="the client was the bottleneck")
    measurement = replace(MEASUREMENT, levels=(void,), workload=Workload(ladder=(64,)))
    assert table_lines(measurement, width=None) == []
    assert note_lines(measurement) == ["at 64: no result: the client was the bottleneck"]


def test_the_level_that_was_held_is_told_from_the_one_that_was_measured() -> None:
    held = replace(LEVEL, kind=LegKind.SOAK)
    assert table_lines(only(held), width=None)[0].split() == ["at", "concurrency", "4", "held"]


# ------------------------------------------------------------------ notes


def test_notes_say_what_failed_what_was_not_reached_and_what_is_missing() -> None:
    notes = note_lines(replace(MEASUREMENT, gone="/health answered 503"))
    assert notes == [
        "at 1: no throughput: no window in which all requests ran; give it more time, or ask for fewer tokens",
        "at 4: 1 of 81 requests failed: 1 cut; one said: RemoteProtocolError: it went away",
        "the server is gone: /health answered 503",
        "not measured: 16",
    ]


def test_a_wide_interval_and_a_drift_are_noted() -> None:
    wide = replace(LEVEL, result=replace(RESULT, failed=0, converged=False), failures=(), error=None)
    assert note_lines(only(wide)) == [
        "at 4: too few requests, or too wide an interval, to be sure of it; give it more time"
    ]
    held = only(replace(wide, kind=LegKind.SOAK))
    assert "at 4 held: the throughput still drifts; give it more time" in note_lines(held)


def test_a_sound_measurement_needs_no_note() -> None:
    assert note_lines(only(replace(LEVEL, result=replace(RESULT, failed=0), failures=(), error=None))) == []


# ------------------------------------------------------------------ JSON


def test_the_document_names_its_schema_and_holds_everything() -> None:
    document = json.loads(measurement_json(MEASUREMENT))
    assert (document["schema"], document["version"]) == (SCHEMA, SCHEMA_VERSION)
    assert document["missing_levels"] == [16]
    assert document["server"]["engine"] == "sglang"
    assert document["workload"]["output_tokens"] == 512
    first, second = document["levels"]
    assert (first["is_sound"], first["result"]["aggregate_throughput"]) == (False, None)
    assert (second["kind"], second["failures"]) == ("ladder", {"cut": 1})
    assert second["result"]["aggregate_throughput"] == {"value": 1000.0, "low": 990.0, "high": 1010.0, "samples": 40}
    assert second["result"]["limit"] == "kv_pool"
    assert second["result"]["tokens"] == {"replies": 1000, "counters": 1002}


@pytest.mark.parametrize("odd", [math.nan, math.inf, -math.inf], ids=["nan", "inf", "minus-inf"])
def test_what_is_no_number_is_null(odd: float) -> None:
    level = replace(LEVEL, result=replace(RESULT, wall_throughput=odd))
    text = measurement_json(only(level))
    assert json.loads(text, parse_constant=pytest.fail)["levels"][0]["result"]["wall_throughput"] is None
