"""The story that started the project, on a scripted host.

Ten steps gave good throughput first. Then the server died under load and was started again and again, in memory
that the dead one still held; it was stopped, ignored that, and was killed. Each of these was taken for the cause
in its turn. None was: the configuration was.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from tuner.model.outcome import Cause, Infeasible, Measured, TrialState, violation
from tuner.model.space import Assignment
from tuner.model.trial import Command, Remark, TrialEvent, TrialRequest, TrialResult
from tuner.model.workload import Workload
from tuner.runtime.cleaning import HostSession
from tuner.runtime.trial import Trial
from tuner.testing.fake_engine import FakeEngine
from tuner.testing.fake_host import Death, FakeHost, Start

ENGINE = FakeEngine()
BASE = Command(argv=("serve", "--batch", "8"))
WORKLOAD = Workload(
    output_tokens=32, ladder=(1, 4, 16, 32, 64), level_min_s=2.0, level_max_s=4.0, soak_s=3.0, load_timeout_s=120.0
)
TOO_DEEP, SOUND = 8, 2


def deep(words: str) -> Start:
    """Good until 16 ask at once; then it dies, comes again, heeds no SIGTERM, and leaves memory behind."""
    return Start(
        death=Death(at=TrialState.MEASURING, level=16, after_s=1.0, exit_signal=9, log=words),
        restart_s=0.3,
        stop_s=None,
        gpu_returns_s=20.0,
        log=((0.1, "fake: stage load\n"),),
    )


class Night:
    """Trials one after another on one host."""

    def __init__(self, script: Callable[[Command, int], Start]) -> None:
        self.host = FakeHost(ENGINE, script)
        self.session = HostSession(self.host.ports())
        self.remarks: list[str] = []
        self._number = 0

    async def run(self, draft: int) -> TrialResult:
        self._number += 1
        assignment = ENGINE.canonical(Assignment.of({"batch": 8, "draft": draft}))
        request = TrialRequest(
            study="s",
            number=self._number,
            assignment=assignment,
            command=ENGINE.command(BASE, assignment),
            engine="fake",
            workload=WORKLOAD,
            seed=1,
        )

        def note(event: TrialEvent) -> None:
            if isinstance(event, Remark):
                self.remarks.append(event.text)

        return await Trial(request, self.session, ENGINE, note, asyncio.Event()).run()


@pytest.mark.parametrize(
    ("words", "cause", "starts"),
    [
        ("fake: fatal: configuration\n", Cause.OOM_SERVING, 1),
        ("", Cause.CRASH_LOOP, 2),
    ],
    ids=["its log says why", "its log says nothing"],
)
def test_ten_steps_are_infeasible_under_load_and_the_night_goes_on(words: str, cause: Cause, starts: int) -> None:
    def script(command: Command, _number: int) -> Start:
        return deep(words) if ENGINE.settings_of(command)["draft"] == TOO_DEEP else Start()

    async def story() -> tuple[TrialResult, TrialResult, TrialResult]:
        return await night.run(0), await night.run(TOO_DEEP), await night.run(SOUND)

    night = Night(script)
    before, result, after = asyncio.run(story())
    assert isinstance(before.outcome, Measured)
    outcome = result.outcome
    assert isinstance(outcome, Infeasible), outcome
    assert (outcome.verdict.cause, outcome.state, outcome.level) == (cause, TrialState.MEASURING, 16)
    assert outcome.violation == violation(TrialState.MEASURING, level_index=2, levels=5)
    assert result.attempts == starts
    assert [leg.concurrency for leg in result.legs] == [1, 4], "it was good before it was loaded"
    assert any("GPU 0 has 60.5 GiB in use" in text for text in night.remarks), "its memory stood in the next one's way"
    assert isinstance(after.outcome, Measured), after.outcome
    assert after.attempts == 1, "the next configuration met a clean host"
    assert night.host.service.gpu_bytes == 0
    assert night.host.service.gpu_holders == ()


def test_the_night_goes_on_as_well_where_the_next_configuration_is_too_deep_too() -> None:
    def script(command: Command, _number: int) -> Start:
        return deep("") if int(ENGINE.settings_of(command)["draft"]) >= TOO_DEEP - 1 else Start()

    async def story() -> list[TrialResult]:
        return [await night.run(draft) for draft in (0, TOO_DEEP, TOO_DEEP - 1, TOO_DEEP - 1, SOUND)]

    night = Night(script)
    kinds = [type(result.outcome).__name__ for result in asyncio.run(story())]
    assert kinds == ["Measured", "Infeasible", "Faulted", "Infeasible", "Measured"]
