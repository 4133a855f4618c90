"""The run as plain lines."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC

from tuner.model.outcome import TrialState
from tuner.model.trial import LegProgress, LogText, Remark, StateEntered
from tuner.screen.plain import PlainScreen, event_text
from tuner.testing.fake_run import infeasible, leg, measured, mtp, proposal, result, row, spec_of, trial_events


def test_a_trial_becomes_one_line_an_event() -> None:
    lines: list[str] = []
    screen = PlainScreen(lines.append, now=lambda: 1000.0, ticks=lambda: 5.0, zone=UTC)
    end = result(3, mtp(5), infeasible(), at_s=1020.0)
    with screen:
        screen.starting("starting Ray, one worker a host")
        screen.begin(spec_of(), (row(0, mtp(3), measured(234, 1979)),))
        screen.proposed("sim0", proposal(3, mtp(5)))
        for event in trial_events(1003.0, end):
            screen.event("sim0", 3, event)
        screen.told(end, (row(0, mtp(3), measured(234, 1979)), row(3, mtp(5), infeasible())))
        screen.remark("host sim0 is set aside\nafter 3 faults")
    assert lines == [
        "00:16:40 starting Ray, one worker a host",
        "00:16:40 SIMULATED: study qwen-mtp: 24 trials on sim0, 1 done already",
        "00:16:40 sim0 trial 3: steps 5 · topk 1 · draft 6 · fraction 0.8",
        "00:16:43 sim0 trial 3 cleaning",
        "00:16:44 sim0 trial 3 deploying",
        "00:16:45 sim0 trial 3 loading",
        "00:16:46 sim0 trial 3 ready",
        "00:16:47 sim0 trial 3 warming up",
        "00:16:49 sim0 trial 3 measuring 1: 234 tok/s",
        "00:16:50 sim0 trial 3 measuring 4: 712 tok/s",
        "00:16:40 sim0 trial 3 infeasible: OOM serving while measuring 32; 2 of 24, about 4 min 24 s left",
        "00:16:40 host sim0 is set aside after 3 faults",
    ]


def test_a_real_host_is_not_called_simulated() -> None:
    lines: list[str] = []
    PlainScreen(lines.append, now=lambda: 0.0, zone=UTC).begin(spec_of(simulated=False), ())
    assert lines == ["00:00:00 study qwen-mtp: 24 trials on host0"]


def test_trial_0_is_named_as_what_runs_today() -> None:
    lines: list[str] = []
    screen = PlainScreen(lines.append, now=lambda: 0.0, zone=UTC)
    screen.begin(spec_of(), ())
    screen.proposed("sim0", proposal(0, mtp(3)))
    assert lines[-1].endswith("fraction 0.8 (the base command as it stands)")


def test_the_example_of_the_manual_is_right() -> None:
    assert event_text(leg(0.0, 16, 1204.4)) == "measuring 16: 1,204 tok/s"


def test_a_soak_is_not_called_a_level() -> None:
    assert event_text(replace(leg(0.0, 64, 1842.0), kind="soak")) == "soaking 64: 1,842 tok/s"


def test_what_moves_many_times_a_second_gets_no_line() -> None:
    assert event_text(LegProgress(at_s=0.0, concurrency=4, elapsed_s=1.0, aggregate_throughput=3.0)) is None
    assert event_text(LogText(at_s=0.0, text="Load weight begin")) is None


def test_details_and_remarks_are_told() -> None:
    entered = StateEntered(at_s=0.0, state=TrialState.DEPLOYING, detail="second start")
    assert event_text(entered) == "deploying: second start"
    assert event_text(Remark(at_s=0.0, text="killed 2 leftovers")) == "remark: killed 2 leftovers"
