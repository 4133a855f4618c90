"""What the runtime makes of deaths, silence, and servers that are not reached: on scripted hosts."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Sequence
from dataclasses import replace

import pytest

from tuner.model.http import HttpReply
from tuner.model.outcome import Cause, Ending, Faulted, Infeasible, Measured, Outcome, TrialState, Verdict
from tuner.model.record import RequestRecord, RequestStatus
from tuner.model.space import Assignment
from tuner.model.trial import Command, Remark, StateEntered, TrialEvent, TrialRequest
from tuner.model.workload import Workload
from tuner.ports import HostPorts, LoadProgress
from tuner.runtime import symptoms
from tuner.runtime.cleaning import HostSession
from tuner.runtime.silence import COLD_PATIENCE, Silence, is_hanging, limit_s
from tuner.runtime.trial import Trial
from tuner.testing.fake_engine import FakeEngine, FakeLogReader
from tuner.testing.fake_gpu import Guest
from tuner.testing.fake_host import GIB, Death, FakeHost, FakeKernelLog, Start

OOM = "Out of memory: Killed process 4017 (python3)"
STAGE = "fake: stage load\n"
WORKLOAD = Workload(
    output_tokens=32, ladder=(1, 4), level_min_s=2.0, level_max_s=4.0, soak_s=3.0, load_timeout_s=60.0, silence_s=10.0
)


class Reader(FakeLogReader):
    """Remembers what it was asked with; a kernel's record is its HOST_OOM."""

    def __init__(self, endings: list[Ending]) -> None:
        super().__init__()
        self._endings = endings

    def diagnose(self, ending: Ending) -> Verdict:
        self._endings.append(ending)
        if ending.kernel:
            return Verdict(cause=Cause.HOST_OOM, config_fault=False, evidence=ending.kernel)
        return super().diagnose(ending)


class Engine(FakeEngine):
    """The made-up engine with such readers."""

    def __init__(self) -> None:
        super().__init__()
        self.endings: list[Ending] = []

    def log_reader(self) -> Reader:
        return Reader(self.endings)


class Ran:
    """A trial that was run to its outcome."""

    def __init__(
        self, host: FakeHost, engine: FakeEngine, workload: Workload = WORKLOAD, *, ports: HostPorts | None = None
    ) -> None:
        assignment = Assignment.of({"batch": 8, "draft": 3})
        request = TrialRequest(
            study="s",
            number=7,
            assignment=assignment,
            command=engine.command(Command(argv=("serve",)), assignment),
            engine="fake",
            workload=workload,
            seed=1,
        )
        self.events: list[TrialEvent] = []
        trial = Trial(request, HostSession(ports or host.ports()), engine, self.events.append, asyncio.Event())
        self.outcome: Outcome = asyncio.run(trial.run()).outcome

    @property
    def verdict(self) -> Verdict:
        assert isinstance(self.outcome, Infeasible | Faulted)
        assert self.outcome.verdict is not None, self.outcome
        return self.outcome.verdict

    @property
    def remarks(self) -> str:
        return "\n".join(event.text for event in self.events if isinstance(event, Remark))

    def entered_s(self, state: TrialState) -> float:
        """When the state was entered first."""
        return next(event.at_s for event in self.events if isinstance(event, StateEntered) and event.state is state)

    def took_s(self, state: TrialState) -> float:
        """How long the state lasted when it was entered first."""
        entered = [event for event in self.events if isinstance(event, StateEntered)]
        place = next(place for place, event in enumerate(entered) if event.state is state)
        return entered[place + 1].at_s - entered[place].at_s


def fake_host(engine: FakeEngine, start: Start) -> FakeHost:
    """A host that is clean at once: its servers start at second 0."""
    return FakeHost(engine, start, baseline_bytes=0)


def dying(at: TrialState = TrialState.LOADING, *, result: str | None = None) -> Start:
    return Start(log=((0.1, STAGE),), death=Death(at=at, after_s=1.0, exit_signal=9, result=result))


# -- the ending ----------------------------------------------------------------------------


def test_a_death_is_judged_with_what_systemd_and_the_kernel_say() -> None:
    engine = Engine()
    host = fake_host(engine, dying(result="oom-kill"))
    host.kernel = FakeKernelLog(lines=(OOM,))
    assert Ran(host, engine).verdict.cause is Cause.HOST_OOM
    first = engine.endings[0]
    assert (first.exit_signal, first.service_result, first.kernel) == (9, "oom-kill", (OOM,))
    assert (first.state, first.has_ended, first.foreign) == (TrialState.LOADING, True, ())


def test_the_kernel_is_asked_for_the_time_since_the_start_of_this_server_only() -> None:
    engine = Engine()
    host = fake_host(engine, dying())
    host.kernel = kernel = FakeKernelLog()
    ran = Ran(host, engine)
    starts = [
        event.at_s for event in ran.events if isinstance(event, StateEntered) and event.state.value == "deploying"
    ]
    assert len(kernel.asked_s) == len(starts) == 2
    assert all(start - 3.0 < asked <= start for start, asked in zip(starts, kernel.asked_s, strict=True))


def test_a_kernels_log_that_takes_long_is_left_out_and_delays_no_verdict() -> None:
    engine = Engine()
    host = fake_host(engine, dying())
    host.kernel = FakeKernelLog(lines=(OOM,), takes_s=60.0, clock=host.clock)
    ran = Ran(host, engine)
    assert engine.endings[0].kernel == ()
    assert ran.verdict.cause is Cause.UNKNOWN
    again = [event.at_s for event in ran.events if isinstance(event, StateEntered) and event.state.value == "cleaning"]
    assert again[1] - ran.entered_s(TrialState.LOADING) < 1.0 + 2.0 + 1.0  # life, verdict, the stop


def test_a_hidden_kernel_log_is_remarked_and_judged_without() -> None:
    engine = Engine()
    host = fake_host(engine, dying())
    host.kernel = FakeKernelLog(hidden="host gpu01: ops may not read the kernel's log")
    assert Ran(host, engine).remarks.count("may not read the kernel's log") == 1


def test_a_foreign_process_at_the_death_is_named_in_the_ending() -> None:
    engine = Engine()
    host = fake_host(engine, dying())
    host.gpu.guests = (Guest(from_s=0.9, memory_bytes=10 * GIB),)
    Ran(host, engine)
    (foreign,) = engine.endings[0].foreign
    assert "9000 python train.py (10.0 GiB" in foreign


@pytest.mark.parametrize(
    "guest",
    [
        Guest(from_s=0.9, to_s=1.2),  # gone at the second look, as what is torn down
        Guest(memory_bytes=64 * 1024**2),  # a monitor's
    ],
)
def test_what_passes_or_holds_little_is_nobody_in_the_ending(guest: Guest) -> None:
    engine = Engine()
    host = fake_host(engine, dying())
    host.gpu.guests = (guest,)
    Ran(host, engine)
    assert engine.endings[0].foreign == ()


def test_a_stop_of_ours_counts_with_both_of_its_signals() -> None:
    engine = Engine()
    host = fake_host(engine, Start(log=((0.1, STAGE),), stop_s=None))

    async def stop_in_a_while() -> None:
        await host.clock.sleep(8.0)
        await host.service.stop(grace_s=1.0)

    async def main() -> None:
        assignment = Assignment.of({"batch": 8, "draft": 3})
        command = engine.command(Command(argv=("serve",)), assignment)
        request = TrialRequest(
            study="s", number=1, assignment=assignment, command=command, engine="fake", workload=WORKLOAD, seed=1
        )
        stopping = asyncio.ensure_future(stop_in_a_while())
        await Trial(request, HostSession(host.ports()), engine, lambda _: None, asyncio.Event()).run()
        await stopping

    asyncio.run(main())
    assert engine.endings[0].signals_sent == (signal.SIGTERM, signal.SIGKILL)
    assert engine.endings[0].exit_signal == signal.SIGKILL


# -- silence -------------------------------------------------------------------------------


def test_silence_is_judged_by_its_length_and_by_whether_anybody_waits() -> None:
    at = LoadProgress(elapsed_s=40.0, throughput=None, in_flight=4, silent_s=30.0)
    assert is_hanging(at, 30.0)
    assert not is_hanging(replace(at, silent_s=29.9), 30.0)
    assert not is_hanging(replace(at, in_flight=0), 30.0)


def test_the_first_requests_are_given_longer() -> None:
    assert limit_s(WORKLOAD, is_warm=True) == 10.0
    assert limit_s(WORKLOAD, is_warm=False) == 10.0 * COLD_PATIENCE


def test_load_that_ends_by_itself_is_not_broken_off() -> None:
    async def main() -> None:
        silence = Silence(1.0)

        async def load() -> int:
            silence.take(LoadProgress(elapsed_s=1.0, throughput=1.0, in_flight=1, silent_s=0.9))
            return 5

        assert await silence.during(load()) == 5
        assert silence.broken_off is None

    asyncio.run(main())


@pytest.mark.parametrize(
    ("hangs_after_s", "state"),
    [(0.5, TrialState.WARMING_UP), (2.0, TrialState.MEASURING), (6.0, TrialState.SOAKING)],
)
def test_a_server_that_is_healthy_and_silent_hangs_wherever_the_trial_is(
    hangs_after_s: float, state: TrialState
) -> None:
    engine = Engine()
    ran = Ran(fake_host(engine, Start(log=((0.1, STAGE),), hangs_after_s=hangs_after_s)), engine)
    assert isinstance(ran.outcome, Infeasible)
    assert (ran.verdict.cause, ran.verdict.config_fault, ran.outcome.state) == (Cause.HANG, None, state)
    assert any("nothing came back for" in line for line in ran.verdict.evidence)
    assert any("requests waited" in line for line in ran.verdict.evidence)
    assert "its health check: 200" in ran.verdict.evidence
    limit = limit_s(WORKLOAD, is_warm=state is not TrialState.WARMING_UP)
    assert limit <= ran.took_s(state) < limit + 5.0
    assert engine.endings[0].has_ended is False


def test_a_server_that_never_answers_its_first_generation_hangs() -> None:
    engine = Engine()
    ran = Ran(fake_host(engine, Start(hangs_after_s=0.0)), engine)
    assert ran.verdict.cause is Cause.HANG
    assert "nothing came back of a lone short generation for 40 s" in ran.verdict.evidence


def test_a_server_that_hangs_is_given_little_time_to_end() -> None:
    engine = Engine()
    host = fake_host(engine, Start(log=((0.1, STAGE),), hangs_after_s=2.0, stop_s=None))
    ran = Ran(host, engine, ports=replace(host.ports(), stop_grace_s=120.0))
    assert ran.verdict.cause is Cause.HANG
    assert host.service.graces == [10.0, 10.0], "a start and the one more that a hang is granted"


def test_a_silence_that_is_allowed_is_waited_out() -> None:
    engine = Engine()
    patient = replace(WORKLOAD, silence_s=1000.0, request_timeout_s=20.0)
    ran = Ran(fake_host(engine, Start(log=((0.1, STAGE),), hangs_after_s=2.0)), engine, patient)
    assert ran.verdict.cause is Cause.FAILED_REQUESTS


def test_a_server_that_hangs_after_its_log_said_why_is_judged_by_its_log() -> None:
    engine = Engine()
    host = fake_host(engine, Start(log=((0.1, STAGE),), hangs_after_s=2.0))
    host.kernel = FakeKernelLog(lines=(OOM,))
    verdict = Ran(host, engine).verdict
    assert verdict.cause is Cause.HOST_OOM
    assert verdict.evidence[0] == OOM
    assert any("nothing came back for" in line for line in verdict.evidence)


def test_silence_while_the_host_was_out_of_reach_is_not_the_servers() -> None:
    engine = Engine()
    host = fake_host(engine, Start(hangs_after_s=0.0))
    host.outages = ((6.0, 30.0),)
    ran = Ran(host, engine)
    assert isinstance(ran.outcome, Faulted)
    assert "could not be reached" in ran.outcome.error


# -- failed requests -----------------------------------------------------------------------


def record(status: RequestStatus, error: str | None = None) -> RequestRecord:
    return RequestRecord(
        concurrency=4,
        slot=0,
        prompt_id="p",
        sent_s=0.0,
        first_s=None,
        last_s=None,
        ended_s=1.0,
        tokens=None,
        first_chunk_tokens=None,
        prompt_tokens=None,
        chunk_s=(),
        chunk_tokens=(),
        status=status,
        in_window=False,
        error=error,
    )


def test_failed_requests_are_counted_by_kind() -> None:
    records = [record(RequestStatus.OK), record(RequestStatus.CANCELLED), record(RequestStatus.SHORT, "3 of 32")]
    records += [record(RequestStatus.CUT, "closed")] * 2 + [record(RequestStatus.EMPTY)]
    verdict = symptoms.failed_requests(records, "leg at concurrency 4")
    assert verdict.evidence == ("2 x cut: closed", "1 x short: 3 of 32", "1 x empty: no more is known")
    assert verdict.advice.startswith("4 of 6 requests failed (leg at concurrency 4)")


@pytest.mark.parametrize("level", [1, 4])
def test_a_leg_with_failed_requests_is_never_among_the_legs(level: int) -> None:
    engine = Engine()
    ran = Ran(fake_host(engine, Start(failed_requests={level: 1})), engine)
    assert isinstance(ran.outcome, Infeasible)
    assert ran.verdict.cause is Cause.FAILED_REQUESTS
    assert ran.verdict.evidence == ("1 x cut: the connection was closed",)
    assert ran.outcome.level == level


# -- not reached ---------------------------------------------------------------------------


def test_a_server_that_listens_and_is_not_reached_is_the_hosts_fault() -> None:
    engine = Engine()
    host = fake_host(engine, Start(ready_s=None, log=((0.1, STAGE),)))
    host.listening = ("127.0.0.1",)
    ran = Ran(host, engine)
    assert isinstance(ran.outcome, Faulted)
    assert "listens on port 8000 of host gpu01 (127.0.0.1)" in ran.outcome.error
    assert "base_url" in ran.outcome.error


@pytest.mark.parametrize(
    ("listening", "said"), [((), "nobody listens"), (None, "whether anything listens on the host is not known")]
)
def test_a_server_that_does_not_listen_in_time_has_not_started(listening: Sequence[str] | None, said: str) -> None:
    engine = Engine()
    host = fake_host(engine, Start(ready_s=None, log=((0.1, STAGE),)))
    host.listening = None if listening is None else tuple(listening)
    verdict = Ran(host, engine).verdict
    assert verdict.cause is Cause.START_TIMEOUT
    assert verdict.evidence[0] == "last stage: load"
    assert said in verdict.evidence[1]
    assert verdict.evidence[2] == "its health check: refused"


def test_only_a_call_that_reached_nobody_is_out_of_reach() -> None:
    def reply(status: int | None, error: str | None) -> HttpReply:
        return HttpReply(status=status, body=b"", error=error)

    assert symptoms.is_out_of_reach(reply(None, "refused"), ("0.0.0.0",))
    assert not symptoms.is_out_of_reach(reply(503, None), ("127.0.0.1",))
    assert not symptoms.is_out_of_reach(reply(None, "timed_out"), ("127.0.0.1",))  # it may be the server that hangs
    assert not symptoms.is_out_of_reach(reply(None, "refused"), ())
    assert not symptoms.is_out_of_reach(reply(None, "refused"), None)


# -- the end -------------------------------------------------------------------------------


def test_the_soak_is_told_to_go_on_until_it_is_steady() -> None:
    engine = Engine()
    ran = Ran(fake_host(engine, Start(log=((0.1, STAGE),))), engine)
    assert isinstance(ran.outcome, Measured)
    assert ran.took_s(TrialState.SOAKING) >= WORKLOAD.soak_s


def test_throughput_that_never_comes_to_rest_is_remarked_and_measured() -> None:
    engine = Engine()
    ran = Ran(fake_host(engine, Start(log=((0.1, STAGE),), drifts=True)), engine)
    assert isinstance(ran.outcome, Measured)
    assert "throughput at concurrency 4 still drifted by more than ±2 %" in ran.remarks


def test_a_restart_between_the_soak_and_the_last_proof_is_a_crash() -> None:
    engine = Engine()
    dies = Start(
        log=((0.1, STAGE),), death=Death(at=TrialState.JUDGING, after_s=0.0005, exit_signal=9), restart_s=0.0005
    )
    ran = Ran(fake_host(engine, dies), engine)
    assert isinstance(ran.outcome, Infeasible)
    assert ran.verdict.cause is Cause.CRASH_LOOP
