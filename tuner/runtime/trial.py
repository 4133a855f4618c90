"""One trial on one host: clean, start a server, measure it, judge it, stop it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from dataclasses import replace

from tuner.errors import HostFault, MeasurementFault, PreflightError, ServerInTheWay
from tuner.model.outcome import (
    Cause,
    Faulted,
    Infeasible,
    Interrupted,
    Measured,
    Outcome,
    TrialState,
    Verdict,
    missing_share,
)
from tuner.model.record import LegResult
from tuner.model.space import Assignment
from tuner.model.trial import Effective, ServiceIdentity, TrialEvent, TrialFinished, TrialRequest, TrialResult
from tuner.ports import ControlClient, EngineAdapter, Target
from tuner.runtime.attempt import Attempt, ServerDiedError
from tuner.runtime.authorised import AuthorisedControl, bearer
from tuner.runtime.cleaning import HostSession, make_clean
from tuner.runtime.context import TrialContext
from tuner.runtime.policy import Death, RetryAfterCleaning, SetHostAside, next_step
from tuner.runtime.progress import Emit, Progress
from tuner.runtime.racing import StopRequestedError, end, until_stop
from tuner.runtime.secrets import Scrubber

log = logging.getLogger("tuner.trial")


class Trial:
    """Runs one request on one host; every step is told to ``emit`` as it happens."""

    def __init__(
        self, request: TrialRequest, session: HostSession, engine: EngineAdapter, emit: Emit, stop: asyncio.Event
    ) -> None:
        self._request = request
        self._session = session
        self._host = session.ports
        self._engine = engine
        self._stop = stop
        scrubber = Scrubber(engine, request.command, lambda: session.stay.secrets)
        self._progress = Progress(emit, self._host.clock, scrubber.text)
        self._attempts = 0
        self._identity: ServiceIdentity | None = None
        self._effective: Effective | None = None
        self._legs: list[LegResult] = []

    async def run(self) -> TrialResult:
        """Run to an outcome; never raises for what the server, the host or a person did."""
        started_s = self._host.clock.now_s()
        began_s = self._host.clock.monotonic_s()
        try:
            outcome = await self._outcome()
        except Exception as error:  # the trial boundary: a bug of ours must not end the campaign
            log.exception("trial.failed study=%s trial=%d", self._request.study, self._request.number)
            outcome = Faulted(
                error=self._progress.scrub(f"bug in tuner: {type(error).__name__}: {error}"), state=self._progress.state
            )
        self._progress.enter(TrialState.DONE, detail=type(outcome).__name__.lower())
        result = TrialResult(
            study=self._request.study,
            number=self._request.number,
            host=self._host.name,
            assignment=self._request.assignment,
            outcome=outcome,
            started_s=started_s,
            finished_s=self._host.clock.now_s(),
            duration_s=self._host.clock.monotonic_s() - began_s,
            attempts=self._attempts,
            identity=self._identity,
            effective=self._effective,
            legs=tuple(self._legs),
        )
        self._progress.emit(TrialFinished(at_s=result.finished_s, result=result))
        return result

    async def _outcome(self) -> Outcome:
        endings, assignment = self._session.endings, self._request.assignment
        self._progress.enter(TrialState.PROPOSED)
        while True:
            try:
                measured = await self._attempt()
            except StopRequestedError:
                return Interrupted(state=self._progress.state)
            except (HostFault, PreflightError, MeasurementFault) as fault:
                return Faulted(error=self._progress.scrub(str(fault)), state=self._progress.state)
            except ServerDiedError as died:
                death = self._death(died)
            else:
                endings.lived(assignment, self._request.number)
                return measured
            step = next_step(
                endings.deaths_of(assignment),
                death,
                endings.around(assignment),
                attempts=self._session.limits.attempts,
            )
            endings.died(assignment, death)
            if not isinstance(step, RetryAfterCleaning):
                self._progress.enter(TrialState.JUDGING, detail=death.verdict.cause.value)
                return self._judged(step)
            self._progress.remark(f"starting once more after cleaning: {step.why}")

    def _judged(self, step: Infeasible | Faulted | SetHostAside) -> Outcome:
        """Remember a judgement with the host, and return the outcome."""
        endings = self._session.endings
        if isinstance(step, SetHostAside):
            endings.forget()
            return step.fault
        if isinstance(step, Infeasible):
            endings.condemned(self._request.assignment, step.state)
        return step

    def _death(self, died: ServerDiedError) -> Death:
        request, level = self._request, self._progress.level
        ladder = request.workload.ladder
        verdict = self._scrubbed(died.verdict)
        return Death(
            verdict=verdict,
            state=self._progress.state,
            trial=request.number,
            level=level,
            level_index=None if level is None else ladder.index(level),
            levels=len(ladder),
            missing=missing_share(
                verdict, gpu_bytes=self._session.gpu_bytes, fraction=asked_fraction(request.assignment)
            ),
            foreign=self._session.foreign,
        )

    def _scrubbed(self, verdict: Verdict) -> Verdict:
        scrub = self._progress.scrub
        evidence = tuple(scrub(line) for line in verdict.evidence)
        return replace(verdict, evidence=evidence, advice=scrub(verdict.advice))

    async def _attempt(self) -> Measured:
        """Start a server on a clean host that is ours, measure it, stop it, whatever happens."""
        self._progress.enter(TrialState.CLEANING)
        await until_stop(self._session.stay.enter(self._progress.remark), self._stop)
        target = await self._target()
        control = AuthorisedControl(self._host.control(target.base_url), target.headers)
        try:
            await until_stop(make_clean(self._session, control, self._progress.remark), self._stop)
            return await self._serve(target, control)
        finally:
            await control.close()

    async def _target(self) -> Target:
        request = self._request
        return Target(
            base_url=await self._host.route.open(self._engine.port(request.command)),
            engine=self._engine,
            workload=request.workload,
            seed=request.seed,
            headers=bearer(self._engine.api_key(request.command)),
        )

    async def _serve(self, target: Target, control: ControlClient) -> Measured:
        self._session.stay.require()
        self._progress.enter(TrialState.DEPLOYING)
        self._attempts += 1
        attempt: Attempt | None = None
        in_the_way = False
        grace_s = self._host.stop_grace_s
        try:
            try:
                self._identity = await self._host.service.start(self._request.command)
            except ServerInTheWay:
                in_the_way = True
                raise
            attempt = Attempt(self._context(target, control), self._identity)
            try:
                measured = await attempt.run()
            except ServerDiedError as died:
                if died.verdict.cause is Cause.HANG:
                    grace_s = min(grace_s, self._session.limits.hung_grace_s)
                raise
            finally:
                self._effective = attempt.effective or self._effective
                self._legs = attempt.legs
            await self._abort_requests(control)
        finally:
            # Cancelled or failed, here or anywhere above: no server outlives its trial. What runs on a host
            # that is no longer ours, or was there before, is somebody else's.
            if not in_the_way and self._session.stay.lost is None:
                await self._end_server(attempt, grace_s)
        return measured

    async def _end_server(self, attempt: Attempt | None, grace_s: float) -> None:
        """Stop the server, keep its last lines, and leave nothing of it on the host.

        A host that fails us here must not overturn what was measured or judged before: the
        next cleaning finds it dirty, and says so.
        """
        try:
            await self._host.service.stop(grace_s=grace_s)
            if attempt is not None:
                await attempt.read_rest()
            await self._host.service.forget()
        except HostFault as fault:
            self._progress.remark(f"stopping the server failed: {fault}")

    def _context(self, target: Target, control: ControlClient) -> TrialContext:
        return TrialContext(
            request=self._request,
            session=self._session,
            engine=self._engine,
            target=target,
            control=control,
            progress=self._progress,
            stop=self._stop,
        )

    async def _abort_requests(self, control: ControlClient) -> None:
        """End what the server still works on, so that its stop need not drain."""
        call = self._engine.abort_call()
        if call is not None:
            await control.call(call)


def asked_fraction(assignment: Assignment) -> float | None:
    """Return the share of GPU memory that is asked for: the one setting that is no whole number, if there is one."""
    fractions = [value for value in assignment.values() if isinstance(value, float)]
    return fractions[0] if len(fractions) == 1 else None


async def events_of(
    request: TrialRequest, session: HostSession, engine: EngineAdapter, stop: asyncio.Event
) -> AsyncIterator[TrialEvent]:
    """Run a trial and yield its events as they happen; closing the iterator ends the trial."""
    queue: asyncio.Queue[TrialEvent] = asyncio.Queue()
    running = asyncio.ensure_future(Trial(request, session, engine, queue.put_nowait, stop).run())
    try:
        while True:
            event = await queue.get()
            yield event
            if isinstance(event, TrialFinished):
                break
        await running
    finally:
        await end(running)
