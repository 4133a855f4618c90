import io
from itertools import combinations, pairwise

import matplotlib.image
import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.text import Annotation, Text

from tuner.model.metric import Estimate
from tuner.model.outcome import Cause, Measured, Outcome
from tuner.model.space import Assignment
from tuner.model.study import TrialRow
from tuner.report.front import Heading, front_rows
from tuner.report.plots import build_figure, render_front
from tuner.testing.results import infeasible, measured

HEADING = Heading(
    study="qwen-mtp",
    engine="sglang",
    parameters=(
        "speculative_num_steps",
        "speculative_eagle_topk",
        "speculative_num_draft_tokens",
        "mem_fraction_static",
    ),
    simulated=True,
)


def row(number: int, outcome: Outcome) -> TrialRow:
    return TrialRow(
        number=number,
        assignment=Assignment.of(
            {
                "speculative_num_steps": number + 1,
                "speculative_eagle_topk": 2,
                "speculative_num_draft_tokens": number + 9,
                "mem_fraction_static": 0.85,
            }
        ),
        outcome=outcome,
        host="gpu01",
        baseline=number == 0,
        values=(outcome.single_request_throughput.value, outcome.aggregate_throughput.value)
        if isinstance(outcome, Measured)
        else None,
        capacity=None,
        duration_s=60.0,
    )


# A front of nine, some of them close together, and a crowd below it.
FRONT = [
    (187, 2160),
    (200, 2140),
    (233, 2120),
    (235, 2080),
    (277, 1935),
    (289, 1500),
    (290, 1490),
    (296, 1390),
    (300, 900),
]
BELOW = [(234, 1979), (123, 1582), (186, 1844), (277, 1817), (282, 1273), (276, 1900)]
ROWS = (
    *(row(number, measured(x, y)) for number, (x, y) in enumerate(BELOW)),
    *(row(number, measured(x, y)) for number, (x, y) in enumerate(FRONT, start=len(BELOW))),
    row(90, infeasible()),
    row(91, infeasible(Cause.KV_POOL_TOO_SMALL)),
)


def texts(figure: Figure) -> list[str]:
    return [found.get_text() for found in figure.findobj(Text) if found.get_text()]


def labels(figure: Figure) -> list[Annotation]:
    return [found for found in figure.findobj(Annotation) if found.get_text()]


def test_the_picture_says_that_it_is_simulated_and_names_its_axes_with_units() -> None:
    shown = texts(build_figure(ROWS, HEADING))
    assert "qwen-mtp (simulated): single-request against aggregate throughput" in shown
    assert any("SIMULATED" in text for text in shown)
    assert {"single-request throughput [tok/s]", "peak aggregate throughput [tok/s]"} <= set(shown)


def test_a_picture_of_real_hosts_does_not_say_simulated() -> None:
    real = Heading(study="qwen-mtp", engine="sglang", parameters=HEADING.parameters, simulated=False)
    assert not any("simulated" in text.lower() for text in texts(build_figure(ROWS, real)))


def test_infeasible_trials_are_counted_with_their_causes() -> None:
    shown = " ".join(texts(build_figure(ROWS, HEADING)))
    assert "2 infeasible, not shown: 1 KV pool too small, 1 OOM serving" in shown


def test_today_is_marked() -> None:
    assert "trial 0: as it runs today" in texts(build_figure(ROWS, HEADING))
    alone = build_figure(ROWS[:1], HEADING)
    assert "trial 0: as it runs today (on the front)" in texts(alone)


def test_every_front_point_is_labelled_with_its_settings_and_no_label_covers_another() -> None:
    figure = build_figure(ROWS, HEADING)
    figure.draw_without_rendering()
    found = labels(figure)
    assert len(found) == len(front_rows(ROWS)) == len(FRONT)
    assert found[0].get_text() == "7 / 2 / 15 / 0.85"
    boxes = [Text.get_window_extent(label) for label in found]
    assert not [pair for pair in combinations(boxes, 2) if pair[0].overlaps(pair[1])]
    frame = figure.axes[0].get_window_extent()
    assert all(frame.x0 <= box.x0 and box.x1 <= frame.x1 and frame.y0 <= box.y0 and box.y1 <= frame.y1 for box in boxes)


def test_the_front_is_drawn_as_steps_that_only_go_down() -> None:
    axes = build_figure(ROWS, HEADING).axes[0]
    (steps,) = [line for line in axes.lines if line.get_drawstyle() == "steps-pre"]
    xs, ys = (np.asarray(values, dtype=float) for values in steps.get_data())
    assert {(187.0, 2160.0), (300.0, 900.0)} <= set(zip(xs.tolist(), ys.tolist(), strict=True))
    assert all(a <= b for a, b in pairwise(xs.tolist()))
    assert all(a >= b for a, b in pairwise(ys.tolist()))


def test_intervals_are_drawn_where_there_are_any() -> None:
    bare = Measured(
        single_request_throughput=Estimate(value=50.0, low=None, high=None, samples=1),
        aggregate_throughput=Estimate(value=70.0, low=65.0, high=80.0, samples=9),
        peak_concurrency=1,
    )
    figure = build_figure((row(0, bare),), HEADING)
    low, high = figure.axes[0].get_ylim()
    assert low < 65
    assert high > 80


@pytest.mark.parametrize("rows", [(), ROWS[-2:], ROWS[:1], ROWS[:2], ROWS])
def test_any_study_makes_a_picture_that_is_not_blank(rows: tuple[TrialRow, ...]) -> None:
    pixels = matplotlib.image.imread(io.BytesIO(render_front(rows, HEADING)), format="png")
    assert pixels.shape[:2] == (1024, 1600)
    assert float(np.mean(pixels[..., :3] < 0.9)) > 0.005


def test_a_study_without_measurements_says_so() -> None:
    assert "nothing measured yet" in texts(build_figure(ROWS[-2:], HEADING))
