"""One trial from proposal to outcome, on scripted hosts."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import pytest

from tuner.errors import TransportFault
from tuner.model.host import ProcessEntry
from tuner.model.outcome import (
    Cause,
    Ending,
    Faulted,
    Infeasible,
    Interrupted,
    Measured,
    TrialState,
    Verdict,
    violation,
)
from tuner.model.space import Assignment
from tuner.model.trial import (
    Command,
    LogText,
    Remark,
    StateEntered,
    TrialEvent,
    TrialFinished,
    TrialRequest,
    TrialResult,
    WarmedUp,
)
from tuner.model.workload import Workload
from tuner.runtime.cleaning import HostSession
from tuner.runtime.stay import Proof
from tuner.runtime.trial import Trial, events_of
from tuner.testing.fake_engine import FakeEngine, FakeLogReader
from tuner.testing.fake_host import GIB, Death, FakeHost, FakeService, Guest, OldServer, Script, Start

ENGINE = FakeEngine()
WORKLOAD = Workload(
    output_tokens=32, ladder=(1, 4, 16), level_min_s=2.0, level_max_s=4.0, soak_s=3.0, load_timeout_s=120.0
)
STAGE = "fake: stage load\n"


def request(workload: Workload = WORKLOAD) -> TrialRequest:
    assignment = Assignment.of({"batch": 8, "draft": 3})
    return TrialRequest(
        study="s",
        number=7,
        assignment=assignment,
        command=ENGINE.command(Command(argv=("serve", "--api-key", "s3cret-key")), assignment),
        engine="fake",
        workload=workload,
        seed=1,
    )


def run(host: FakeHost, workload: Workload = WORKLOAD) -> tuple[TrialResult, list[TrialEvent]]:
    events: list[TrialEvent] = []

    async def main() -> TrialResult:
        return await Trial(request(workload), HostSession(host.ports()), ENGINE, events.append, asyncio.Event()).run()

    return asyncio.run(main()), events


def states(events: Sequence[TrialEvent]) -> list[tuple[TrialState, int | None]]:
    return [(event.state, event.level) for event in events if isinstance(event, StateEntered)]


def dying(at: TrialState, *, log: str = "", level: int | None = None, after_s: float = 0.5) -> Start:
    death = Death(at=at, level=level, after_s=after_s, exit_status=1, log=log)
    return Start(death=death, log=((0.1, STAGE),))


def outcome_of(script: Script) -> Infeasible:
    result, _ = run(FakeHost(ENGINE, script))
    assert isinstance(result.outcome, Infeasible)
    return result.outcome


def test_a_healthy_server_is_measured_through_every_state_in_order() -> None:
    host = FakeHost(ENGINE, Start(log=((0.1, STAGE),)))
    result, events = run(host)
    assert isinstance(result.outcome, Measured)
    assert states(events) == [
        (TrialState.PROPOSED, None),
        (TrialState.CLEANING, None),
        (TrialState.DEPLOYING, None),
        (TrialState.LOADING, None),
        (TrialState.READY, None),
        (TrialState.WARMING_UP, None),
        (TrialState.MEASURING, 1),
        (TrialState.MEASURING, 4),
        (TrialState.MEASURING, 16),
        (TrialState.SOAKING, 16),
        (TrialState.JUDGING, 16),
        (TrialState.DONE, 16),
    ]
    assert isinstance(events[-1], TrialFinished)
    assert events[-1].result == result
    assert [leg.concurrency for leg in result.legs] == [1, 4, 16]
    assert result.outcome.single_request_throughput.value == 100.0
    assert result.outcome.aggregate_throughput.value == 1600.0
    assert result.outcome.peak_concurrency == 16
    assert result.attempts == 1


def test_what_a_server_logs_while_it_is_stopped_is_kept() -> None:
    _, events = run(FakeHost(ENGINE, Start(log=((0.1, STAGE), (0.2, "no line end")))))
    assert "".join(event.text for event in events if isinstance(event, LogText)).endswith("no line end")


def test_the_server_is_gone_after_every_trial() -> None:
    for script in (Start(), dying(TrialState.LOADING), Start(stop_s=None)):
        host = FakeHost(ENGINE, script)
        run(host)
        assert host.service.gpu_bytes == 0


def test_the_peak_is_the_best_level_and_not_the_last() -> None:
    best_at_4 = Start(speed=lambda n: (50.0, {1: 50.0, 4: 180.0, 16: 120.0}[n]))
    result, _ = run(FakeHost(ENGINE, best_at_4))
    assert isinstance(result.outcome, Measured)
    assert result.outcome.peak_concurrency == 4


def test_a_death_while_loading_that_names_the_configuration_is_infeasible_at_once() -> None:
    host = FakeHost(ENGINE, dying(TrialState.LOADING, log="fake: fatal: configuration\n"))
    result, _ = run(host)
    assert isinstance(result.outcome, Infeasible)
    assert result.outcome.state is TrialState.LOADING
    assert len(host.service.commands) == 1


def test_a_server_that_loads_and_dies_between_two_looks_died_loading() -> None:
    words = f"{STAGE}fake: fatal: configuration\n"
    outcome = outcome_of(Start(death=Death(at=TrialState.LOADING, after_s=0.01, exit_status=1, log=words)))
    assert isinstance(outcome, Infeasible)
    assert (outcome.state, outcome.violation) == (TrialState.LOADING, violation(TrialState.LOADING))


def test_an_unknown_death_is_tried_again_on_a_clean_host_before_the_verdict() -> None:
    host = FakeHost(ENGINE, dying(TrialState.LOADING))
    result, events = run(host)
    assert isinstance(result.outcome, Infeasible)
    assert result.outcome.verdict.cause is Cause.UNKNOWN
    assert result.attempts == 2
    assert states(events).count((TrialState.CLEANING, None)) == 2


def test_one_flaky_start_does_not_condemn_a_configuration() -> None:
    result, _ = run(FakeHost(ENGINE, [dying(TrialState.LOADING), Start()]))
    assert isinstance(result.outcome, Measured)
    assert result.attempts == 2


@pytest.mark.parametrize(
    ("at", "level"),
    [
        (TrialState.READY, None),
        (TrialState.WARMING_UP, None),
        (TrialState.MEASURING, 1),
        (TrialState.MEASURING, 16),
        (TrialState.SOAKING, None),
    ],
)
def test_a_death_is_noticed_within_two_seconds_in_any_state(at: TrialState, level: int | None) -> None:
    death_s: list[float] = []
    host = FakeHost(ENGINE, dying(at, level=level, log="fake: fatal: configuration\n", after_s=0.5))
    entered: dict[str, float] = {}

    async def main() -> TrialResult:
        def emit(event: TrialEvent) -> None:
            if isinstance(event, StateEntered):
                entered[event.state.value] = event.at_s
                if event.state is at and event.level in (level, WORKLOAD.ladder[-1]):
                    death_s.append(event.at_s + 0.5)

        return await Trial(request(), HostSession(host.ports()), ENGINE, emit, asyncio.Event()).run()

    result = asyncio.run(main())
    assert isinstance(result.outcome, Infeasible)
    if at is not TrialState.READY:  # a server that dies right after it was proven ready dies in a later state
        assert result.outcome.state is at
        assert entered["judging"] - death_s[-1] < 2.0


def test_a_death_under_load_is_graded_by_the_level_it_reached() -> None:
    early = outcome_of(dying(TrialState.MEASURING, level=4, log="fake: fatal: configuration\n"))
    late = outcome_of(dying(TrialState.MEASURING, level=16, log="fake: fatal: configuration\n"))
    loading = outcome_of(dying(TrialState.LOADING, log="fake: fatal: configuration\n"))
    assert loading.violation > early.violation > late.violation > 0
    assert (early.level, late.level) == (4, 16)


def test_a_crash_loop_is_a_crash_although_it_answers_in_between() -> None:
    looping = Start(death=Death(at=TrialState.MEASURING, level=4, after_s=0.5, exit_signal=9), restart_s=0.1)
    outcome = outcome_of(looping)
    assert outcome.verdict.cause is Cause.CRASH_LOOP


@pytest.mark.parametrize("state", [TrialState.LOADING, TrialState.MEASURING])
def test_a_server_that_somebody_starts_anew_again_and_again_is_no_crash_loop(state: TrialState) -> None:
    host = FakeHost(ENGINE, Start(log=((0.1, STAGE),)))

    def start_anew(event: TrialEvent) -> None:
        if isinstance(event, StateEntered) and event.state is state and event.level in (None, 1):
            host.service._exec(host.clock.monotonic_s())  # the counter of systemd's own restarts stays as it is

    async def main() -> TrialResult:
        return await Trial(request(), HostSession(host.ports()), ENGINE, start_anew, asyncio.Event()).run()

    outcome = asyncio.run(main()).outcome
    assert isinstance(outcome, Faulted)
    assert outcome.verdict is not None
    assert outcome.verdict.cause is Cause.OPERATOR_STOP


def test_an_old_server_that_answers_health_proves_nothing() -> None:
    host = FakeHost(ENGINE, dying(TrialState.LOADING), old_server=OldServer(settings={"batch": 1, "draft": 0}))
    result, events = run(host)
    assert isinstance(result.outcome, Infeasible)
    remarks = [event.text for event in events if isinstance(event, Remark)]
    assert any("killing what is left of our servers" in text for text in remarks)


def test_a_server_that_runs_other_settings_than_asked_is_not_measured() -> None:
    outcome = outcome_of(Start(lies={"draft": 1}))
    assert outcome.verdict.cause is Cause.CONFIGURATION_MISMATCH
    assert outcome.verdict.evidence == ("draft=1 runs, draft=3 was asked",)


def test_failed_requests_void_the_leg_even_when_the_server_lives() -> None:
    outcome = outcome_of(Start(failed_requests={16: 3}))
    assert outcome.verdict.cause is Cause.FAILED_REQUESTS
    assert (outcome.state, outcome.level) == (TrialState.MEASURING, 16)


def test_a_server_that_is_healthy_but_does_not_generate_is_never_ready() -> None:
    outcome = outcome_of(Start(generates=False))
    assert outcome.state is TrialState.LOADING


def test_a_server_that_never_becomes_ready_times_out() -> None:
    outcome = outcome_of(Start(ready_s=None))
    assert outcome.verdict.cause is Cause.START_TIMEOUT


def test_a_foreign_process_on_the_host_is_never_killed_and_faults_the_trial() -> None:
    foreign = ProcessEntry(pid=66, command="someone else", ours=False)
    host = FakeHost(ENGINE, leftovers=(foreign,), leftover_gpu_bytes=GIB)
    result, _ = run(host)
    assert isinstance(result.outcome, Faulted)
    assert "someone else" in result.outcome.error
    assert not host.service.commands


def test_gpu_memory_that_comes_back_late_is_waited_for() -> None:
    result, events = run(FakeHost(ENGINE, [Start(gpu_returns_s=8.0, death=Death(exit_status=1)), Start()]))
    assert isinstance(result.outcome, Measured)
    assert any("GiB in use" in event.text for event in events if isinstance(event, Remark))


def test_gpu_memory_that_never_comes_back_is_the_hosts_fault() -> None:
    result, _ = run(FakeHost(ENGINE, Start(gpu_returns_s=None, death=Death(exit_status=1))))
    assert isinstance(result.outcome, Faulted)
    assert "not clean" in result.outcome.error


def test_memory_that_runs_out_beside_somebody_elses_that_is_gone_soon_is_no_verdict() -> None:
    host = FakeHost(ENGINE, [dying(TrialState.LOADING, log="fake: fatal: configuration\n", after_s=1.0), Start()])
    host.gpu.guests = (Guest(pid=4711, from_s=0.5, to_s=2.2),)
    session, events = HostSession(host.ports(), gpu_baseline={0: GIB // 2}), list[TrialEvent]()

    async def main() -> TrialResult:
        return await Trial(request(), session, ENGINE, events.append, asyncio.Event()).run()

    result = asyncio.run(main())
    assert isinstance(result.outcome, Measured)
    assert result.attempts == 2
    assert "starting once more after cleaning: oom_serving while loading may be the host's fault" in [
        event.text for event in events if isinstance(event, Remark)
    ]


def test_a_death_is_graded_by_what_the_log_says_was_missing_on_this_gpu() -> None:
    class Explicit(FakeEngine):
        """Its log says how much memory was missing."""

        def log_reader(self) -> FakeLogReader:
            return ExplicitReader()

    class ExplicitReader(FakeLogReader):
        def diagnose(self, ending: Ending) -> Verdict:
            return replace(super().diagnose(ending), shortfall_bytes=8 * GIB)

    host = FakeHost(Explicit(), dying(TrialState.WARMING_UP, log="fake: fatal: configuration\n"))

    async def main() -> TrialResult:
        return await Trial(request(), HostSession(host.ports()), host.engine, lambda _: None, asyncio.Event()).run()

    outcome = asyncio.run(main()).outcome
    assert isinstance(outcome, Infeasible)
    assert outcome.violation == violation(TrialState.WARMING_UP, missing=0.1)  # 8 of 80 GiB


def test_the_third_configuration_in_a_row_that_dies_silently_at_its_start_sets_the_host_aside() -> None:
    host = FakeHost(ENGINE, dying(TrialState.LOADING))
    session = HostSession(host.ports())

    async def main(draft: int) -> TrialResult:
        asked = replace(request(), number=draft, assignment=Assignment.of({"batch": 8, "draft": draft}))
        asked = replace(asked, command=ENGINE.command(asked.command, asked.assignment))
        return await Trial(asked, session, ENGINE, lambda _: None, asyncio.Event()).run()

    first, second, third = (asyncio.run(main(draft)) for draft in (1, 2, 3))
    assert isinstance(first.outcome, Infeasible)
    assert isinstance(second.outcome, Faulted)
    assert not second.outcome.set_aside
    assert isinstance(third.outcome, Faulted)
    assert third.outcome.set_aside
    assert (first.attempts, second.attempts, third.attempts) == (2, 3, 1)


def test_a_host_that_was_given_back_begins_anew() -> None:
    host = FakeHost(ENGINE, dying(TrialState.LOADING))
    session = HostSession(host.ports())

    async def main() -> TrialResult:
        result = await Trial(request(), session, ENGINE, lambda _: None, asyncio.Event()).run()
        assert session.endings.around(Assignment.of({"batch": 1})).others
        await session.stay.leave(Proof(engine=ENGINE, workload=WORKLOAD), lambda _: None)
        return result

    asyncio.run(main())
    assert session.endings.around(Assignment.of({"batch": 1})).others == ()


def test_a_program_that_cannot_be_started_is_the_hosts_fault() -> None:
    result, _ = run(FakeHost(ENGINE, Start(refuses="no such program: serve")))
    assert isinstance(result.outcome, Faulted)
    assert "no such program" in result.outcome.error


def test_a_client_that_was_the_bottleneck_faults_the_trial() -> None:
    result, _ = run(FakeHost(ENGINE, Start(client_bound=frozenset({16}))))
    assert isinstance(result.outcome, Faulted)


def test_a_host_that_cannot_be_reached_faults_the_trial() -> None:
    result, _ = run(FakeHost(ENGINE, Start(unreachable_s=(6.0, 7.0))))
    assert isinstance(result.outcome, Faulted)


@pytest.mark.parametrize("when", ["deploying", "loading", "warming_up", "measuring", "soaking"])
def test_a_stop_ends_the_trial_in_any_state_and_leaves_no_server(when: str) -> None:
    host = FakeHost(ENGINE, Start(log=((0.1, STAGE),)))

    async def main() -> TrialResult:
        stop = asyncio.Event()

        def emit(event: TrialEvent) -> None:
            if isinstance(event, StateEntered) and event.state.value == when:
                stop.set()

        return await Trial(request(), HostSession(host.ports()), ENGINE, emit, stop).run()

    result = asyncio.run(main())
    assert isinstance(result.outcome, Interrupted)
    assert host.service.gpu_bytes == 0


def test_closing_the_event_stream_stops_the_server() -> None:
    host = FakeHost(ENGINE)

    async def main() -> None:
        events = events_of(request(), HostSession(host.ports()), ENGINE, asyncio.Event())
        async for event in events:
            if isinstance(event, StateEntered) and event.state is TrialState.MEASURING:
                break
        await events.aclose()

    asyncio.run(main())
    assert host.service.commands
    assert host.service.gpu_bytes == 0


def test_secrets_of_the_command_line_reach_no_event() -> None:
    leaky = Start(log=((0.1, STAGE), (0.2, "server_args={'api_key': 's3cret-key'} and s3c"), (0.4, "ret-key again\n")))
    _, events = run(FakeHost(ENGINE, leaky))
    assert "s3cret-key" not in repr([event for event in events if not isinstance(event, TrialFinished)])
    assert any("***" in repr(event) for event in events)


class StopFails(FakeService):
    """A service whose host fails us in the very stop."""

    async def stop(self, *, grace_s: float) -> None:
        await super().stop(grace_s=grace_s)
        raise TransportFault("the connection is lost")


@pytest.mark.parametrize("dies", [True, False])
def test_a_host_that_fails_while_the_server_is_stopped_does_not_overturn_the_outcome(dies: bool) -> None:
    start = dying(TrialState.MEASURING, level=4, log="fake: fatal: configuration\n") if dies else Start()
    host = FakeHost(ENGINE, start)
    host.service = StopFails(start, host.clock)
    result, events = run(host)
    assert isinstance(result.outcome, Infeasible if dies else Measured)
    assert any("the connection is lost" in event.text for event in events if isinstance(event, Remark))


def test_the_cause_is_found_at_the_end_of_a_log_of_any_length() -> None:
    flood = "x" * 1023 + "\n"
    log = flood * 60_000 + "fake: fatal: configuration\n"
    outcome = outcome_of(Start(log=((0.1, STAGE),), death=Death(at=TrialState.LOADING, exit_status=1, log=log)))
    assert outcome.verdict.cause is Cause.OOM_SERVING


def test_memory_that_a_killed_server_still_holds_is_not_taken_for_the_hosts_own() -> None:
    left = ProcessEntry(pid=77, command="scheduler", ours=True)
    host = FakeHost(ENGINE, Start(), leftovers=(left,), leftover_gpu_bytes=40 * GIB)
    session = HostSession(host.ports())

    async def main() -> TrialResult:
        return await Trial(request(), session, ENGINE, lambda _event: None, asyncio.Event()).run()

    assert isinstance(asyncio.run(main()).outcome, Measured)
    assert session.gpu_baseline == {0: GIB // 2}


def test_the_requests_of_the_warm_up_are_kept_and_marked() -> None:
    _, events = run(FakeHost(ENGINE))
    assert [len(event.requests) for event in events if isinstance(event, WarmedUp)] == [WORKLOAD.warmup_requests]


def test_a_verdict_holds_no_secret() -> None:
    log = "fake: fatal: configuration s3cret-key\n"
    outcome = outcome_of(Start(death=Death(at=TrialState.LOADING, exit_status=1, log=log)))
    assert outcome.verdict.evidence == ("fake: fatal: configuration ***",)


def test_a_secret_is_found_in_a_log_without_line_ends_wherever_it_is_cut() -> None:
    pieces = (
        (0.1, STAGE),
        (0.2, "y" * 70_000 + "s3cret-"),
        (0.4, "key" + "y" * 70_000 + "s3c"),
        (0.6, "ret-key" + "z" * 70_000),
    )
    _, events = run(FakeHost(ENGINE, Start(log=pieces)))
    text = "".join(event.text for event in events if isinstance(event, LogText))
    assert "s3cret-key" not in text
    assert text.count("***") == 2
