import csv
import io
import json
from dataclasses import replace

import pytest

from tuner.model.account import ClientHealth
from tuner.model.outcome import Cause, Measured, Outcome, TrialState
from tuner.model.record import LegTrust
from tuner.model.space import Assignment
from tuner.model.study import TrialRow
from tuner.model.trial import Capacity
from tuner.report.doubts import doubts
from tuner.report.front import Heading
from tuner.report.tables import (
    columns,
    gain_lines,
    to_csv,
    to_json,
    words,
)
from tuner.testing.results import faulted, infeasible, interrupted, measured

HEADING = Heading(
    study="qwen-mtp",
    engine="sglang",
    parameters=("speculative_num_steps", "speculative_eagle_topk", "speculative_draft", "fraction"),
    simulated=True,
)


def row(number: int, steps: int, outcome: Outcome | None, *, host: str | None = "gpu01") -> TrialRow:
    tree = {"speculative_eagle_topk": 1, "speculative_draft": steps + 1} if steps else {}
    return TrialRow(
        number=number,
        assignment=Assignment.of({"speculative_num_steps": steps, "fraction": 0.85} | tree),
        outcome=outcome,
        host=host,
        baseline=number == 0,
        values=(outcome.single_request_throughput.value, outcome.aggregate_throughput.value)
        if isinstance(outcome, Measured)
        else None,
        capacity=Capacity(max_total_num_tokens=295_931) if number == 0 else None,
        duration_s=None if outcome is None else 61.25,
    )


ROWS = (
    row(0, 3, measured(234, 1979)),
    row(1, 0, measured(60, 2400)),
    row(2, 2, measured(186, 1844)),
    row(3, 10, infeasible(Cause.OOM_SERVING, state=TrialState.MEASURING, level=16)),
    row(4, 5, faulted("gpu01: connection lost, check it")),
    row(5, 5, interrupted()),
    row(6, 5, None),
    row(7, 6, None, host=None),
)


def cells(rows: tuple[TrialRow, ...], heading: Heading = HEADING) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(to_csv(rows, heading))))


def test_a_measured_trial_has_its_values_with_the_ends_of_their_intervals() -> None:
    first = cells(ROWS)[0]
    assert first["single_request_throughput"] == "234"
    assert float(first["aggregate_throughput_low"]) == pytest.approx(1939.42)
    assert float(first["aggregate_throughput_high"]) == pytest.approx(2018.58)
    assert (first["outcome"], first["peak_concurrency"], first["cause"]) == ("measured", "16", "")
    assert (first["max_total_num_tokens"], first["duration_s"], first["baseline"]) == ("295931", "61.25", "True")


def test_what_was_not_measured_or_does_not_apply_is_empty_and_never_zero() -> None:
    off, dead = cells(ROWS)[1], cells(ROWS)[3]
    assert (off["speculative_num_steps"], off["speculative_eagle_topk"]) == ("0", "")
    assert off["max_total_num_tokens"] == ""
    assert [dead[name] for name in columns(HEADING) if "throughput" in name] == [""] * 6


def test_whole_numbers_stay_whole_beside_gaps() -> None:
    assert [line["speculative_draft"] for line in cells(ROWS)] == ["4", "", "3", "11", "6", "6", "6", "7"]


def test_every_trial_says_how_it_ended_and_that_it_is_simulated() -> None:
    table = cells(ROWS)
    assert [line["outcome"] for line in table] == [
        "measured",
        "measured",
        "measured",
        "infeasible",
        "faulted",
        "interrupted",
        "running",
        "waiting",
    ]
    assert (table[3]["cause"], table[3]["died_in"], table[3]["died_at_concurrency"]) == (
        "oom_serving",
        "measuring",
        "16",
    )
    assert table[4]["cause"] == "gpu01: connection lost, check it"
    assert {line["simulated"] for line in table} == {"True"}
    assert {line["simulated"] for line in cells(ROWS, replace(HEADING, simulated=False))} == {"False"}


def test_a_study_without_trials_still_has_a_header() -> None:
    assert to_csv((), HEADING) == ",".join(columns(HEADING)) + "\n"


def test_json_says_what_the_numbers_are_and_holds_the_front_only() -> None:
    content = json.loads(to_json(ROWS, HEADING))
    assert content["simulated"] is True
    assert [entry["trial"] for entry in content["front"]] == [1, 0]
    assert content["front"][0]["speculative_eagle_topk"] is None
    assert content["baseline"]["trial"] == 0
    assert content["objectives"][0] == {
        "name": "single_request_throughput",
        "direction": "maximize",
        "unit": "tok/s",
    }
    assert [gain["percent"] for gain in content["gain"]] == [0.0, pytest.approx(21.273, abs=0.001)]
    assert content["infeasible"] == {"oom_serving": 1}


def test_the_gain_is_told_in_words() -> None:
    assert gain_lines(ROWS, HEADING) == (
        "best single-request throughput: 234.0 tok/s in trial 0: today's settings are the best measured so far",
        "best aggregate throughput: 2400.0 tok/s in trial 1, +21.3 % (+16.5 to +26.2 %) against today's 1979.0",
        "1 infeasible: OOM serving 1",
    )
    assert gain_lines(ROWS[3:4], HEADING)[0].startswith("no gain can be stated")


def test_a_baseline_that_was_run_again_is_still_today() -> None:
    again = (ROWS[1], replace(row(4, 3, measured(234, 1979)), baseline=True))
    assert gain_lines(again, HEADING) == (
        "best single-request throughput: 234.0 tok/s in trial 4: today's settings are the best measured so far",
        "best aggregate throughput: 2400.0 tok/s in trial 1, +21.3 % (+16.5 to +26.2 %) against today's 1979.0",
    )


def trusted(trial: TrialRow, *, converged: bool, lag_s: float | None, level: int = 16) -> TrialRow:
    leg = LegTrust(concurrency=level, converged=converged, client=ClientHealth(cpu_share=0.5, lag_p99_s=lag_s))
    return replace(trial, trust=(leg,))


def test_a_gain_over_a_disturbed_baseline_is_called_weak() -> None:
    rows = (trusted(ROWS[0], converged=False, lag_s=0.678), trusted(ROWS[1], converged=True, lag_s=0.01))
    weak = (
        "weak comparison of aggregate throughput: today's interval was not reached (±2.0 %), "
        "today's load client lagged 0.68 s"
    )
    assert doubts(rows, HEADING) == (weak,)
    assert gain_lines(rows, HEADING)[2] == weak


def test_a_disturbed_best_makes_its_gain_weak_too() -> None:
    rows = (trusted(ROWS[0], converged=True, lag_s=None), trusted(ROWS[1], converged=True, lag_s=0.3))
    assert doubts(rows, HEADING) == ("weak comparison of aggregate throughput: trial 1's load client lagged 0.30 s",)


def test_legs_that_no_headline_comes_from_make_nothing_weak() -> None:
    rows = (trusted(ROWS[0], converged=False, lag_s=0.7, level=4), trusted(ROWS[1], converged=True, lag_s=0.01))
    assert doubts(rows, HEADING) == ()
    assert doubts(rows[1:], HEADING) == ()


def test_words_are_written_as_a_reader_would() -> None:
    assert words("kv_pool_too_small") == "KV pool too small"
    assert words("single_request_throughput") == "single-request throughput"
