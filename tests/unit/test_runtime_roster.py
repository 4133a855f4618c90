"""Which hosts take trials, by how their last trials ended."""

from __future__ import annotations

import asyncio

import pytest

from tuner.execution.inline import InlineExecutor
from tuner.model.outcome import Faulted, Interrupted, Outcome, TrialState
from tuner.runtime.roster import FAULTS_IN_A_ROW, Roster
from tuner.testing.fake_campaign import ENGINE, Notes, Observer, spec
from tuner.testing.fake_clock import FakeClock
from tuner.testing.fake_host import FakeHost, Start
from tuner.testing.results import infeasible, measured

FAULT = Faulted(error="the network is down", state=TrialState.LOADING)
BROKEN = Faulted(error="no start of any configuration lives", state=TrialState.LOADING, set_aside=True)
STOPPED = Interrupted(state=TrialState.LOADING)


@pytest.mark.parametrize(
    ("outcomes", "is_free"),
    [
        ([FAULT] * (FAULTS_IN_A_ROW - 1), True),
        ([FAULT] * FAULTS_IN_A_ROW, False),
        ([FAULT, measured(230.0, 1900.0), FAULT, FAULT], True),
        ([FAULT, infeasible(), FAULT, FAULT], True),
        ([FAULT, STOPPED, FAULT, FAULT], False),
        ([BROKEN], False),
    ],
    ids=["two faults", "three", "one measured between", "one infeasible between", "one stopped between", "broken"],
)
def test_a_host_takes_trials_until_it_faults_three_times_or_is_broken(outcomes: list[Outcome], is_free: bool) -> None:
    async def scenario() -> None:
        notes = Notes()
        host = FakeHost(ENGINE, Start(), name="host0", clock=FakeClock())
        executor = InlineExecutor({"host0": host.ports()}, {"fake": ENGINE})
        roster = Roster(spec().hosts, executor, Observer(notes), FakeClock())
        for outcome in outcomes:
            roster.judge("host0", outcome)
        assert list(roster.free(busy=())) == (["host0"] if is_free else [])
        assert any("set aside" in text for text in notes.remarks) is not is_free
        assert not list(roster.free(busy={"host0"}))
        await roster.close()

    asyncio.run(scenario())
