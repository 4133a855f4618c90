"""A trial's evidence read back, also where it is broken, and what limited a server."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from tuner.model.account import ClassResult, ClientHealth, GpuUse, Limit, ServerLoad, Speculation, TokenCheck
from tuner.model.outcome import Cause, Faulted, Infeasible, Interrupted, Outcome, TrialState, Verdict
from tuner.model.record import LegResult
from tuner.model.study import TrialRow
from tuner.model.trial import Capacity, Remark, StateEntered
from tuner.report.evidence import read_evidence
from tuner.report.limits import limits
from tuner.report.story import Story, Surroundings, tell
from tuner.screen.story import story_lines
from tuner.testing.draft_trees import FULL_BASELINE
from tuner.testing.results import estimate

ENTERED = {"event": "StateEntered", "at_s": 1.0, "state": "cleaning", "level": None, "detail": ""}
REMARK = {"event": "Remark", "at_s": 2.0, "text": "a server still runs: stopping it"}


def leg(concurrency: int, together: float | None, *, converged: bool = True, busy: float = 0.1) -> LegResult:
    return LegResult(
        concurrency=concurrency,
        single_request_throughput=estimate(100),
        aggregate_throughput=None if together is None else estimate(together),
        window_s=20,
        offered=9,
        completed=9,
        failed=0,
        converged=converged,
        client=ClientHealth(cpu_share=busy),
        speculation=Speculation(acceptance_length=3.4),
    )


def lines(*entries: object) -> str:
    return "".join(f"{json.dumps(entry)}\n" for entry in entries)


def test_events_are_read_in_their_order_and_unknown_ones_left_out() -> None:
    found = read_evidence(manifest='{"assignment": {}}', events=lines(ENTERED, {"event": "New"}, REMARK), result=None)
    assert found.happenings == (
        StateEntered(at_s=1.0, state=TrialState.CLEANING),
        Remark(at_s=2.0, text="a server still runs: stopping it"),
    )
    assert found.gaps == ()


def test_a_line_that_is_being_written_is_no_gap() -> None:
    found = read_evidence(manifest='{"assignment": {}}', events=lines(ENTERED) + '{"event": "Rem', result=None)
    assert len(found.happenings) == 1
    assert found.gaps == ()


@pytest.mark.parametrize("line", ["{", "[]", '"x"', "{}", '{"event": "StateEntered"}', lines(ENTERED | {"state": "x"})])
def test_a_broken_line_is_a_gap_and_hides_no_other(line: str) -> None:
    text = lines(ENTERED) + line.rstrip("\n") + "\n" + lines(REMARK)
    found = read_evidence(manifest='{"assignment": {}}', events=text, result=None)
    assert len(found.happenings) == 2
    assert found.gaps == ("1 of 3 lines of events.jsonl cannot be read",)


def test_files_that_are_gone_or_broken_are_named() -> None:
    assert read_evidence(manifest=None, events=None, result=None).gaps == (
        "there is no manifest.json",
        "there is no events.jsonl",
    )
    assert read_evidence(manifest="{", events="", result='{"effective": 3}').gaps == (
        "manifest.json cannot be read",
        "result.json cannot be read",
    )


def test_an_unfinished_result_is_none() -> None:
    found = read_evidence(manifest='{"assignment": {}}', events="", result='{"outcome": {}}')
    assert found.effective is None
    assert found.gaps == ()


# ---------------------------------------------------------------------------- limits


@pytest.mark.parametrize(
    ("throughputs", "says"),
    [
        ((100, 400, 1000), "not full yet: from 16 to 64 requests the throughput still grows by 150 %"),
        ((100, 400, 410), "full at concurrency 16: from there to 64 hardly any more comes out"),
        ((100, 400, 390), "full at concurrency 16: up to 64 the throughput stays where it is"),
        ((100, 400, 200), "best at concurrency 16; at 64 it is 50 % lower"),
        ((100, None, 200), "not full yet: from 1 to 64 requests"),
    ],
)
def test_the_ladder_says_where_a_server_is_full(throughputs: tuple[float | None, ...], says: str) -> None:
    legs = [leg(level, each) for level, each in zip((1, 16, 64), throughputs, strict=True)]
    assert limits(legs, None, None, {})[0].startswith(says)


def test_a_server_that_queues_a_slow_client_and_wide_intervals_are_said() -> None:
    legs = [leg(1, 100), leg(16, 400, converged=False), leg(64, 500, busy=0.97)]
    said = limits(legs, leg(64, 490, converged=False), Capacity(max_running_requests=17), {"speculative_num_steps": 3})
    assert "the server runs 17 requests at once (max_running_requests): at 64 the rest wait in its queue" in said
    assert "one step gives a lone request 3.4 tokens of at most 4" in said
    assert "the load's own process was busy at concurrency 64: the server may do more" in said
    assert any(line.startswith("the intervals at concurrency 16 are wider") for line in said)
    assert said[-1] == "not steady: held at concurrency 64 for 20 s, and its throughput still drifted"


def test_what_limits_the_aggregate_is_said_from_where_on_and_what_it_was_read_from() -> None:
    capped = ServerLoad(running=17.0, queued=15.2, kv_usage=0.61, retractions=0.0)
    full = ServerLoad(running=16.0, queued=47.6, kv_usage=0.97, retractions=3.0)
    legs = [
        replace(leg(1, 100), limit=Limit.LOAD),
        replace(leg(16, 800), limit=Limit.LOAD),
        replace(leg(32, 1000), limit=Limit.REQUEST_CAP, server=capped),
        replace(leg(48, 1000), limit=Limit.REQUEST_CAP, server=capped),
        replace(leg(64, 900), limit=Limit.KV_POOL, server=full),
    ]
    said = limits(legs, None, Capacity(max_running_requests=17), {})
    assert [line for line in said if "by the" in line] == [
        "aggregate limited by the request cap from concurrency 32 on: 17 ran, 15 waited, its cache was 61 % full",
        "then by the KV pool from concurrency 64 on: 16 ran, 48 waited, its cache was 97 % full, 3 were retracted",
    ]
    assert not any("max_running_requests" in line for line in said)


def test_no_longer_ladder_is_advised_where_requests_wait_already() -> None:
    legs = [leg(16, 800), replace(leg(64, 1000), limit=Limit.REQUEST_CAP)]
    assert limits(legs, None, None, {})[0] == "from 16 to 64 requests the throughput still grew by 25 %"


def test_levels_with_room_have_no_limit() -> None:
    assert not any("limited" in line for line in limits([replace(leg(1, 100), limit=Limit.LOAD)], None, None, {}))


def test_classes_drafts_and_energy_are_said_where_they_are_known() -> None:
    spoken = Speculation(acceptance_length=3.4, accepted_at=(0.9, 0.8, 0.7))
    classes = (
        ClassResult(name="chat", requests=9, single_request_throughput=estimate(90), speculation=spoken),
        ClassResult(name="code", requests=8, single_request_throughput=estimate(120)),
    )
    legs = [
        replace(leg(1, 100), classes=classes, speculation=spoken, gpu=GpuUse(power_w=1600.0, joules_per_token=16.0)),
        replace(leg(16, 800), gpu=GpuUse(power_w=2000.0, joules_per_token=2.5)),
    ]
    said = limits(legs, None, None, {"speculative_num_steps": 3})
    assert "by class of prompts, alone: chat 90 tok/s (3.40 tokens a step), code 120 tok/s" in said
    assert "one step gives a lone request 3.4 tokens of at most 4; accepted by draft position: 90 %, 80 %, 70 %" in said
    assert "2.50 J a token at concurrency 16, the GPUs drawing 2000 W" in said


def test_whether_the_tokens_were_checked_is_said() -> None:
    checked = replace(leg(1, 100), tokens=TokenCheck(replies=1000, counters=1004))
    assert "tokens: the replies and the server's counters agree within 0.4 %" in limits([checked], None, None, {})
    assert any("not checked" in line for line in limits([leg(1, 100)], None, None, {}))
    assert "tokens at concurrency 16: not checked against the server's counters" in limits(
        [checked, leg(16, 400)], None, None, {}
    )


def test_what_was_not_measured_limits_nothing() -> None:
    assert len(limits([leg(1, None)], leg(1, None), Capacity(), {"speculative_num_steps": 0})) == 1


# ---------------------------------------------------------------------------- whose fault


def story(outcome: Outcome | None) -> Story:
    row = TrialRow(
        number=0,
        assignment=FULL_BASELINE,
        outcome=outcome,
        host="gpu01",
        baseline=True,
        values=None,
        capacity=None,
        duration_s=None,
    )
    around = Surroundings(
        study="s",
        engine="sglang",
        simulated=True,
        parameters=tuple(FULL_BASELINE),
        rows=(row,),
        is_driven=False,
        now_s=0.0,
        log=None,
    )
    return tell(row, None, around)


DEATH = Verdict(cause=Cause.HANG, config_fault=None)


@pytest.mark.parametrize(
    ("outcome", "whose"),
    [
        (Infeasible(verdict=replace(DEATH, config_fault=True), state=TrialState.READY, level=None, violation=2.5),
         "the configuration's: what the log says"),
        (Infeasible(verdict=DEATH, state=TrialState.READY, level=None, violation=2.5),
         "the configuration's: it died in the same state again"),
        (Faulted(error="x", state=TrialState.READY, verdict=DEATH), "not the configuration's"),
        (Faulted(error="x", state=TrialState.READY, verdict=replace(DEATH, cause=Cause.RULED)),
         "not the configuration's: a person said so"),
        (Faulted(error="x", state=TrialState.READY, set_aside=True), "the host's"),
        (Faulted(error="bug in tuner: KeyError: 'x'", state=TrialState.READY), "tuner's own: please report it"),
        (
            Faulted(error="not run: it has been tried", state=TrialState.PROPOSED),
            "nobody's: it was taken out of the queue",
        ),
        (Interrupted(state=TrialState.READY), "nobody's: the run was stopped"),
        (Interrupted(state=TrialState.READY, why="load crashed"), "nobody's: a person wanted it run again"),
        (None, ""),
    ],
)  # fmt: skip
def test_every_end_says_whose_fault_it_is(outcome: Outcome | None, whose: str) -> None:
    assert story(outcome).fault.startswith(whose)
    assert bool(story(outcome).fault) is bool(whose)


@pytest.mark.parametrize("cause", Cause)
def test_a_death_of_every_cause_is_told(cause: Cause) -> None:
    told = story(Infeasible(verdict=replace(DEATH, cause=cause), state=TrialState.READY, level=None, violation=2.5))
    assert cause.value in story_lines(told)[1]


def test_a_server_cannot_steer_the_terminal() -> None:
    verdict = replace(DEATH, advice="\x1b[2J gone\r")
    told = story_lines(story(Infeasible(verdict=verdict, state=TrialState.READY, level=None, violation=2.5)))
    assert all(line.isprintable() for line in told)
