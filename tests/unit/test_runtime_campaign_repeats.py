"""A campaign that measures its baseline and its winners again."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from tuner.model.outcome import Faulted, Interrupted, Measured
from tuner.model.repeat import Purpose, RepeatTerms
from tuner.model.study import TrialRow
from tuner.runtime.campaign import counted
from tuner.runtime.repeats import Repeats
from tuner.testing.fake_campaign import Notes, campaign, inline, optimizer_of, spec
from tuner.testing.fake_host import Start
from tuner.testing.fake_optimizer import FakeOptimizer

STUDY = replace(spec(trials=6), repeats=RepeatTerms(confirmations=1, baseline_every=3))


def repeats(rows: tuple[TrialRow, ...]) -> list[TrialRow]:
    return [row for row in rows if row.repeat is not None]


@pytest.mark.parametrize("hosts", [1, 2])
def test_the_search_ends_with_its_budget_and_then_winners_are_confirmed(hosts: int) -> None:
    study = replace(STUDY, hosts=spec(hosts=hosts).hosts)
    executor, _ = inline(study, Start())
    notes, optimizer = Notes(), optimizer_of(study)
    assert asyncio.run(campaign(study, executor, notes, optimizer).run())
    rows = optimizer.rows()
    assert counted(rows) == 6
    assert len({row.assignment for row in rows if row.repeat is None}) == 6, "the search has no configuration twice"
    assert {row.repeat.purpose for row in repeats(rows) if row.repeat} == {Purpose.LEVEL, Purpose.CONFIRMATION}
    for host in study.hosts:
        assert any(row.baseline and row.host == host.name for row in repeats(rows)), "each host's level is known"
    for row in repeats(rows):
        assert row.repeat is not None
        assert row.assignment == rows[row.repeat.of].assignment
        assert rows[row.repeat.of].number < row.number
    assert Repeats(terms=study.repeats, trials=6, objectives=study.objectives).progress(rows).left == 0
    base = [row.number for row in rows if row.baseline]
    assert all(notes.commands[number] == study.base for number in base), "as it stands, each time"


def test_a_run_that_stops_while_it_confirms_goes_on_with_what_is_left() -> None:
    executor, _ = inline(STUDY, Start())
    notes, first = Notes(), optimizer_of(STUDY)
    running = campaign(STUDY, executor, notes, first)

    def stop_at_the_first_confirmation() -> None:
        row = first.rows()[-1]
        if row.repeat is not None and row.repeat.purpose is Purpose.CONFIRMATION:
            running._stopping = True

    notes.on_proposal = stop_at_the_first_confirmation

    async def run() -> bool:
        done = await running.run()
        await running.stop()
        return done

    assert not asyncio.run(run())
    stopped = repeats(first.rows())
    resumed = FakeOptimizer((), baseline=STUDY.baseline, study=first.study)
    assert resumed.settle() == ()
    assert asyncio.run(campaign(STUDY, inline(STUDY, Start())[0], Notes(), resumed).run())
    done = repeats(resumed.rows())
    assert len(done) > len(stopped)
    results = [(row.repeat.of, row.repeat.purpose) for row in done if row.repeat and isinstance(row.outcome, Measured)]
    confirmed = [of for of, purpose in results if purpose is Purpose.CONFIRMATION]
    assert len(confirmed) == len(set(confirmed)), "none was confirmed twice"
    assert all(row.outcome is not None for row in resumed.rows())


def test_a_repeat_that_faults_is_run_again_as_another_and_not_by_the_search() -> None:
    study = replace(STUDY, trials=3, repeats=RepeatTerms(confirmations=1))
    executor, _ = inline(study, [Start(), Start(), Start(), Start(refuses="no such program"), Start()])
    optimizer = optimizer_of(study)
    assert asyncio.run(campaign(study, executor, Notes(), optimizer).run())
    rows = optimizer.rows()
    assert counted(rows) == 3
    faults = [row for row in rows if isinstance(row.outcome, Faulted)]
    assert [row.repeat is not None for row in faults] == [True]
    assert not any(isinstance(row.outcome, Interrupted) for row in rows)
    assert all(row.outcome is not None for row in rows)


def test_a_study_without_repeats_ends_as_it_always_did() -> None:
    study = spec(trials=4)
    optimizer = optimizer_of(study)
    assert asyncio.run(campaign(study, inline(study, Start())[0], Notes(), optimizer).run())
    assert not repeats(optimizer.rows())
