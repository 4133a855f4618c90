"""Repeats on the screens: named for what they are, and counted apart from the trials of the search."""

from __future__ import annotations

import io
from dataclasses import replace
from datetime import UTC

from rich.console import Console

from tuner.model.outcome import Outcome
from tuner.model.repeat import Purpose, Repeat, RepeatTerms
from tuner.model.study import TrialRow
from tuner.screen.front_table import FrontTable
from tuner.screen.live import RunScreen
from tuner.screen.plain import PlainScreen
from tuner.screen.status import status_table
from tuner.screen.view import RunView
from tuner.stats.repeats import settled
from tuner.testing.fake_run import MTP, measured, mtp, proposal, result, row, spec_of

SPEC = replace(spec_of(trials=3), repeats=RepeatTerms(confirmations=1))
CONFIRMS = Repeat(of=1, purpose=Purpose.CONFIRMATION)


def again(number: int, repeat: Repeat, outcome: Outcome | None) -> TrialRow:
    return replace(row(number, mtp(repeat.of), outcome), repeat=repeat, baseline=repeat.of == 0)


ROWS = settled(
    [
        row(0, mtp(3), measured(234, 1979)),
        row(1, mtp(5), measured(290, 1300)),
        row(2, mtp(1), measured(120, 1580)),
        again(3, CONFIRMS, measured(280, 1260)),
    ],
    SPEC.objectives,
)


def test_a_repeat_says_what_it_confirms_and_the_trials_stay_three_of_three() -> None:
    lines: list[str] = []
    screen = PlainScreen(lines.append, now=lambda: 0.0, ticks=lambda: 0.0, zone=UTC)
    screen.begin(SPEC, ROWS[:3])
    screen.proposed("sim0", replace(proposal(3, mtp(5)), repeat=CONFIRMS))
    screen.told(result(3, mtp(5), measured(280, 1260), at_s=0.0), ROWS)
    assert lines[-2].endswith("fraction 0.8 (confirms trial 1)")
    assert "; 3 of 3, 1 of 2 confirmed, about 12 s left" in lines[-1]


def test_the_view_counts_no_repeat_and_no_front_holds_one() -> None:
    view = RunView()
    view.begin(SPEC, ROWS, now_s=0.0)
    assert (view.done, view.measured, view.left) == (3, 3, 0)
    assert (view.confirmed, view.unconfirmed) == (1, 1)
    assert [shown.number for shown in view.front()] == [1, 0]
    assert view.front()[0].values == (285.0, 1280.0)


def test_the_live_screen_shows_how_many_are_confirmed() -> None:
    view = RunView()
    view.begin(SPEC, ROWS, now_s=0.0)
    view.proposed("sim0", replace(proposal(4, mtp(3)), repeat=Repeat(of=0, purpose=Purpose.LEVEL)), now_s=1.0)
    console = Console(file=io.StringIO(), width=120)
    console.print(RunScreen(view, 2.0))
    assert isinstance(console.file, io.StringIO)
    text = console.file.getvalue()
    assert "3 of 3 trials" in text
    assert "1 of 2 confirmed" in text
    assert "the baseline, trial 0, again" in text


def test_status_names_what_each_repeat_is_for_and_over_how_many_starts_a_value_is() -> None:
    console = Console(file=io.StringIO(), width=160)
    console.print(status_table(ROWS, [parameter.name for parameter in MTP.parameters], running=False))
    assert isinstance(console.file, io.StringIO)
    text = console.file.getvalue()
    assert "confirms trial 1: single request 280 tok/s" in text
    assert "single request 285 tok/s, aggregate 1,280 tok/s at 32 (over 2 starts)" in text


def test_the_front_shows_starts_and_probability_where_it_is_wide_enough() -> None:
    names = {parameter.name: parameter.name for parameter in MTP.parameters}
    table = FrontTable(
        title="front", names=names, front=ROWS[:2], base=ROWS[0], intervals=True, chances={0: 0.53, 1: 0.994}
    )
    for width, is_shown in ((220, True), (70, False)):
        console = Console(file=io.StringIO(), width=width)
        console.print(table.fitted(console, width))
        assert isinstance(console.file, io.StringIO)
        text = console.file.getvalue()
        assert ("belongs to" in text) is is_shown
        assert ("99%" in text) is is_shown
