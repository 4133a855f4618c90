"""The state behind the screens."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tuner.model.outcome import Faulted, TrialState
from tuner.model.trial import LegProgress, Remark, StateEntered
from tuner.screen.view import LevelView, RunView
from tuner.testing.fake_run import infeasible, leg, measured, mtp, proposal, result, row, spec_of, trial_events

NOW_S = 1005.0
FAULT = Faulted(error="NCCL", state=TrialState.LOADING)


def begun(hosts: int = 1, trials: int = 24) -> RunView:
    view = RunView()
    view.begin(spec_of(hosts=hosts, trials=trials), (), 1000.0)
    return view


def test_before_it_begins_a_run_says_what_it_waits_for() -> None:
    view = RunView()
    view.starting("starting Ray")
    assert (view.waiting, view.spec, view.left, view.front()) == ("starting Ray", None, 0, ())


def test_a_host_follows_its_trial() -> None:
    view = begun()
    view.proposed("sim0", proposal(3, mtp(5)), 1003.0)
    host = view.hosts["sim0"]
    assert (host.number, host.state, host.running) == (3, TrialState.PROPOSED, True)
    events = trial_events(1003.0, result(3, mtp(5), infeasible(), at_s=1020.0))
    for event in events[:-1]:
        view.event("sim0", 3, event, event.at_s)
    assert (host.state, host.level, host.state_since_s) == (TrialState.MEASURING, 16, 1010.0)
    assert host.levels == {
        1: LevelView(throughput=234.2, done=True),
        4: LevelView(throughput=712.4, done=True),
        16: LevelView(throughput=1204.4, done=False),
    }
    view.event("sim0", 3, events[-1], NOW_S)
    assert not host.running


def test_the_lone_request_is_shown_at_level_one_and_the_aggregate_above() -> None:
    view = begun()
    view.proposed("sim0", proposal(0, mtp(3)), 1000.0)
    view.event("sim0", 0, leg(1001.0, 1, 234.0), NOW_S)
    view.event("sim0", 0, leg(1002.0, 4, 700.0), NOW_S)
    assert [level.throughput for level in view.hosts["sim0"].levels.values()] == [234.0, 700.0]


def test_soaking_leaves_the_ladder_as_it_was_measured() -> None:
    view = begun()
    view.proposed("sim0", proposal(0, mtp(3)), 1000.0)
    view.event("sim0", 0, leg(1001.0, 64, 1900.0), NOW_S)
    view.event("sim0", 0, StateEntered(at_s=1002.0, state=TrialState.SOAKING, level=64), NOW_S)
    view.event("sim0", 0, LegProgress(at_s=1003.0, concurrency=64, elapsed_s=1.0, aggregate_throughput=1500.0), NOW_S)
    host = view.hosts["sim0"]
    assert (host.levels[64], host.detail) == (LevelView(throughput=1900.0, done=True), "1,500 tok/s")
    view.event("sim0", 0, replace(leg(1004.0, 64, 1400.0), kind="soak"), NOW_S)
    assert host.levels[64].throughput == 1900.0


def test_a_level_without_tokens_yet_is_not_zero() -> None:
    view = begun()
    view.proposed("sim0", proposal(0, mtp(3)), 1000.0)
    view.event("sim0", 0, LegProgress(at_s=1001.0, concurrency=1, elapsed_s=0.1, aggregate_throughput=None), NOW_S)
    assert view.hosts["sim0"].levels[1] == LevelView(throughput=None, done=False)


def test_a_second_server_start_empties_the_ladder() -> None:
    view = begun()
    view.proposed("sim0", proposal(0, mtp(3)), 1000.0)
    view.event("sim0", 0, leg(1001.0, 1, 234.0), NOW_S)
    view.event("sim0", 0, StateEntered(at_s=1002.0, state=TrialState.CLEANING), NOW_S)
    assert view.hosts["sim0"].levels == {}


def test_a_repeated_state_keeps_its_clock_which_is_the_readers_own() -> None:
    view = begun()
    view.proposed("sim0", proposal(0, mtp(3)), 1000.0)
    view.event("sim0", 0, StateEntered(at_s=1001.0, state=TrialState.LOADING, detail="load_weights"), 5.0)
    view.event("sim0", 0, StateEntered(at_s=1005.0, state=TrialState.LOADING, detail="capture"), 9.0)
    host = view.hosts["sim0"]
    assert (host.state_since_s, host.detail) == (5.0, "capture")


def test_events_of_an_earlier_trial_or_an_unknown_host_change_nothing() -> None:
    view = begun()
    view.proposed("sim0", proposal(4, mtp(3)), 1000.0)
    for host, number in (("sim0", 3), ("sim9", 4)):
        view.event(host, number, StateEntered(at_s=1001.0, state=TrialState.SOAKING, level=64), NOW_S)
    assert view.hosts["sim0"].state is TrialState.PROPOSED


def test_remarks_of_trials_name_host_and_trial_and_only_the_last_are_kept() -> None:
    view = begun()
    view.proposed("sim0", proposal(4, mtp(3)), 1000.0)
    for second in range(5):
        view.event("sim0", 4, Remark(at_s=1000.0 + second, text=f"waited\n{second}"), NOW_S)
    assert [text for _, text in view.remarks] == [f"sim0 trial 4: waited {second}" for second in (2, 3, 4)]


def test_only_verdicts_count_towards_the_budget() -> None:
    view = begun()
    rows = (
        row(0, mtp(3), measured(234, 1979)),
        row(1, mtp(10), infeasible()),
        row(2, mtp(5), FAULT),
        row(3, mtp(5), None, duration_s=None),
    )
    view.told(result(2, mtp(5), FAULT, at_s=1.0), rows)
    assert (view.measured, view.infeasible, view.faults, view.done, view.left) == (1, 1, 1, 2, 22)


def test_the_front_holds_measured_trials_that_nothing_beats() -> None:
    view = begun()
    view.rows = (
        row(0, mtp(3), measured(234, 1979)),
        row(1, mtp(5), measured(282, 1273)),
        row(2, mtp(2), measured(186, 1844)),
        row(3, mtp(10), infeasible()),
    )
    assert [best.number for best in view.front()] == [1, 0]
    assert view.base() == view.rows[0]


def test_there_is_no_base_until_trial_0_is_measured() -> None:
    view = begun()
    view.rows = (row(0, mtp(3), FAULT), row(1, mtp(5), measured(282, 1273)))
    assert view.base() is None


def test_time_left_is_unknown_before_a_trial_has_ended() -> None:
    view = begun()
    view.proposed("sim0", proposal(0, mtp(3)), 1000.0)
    view.rows = (row(0, mtp(3), None, duration_s=None), row(1, mtp(4), FAULT))
    assert view.time_left_s(1005.0) is None


@pytest.mark.parametrize(("hosts", "expected_s"), [(1, 10 * 12 - 4), (2, (10 * 12 - 4) / 2)])
def test_time_left_follows_the_mean_trial_and_the_number_of_hosts(hosts: int, expected_s: float) -> None:
    view = begun(hosts=hosts, trials=12)
    view.rows = (row(0, mtp(3), measured(234, 1979), duration_s=14.0), row(1, mtp(9), infeasible(), duration_s=10.0))
    view.proposed("sim0", proposal(2, mtp(4)), 1000.0)
    assert view.time_left_s(1004.0) == expected_s


def test_a_trial_that_takes_longer_than_usual_never_makes_the_rest_negative() -> None:
    view = begun(trials=2)
    view.rows = (row(0, mtp(3), measured(234, 1979)),)
    view.proposed("sim0", proposal(1, mtp(4)), 1000.0)
    assert view.time_left_s(99999.0) == 0.0


def test_a_finished_study_has_no_time_left() -> None:
    view = begun(trials=1)
    view.rows = (row(0, mtp(3), measured(234, 1979)),)
    assert view.time_left_s(1000.0) == 0.0
