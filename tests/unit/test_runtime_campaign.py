"""The campaign: budget, faults, stops, hosts; on scripted hosts and in memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace

import pytest

from tuner.errors import EvidenceError, ExecutorFault, HostFault, TooManyFaults, UsageError
from tuner.execution.inline import InlineExecutor
from tuner.model.outcome import Faulted, Infeasible, Interrupted, Measured, TrialState
from tuner.model.space import Assignment, IntParameter
from tuner.model.study import SshLogin, StudySpec
from tuner.model.trial import Command, TrialEvent, TrialFinished, TrialRequest
from tuner.ports import EngineAdapter, HostPorts
from tuner.runtime.campaign import counted
from tuner.runtime.roster import COMEBACKS, FAULTS_IN_A_ROW
from tuner.testing.fake_campaign import ENGINE, SPACE, Notes, campaign, inline, optimizer_of, spec
from tuner.testing.fake_clock import FakeClock
from tuner.testing.fake_host import Death, FakeHost, Start


def test_trials_run_until_the_budget_is_spent_and_the_first_is_the_base_line_as_it_stands() -> None:
    study = spec(trials=6)
    executor, _ = inline(study, Start())
    notes, optimizer = Notes(), optimizer_of(study)
    assert asyncio.run(campaign(study, executor, notes, optimizer).run())
    assert counted(optimizer.rows()) == 6
    assert notes.commands[notes.begun[0]] == study.base
    assert len({row.assignment for row in optimizer.rows()}) == 6


def test_infeasible_trials_count_and_faulted_ones_do_not() -> None:
    study = spec(trials=4)
    flaky = [Start(refuses="no such program"), Start()]
    executor, _ = inline(study, flaky)
    notes, optimizer = Notes(), optimizer_of(study)
    assert asyncio.run(campaign(study, executor, notes, optimizer).run())
    outcomes = [outcome for _, outcome in notes.finished]
    assert sum(isinstance(outcome, Faulted) for outcome in outcomes) == 1
    assert sum(isinstance(outcome, Measured) for outcome in outcomes) == 4
    rows = optimizer.rows()
    assert rows[0].assignment == rows[1].assignment, "the faulted assignment runs again first"


def test_a_host_that_faults_three_times_in_a_row_ends_the_study_with_its_error() -> None:
    study = spec()
    executor, _ = inline(study, Start(refuses="the disk is gone"))
    notes = Notes()
    with pytest.raises(TooManyFaults, match="the disk is gone"):
        asyncio.run(campaign(study, executor, notes, optimizer_of(study)).run())
    assert len(notes.finished) == FAULTS_IN_A_ROW


def test_the_other_host_goes_on_when_one_is_set_aside() -> None:
    study = spec(hosts=2, trials=5)
    clock = FakeClock()
    bad = FakeHost(ENGINE, Start(refuses="broken"), name="host0", clock=clock)
    good = FakeHost(ENGINE, Start(), name="host1", clock=clock)
    executor = InlineExecutor({"host0": bad.ports(), "host1": good.ports()}, {"fake": ENGINE})
    notes, optimizer = Notes(), optimizer_of(study)
    assert asyncio.run(campaign(study, executor, notes, optimizer, clock=clock).run())
    assert any("host0 is set aside" in text for text in notes.remarks)
    assert counted(optimizer.rows()) == 5


def test_a_host_that_was_set_aside_is_restored_probed_and_taken_back_when_it_answers() -> None:
    study = spec(hosts=2, trials=30)
    clock = FakeClock()
    recovering = FakeHost(ENGINE, [*[Start(refuses="broken")] * 3, Start()], name="host0", clock=clock)
    good = FakeHost(ENGINE, Start(), name="host1", clock=clock)
    executor = Recorder({"host0": recovering.ports(), "host1": good.ports()}, {"fake": ENGINE})
    notes, optimizer = Notes(), optimizer_of(study)
    executor.refusals = ["host0 does not answer"]
    assert asyncio.run(campaign(study, executor, notes, optimizer, clock=clock).run())
    assert executor.asked == ["release host0", "probe host0", "probe host0"]
    assert any("host0 answers again" in text for text in notes.remarks)
    assert any(row.host == "host0" and isinstance(row.outcome, Measured) for row in optimizer.rows())


def owned(study: StudySpec) -> StudySpec:
    """Make the study's hosts somebody's."""
    return replace(study, hosts=tuple(replace(host, login=SshLogin(host="gpu01")) for host in study.hosts))


def test_the_only_host_is_waited_for_while_it_boots() -> None:
    study = owned(spec(trials=3))
    clock = FakeClock()
    host = FakeHost(ENGINE, [*[Start(refuses="the network is down")] * 3, Start()], name="host0", clock=clock)
    executor = Recorder({"host0": host.ports()}, {"fake": ENGINE})
    executor.refusals = ["host0 does not answer"] * 8
    notes = Notes()
    assert asyncio.run(campaign(study, executor, notes, optimizer_of(study), clock=clock).run())
    assert executor.asked.count("probe host0") == 9
    assert any("waiting up to 30 minutes" in text for text in notes.remarks)


def test_a_host_that_does_not_come_back_ends_the_study() -> None:
    study = owned(spec(trials=3))
    clock = FakeClock()
    host = FakeHost(ENGINE, Start(refuses="the network is down"), name="host0", clock=clock)
    executor = Recorder({"host0": host.ports()}, {"fake": ENGINE})
    executor.refusals = ["host0 does not answer"] * 1000
    with pytest.raises(TooManyFaults, match="host0 does not answer"):
        asyncio.run(campaign(study, executor, Notes(), optimizer_of(study), clock=clock).run())
    assert clock.monotonic_s() < 2400


def test_a_host_that_only_ever_faults_is_set_aside_for_good() -> None:
    study = owned(spec(trials=3))
    clock = FakeClock()
    host = FakeHost(ENGINE, Start(refuses="broken"), name="host0", clock=clock)
    executor = Recorder({"host0": host.ports()}, {"fake": ENGINE})
    notes = Notes()
    with pytest.raises(TooManyFaults, match="broken"):
        asyncio.run(campaign(study, executor, notes, optimizer_of(study), clock=clock).run())
    assert len(notes.finished) == FAULTS_IN_A_ROW + COMEBACKS
    assert executor.asked.count("release host0") == 1 + COMEBACKS


def test_a_stop_is_heard_while_every_host_is_waited_for() -> None:
    study = owned(spec(trials=3))
    clock = FakeClock()
    host = FakeHost(ENGINE, Start(refuses="broken"), name="host0", clock=clock)
    executor = Recorder({"host0": host.ports()}, {"fake": ENGINE})
    executor.refusals = ["host0 does not answer"] * 1000

    async def main() -> bool:
        running = campaign(study, executor, Notes(), optimizer_of(study), clock=clock)
        night = asyncio.ensure_future(running.run())
        await clock.sleep(300)
        await running.stop()
        return await night

    assert asyncio.run(main()) is False
    assert clock.monotonic_s() == 300


class Recorder(InlineExecutor):
    """Notes what it is asked about hosts that are set aside, and refuses as often as told."""

    def __init__(self, hosts: Mapping[str, HostPorts], engines: Mapping[str, EngineAdapter]) -> None:
        super().__init__(hosts, engines)
        self.asked: list[str] = []
        self.refusals: list[str] = []

    async def release(self, host: str) -> None:
        self.asked.append(f"release {host}")
        await super().release(host)

    async def probe(self, host: str) -> None:
        self.asked.append(f"probe {host}")
        if self.refusals:
            raise HostFault(self.refusals.pop())
        await super().probe(host)


def test_two_hosts_run_two_trials_at_once_and_never_the_same() -> None:
    study = spec(hosts=2, trials=8)
    executor, _ = inline(study, Start())
    notes, optimizer = Notes(), optimizer_of(study)
    assert asyncio.run(campaign(study, executor, notes, optimizer).run())
    assert notes.most_parallel == 2
    assert counted(optimizer.rows()) == 8
    assert len({row.assignment for row in optimizer.rows()}) == 8


def test_a_space_that_is_exhausted_ends_the_study() -> None:
    small = replace(
        SPACE, parameters=(IntParameter(name="batch", low=8, high=8), IntParameter(name="draft", low=0, high=2))
    )
    study = spec(trials=20, space=small)
    executor, _ = inline(study, Start())
    notes, optimizer = Notes(), optimizer_of(study)
    assert asyncio.run(campaign(study, executor, notes, optimizer).run())
    assert counted(optimizer.rows()) == 3
    assert any("has been tried" in text for text in notes.remarks)


def test_a_stop_interrupts_the_running_trial_and_tells_it() -> None:
    study = spec()
    executor, hosts = inline(study, Start())
    notes, optimizer = Notes(), optimizer_of(study)

    async def main() -> bool:
        running = campaign(study, executor, notes, optimizer)
        seen = 0

        def on_event(_event: TrialEvent) -> None:
            nonlocal seen
            seen += 1
            if seen == 8:
                asyncio.ensure_future(running.stop())  # noqa: RUF006 - it ends before run() does

        notes.on_event = on_event
        return await running.run()

    assert asyncio.run(main()) is False
    assert isinstance(notes.finished[-1][1], Interrupted)
    assert all(row.outcome is not None or row.host is None for row in optimizer.rows())
    assert hosts[0].service.gpu_bytes == 0


def test_a_stop_that_comes_before_the_trial_has_begun_is_not_lost() -> None:
    study = spec()
    executor, hosts = inline(study, Start())
    notes, optimizer = Notes(), optimizer_of(study)

    async def main() -> bool:
        running = campaign(study, executor, notes, optimizer)
        stops: list[asyncio.Task[None]] = []
        notes.on_proposal = lambda: stops.append(asyncio.ensure_future(running.stop()))
        return await running.run()

    assert asyncio.run(main()) is False
    assert [type(outcome) for _, outcome in notes.finished] == [Interrupted]
    assert not hosts[0].service.commands


class DyingWorker:
    """An executor whose worker dies in the middle of its first trial."""

    def __init__(self, inner: InlineExecutor) -> None:
        self._inner = inner
        self._died = False

    async def open(self) -> None: ...

    async def run(self, host: str, request: TrialRequest) -> AsyncIterator[TrialEvent]:
        async for event in self._inner.run(host, request):
            if isinstance(event, TrialFinished) and not self._died:
                self._died = True
                raise ExecutorFault(f"host {host}: its worker is gone")
            yield event

    async def stop(self, host: str) -> None:
        await self._inner.stop(host)

    async def release(self, host: str) -> None:
        await self._inner.release(host)

    async def probe(self, host: str) -> None:
        await self._inner.probe(host)

    def hurry(self) -> bool:
        return self._inner.hurry()

    async def close(self) -> None: ...


def test_a_worker_that_dies_makes_its_trial_faulted_and_the_assignment_runs_again() -> None:
    study = spec(trials=3)
    executor, _ = inline(study, Start())
    notes, optimizer = Notes(), optimizer_of(study)
    assert asyncio.run(campaign(study, DyingWorker(executor), notes, optimizer).run())
    first, second = notes.finished[:2]
    assert isinstance(first[1], Faulted)
    assert isinstance(second[1], Measured)
    rows = optimizer.rows()
    assert rows[0].assignment == rows[1].assignment


def test_every_trial_is_told_once_and_none_is_left_running() -> None:
    study = spec(hosts=2, trials=7)

    def script(command: Command, number: int) -> Start:
        draft = int(Assignment.of(ENGINE.settings_of(command))["draft"])
        if draft == 4:
            return Start(death=Death(exit_status=1, log="fake: fatal: configuration\n"))
        return Start(refuses="a hiccup") if number == 1 else Start()

    executor, _ = inline(study, script)
    notes, optimizer = Notes(), optimizer_of(study)
    assert asyncio.run(campaign(study, executor, notes, optimizer).run())
    assert sorted(notes.begun) == sorted(number for number, _ in notes.finished)
    assert all(row.outcome is not None for row in optimizer.rows())
    assert counted(optimizer.rows()) == 7
    assert {type(outcome) for _, outcome in notes.finished} <= {Measured, Infeasible, Faulted}


def test_evidence_that_cannot_be_written_ends_every_trial_and_leaves_the_hosts_clean() -> None:
    study = spec(hosts=2)
    executor, hosts = inline(study, Start())
    notes, optimizer = Notes(), optimizer_of(study)
    running = campaign(study, executor, notes, optimizer, fails_at=9)
    with pytest.raises(EvidenceError, match="the disk is full"):
        asyncio.run(running.run())
    assert [host.service.gpu_bytes for host in hosts] == [0, 0]
    assert {type(outcome) for _, outcome in notes.finished} == {Interrupted}
    assert all(row.outcome is not None or row.host is None for row in optimizer.rows()), "a trial was never told"


def test_a_base_command_that_the_server_refuses_is_the_persons_to_mend() -> None:
    study = spec()
    executor, _ = inline(study, Start(death=Death(exit_status=2, log="fake: fatal: unrecognized --bath\n")))
    notes = Notes()
    with pytest.raises(UsageError, match=r"base command does not start.*unrecognized --bath"):
        asyncio.run(campaign(study, executor, notes, optimizer_of(study)).run())
    assert len(notes.finished) == 1


@pytest.mark.parametrize(
    ("death", "goes_on"),
    [
        (Death(exit_status=1, log="a GPU that is not there\n"), False),
        (Death(at=TrialState.LOADING, exit_status=1, log="fake: fatal: configuration: out of memory\n"), True),
        (Death(at=TrialState.MEASURING, level=4, exit_status=1, log="who knows\n"), True),
    ],
)
def test_a_base_command_that_dies_at_the_start_of_anything_but_memory_ends_the_study(
    death: Death, goes_on: bool
) -> None:
    study = spec(trials=2)
    executor, _ = inline(study, lambda command, _number: Start(death=death) if command == study.base else Start())
    running = campaign(study, executor, Notes(), optimizer_of(study))
    if goes_on:
        assert asyncio.run(running.run())
    else:
        with pytest.raises(UsageError, match="does not start"):
            asyncio.run(running.run())


def test_arguments_that_are_refused_in_a_later_trial_are_only_infeasible() -> None:
    study = spec(trials=3)
    refused = Start(death=Death(exit_status=2, log="fake: fatal: no\n"))
    executor, _ = inline(study, [Start(), refused, Start()])
    notes, optimizer = Notes(), optimizer_of(study)
    assert asyncio.run(campaign(study, executor, notes, optimizer).run())
    assert [type(outcome) for _, outcome in notes.finished] == [Measured, Infeasible, Measured]
