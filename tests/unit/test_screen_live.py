"""The live screen, drawn at the widths people have."""

from __future__ import annotations

import contextlib
import io

import pytest
from rich.console import Console

from tuner.model.outcome import Outcome, TrialState
from tuner.model.space import Assignment, ChoiceParameter, IntParameter, SearchSpace
from tuner.model.trial import LegProgress, StateEntered
from tuner.screen.live import LiveScreen, RunScreen, folded, ladder_table, remark_lines
from tuner.screen.view import LevelView, RunView
from tuner.testing.fake_run import MTP, infeasible, measured, mtp, proposal, result, row, spec_of, trial_events

CPU = SearchSpace(
    name="llamacpp-cpu",
    engine="llamacpp",
    parameters=(
        ChoiceParameter(name="spec_type", choices=("none", "ngram-simple")),
        *(IntParameter(name=name, low=1, high=65536) for name in ("draft_max", "ngram_size", "parallel", "threads")),
        *(IntParameter(name=name, low=1, high=65536) for name in ("batch_size", "ubatch_size", "ctx_size")),
    ),
)


def cpu(size: int) -> Assignment:
    return Assignment.of(
        {
            "spec_type": "ngram-simple",
            "draft_max": 16,
            "ngram_size": 4,
            "parallel": size,
            "threads": 1,
            "batch_size": 512 * size,
            "ubatch_size": 256 * size,
            "ctx_size": 4096 * size,
        }
    )


def view_of(hosts: int = 1, space: SearchSpace = MTP, *, simulated: bool = True, end: Outcome | None = None) -> RunView:
    view = RunView()
    spec = spec_of(hosts=hosts, space=space, simulated=simulated)
    choose = mtp if space is MTP else cpu
    view.begin(
        spec,
        (
            row(0, choose(3), measured(234, 1979)),
            row(1, choose(5), measured(282, 1273)),
            row(2, choose(4), measured(277, 1817)),
            row(3, choose(10), infeasible()),
        ),
        1000.0,
    )
    for index, host in enumerate(spec.hosts):
        number = 4 + index
        view.proposed(host.name, proposal(number, choose(6)), 1003.0)
        events = trial_events(1003.0, result(number, choose(6), end or infeasible(), host=host.name, at_s=1020.0))
        for event in events if end else events[:-1]:
            view.event(host.name, number, event, event.at_s)
    return view


def drawn(view: RunView, width: int, now_s: float = 1021.0) -> list[str]:
    console = Console(width=width, record=True, file=io.StringIO(), force_terminal=True)
    console.print(RunScreen(view, now_s))
    return console.export_text().splitlines()


@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize("space", [MTP, CPU], ids=lambda space: space.name)
@pytest.mark.parametrize("hosts", [1, 2])
def test_nothing_is_wider_than_the_terminal_and_no_panel_is_torn(width: int, space: SearchSpace, hosts: int) -> None:
    lines = drawn(view_of(hosts, space), width)
    assert max(map(len, lines)) <= width
    for line in lines:
        if line.startswith(("│", "╭", "╰")):
            assert line[-1] in "│╮╯"


@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize("space", [MTP, CPU], ids=lambda space: space.name)
def test_no_number_of_the_front_is_cut(width: int, space: SearchSpace) -> None:
    text = "\n".join(drawn(view_of(space=space), width))
    front = text[text.index("front so far: 3 trials") :]
    assert "1,979" in front
    assert "1,273" in front
    assert "+21% / -36%" in front
    assert "…" not in front


def test_the_screen_says_everything_that_matters() -> None:
    text = "\n".join(drawn(view_of(), 80))
    for words in (
        "qwen-mtp   SIMULATED ",
        "4 of 24 trials · 20 left · 1 infeasible · 21 s gone · about 3 min 48 s to go",
        "sim0 · trial 4",
        "steps 6 · topk 1 · draft 7 · fraction 0.8",
        "measuring 16 · 11 s · trial 18 s",
        "at       1       4      16      32      64",
        "tok/s     234     712  1,204…       ·       ·",
    ):
        assert words in text


def test_a_real_host_bears_no_badge() -> None:
    assert "SIMULATED" not in "\n".join(drawn(view_of(simulated=False), 80))


def test_hosts_stand_side_by_side_where_there_is_room() -> None:
    assert any("sim0" in line and "sim1" in line for line in drawn(view_of(2), 120))
    assert not any("sim0" in line and "sim1" in line for line in drawn(view_of(2), 80))


def test_an_ended_trial_shows_its_outcome() -> None:
    assert "infeasible: OOM serving while measuring 32" in "\n".join(drawn(view_of(end=infeasible()), 80))


def test_before_the_first_trial_it_says_what_it_waits_for() -> None:
    view = RunView()
    view.starting("starting Ray, one worker a host")
    assert drawn(view, 80) == ["starting Ray, one worker a host …"]


def test_a_host_without_a_trial_waits() -> None:
    view = RunView()
    view.begin(spec_of(), (), 1000.0)
    assert "waiting for a trial" in "\n".join(drawn(view, 80))


def test_parameters_that_never_vary_move_to_the_caption_when_it_is_narrow() -> None:
    text = "\n".join(drawn(view_of(space=CPU), 80))
    assert "all: spec_type ngram-simple · draft_max 16 · ngram_size 4 · threads 1" in text
    assert "all:" not in "\n".join(drawn(view_of(space=CPU), 120))


def test_a_long_front_is_cut_after_its_best_trials() -> None:
    view = view_of()
    view.rows = tuple(row(number, mtp(number), measured(100 + number, 2000 - number)) for number in range(12))
    text = "\n".join(drawn(view, 80))
    assert "front so far: 12 trials" in text
    assert "and 4 more" in text


def test_a_remark_keeps_its_end_which_says_what_to_do() -> None:
    view = view_of()
    text = (
        "host sim0: 3 faults in a row, the last: NCCL error 5 in rank 2; it is set aside until the run is begun again"
    )
    view.remark(text, 1020.0)
    lines = drawn(view, 80)
    assert lines[-2][9:].startswith("host sim0: 3 faults in a row")
    assert " ".join([lines[-2][9:].strip(), lines[-1].strip()]) == text
    assert max(map(len, lines)) <= 80


def test_long_remarks_push_the_oldest_out() -> None:
    remarks = [(0.0, "first"), (0.0, "b " * 12 + "end"), (0.0, "c " * 12 + "end"), (0.0, "d")]
    assert [line[9:] for line in remark_lines(remarks, 30)] == ["c c c c c c c c c c c", "c end", "d"]
    assert len(remark_lines(remarks[:3], 30)) == 4
    assert remark_lines([], 30) == []


def test_settings_are_folded_between_settings_only() -> None:
    assert folded("a 1 · bb 2 · c 3", 11) == ["a 1 · bb 2", "c 3"]
    assert folded("much-too-long-for-this 1 · b 2", 8) == ["much-too-long-for-this 1", "b 2"]


def test_a_ladder_longer_than_the_panel_follows_the_current_level() -> None:
    ladder = [2**power for power in range(16)]
    levels = {level: LevelView(throughput=float(level), done=True) for level in ladder[:12]}
    console = Console(width=60, record=True, file=io.StringIO())
    console.print(ladder_table(ladder, levels, ladder[12], 56))
    text = console.export_text()
    assert "4096" in text
    assert " 1 " not in text
    assert max(map(len, text.splitlines())) <= 56


def test_the_live_screen_draws_while_it_is_fed_and_leaves_the_cursor_visible() -> None:
    out = io.StringIO()
    console = Console(width=80, file=out, force_terminal=True)
    end = result(0, mtp(3), measured(234, 1979), at_s=1020.0)
    with LiveScreen(console, now=lambda: 1000.0, ticks=lambda: 5.0) as screen:
        screen.starting("starting Ray")
        screen.begin(spec_of(), ())
        screen.proposed("sim0", proposal(0, mtp(3)))
        for event in trial_events(1003.0, end):
            screen.event("sim0", 0, event)
        screen.told(end, (row(0, mtp(3), measured(234, 1979)),))
        screen.remark("stopping")
        shown, hidden = (out.getvalue().rfind(code) for code in ("\x1b[?25h", "\x1b[?25l"))
        assert shown > hidden
    assert "front so far: 1 trial" in out.getvalue()
    assert "stopping" in out.getvalue()


def test_a_step_of_the_wall_clock_bends_no_duration() -> None:
    wall_s, tick_s = 1000.0, 10.0
    console = Console(width=80, file=io.StringIO())
    screen = LiveScreen(console, now=lambda: wall_s, ticks=lambda: tick_s)
    screen.begin(spec_of(), (row(0, mtp(3), measured(234, 1979)),))
    wall_s, tick_s = -5000.0, 11.0
    screen.proposed("sim0", proposal(1, mtp(4)))
    wall_s, tick_s = 90000.0, 13.0
    screen.event("sim0", 1, StateEntered(at_s=77777.0, state=TrialState.LOADING))
    text = "\n".join(drawn(screen.view, 80, now_s=16.0))
    assert "6 s gone · about 4 min 31 s to go" in text
    assert "loading · 3 s · trial 5 s" in text


def test_the_front_is_left_to_whoever_prints_the_final_one() -> None:
    view = view_of()
    view.ended = True
    text = "\n".join(drawn(view, 80))
    assert "front so far" not in text
    assert "4 of 24 trials" in text


@pytest.mark.parametrize(("front_stays", "fails"), [(True, False), (False, True), (False, False)])
def test_the_front_goes_only_when_another_is_to_come(front_stays: bool, fails: bool) -> None:
    screen = LiveScreen(Console(width=80, file=io.StringIO(), force_terminal=True), front_stays=front_stays)
    with contextlib.suppress(ValueError), screen:
        if fails:
            raise ValueError("the run broke off")
    assert screen.view.ended is (not front_stays and not fails)


def test_a_complete_study_has_no_time_to_go() -> None:
    view = view_of()
    view.rows = tuple(row(number, mtp(3), measured(234, 1979)) for number in range(24))
    text = "\n".join(drawn(view, 80))
    assert "24 of 24 trials · 0 left" in text
    assert "to go" not in text


def test_a_soak_is_not_shown_as_a_second_measuring_of_its_level() -> None:
    view = view_of()
    view.event("sim0", 4, StateEntered(at_s=0.0, state=TrialState.SOAKING, level=64), 1018.0)
    view.event("sim0", 4, LegProgress(at_s=0.0, concurrency=64, elapsed_s=1.0, aggregate_throughput=900.0), 1019.0)
    text = "\n".join(drawn(view, 80))
    assert "soaking 64 · 3 s · trial 18 s · 900 tok/s" in text
    assert "measuring" not in text
