"""The loop of a study: propose, run, tell, until the budget is spent.

The driver is the only writer of the study's database and evidence, and keeps at
most one assignment in flight on each host.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

from tuner.errors import EvidenceError, ExecutorFault, TooManyFaults, TunerError, UsageError
from tuner.model.outcome import MEMORY_CAUSES, Cause, Faulted, Infeasible, Interrupted, Measured, Outcome, TrialState
from tuner.model.study import StudySpec, TrialRow
from tuner.model.trial import StateEntered, TrialEvent, TrialFinished, TrialRequest, TrialResult
from tuner.ports import Clock, EngineAdapter, EvidenceStore, Executor, Optimizer, Proposal, RunObserver
from tuner.runtime.racing import end

FAULTS_IN_A_ROW = 3
"""Faults after which a host is set aside (design, section 4)."""

PROBE_S = 60.0
"""Between two looks at whether a host that was set aside can be used again."""

COMEBACKS = 3
"""How often a host may come back without finishing a trial in between, before it is set aside for good."""

WAIT_S = 1800.0
"""How long a run waits for a host of somebody's when all are set aside: a GPU server takes minutes to boot."""


def counted(rows: Sequence[TrialRow]) -> int:
    """Count the trials that count towards the budget: Measured and Infeasible ones."""
    return sum(isinstance(row.outcome, (Measured, Infeasible)) for row in rows)


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
    )


@dataclass(slots=True)
class _Host:
    name: str
    faults: int = 0
    last_fault: str = ""
    is_owned: bool = False
    comebacks: int = 0
    recovering: asyncio.Task[bool] | None = None
    is_aside: bool = False


@dataclass(slots=True)
class Campaign:
    """Runs one study on its hosts. One object runs once."""

    spec: StudySpec
    engine: EngineAdapter
    optimizer: Optimizer
    executor: Executor
    evidence: EvidenceStore
    observer: RunObserver
    clock: Clock
    _stopping: bool = False
    _stopped: asyncio.Event = field(default_factory=asyncio.Event)
    _error: TunerError | None = None
    _running: dict[asyncio.Task[TrialResult], _Host] = field(default_factory=dict)
    _hosts: list[_Host] = field(default_factory=list)
    _baseline: int | None = None

    async def run(self) -> bool:
        """Run until the budget is spent, the space is exhausted, or a stop.

        Returns:
            Whether the study is complete; False after :meth:`stop`.

        Raises:
            TooManyFaults: every host was set aside.
            UsageError: the server refuses the base command itself.
            EvidenceError, LedgerError: results cannot be written.

        Whatever is raised, the running trials have been ended and their hosts are clean.
        """
        self._hosts = [_Host(host.name, is_owned=host.is_owned) for host in self.spec.hosts]
        complete = False
        try:
            while not self._stopping and self._error is None and not complete:
                exhausted = self._fill()
                complete = await self._idle(exhausted=exhausted) if not self._running else False
                await self._settle_one()
        except TunerError as error:
            self._error = self._error or error
        for host in self._hosts:
            if host.recovering is not None:
                await end(host.recovering)
        await self._wind_down()
        if self._error is not None:
            raise self._error
        return complete

    async def stop(self) -> None:
        """Ask every running trial to end; :meth:`run` returns when they have."""
        self._stopping = True
        self._stopped.set()
        for host in list(self._running.values()):
            await self.executor.stop(host.name)

    def _fill(self) -> bool:
        """Give every free host a trial while the budget lasts; True when the space is exhausted."""
        busy = {host.name for host in self._running.values()}
        for host in self._hosts:
            if host.is_aside or host.name in busy:
                continue
            if counted(self.optimizer.rows()) + len(self._running) >= self.spec.trials:
                return False
            proposal = self.optimizer.propose(host.name)
            if proposal is None:
                return True
            request = request_of(self.spec, self.engine, proposal)
            if proposal.baseline:
                self._baseline = proposal.number
            self.evidence.begin(request, host.name)
            self.observer.proposed(host.name, proposal)
            self._running[asyncio.ensure_future(self._follow(host.name, request))] = host
        return False

    async def _idle(self, *, exhausted: bool) -> bool:
        """Say whether the study is complete, when nothing runs; wait for a host otherwise.

        Raises:
            TooManyFaults: none will come back.
        """
        if exhausted or counted(self.optimizer.rows()) >= self.spec.trials:
            if exhausted:
                self.observer.remark("every configuration of the space has been tried")
            return True
        if await self._one_comes_back():
            return False
        aside = "; ".join(f"{host.name}: {host.last_fault}" for host in self._hosts)
        raise TooManyFaults(
            f"study {self.spec.name}: no host is left after {FAULTS_IN_A_ROW} faults in a row ({aside}); "
            "mend the host, then run the same command again"
        )

    async def _one_comes_back(self) -> bool:
        """Wait until a host can be used again or the run is stopped; False: none does in time.

        On a machine of our own nothing is waited for: what is wrong there, nobody else is mending.
        """
        hopes = [host.recovering for host in self._hosts if host.is_owned and host.recovering is not None]
        if not hopes:
            return False
        self.observer.remark(f"all hosts are set aside: waiting up to {WAIT_S / 60:.0f} minutes for one to come back")
        limit, stop = asyncio.ensure_future(self.clock.sleep(WAIT_S)), asyncio.ensure_future(self._stopped.wait())
        try:
            await asyncio.wait([*hopes, limit, stop], return_when=asyncio.FIRST_COMPLETED)
            return not limit.done()
        finally:
            await end(limit)
            await end(stop)
            self._take_back()

    def _take_back(self) -> None:
        """Use the hosts again that have come back."""
        for host in self._hosts:
            if host.recovering is not None and host.recovering.done():
                host.is_aside = not host.recovering.result()  # a bug in it is a bug of the run
                host.recovering = None

    async def _settle_one(self) -> None:
        """Wait for the next trial to end, if any runs, and tell it; or for a host to come back."""
        if not self._running:
            return
        recovering = [host.recovering for host in self._hosts if host.recovering is not None]
        await asyncio.wait([*self._running, *recovering], return_when=asyncio.FIRST_COMPLETED)
        self._take_back()
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

    def _tell(self, host: _Host, result: TrialResult) -> None:
        self.optimizer.tell(result)
        self.evidence.finish(result.number, result.outcome)
        self.observer.told(result, self.optimizer.rows())
        if result.number == self._baseline and _cannot_start(result.outcome):
            raise UsageError(
                f"study {self.spec.name}: the base command does not start as it stands: "
                f"{_last_words(result.outcome)}; mend [server] command and begin anew (move {self.spec.directory} away)"
            )
        if not isinstance(result.outcome, Faulted):
            host.faults = host.comebacks = 0
            return
        host.faults += 1
        host.last_fault = result.outcome.error
        if host.faults >= FAULTS_IN_A_ROW or result.outcome.set_aside:
            again = "" if host.comebacks == 0 else " once more"
            after = "" if result.outcome.set_aside else f" after {host.faults} faults in a row"
            self.observer.remark(f"host {host.name} is set aside{again}{after}: {host.last_fault}")
            host.is_aside = True
            host.recovering = asyncio.ensure_future(self._recover(host))

    async def _recover(self, host: _Host) -> bool:
        """Restore a host that was set aside, and return when it can be used again; False: never in this run."""
        try:
            await self.executor.release(host.name)
        except TunerError as error:
            self.observer.remark(f"host {host.name}: {error}")
        if host.comebacks >= COMEBACKS:
            return False
        host.comebacks += 1
        while True:
            await self.clock.sleep(PROBE_S)
            try:
                await self.executor.probe(host.name)
            except TunerError as error:
                host.last_fault = str(error)
            else:
                break
        # One more fault sets it aside again: it has not proven anything yet.
        host.faults = FAULTS_IN_A_ROW - 1
        self.observer.remark(f"host {host.name} answers again and takes trials")
        return True

    async def _follow(self, host: str, request: TrialRequest) -> TrialResult:
        """Run a trial and keep its events; a worker that dies makes it Faulted."""
        started_s, began_s = self.clock.now_s(), self.clock.monotonic_s()
        state = TrialState.PROPOSED
        error = "the worker ended without a result"
        try:
            async for event in self.executor.run(host, request):
                await self._keep(host, request.number, event)
                self.observer.event(host, request.number, event)
                if isinstance(event, StateEntered):
                    state = event.state
                    if self._stopping:
                        # Said again: the first stop may have come before the worker began the trial.
                        await self.executor.stop(host)
                if isinstance(event, TrialFinished):
                    return event.result
        except ExecutorFault as fault:
            error = str(fault)
        outcome = Interrupted(state=state) if self._stopping else Faulted(error=error, state=state)
        result = TrialResult(
            study=request.study,
            number=request.number,
            host=host,
            assignment=request.assignment,
            outcome=outcome,
            started_s=started_s,
            finished_s=self.clock.now_s(),
            duration_s=self.clock.monotonic_s() - began_s,
            attempts=1,
            identity=None,
            effective=None,
            legs=(),
        )
        finished = TrialFinished(at_s=result.finished_s, result=result)
        await self._keep(host, request.number, finished)
        self.observer.event(host, request.number, finished)
        return result

    async def _keep(self, host: str, number: int, event: TrialEvent) -> None:
        """Write an event down; when that fails, end the trial, which then runs on unwritten to its clean end."""
        if self._error is not None:
            return
        try:
            self.evidence.add(number, event)
        except EvidenceError as error:
            self._error = error
            await self.executor.stop(host)


def _cannot_start(outcome: Outcome) -> bool:
    """Whether a baseline failed in a way that no tuned setting can cure.

    A baseline that ran out of memory is what a study may be for; one that is refused, or
    dies at the start of anything else, is a mistake in the command or on the host.
    """
    if not isinstance(outcome, Infeasible):
        return False
    at_the_start = outcome.state in (TrialState.DEPLOYING, TrialState.LOADING)
    refused = outcome.verdict.cause is Cause.REJECTED_ARGUMENTS
    return refused or (at_the_start and outcome.verdict.cause not in MEMORY_CAUSES)


def _last_words(outcome: Outcome) -> str:
    assert isinstance(outcome, Infeasible)
    return outcome.verdict.evidence[0] if outcome.verdict.evidence else outcome.verdict.advice
