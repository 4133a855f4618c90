"""The loop of a study: propose, run, tell, until the budget is spent and its winners are confirmed.

The driver is the only writer of the study's database and evidence, and keeps at
most one assignment in flight on each host.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tuner.errors import EvidenceError, ExecutorFault, TooManyFaults, TunerError, UsageError
from tuner.model.outcome import MEMORY_CAUSES, Cause, Faulted, Infeasible, Interrupted, Outcome, TrialState
from tuner.model.study import StudySpec, TrialRow
from tuner.model.trial import Remark, StateEntered, TrialEvent, TrialFinished, TrialRequest, TrialResult
from tuner.ports import Clock, EngineAdapter, EvidenceStore, Executor, Optimizer, Orders, Proposal, RunObserver
from tuner.runtime.grading import Grading
from tuner.runtime.racing import end
from tuner.runtime.repeats import Repeats
from tuner.runtime.roster import FAULTS_IN_A_ROW, Roster
from tuner.runtime.steering import Deed, Flight, Steering


def counted(rows: Sequence[TrialRow]) -> int:
    """Count the trials that count towards the budget: Measured and Infeasible ones of the search."""
    return sum(row.counts for row in rows)


def request_of(spec: StudySpec, engine: EngineAdapter, proposal: Proposal) -> TrialRequest:
    """Say what a host has to run for ``proposal``; the baseline runs the base command as it stands."""
    command = spec.base if proposal.baseline else engine.command(spec.base, proposal.assignment)
    return TrialRequest(
        study=spec.name,
        number=proposal.number,
        assignment=proposal.assignment,
        command=command,
        engine=spec.engine,
        workload=spec.workload,
        seed=spec.seed,
        baseline=proposal.baseline,
        repeat=proposal.repeat,
    )


@dataclass(slots=True)
class Campaign:
    """Runs one study on its hosts. One object runs once.

    Attributes:
        orders: what people ask meanwhile; None: nobody can.
        stop_limits_s: how long a host's server may take to stop, by host; for people who end a trial.
    """

    spec: StudySpec
    engine: EngineAdapter
    optimizer: Optimizer
    executor: Executor
    evidence: EvidenceStore
    observer: RunObserver
    clock: Clock
    orders: Orders | None = None
    stop_limits_s: Mapping[str, float] = field(default_factory=dict)
    _stopping: bool = False
    _stopped: asyncio.Event = field(default_factory=asyncio.Event)
    _error: TunerError | None = None
    _running: dict[asyncio.Task[TrialResult], str] = field(default_factory=dict)
    _hosts: Roster = field(init=False)
    _repeats: Repeats = field(init=False)
    _repeating: set[str] = field(default_factory=set)
    _baseline: int | None = None
    _flights: dict[int, Flight] = field(default_factory=dict)
    _woken: asyncio.Event = field(default_factory=asyncio.Event)

    async def run(self) -> bool:
        """Run until the budget is spent or the space exhausted, and what is to be repeated is; or until a stop.

        Returns:
            Whether the study is complete; False after :meth:`stop`.

        Raises:
            TooManyFaults: every host was set aside.
            UsageError: the server refuses the base command itself.
            EvidenceError, LedgerError: results cannot be written.

        Whatever is raised, the running trials have been ended and their hosts are clean.
        """
        self._hosts = Roster(self.spec.hosts, self.executor, self.observer, self.clock)
        self._repeats = Repeats(terms=self.spec.repeats, trials=self.spec.trials, objectives=self.spec.objectives)
        complete = False
        serving = None if self.orders is None else asyncio.ensure_future(self._serve(self.orders))
        try:
            while not self._stopping and self._error is None and not complete:
                exhausted = self._fill()
                complete = await self._idle(exhausted=exhausted) if not self._running else False
                await self._settle_one(serving)
            _raise_error_of(serving)
        except TunerError as error:
            self._error = self._error or error
        if serving is not None:
            await end(serving)
        await self._hosts.close()
        await self._wind_down()
        if self._error is not None:
            raise self._error
        return complete

    async def stop(self) -> None:
        """Ask every running trial to end; :meth:`run` returns when they have."""
        self._stopping = True
        self._stopped.set()
        for host in list(self._running.values()):
            await self.executor.stop(host)

    def _fill(self) -> bool:
        """Give every free host a trial while there is something to do; True when the space is exhausted."""
        exhausted = False
        for host in self._hosts.free(busy=set(self._running.values())):
            proposal, is_last = self._next(host)
            exhausted = exhausted or is_last
            if proposal is None:
                continue
            request = request_of(self.spec, self.engine, proposal)
            if proposal.baseline and proposal.repeat is None:
                self._baseline = proposal.number
            self.evidence.begin(request, host)
            self.observer.proposed(host, proposal)
            flight = Flight(
                number=request.number,
                host=host,
                ladder=request.workload.ladder,
                began_s=self.clock.now_s(),
                repeat=proposal.repeat,
            )
            self._flights[flight.number] = flight
            self._repeating.discard(host)
            if proposal.repeat is not None:
                self._repeating.add(host)
            self._running[asyncio.ensure_future(self._follow(flight, request))] = host
        return exhausted

    def _next(self, host: str) -> tuple[Proposal | None, bool]:
        """Take what a host does next, None: nothing now; and say whether the space is exhausted."""
        rows = self.optimizer.rows()
        searching = sum(host not in self._repeating for host in self._running.values())
        exhausted = False
        if counted(rows) + searching < self.spec.trials:
            repeat = self._repeats.during_search(rows, host)
            if repeat is not None:
                return self.optimizer.repeat(repeat, host), False
            proposal = self.optimizer.propose(host)
            if proposal is not None:
                return proposal, False
            exhausted = True
        repeat = self._repeats.at_the_end(rows, host)
        return (None if repeat is None else self.optimizer.repeat(repeat, host)), exhausted

    async def _idle(self, *, exhausted: bool) -> bool:
        """Say whether the study is complete, when nothing runs; wait for a host otherwise.

        Raises:
            TooManyFaults: none will come back.
        """
        rows = self.optimizer.rows()
        if exhausted:
            self.observer.remark("every configuration of the space has been tried")
        if exhausted or (counted(rows) >= self.spec.trials and (self._has_host() or self._is_confirmed(rows))):
            return True
        if await self._hosts.one_comes_back(self._stopped):
            return False
        faults = self._hosts.faults()
        raise TooManyFaults(
            f"study {self.spec.name}: no host is left after {FAULTS_IN_A_ROW} faults in a row ({faults}); "
            "mend the host, then run the same command again"
        )

    def _has_host(self) -> bool:
        return any(True for _ in self._hosts.free(busy=()))

    def _is_confirmed(self, rows: Sequence[TrialRow]) -> bool:
        return self._repeats.is_done(rows, [host.name for host in self.spec.hosts])

    async def _settle_one(self, serving: asyncio.Future[None] | None = None) -> None:
        """Wait for the next trial to end, if any runs, and tell it; or for a host to come back, or an order."""
        if not self._running:
            return
        awaited: list[asyncio.Future[Any]] = [*self._running, *self._hosts.recovering]
        awaited += [] if serving is None else [serving]
        woken = asyncio.ensure_future(self._woken.wait())
        try:
            await asyncio.wait([*awaited, woken], return_when=asyncio.FIRST_COMPLETED)
        finally:
            await end(woken)
        self._woken.clear()
        _raise_error_of(serving)
        self._hosts.take_back()
        for task in [task for task in self._running if task.done()]:
            self._tell(self._running.pop(task), task.result())

    async def _wind_down(self) -> None:
        """End what runs and tell it, so that a later run takes it up again; the first error stands."""
        if self._running:
            await self.stop()
        while self._running:
            try:
                await self._settle_one()
            except TunerError as error:
                self._error = self._error or error

    def _tell(self, host: str, result: TrialResult) -> None:
        self.optimizer.tell(result)
        self.evidence.finish(result.number, result.outcome)
        self.observer.told(result, self.optimizer.rows())
        if result.number == self._baseline and _cannot_start(result.outcome):
            raise UsageError(
                f"study {self.spec.name}: the base command does not start as it stands: "
                f"{_last_words(result.outcome)}; mend [server] command and begin anew (move {self.spec.directory} away)"
            )
        self._hosts.judge(host, result.outcome)

    async def _serve(self, orders: Orders) -> None:
        """Carry out what people ask, for as long as the run lasts."""
        steering = Steering(
            study=self.spec.name,
            space=self.spec.space,
            baseline=self.spec.baseline,
            trials=self.spec.trials,
            optimizer=self.optimizer,
            flights=self._flights,
            stop_limits_s=self.stop_limits_s,
        )
        while True:
            order = await orders.next()
            deed = steering.obey(order)
            if deed.remark:
                self._show(deed)  # before the answer: whoever has it can read the rest
                self._woken.set()
            orders.answer(order, deed.answer)

    def _show(self, deed: Deed) -> None:
        """Tell readers of the run and of the evidence what a person did."""
        event = Remark(at_s=self.clock.now_s(), text=deed.remark)
        if deed.flight is not None:
            self.evidence.add(deed.flight.number, event)
            self.observer.event(deed.flight.host, deed.flight.number, event)
        elif deed.is_correction and deed.trial is not None:
            self.evidence.note(deed.trial, event)
            self.observer.corrected(deed.remark, self.optimizer.rows())
        else:
            self.observer.remark(deed.remark)

    async def _follow(self, flight: Flight, request: TrialRequest) -> TrialResult:
        """Run a trial to its end, or until a person ends it."""
        ending = asyncio.ensure_future(self._end_when_ruled(flight))
        try:
            return await self._run_trial(flight, request)
        finally:
            if flight.ruled is None:
                await end(ending)
            else:
                await ending  # a stop that arrives late would end the host's next trial

    async def _end_when_ruled(self, flight: Flight) -> None:
        await flight.ending.wait()
        await self.executor.stop(flight.host)

    async def _run_trial(self, flight: Flight, request: TrialRequest) -> TrialResult:
        """Run a trial and keep its events; a worker that dies makes it Faulted."""
        started_s, began_s = self.clock.now_s(), self.clock.monotonic_s()
        grading = Grading(objectives=self.spec.objectives, constraints=self.spec.constraints)
        error = "the worker ended without a result"
        try:
            async for raw in self.executor.run(flight.host, request):
                event = flight.heard(grading.heard(raw))
                if isinstance(event, TrialFinished):
                    return await self._finished(flight, event)
                await self._pass_on(flight, event)
                if isinstance(event, StateEntered) and (self._stopping or flight.ruled is not None):
                    # Said again: the first stop may have come before the worker began the trial.
                    await self.executor.stop(flight.host)
        except ExecutorFault as fault:
            error = str(fault)
        state = flight.state
        outcome = Interrupted(state=state) if self._stopping else Faulted(error=error, state=state)
        result = TrialResult(
            study=request.study,
            number=request.number,
            host=flight.host,
            assignment=request.assignment,
            outcome=outcome if flight.ruled is None else flight.ruled,
            started_s=started_s,
            finished_s=self.clock.now_s(),
            duration_s=self.clock.monotonic_s() - began_s,
            attempts=1,
            identity=None,
            effective=None,
            legs=(),
        )
        return await self._finished(flight, TrialFinished(at_s=result.finished_s, result=result))

    async def _finished(self, flight: Flight, event: TrialFinished) -> TrialResult:
        del self._flights[flight.number]  # from here on nobody can end it
        await self._pass_on(flight, event)
        return event.result

    async def _pass_on(self, flight: Flight, event: TrialEvent) -> None:
        await self._keep(flight.host, flight.number, event)
        self.observer.event(flight.host, flight.number, event)

    async def _keep(self, host: str, number: int, event: TrialEvent) -> None:
        """Write an event down; when that fails, end the trial, which then runs on unwritten to its clean end."""
        if self._error is not None:
            return
        try:
            self.evidence.add(number, event)
        except EvidenceError as error:
            self._error = error
            await self.executor.stop(host)


def _raise_error_of(serving: asyncio.Future[None] | None) -> None:
    """Raise what ended the taking of orders, which goes on for ever otherwise."""
    if serving is not None and serving.done():
        serving.result()


def _cannot_start(outcome: Outcome) -> bool:
    """Whether a baseline failed in a way that no tuned setting can cure.

    A baseline that ran out of memory is what a study may be for; one that is refused, or
    dies at the start of anything else, is a mistake in the command or on the host.
    """
    if not isinstance(outcome, Infeasible):
        return False
    at_the_start = outcome.state in (TrialState.DEPLOYING, TrialState.LOADING)
    if outcome.verdict.cause is Cause.RULED:
        return False
    refused = outcome.verdict.cause is Cause.REJECTED_ARGUMENTS
    return refused or (at_the_start and outcome.verdict.cause not in MEMORY_CAUSES)


def _last_words(outcome: Outcome) -> str:
    assert isinstance(outcome, Infeasible)
    return outcome.verdict.evidence[0] if outcome.verdict.evidence else outcome.verdict.advice
