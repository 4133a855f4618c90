"""A campaign whose study names its own objectives and limits, on scripted hosts."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from tuner.errors import TooManyFaults
from tuner.model.metric import OBJECTIVES, Objective
from tuner.model.metric_text import constraint_of, metric_of, objective_of
from tuner.model.outcome import Cause, Faulted, Infeasible, Measured
from tuner.model.study import StudySpec
from tuner.model.trial import TrialFinished
from tuner.testing.fake_campaign import ENGINE, Notes, campaign, inline, optimizer_of, spec
from tuner.testing.fake_host import Start
from tuner.testing.fake_optimizer import FakeOptimizer

GOOD = "good_share(ttft_s <= 1)"


def study(*objectives: str, limits: tuple[str, ...] = (), trials: int = 3) -> StudySpec:
    wanted: tuple[Objective, ...] = tuple(objective_of(metric_of(each)) for each in objectives)
    return replace(
        spec(trials=trials),
        objectives=wanted or OBJECTIVES,
        constraints=tuple(constraint_of(each) for each in limits),
    )


def ran(spec: StudySpec) -> tuple[Notes, FakeOptimizer]:
    executor, _ = inline(spec, Start())
    notes = Notes()
    optimizer = FakeOptimizer([], baseline=spec.baseline, canonical=ENGINE.canonical, objectives=spec.objectives)
    asyncio.run(campaign(spec, executor, notes, optimizer).run())
    return notes, optimizer


def test_a_trial_is_told_with_the_values_of_its_studys_own_objectives() -> None:
    wanted = study("single_request_throughput@4", GOOD, "aggregate_throughput")
    notes, optimizer = ran(wanted)
    row = optimizer.rows()[0]
    assert isinstance(row.outcome, Measured)
    single = row.outcome.estimate("single_request_throughput@4").value
    assert row.values == (single, 1.0, row.outcome.aggregate_throughput.value)
    assert notes.finished == [(0, row.outcome)], "the evidence has the same end as the database"
    ends = [event for _, event in notes.events if isinstance(event, TrialFinished)]
    assert [each.result.outcome for each in ends] == [row.outcome]


def test_a_trial_outside_a_limit_counts_as_infeasible_with_what_it_measured() -> None:
    _, optimizer = ran(study(limits=("aggregate_throughput@4 >= 1000000",)))
    row = optimizer.rows()[0]
    assert isinstance(row.outcome, Infeasible)
    assert row.outcome.verdict.cause is Cause.OUTSIDE_LIMITS
    assert row.outcome.measured is not None
    assert (row.values, row.counts) == (None, True)
    assert 0 < row.outcome.violation < 0.5


def test_what_cannot_be_measured_ends_the_study_with_the_reason_and_never_counts() -> None:
    wanted = study("single_request_throughput", "joules_per_token")
    executor, _ = inline(wanted, Start())
    optimizer = FakeOptimizer([], baseline=wanted.baseline, objectives=wanted.objectives)
    notes = Notes()
    with pytest.raises(TooManyFaults, match="joules_per_token was not measured: the host did not say what power"):
        asyncio.run(campaign(wanted, executor, notes, optimizer).run())
    assert {type(row.outcome) for row in optimizer.rows() if row.outcome is not None} == {Faulted}


def test_a_study_that_names_nothing_is_told_exactly_what_its_host_judged() -> None:
    plain = study()
    executor, _ = inline(plain, Start())
    notes, optimizer = Notes(), optimizer_of(plain)
    asyncio.run(campaign(plain, executor, notes, optimizer).run())
    assert all(isinstance(end, Measured) and end.others == () for _, end in notes.finished)
