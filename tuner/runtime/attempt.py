"""One server start of a trial: prove it ready, warm it up, measure it, soak it."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from dataclasses import replace
from typing import Any, NoReturn, TypeVar

from tuner.errors import HostFault, MeasurementFault
from tuner.model.http import HttpReply
from tuner.model.outcome import Measured, TrialState, Verdict
from tuner.model.record import LegResult, RequestRecord, RequestStatus
from tuner.model.trial import Effective, LegFinished, ServiceIdentity, WarmedUp
from tuner.ports import Leg, LoadProgress
from tuner.runtime import symptoms
from tuner.runtime.autopsy import Autopsy
from tuner.runtime.context import TrialContext
from tuner.runtime.guard import Guard
from tuner.runtime.racing import end, until_stop
from tuner.runtime.readiness import generates_exactly, mismatch, mismatch_verdict, read_effective
from tuner.runtime.silence import Silence, limit_s
from tuner.runtime.watch import Watch
from tuner.stats.doubts import doubts
from tuner.stats.limit import limit

T = TypeVar("T")

_HEALTH_S = 5.0  # a health check of a server that may hang


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
        self._autopsy = Autopsy(
            context, reader=self._reader, watch=self._watch, guard=self._guard, note_loading=self._note_loading
        )
        self._is_warm = False

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
                await self._time_out(reply)
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

    async def _time_out(self, health: HttpReply) -> NoReturn:
        """Judge a server that is not ready in time; one that listens where we do not reach it is not at fault."""
        port = self._engine.port(self._context.request.command)
        listening = await self._guarded(self._listening(port))
        if symptoms.is_out_of_reach(health, listening):
            msg = (
                f"the server listens on port {port} of host {self._host.name} ({', '.join(listening or ())}), but "
                f"{self._context.target.base_url} does not lead there ({health.error}): correct base_url in its "
                "[[hosts]] table or the server's --host, or open the port in the firewall"
            )
            raise HostFault(msg)
        await self._fail(
            symptoms.start_timeout(
                load_timeout_s=self._workload.load_timeout_s,
                stage=self._reader.stage,
                health=health,
                listening=listening,
                port=port,
            )
        )

    async def _listening(self, port: int) -> tuple[str, ...] | None:
        """Return the addresses that somebody listens on at the server's port, on its host; None: not known."""
        if self._host.listening is None:
            return None
        try:
            return await self._host.listening(port)
        except HostFault as fault:
            self._progress.remark(f"who listens on the server's port could not be looked at: {fault}")
            return None

    async def _prove_identity(self) -> None:
        """Hold that the running server is still the one that was started."""
        if self._watch.is_ended(await self._host.service.state()):
            raise ServerDiedError(await self._autopsy.of_dead(await self._watching))

    async def _prove_generation(self) -> None:
        waited_s = min(limit_s(self._workload, is_warm=self._is_warm), self._workload.request_timeout_s)
        proof = generates_exactly(
            self._engine, self._control, self._workload, seed=self._context.request.seed, limit_s=waited_s
        )
        problem = await self._guarded(proof)
        if problem is not None:
            await self._give_death_time()
            await self._fail(symptoms.no_generation(problem, limit_s=waited_s, health=await self._health()))

    # -- load --------------------------------------------------------------------------

    async def _warm_up(self) -> None:
        self._progress.enter(TrialState.WARMING_UP)
        requests = self._workload.warmup_requests
        if requests:
            silence = Silence(limit_s(self._workload, is_warm=False))
            load = self._host.load.warm_up(self._context.target, requests, min(4, requests), silence.take)
            records = await self._unless_silent(load, silence, "warming up")
            self._progress.emit(
                WarmedUp(at_s=self._host.clock.now_s(), unix_offset_s=self._unix_offset_s(), requests=records)
            )
            if any(record.status is not RequestStatus.OK for record in records):
                await self._fail_requests(records, "warming up")
        self._is_warm = True
        await self._flush()

    async def _measure(self, level: int) -> None:
        self._progress.enter(TrialState.MEASURING, level=level)
        leg = Leg(
            concurrency=level,
            min_s=self._workload.level_min_s,
            max_s=self._workload.level_max_s,
            interval=self._workload.interval,
            salt=f"level-{level}",
        )
        self.legs.append(await self._run_leg(leg, kind="ladder"))
        await self._flush()

    async def _soak(self) -> None:
        """Hold the highest level until it is steady, then prove that the same server still answers."""
        if self._workload.soak_s > 0:
            level = self._workload.ladder[-1]
            self._progress.enter(TrialState.SOAKING, level=level)
            leg = Leg(
                concurrency=level,
                min_s=self._workload.soak_s,
                max_s=self._workload.soak_max_s,
                interval=self._workload.interval,
                salt="soak",
                until_steady=True,
            )
            held = await self._run_leg(leg, kind="soak")
            if not held.converged:
                self._progress.remark(
                    f"throughput at concurrency {level} still drifted by more than ±{100 * leg.interval:g} % "
                    f"after {held.window_s:.0f} s: longer levels would measure something else"
                )
        await self._prove_identity()
        await self._prove_generation()
        await self._prove_identity()

    async def _run_leg(self, leg: Leg, *, kind: str) -> LegResult:
        where = f"{'soak' if kind == 'soak' else 'leg'} at concurrency {leg.concurrency}"
        silence = Silence(limit_s(self._workload, is_warm=self._is_warm))

        def tell(progress: LoadProgress) -> None:
            self._progress.leg(leg.concurrency, progress.elapsed_s, progress.throughput)
            silence.take(progress)

        load = self._guard.during(
            lambda: self._host.load.measure(self._context.target, leg, self._control, tell), what=where
        )
        result, records = await self._unless_silent(load, silence, where)
        result = self._explained(result)
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
            await self._fail_requests(records, where)
        for text in doubts(result):
            self._progress.remark(f"{where}: {text}")
        return result

    def _explained(self, result: LegResult) -> LegResult:
        """Add what the GPUs did, and what kept the throughput from being higher."""
        result = replace(result, gpu=self._guard.use(result.aggregate_throughput))
        below = [leg for leg in self.legs if leg.concurrency < result.concurrency]
        capacity = None if self.effective is None else self.effective.capacity
        most = None if capacity is None else capacity.max_running_requests
        return replace(result, limit=limit(result, below[-1] if below else None, most))

    async def _unless_silent(self, load: Coroutine[Any, Any, T], silence: Silence, where: str) -> T:
        """Run load to its end; it ends at once, and the server is judged, when nothing comes back any more."""
        result = await self._guarded(silence.during(load))
        if result is None:
            assert silence.broken_off is not None  # what it was ended for
            await self._fail(
                symptoms.hang(silence.broken_off, limit_s=silence.limit_s, where=where, health=await self._health())
            )
        return result

    async def _health(self) -> str:
        call = replace(self._engine.health_call(), timeout_s=_HEALTH_S)
        return symptoms.said(await self._guarded(self._control.call(call)))

    async def _fail_requests(self, records: Sequence[RequestRecord], where: str) -> NoReturn:
        """Judge failed requests: the server's death if it shows, else the failures themselves."""
        await self._give_death_time()
        await self._fail(symptoms.failed_requests(records, where))

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
            raise ServerDiedError(await self._autopsy.of_dead(self._watching.result()))
        return result  # type: ignore[return-value]  # None only when the watch ended

    async def _give_death_time(self) -> None:
        """Let a death show itself: a failed request is often its first sign."""
        await self._guarded(self._host.clock.sleep(self._limits.settle_s))

    async def _fail(self, symptom: Verdict) -> NoReturn:
        """Judge a server that lives and yet cannot be used."""
        raise ServerDiedError(await self._guarded(self._autopsy.of_living(symptom)))


def judge(legs: list[LegResult]) -> Measured:
    """Turn the ladder's legs into the two objectives; the peak is the best level.

    Raises:
        MeasurementFault: a leg measured nothing, or has failed requests, which are never averaged.
    """
    void = next((leg for leg in legs if leg.failed), None)
    if void is not None:
        raise MeasurementFault(f"{void.failed} requests failed at concurrency {void.concurrency}: the leg is void")
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
