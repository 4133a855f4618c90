"""The front as a table, at the widths people have."""

from __future__ import annotations

import io
from dataclasses import replace

from rich.console import Console

from tuner.model.names import short_names
from tuner.model.study import TrialRow
from tuner.screen.front_table import FrontTable
from tuner.testing.fake_run import MTP, measured, mtp, row

NAMES = short_names([parameter.name for parameter in MTP.parameters])
BASE = row(0, mtp(3), measured(234, 1800))
BETTER = row(1, mtp(4), measured(277, 1979))
FASTEST = row(2, mtp(5), measured(282, 1273))


def drawn(width: int, *, base: TrialRow | None = BASE, with_base: bool = True, intervals: bool = True) -> list[str]:
    table = FrontTable(
        title="front of s", names=NAMES, front=(FASTEST, BETTER), base=base, with_base=with_base, intervals=intervals
    )
    console = Console(width=width, record=True, file=io.StringIO())
    console.print(table.fitted(console, width))
    lines = console.export_text().splitlines()
    assert max(map(len, lines)) <= width
    return lines


def test_trial_0_stands_below_a_front_that_it_is_not_on() -> None:
    numbers = [line.split()[0] for line in drawn(100)[-3:]]
    assert numbers == ["2", "1", "0"]


def test_trial_0_stands_nowhere_else() -> None:
    assert [line.split()[0] for line in drawn(100, with_base=False)[-2:]] == ["2", "1"]


def test_intervals_and_gains_are_shown_where_there_is_room() -> None:
    assert drawn(100)[-2].split() == [
        "1",
        "4",
        "1",
        "5",
        "0.8",
        "277",
        "±5.5",
        "1,979",
        "±39.6",
        "32",
        "+18%",
        "/",
        "+10%",
    ]


def test_a_usual_terminal_has_room_for_everything() -> None:
    assert [line.split()[-4:] for line in drawn(80)[-3:]] == [
        ["32", "+21%", "/", "-29%"],
        ["32", "+18%", "/", "+10%"],
        ["32", "+0%", "/", "+0%"],
    ]


def test_intervals_go_first_and_gains_next_when_it_gets_narrow() -> None:
    assert drawn(72)[-2].split() == ["1", "4", "1", "5", "0.8", "277", "1,979", "+18%", "/", "+10%"]
    assert drawn(58)[-2].split() == ["1", "4", "1", "5", "0.8", "277", "1,979"]


def test_equal_parameters_move_to_the_caption_next() -> None:
    text = " ".join(" ".join(drawn(48)).split())
    assert "all: topk 1 · fraction 0.8" in text
    assert "trial steps draft" in text


def test_at_last_the_settings_are_cut_and_never_the_results() -> None:
    lines = drawn(34)
    assert "…" in lines[-3]
    assert lines[-3].split()[-2:] == ["282", "1,273"]


def test_without_trial_0_there_is_no_gain_to_tell() -> None:
    assert drawn(100, base=None)[-1].rstrip().endswith("- / -")


def test_a_baseline_that_was_run_again_is_what_all_are_compared_with_and_says_so() -> None:
    again = replace(row(4, mtp(3), measured(234, 1800)), baseline=True)
    lines = drawn(80, base=again)
    assert lines[-1].split()[:2] == ["4", "(today)"]
    assert lines[-4].split()[-1] == "today"
    assert "trial 0" not in " ".join(" ".join(lines).split())
    assert not any("(today)" in line for line in lines[:-1])
