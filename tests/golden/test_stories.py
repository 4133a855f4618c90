"""Stories of trials of every outcome, as they are told; the texts lie in ``stories/``."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC
from pathlib import Path

import pytest

from tuner.model.account import ClientHealth, Speculation
from tuner.model.metric import Estimate
from tuner.model.outcome import (
    Cause,
    Faulted,
    Infeasible,
    Interrupted,
    Measured,
    MemoryDirection,
    Outcome,
    TrialState,
    Verdict,
)
from tuner.model.plain import plain
from tuner.model.record import LegResult
from tuner.model.ruling import Correction, Ruling, Word
from tuner.model.space import Assignment
from tuner.model.study import TrialRow
from tuner.model.trial import Capacity
from tuner.report.diagnosis import EvidenceLine
from tuner.report.evidence import read_evidence
from tuner.report.story import Story, Surroundings, tell, verdict_of
from tuner.screen.story import story_json, story_lines

FOLDER = Path(__file__).parent / "stories"
PARAMETERS = ("speculative_num_steps", "speculative_eagle_topk", "speculative_num_draft_tokens", "mem_fraction_static")
BEGAN_S = 1796000400.0
CAPACITY = Capacity(max_total_num_tokens=295_931, max_running_requests=17)
OOM = "torch.OutOfMemoryError: CUDA out of memory. GPU 0 has a total capacity of 80.00 GiB of which 0.30 GiB is free."


def settings(steps: int, fraction: float = 0.8) -> Assignment:
    return Assignment.of(dict(zip(PARAMETERS, (steps, 1, steps + 1, fraction), strict=True)))


def row(
    number: int, outcome: Outcome | None, *, steps: int = 3, fraction: float = 0.8, host: str | None = "gpu01"
) -> TrialRow:
    values = None
    if isinstance(outcome, Measured):
        values = (outcome.single_request_throughput.value, outcome.aggregate_throughput.value)
    return TrialRow(
        number=number,
        assignment=settings(steps, fraction),
        outcome=outcome,
        host=host,
        baseline=number == 0,
        values=values,
        capacity=CAPACITY if isinstance(outcome, Measured) else None,
        duration_s=None if outcome is None else 42.4,
    )


def estimate(value: float) -> Estimate:
    return Estimate(value=value, low=value * 0.98, high=value * 1.02, samples=12)


def measured(single: float, together: float, at: int = 64) -> Measured:
    return Measured(
        single_request_throughput=estimate(single), aggregate_throughput=estimate(together), peak_concurrency=at
    )


def leg(concurrency: int, each: float, together: float, *, converged: bool = True, failed: int = 0) -> LegResult:
    return LegResult(
        concurrency=concurrency,
        single_request_throughput=estimate(each),
        aggregate_throughput=estimate(together),
        window_s=20.0,
        offered=40,
        completed=40 - failed,
        failed=failed,
        converged=converged,
        client=ClientHealth(cpu_share=0.1, lag_p99_s=0.002),
        speculation=Speculation(acceptance_length=3.4, step_time_s=3.4 / each),
    )


@dataclass
class Diary:
    """Events of a trial, a step every so many seconds."""

    now_s: float = BEGAN_S
    lines: list[str] = field(default_factory=list)

    def event(self, name: str, after_s: float, **content: object) -> Diary:
        self.now_s += after_s
        self.lines.append(
            json.dumps({"event": name, "at_s": self.now_s, **{key: plain(value) for key, value in content.items()}})
        )
        return self

    def enter(self, state: TrialState, after_s: float = 1.0, *, level: int | None = None, detail: str = "") -> Diary:
        return self.event("StateEntered", after_s, state=state, level=level, detail=detail)

    def remark(self, text: str, after_s: float = 0.5) -> Diary:
        return self.event("Remark", after_s, text=text)

    def leg(self, result: LegResult, after_s: float = 21.0, kind: str = "ladder") -> Diary:
        return self.event("LegFinished", after_s, leg=result, kind=kind)

    def start(self, upto: TrialState, *, load_s: float = 140.0) -> Diary:
        self.enter(TrialState.CLEANING, 0.1)
        for state in (TrialState.DEPLOYING, TrialState.LOADING):
            self.enter(state)
        if upto is not TrialState.LOADING:
            self.enter(TrialState.READY, load_s, detail="pid 640").enter(TrialState.WARMING_UP, 0.1)
        return self

    def ladder(self, *legs: LegResult) -> Diary:
        for index, result in enumerate(legs):
            self.enter(TrialState.MEASURING, 2.0 if index == 0 else 0.1, level=result.concurrency).leg(result)
        return self

    def judged(self, detail: str, end: str, after_s: float = 0.4, level: int | None = None) -> Diary:
        return self.enter(TrialState.JUDGING, after_s, level=level, detail=detail).enter(
            TrialState.DONE, 0.1, level=level, detail=end
        )

    def cut(self, level: int, after_s: float, end: str) -> Diary:
        """End in mid-leg, without a judgement."""
        return self.enter(TrialState.MEASURING, level=level).enter(TrialState.DONE, after_s, level=level, detail=end)

    @property
    def text(self) -> str:
        return "".join(f"{line}\n" for line in self.lines)


def proposed() -> Diary:
    return Diary().enter(TrialState.PROPOSED, 0.0)


LADDER = (leg(1, 234, 230), leg(4, 160, 610), leg(16, 115, 1700), leg(32, 114, 1960), leg(64, 114, 1979))
UNDER_LOAD = Infeasible(
    verdict=Verdict(
        cause=Cause.OOM_VERIFY_WORKSPACE,
        config_fault=True,
        stage="ready",
        direction=MemoryDirection.FRACTION_TOO_HIGH,
        shortfall_bytes=round(1.2 * 2**30),
        evidence=(OOM, "Scheduler hit an exception: Traceback (most recent call last):"),
        advice="lower mem_fraction_static or the number of draft tokens",
    ),
    state=TrialState.MEASURING,
    level=16,
    violation=1.5,
)
SLOTS = Infeasible(
    verdict=Verdict(
        cause=Cause.KV_SLOTS_EXHAUSTED,
        config_fault=True,
        stage="ready",
        evidence=("RuntimeError: Prefill out of memory. Try to lower your batch size.",),
        advice="fewer running requests or fewer draft tokens",
    ),
    state=TrialState.SOAKING,
    level=64,
    violation=0.5,
)
TWICE = Infeasible(
    verdict=Verdict(
        cause=Cause.UNKNOWN,
        config_fault=None,
        stage="capture",
        evidence=("Capture target verify CUDA graph begin.",),
        advice="no known line says why",
    ),
    state=TrialState.LOADING,
    level=None,
    violation=3.3,
)
REJECTED = Infeasible(
    verdict=Verdict(
        cause=Cause.REJECTED_ARGUMENTS,
        config_fault=True,
        evidence=("trtllm_mha backend only supports topk = 1 for speculative decoding.",),
        advice="the engine refuses this command line",
    ),
    state=TrialState.DEPLOYING,
    level=None,
    violation=4.0,
)
RULED = Infeasible(
    verdict=Verdict(
        cause=Cause.RULED,
        config_fault=True,
        evidence=("load crashed", "infeasible, ruled by ada@desk at 2026-11-30 01:07:00 UTC: load crashed"),
    ),
    state=TrialState.MEASURING,
    level=4,
    violation=1.7,
)
FLAKY = Faulted(
    error="collective while loading: the GPUs lost touch",
    state=TrialState.LOADING,
    verdict=Verdict(cause=Cause.COLLECTIVE, config_fault=None, evidence=("NCCL error: unhandled system error",)),
)
LOST = Faulted(error="gpu01: the connection was lost for 120 s; check the network", state=TrialState.MEASURING)
ASIDE = replace(FLAKY, error="collective while loading, as trials 3, 4 before it: the host is broken", set_aside=True)
SAID = Ruling(order="o1", word=Word.INFEASIBLE, why="answers were wrong", who="ada@desk", at_s=BEGAN_S + 3600)
CORRECTED = replace(RULED, verdict=replace(RULED.verdict, evidence=("answers were wrong", str(SAID))))
STOPPED = Interrupted(state=TrialState.MEASURING)


@dataclass
class Case:
    """One trial among others; ``ran``: the configuration was read back from its server."""

    row: TrialRow
    diary: Diary | None
    others: Sequence[TrialRow] = ()
    ran: bool = True
    is_driven: bool = False
    now_s: float = BEGAN_S
    places: Mapping[str, int] = field(default_factory=dict)

    def story(self) -> Story:
        base = row(0, measured(234, 1979))
        rows = sorted([self.row, *self.others, *([] if self.row.number == 0 else [base])], key=lambda each: each.number)
        verdict = verdict_of(self.row.outcome)
        result = {
            "effective": {
                "settings": [list(item) for item in self.row.assignment.items()],
                "capacity": plain(CAPACITY),
                "version": "0.5.23",
                "model": "Qwen",
            }
            if self.ran
            else None
        }
        evidence = None
        if self.diary is not None:
            evidence = read_evidence(
                manifest=json.dumps({"assignment": plain(self.row.assignment)}),
                events=self.diary.text,
                result=None if self.row.outcome is None else json.dumps(result),
            )
        return tell(
            self.row,
            evidence,
            Surroundings(
                study="night",
                engine="sglang",
                simulated=False,
                parameters=PARAMETERS,
                rows=tuple(rows),
                is_driven=self.is_driven,
                now_s=self.now_s,
                log=None if self.diary is None else f"studies/night/trials/{self.row.number:04d}/server.log",
                evidence=tuple(
                    EvidenceLine(line=self.places.get(text), text=text)
                    for text in (() if verdict is None else verdict.evidence)
                ),
            ),
        )


CASES: dict[str, Case] = {
    "measured_today": Case(
        row(0, measured(234, 1979)),
        proposed()
        .start(TrialState.READY)
        .ladder(*LADDER)
        .enter(TrialState.SOAKING, 0.1, level=64)
        .leg(leg(64, 114, 1975), kind="soak")
        .judged("", "measured"),
        others=[row(1, measured(277, 1817, 16), steps=4)],
    ),
    "measured_not_steady": Case(
        row(2, measured(282, 1273, 16), steps=5),
        proposed()
        .start(TrialState.READY)
        .ladder(leg(1, 282, 280), leg(16, 90, 1273, converged=False), leg(64, 60, 1000))
        .enter(TrialState.SOAKING, 0.1, level=64)
        .leg(leg(64, 58, 930, converged=False), kind="soak")
        .remark("throughput at concurrency 64 still drifted by more than ±2 % after 60 s")
        .judged("", "measured"),
    ),
    "died_under_load": Case(
        row(3, UNDER_LOAD, steps=10, fraction=0.85),
        proposed()
        .start(TrialState.READY)
        .ladder(leg(1, 282, 280), leg(4, 130, 500))
        .enter(TrialState.MEASURING, 0.1, level=16)
        .judged("oom_verify_workspace", "infeasible", 7.0, level=16),
        others=[row(4, measured(277, 1817, 16), steps=4)],
        places={OOM: 166},
    ),
    "slots_ran_out": Case(
        row(3, SLOTS, steps=8),
        proposed()
        .start(TrialState.READY)
        .ladder(leg(1, 282, 280))
        .enter(TrialState.SOAKING, 0.1, level=64)
        .judged("kv_slots_exhausted", "infeasible", 7.0, level=64),
    ),
    "died_twice_without_a_word": Case(
        row(5, TWICE, steps=7),
        proposed()
        .start(TrialState.LOADING)
        .remark("starting once more after cleaning: unknown while loading may be the host's fault", 60.0)
        .start(TrialState.LOADING)
        .judged("unknown", "infeasible", 61.0),
        ran=False,
    ),
    "rejected": Case(
        row(5, REJECTED, steps=7),
        proposed()
        .enter(TrialState.CLEANING, 0.1)
        .enter(TrialState.DEPLOYING)
        .judged("rejected_arguments", "infeasible"),
        ran=False,
    ),
    "ruled_by_a_person": Case(
        row(5, RULED, steps=7),
        proposed()
        .start(TrialState.READY)
        .ladder(leg(1, 282, 280))
        .enter(TrialState.MEASURING, 0.1, level=4)
        .remark("ended as infeasible by ada@desk: load crashed", 5.0)
        .judged("ruled", "infeasible", level=4),
    ),
    "faulted_and_run_again": Case(
        row(2, FLAKY, steps=4),
        proposed().start(TrialState.LOADING).judged("collective", "faulted", 30.0),
        ran=False,
        others=[row(1, LOST, steps=4), row(3, measured(277, 1817, 16), steps=4)],
        places={"NCCL error: unhandled system error": 88},
    ),
    "host_lost": Case(
        row(2, LOST, steps=4),
        proposed().start(TrialState.READY).cut(1, 120.0, "faulted"),
    ),
    "host_set_aside": Case(
        row(5, ASIDE, steps=4), proposed().start(TrialState.LOADING).judged("collective", "faulted", 30.0), ran=False
    ),
    "interrupted": Case(
        row(2, STOPPED, steps=4),
        proposed().start(TrialState.READY).ladder(leg(1, 277, 270)).cut(4, 4.0, "interrupted"),
        others=[row(3, None, steps=4)],
    ),
    "running": Case(
        row(2, None, steps=4),
        proposed()
        .start(TrialState.READY, load_s=9.0)
        .ladder(leg(1, 277, 270))
        .enter(TrialState.MEASURING, 0.1, level=4),
        is_driven=True,
        now_s=BEGAN_S + 40,
    ),
    "just_begun": Case(row(2, None, steps=4), Diary(), is_driven=True),
    "ended_by_a_person_to_run_again": Case(
        row(2, replace(STOPPED, why="load crashed (ada@desk)"), steps=4),
        proposed().start(TrialState.READY).ladder(leg(1, 277, 270)).cut(4, 4.0, "interrupted"),
        others=[row(3, None, steps=4, host=None)],
    ),
    "overruled_after_its_end": Case(
        replace(
            row(2, replace(CORRECTED, state=TrialState.JUDGING, level=None), steps=4),
            corrections=(Correction(ruling=SAID, before=measured(277, 1817, 16)),),
        ),
        proposed().start(TrialState.READY).ladder(leg(1, 277, 270), leg(16, 120, 1817)).judged("", "measured"),
    ),
    "waiting": Case(row(2, None, steps=4, host=None), None, is_driven=True),
    "cut_off": Case(row(2, None, steps=4), proposed().start(TrialState.LOADING)),
    "nothing_left_of_it": Case(row(2, measured(277, 1817), steps=4), None, others=[row(3, SLOTS, steps=8)]),
}


@pytest.mark.parametrize("name", CASES)
def test_a_trial_is_told_word_for_word(name: str) -> None:
    assert story_lines(CASES[name].story(), zone=UTC) == (FOLDER / f"{name}.txt").read_text().splitlines()


def test_every_text_has_its_trial() -> None:
    assert {path.stem for path in FOLDER.glob("*.txt")} == set(CASES)


@pytest.mark.parametrize("name", CASES)
def test_a_program_gets_the_same_story(name: str) -> None:
    told = json.loads(story_json(CASES[name].story()))
    case = CASES[name].row
    assert told["number"] == case.number
    assert told["settings"][0]["asked"] == case.assignment["speculative_num_steps"]
    kind = None if told["outcome"] is None else told["outcome"]["kind"]
    assert kind == (None if case.outcome is None else type(case.outcome).__name__.lower())
