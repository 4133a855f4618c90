"""The report where a study names its own objectives: three of them, minimised ones, and limits."""

from __future__ import annotations

import json

import numpy as np
import pytest
from rich.console import Console

from tuner.model.metric import OBJECTIVES, Direction, Estimate, Objective
from tuner.model.outcome import Cause, Infeasible, Measured, Outcome, TrialState, Verdict
from tuner.model.space import Assignment
from tuner.model.study import TrialRow
from tuner.report.front import Heading, baseline_row, best_gain, front_rows
from tuner.report.plots import build_figure, render_front
from tuner.report.tables import gain_lines, record, to_csv, to_json
from tuner.screen.front_table import FrontTable
from tuner.screen.words import outcome_words
from tuner.testing.results import estimate

WAIT = Objective(name="p95(ttft_s)@16", direction=Direction.MINIMIZE, unit="s")
THREE = (*OBJECTIVES, WAIT)
TWO = (OBJECTIVES[0], WAIT)


def measured(single: float, aggregate: float, wait_s: float) -> Measured:
    return Measured(
        single_request_throughput=estimate(single),
        aggregate_throughput=estimate(aggregate),
        peak_concurrency=16,
        others=((WAIT.name, Estimate(value=wait_s, low=None, high=None, samples=40)),),
    )


def outside(end: Measured) -> Infeasible:
    text = "p95(ttft_s)@64 is 3.1, at most 2 s"
    verdict = Verdict(cause=Cause.OUTSIDE_LIMITS, config_fault=True, evidence=(text,))
    return Infeasible(verdict=verdict, state=TrialState.JUDGING, level=None, violation=0.2, measured=end)


def row(number: int, outcome: Outcome, objectives: tuple[Objective, ...]) -> TrialRow:
    names = [each.name for each in objectives]
    values = tuple(outcome.estimate(name).value for name in names) if isinstance(outcome, Measured) else None
    return TrialRow(
        number=number,
        assignment=Assignment.of({"steps": number + 1}),
        outcome=outcome,
        host="gpu01",
        baseline=number == 0,
        values=values,
        capacity=None,
        duration_s=60.0,
    )


def heading(objectives: tuple[Objective, ...]) -> Heading:
    return Heading(study="s", engine="sglang", parameters=("steps",), simulated=False, objectives=objectives)


ENDS = (measured(100, 1500, 0.50), measured(200, 1400, 0.80), measured(150, 1300, 0.44), measured(90, 1450, 0.60))


def rows(objectives: tuple[Objective, ...], *ends: Outcome) -> tuple[TrialRow, ...]:
    return tuple(row(number, end, objectives) for number, end in enumerate(ends or ENDS))


def test_the_front_of_three_objectives_keeps_what_is_best_in_one_of_them() -> None:
    assert [each.number for each in front_rows(rows(THREE), THREE)] == [0, 2, 1]
    assert [each.number for each in front_rows(rows(TWO), TWO)] == [2, 1]


def test_a_gain_in_a_minimised_objective_is_above_zero_and_written_as_what_fell() -> None:
    wait = best_gain(rows(THREE), THREE)[2]
    assert (wait.trial, wait.percent) == (2, pytest.approx(12.0))
    lines = gain_lines(rows(THREE), heading(THREE))
    assert "best p95(ttft_s)@16: 0.44 s in trial 2, -12.0 % against today's 0.5" in lines
    assert lines[0].startswith("best single-request throughput: 200.0 tok/s in trial 1, +100.0 %")


def test_what_is_outside_the_limits_is_in_no_front_and_keeps_its_values_in_the_tables() -> None:
    every = rows(THREE, ENDS[0], outside(measured(900, 9000, 0.01)))
    assert [each.number for each in front_rows(every, THREE)] == [0]
    cells = record(every[1], heading(THREE))
    assert (cells["outcome"], cells["cause"], cells[WAIT.name]) == ("infeasible", "outside_limits", 0.01)
    assert cells["peak_concurrency"] == 16
    assert "p95(ttft_s)@16" in to_csv(every, heading(THREE)).splitlines()[0]
    words = outcome_words(outside(ENDS[0]))
    assert words.startswith("outside the study's limits: p95(ttft_s)@64 is 3.1, at most 2 s (single request 100")
    assert words.endswith("p95(ttft_s)@16 0.5)")


def test_todays_settings_are_what_others_are_compared_with_even_outside_the_limits() -> None:
    every = rows(THREE, outside(ENDS[0]), ENDS[1])
    base = baseline_row(every)
    assert base is not None
    assert base.number == 0
    lines = gain_lines(every, heading(THREE))
    assert lines[0] == (
        "best single-request throughput: 200.0 tok/s in trial 1, +100.0 % (+92.2 to +108.2 %) against today's 100.0"
    )
    assert "today's settings are outside the study's limits: p95(ttft_s)@64 is 3.1, at most 2 s" in lines
    only = rows(THREE, outside(ENDS[0]))
    assert "no gain can be stated: no trial is within the limits" in gain_lines(only, heading(THREE))
    assert render_front(every, heading(THREE)).startswith(b"\x89PNG")


def test_the_json_names_every_objective_with_its_direction_and_unit() -> None:
    content = json.loads(to_json(rows(THREE), heading(THREE)))
    assert content["objectives"][2] == {"name": WAIT.name, "direction": "minimize", "unit": "s"}
    assert {each["trial"] for each in content["front"]} == {0, 1, 2}


def test_three_objectives_are_drawn_pair_by_pair() -> None:
    figure = build_figure(rows(THREE), heading(THREE))
    labels = [(axes.get_xlabel(), axes.get_ylabel()) for axes in figure.axes]
    single, together = "single-request throughput [tok/s]", "peak aggregate throughput [tok/s]"
    wait = "p95(ttft_s)@16 [s], less is better"
    assert labels == [(single, together), (single, wait), (together, wait)]


def test_the_steps_of_a_minimised_objective_come_from_its_worse_side() -> None:
    axes = build_figure(rows(TWO), heading(TWO)).axes[0]
    (steps,) = [line for line in axes.lines if line.get_drawstyle() == "steps-pre"]
    xs, ys = (np.asarray(values, dtype=float) for values in steps.get_data())
    assert list(xs[1:-1]) == [150.0, 200.0]
    assert list(ys[:-1]) == [0.44, 0.44, 0.80]
    assert (xs[0], ys[-1]) == (axes.get_xlim()[0], axes.get_ylim()[1])


def test_the_table_of_the_terminal_has_a_column_for_each_objective() -> None:
    every = rows(THREE)
    table = FrontTable(
        title="front",
        names={"steps": "steps"},
        front=front_rows(every, THREE),
        base=baseline_row(every),
        objectives=THREE,
        intervals=True,
    )
    console = Console(width=120, no_color=True)
    with console.capture() as captured:
        console.print(table.fitted(console, 120))
    text = captured.get()
    assert "p95(ttft_s)@16" in text
    assert "+50% / -13% / -12%" in text
