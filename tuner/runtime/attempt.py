"""One server start of a trial: prove it ready, warm it up, measure it, soak it."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Coroutine, Sequence
from typing import Any, NoReturn, TypeVar

from tuner.errors import HostFault, MeasurementFault
from tuner.model.host import Activity
from tuner.model.outcome import Cause, Ending, Measured, TrialState, Verdict
from tuner.model.record import LegResult, RequestRecord, RequestStatus
from tuner.model.trial import Effective, LegFinished, ServiceIdentity, WarmedUp
from tuner.ports import Leg
from tuner.runtime.context import TrialContext
from tuner.runtime.guard import Guard
from tuner.runtime.racing import end, until_stop
from tuner.runtime.readiness import generates, mismatch, mismatch_verdict, read_effective
from tuner.runtime.watch import Ended, Watch

T = TypeVar("T")


class ServerDiedError(Exception):
    """The server of this attempt is dead or cannot be used; carries the verdict on it."""

    def __init__(self, verdict: Verdict) -> None:
        super().__init__(verdict.cause.value)
        self.verdict = verdict


class Attempt:
    """Takes one started server through all states up to JUDGING.

    Attributes:
        legs: what has been measured so far.
        effective: the configuration read back; None until READY.
    """

    def __init__(self, context: TrialContext, identity: ServiceIdentity) -> None:
        self.legs: list[LegResult] = []
        self.effective: Effective | None = None
        self._context = context
        self._workload = context.request.workload
        self._host = context.session.ports
        self._limits = context.session.limits
        self._engine = context.engine
        self._control = context.control
        self._progress = context.progress
        self._identity = identity
        self._reader = context.engine.log_reader()
        self._watch = Watch(context, identity, self._reader)
        self._guard = Guard(context.session, identity.main_pid, context.progress.remark)

    async def run(self) -> Measured:
        """Measure the server.

        Raises:
            ServerDiedError: it died, was replaced, or cannot be used.
            StopRequestedError: the run is being stopped.
            HostFault: the host failed us.
            MeasurementFault: the client spoiled a leg, or somebody else, the hardware or the network did.
        """
        self._watching = asyncio.ensure_future(self._watch.until_end())
        try:
            await self._become_ready()
            await self._warm_up()
            for level in self._workload.ladder:
                await self._measure(level)
            await self._soak()
        except ServerDiedError as died:
            accomplice = await self._guard.accomplice(died.verdict.cause)
            if accomplice is not None:
                raise accomplice from died
            raise
        finally:
            await end(self._watching)
        self._progress.enter(TrialState.JUDGING)
        return judge(self.legs)

    async def read_rest(self) -> None:
        """Keep the last lines of the server after it has been stopped."""
        await self._watch.read_rest()

    # -- ready -------------------------------------------------------------------------

    async def _become_ready(self) -> None:
        deadline = self._host.clock.monotonic_s() + self._workload.load_timeout_s
        while True:
            self._note_loading()
            await self._guarded(self._hold_route())
            reply = await self._guarded(self._control.call(self._engine.health_call()))
            if reply.status == 200:
                break
            if self._host.clock.monotonic_s() >= deadline:
                raise ServerDiedError(self._start_timeout())
            await self._guarded(self._host.clock.sleep(self._limits.probe_s))
        if self._progress.state is TrialState.DEPLOYING:
            self._progress.enter(TrialState.LOADING)
        await self._prove_identity()
        self.effective = await self._guarded(read_effective(self._engine, self._control))
        problem = mismatch(self._context.request.assignment, self.effective)
        if problem is not None:
            raise ServerDiedError(mismatch_verdict(problem))
        await self._prove_generation()
        self._progress.enter(TrialState.READY, detail=f"pid {self._identity.main_pid}")

    async def _hold_route(self) -> None:
        """Hold that requests still reach the server's port: a tunnel that died is made anew.

        Raises:
            HostFault: it cannot be, or leads from somewhere else now.
        """
        base_url = await self._host.route.open(self._engine.port(self._context.request.command))
        if base_url != self._context.target.base_url:
            msg = (
                f"the way to host {self._host.name} broke down and begins at {base_url} now, "
                f"not at {self._context.target.base_url}: run the trial again"
            )
            raise HostFault(msg)

    def _note_loading(self) -> None:
        """Take from the log that the server has come further than its arguments."""
        if self._progress.state is TrialState.DEPLOYING and self._reader.stage not in ("", "args"):
            self._progress.enter(TrialState.LOADING)

    def _start_timeout(self) -> Verdict:
        return Verdict(
            cause=Cause.START_TIMEOUT,
            config_fault=None,
            evidence=(f"last stage: {self._reader.stage or 'nothing logged'}",),
            advice=f"not ready after load_timeout_s = {self._workload.load_timeout_s:g} s",
        )

    async def _prove_identity(self) -> None:
        """Hold that the running server is still the one that was started."""
        if self._watch.is_ended(await self._host.service.state()):
            raise ServerDiedError(await self._diagnose(await self._watching))

    async def _prove_generation(self) -> None:
        problem = await self._guarded(
            generates(self._engine, self._control, self._workload, seed=self._context.request.seed)
        )
        if problem is not None:
            await self._give_death_time()
            raise ServerDiedError(
                Verdict(
                    cause=Cause.HANG if "timed out" in problem else Cause.FAILED_REQUESTS,
                    config_fault=None,
                    evidence=(problem,),
                    advice="the server answers but does not generate",
                )
            )

    # -- load --------------------------------------------------------------------------

    async def _warm_up(self) -> None:
        self._progress.enter(TrialState.WARMING_UP)
        requests = self._workload.warmup_requests
        if requests:
            records = await self._guarded(self._host.load.warm_up(self._context.target, requests, min(4, requests)))
            self._progress.emit(
                WarmedUp(at_s=self._host.clock.now_s(), unix_offset_s=self._unix_offset_s(), requests=records)
            )
            if any(record.status is not RequestStatus.OK for record in records):
                await self._fail_requests(records, "warming up")
        await self._flush()

    async def _measure(self, level: int) -> None:
        self._progress.enter(TrialState.MEASURING, level=level)
        leg = Leg(
            concurrency=level,
            min_s=self._workload.level_min_s,
            max_s=self._workload.level_max_s,
            interval=self._workload.interval,
            salt=f"{self._identity.invocation_id}-{level}",
        )
        self.legs.append(await self._run_leg(leg, kind="ladder"))
        await self._flush()

    async def _soak(self) -> None:
        """Hold the highest level, then prove that the same server still answers."""
        if self._workload.soak_s > 0:
            level = self._workload.ladder[-1]
            self._progress.enter(TrialState.SOAKING, level=level)
            leg = Leg(
                concurrency=level,
                min_s=self._workload.soak_s,
                max_s=self._workload.soak_s,
                interval=0.0,
                salt=f"{self._identity.invocation_id}-soak",
            )
            await self._run_leg(leg, kind="soak")
        await self._prove_identity()
        await self._prove_generation()

    async def _run_leg(self, leg: Leg, *, kind: str) -> LegResult:
        def tell(elapsed_s: float, throughput: float | None) -> None:
            self._progress.leg(leg.concurrency, elapsed_s, throughput)

        result, records = await self._guarded(
            self._guard.during(
                lambda: self._host.load.measure(self._context.target, leg, self._control, tell),
                what=f"{'soak' if kind == 'soak' else 'leg'} at concurrency {leg.concurrency}",
            )
        )
        self._progress.emit(
            LegFinished(
                at_s=self._host.clock.now_s(),
                unix_offset_s=self._unix_offset_s(),
                leg=result,
                requests=records,
                kind=kind,
            )
        )
        if result.failed or not result.completed:
            await self._fail_requests(records, f"concurrency {leg.concurrency}")
        return result

    async def _fail_requests(self, records: Sequence[RequestRecord], where: str) -> NoReturn:
        """Judge failed requests: the server's death if it shows, else the failures themselves."""
        await self._give_death_time()
        failed = [record for record in records if record.status not in (RequestStatus.OK, RequestStatus.CANCELLED)]
        kinds = sorted({f"{record.status.value}: {record.error or 'no more is known'}" for record in failed})
        raise ServerDiedError(
            Verdict(
                cause=Cause.FAILED_REQUESTS,
                config_fault=None,
                evidence=tuple(kinds[:5]) or ("no request was completed",),
                advice=f"{len(failed)} of {len(records)} requests failed ({where}), and the server stayed up",
            )
        )

    def _unix_offset_s(self) -> float:
        return self._host.clock.now_s() - self._host.clock.monotonic_s()

    async def _flush(self) -> None:
        call = self._engine.flush_call()
        if call is None:
            return
        reply = await self._guarded(self._control.call(call))
        if reply.status != 200:
            self._progress.remark(
                f"{call.path} answered {reply.status or reply.error}; the prompts of legs differ all the same"
            )

    # -- death -------------------------------------------------------------------------

    async def _guarded(self, work: Coroutine[Any, Any, T]) -> T:
        """Run ``work`` until it is done, the server dies, or the run is stopped."""
        result = await until_stop(work, self._context.stop, self._watching)
        if self._watching.done():
            raise ServerDiedError(await self._diagnose(self._watching.result()))
        return result  # type: ignore[return-value]  # None only when the watch ended

    async def _give_death_time(self) -> None:
        """Let a death show itself: a failed request is often its first sign."""
        await self._guarded(self._host.clock.sleep(self._limits.settle_s))

    async def _diagnose(self, ended: Ended) -> Verdict:
        # It may have died between two looks; the grade must not depend on when we looked. Before the
        # rest of the log is read and after it: in a loop that rest is the next life's beginning.
        self._note_loading()
        await self._watch.drain(is_endless=ended.looped or ended.fatal_line)
        self._note_loading()
        state = ended.state
        verdict = self._reader.diagnose(
            Ending(
                exit_status=state.exit_status,
                exit_signal=state.exit_signal,
                state=self._progress.state,
                signals_sent=(signal.SIGTERM,) if state.stop_requested else (),
                restarts=state.restarts,
                stopped_by_others=state.stopped_by_others,
            )
        )
        if verdict.cause is not Cause.UNKNOWN or not (ended.looped or state.stopped_by_others):
            return verdict
        if state.stopped_by_others or (state.restarts == 0 and state.activity is not Activity.RESTARTING):
            deed = "stopped the server" if state.stopped_by_others else "started the server anew"
            return Verdict(
                cause=Cause.OPERATOR_STOP,
                config_fault=False,
                evidence=verdict.evidence,
                advice=f"somebody else {deed}; nobody may touch it during a trial",
            )
        return Verdict(
            cause=Cause.CRASH_LOOP,
            config_fault=None,
            evidence=verdict.evidence,
            advice=f"the service manager started the server anew {max(state.restarts, 1)} time(s)",
        )


def judge(legs: list[LegResult]) -> Measured:
    """Turn the ladder's legs into the two objectives; the peak is the best level.

    Raises:
        MeasurementFault: a leg measured nothing.
    """
    single = legs[0].single_request_throughput
    if single is None:
        raise MeasurementFault("the single-request leg measured no throughput; lengthen level_min_s in [workload]")
    measured = [leg for leg in legs if leg.aggregate_throughput is not None]
    if not measured:
        raise MeasurementFault("no level of the ladder measured a throughput; lengthen level_min_s in [workload]")
    peak = max(measured, key=lambda leg: leg.aggregate_throughput.value if leg.aggregate_throughput else 0.0)
    assert peak.aggregate_throughput is not None
    return Measured(
        single_request_throughput=single,
        aggregate_throughput=peak.aggregate_throughput,
        peak_concurrency=peak.concurrency,
    )
