"""Runs a study: what the command line calls."""

from __future__ import annotations

import asyncio
import platform
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import tuner
from tuner.engines import engine
from tuner.errors import TunerError
from tuner.execution.ray_executor import Building, RayExecutor
from tuner.hosts.checks.advice import TABLE, Advice
from tuner.hosts.clock import SystemClock
from tuner.model.plain import Json
from tuner.model.study import StudySpec, TrialRow
from tuner.ports import Executor, RunObserver
from tuner.runtime.campaign import Campaign, counted
from tuner.runtime.evidence import FileEvidence
from tuner.runtime.repeats import Repeats
from tuner.search.anew import begin_anew
from tuner.search.ledger import check_ledger, open_ledger
from tuner.search.lock import require_unlocked
from tuner.search.rows import read_study as read_stored
from tuner.search.storage import DATABASE
from tuner.steer.inbox import Inbox
from tuner.wiring import taken
from tuner.wiring.files import ResultFiles
from tuner.wiring.holder import holder_of
from tuner.wiring.host import build_host, stop_grace_s
from tuner.wiring.preflight import check_hosts
from tuner.wiring.signals import StopSignals


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSummary:
    """How a run ended.

    Attributes:
        complete: the budget is spent or the space exhausted; False: it was interrupted.
        rows: every trial of the study, earlier runs included.
        directory: where everything was written.
    """

    spec: StudySpec
    complete: bool
    rows: tuple[TrialRow, ...]
    directory: Path


def ray_executor(spec: StudySpec, address: str | None, remark: Callable[[str], None]) -> Executor:
    """Make the executor of a study's hosts; nothing is started."""
    building = Building(
        host=partial(build_host, holder=holder_of(spec.name, spec.directory)),
        engine=engine,
        restored=(spec.engine, spec.workload, spec.seed),
    )
    return RayExecutor({host.name: host for host in spec.hosts}, building=building, address=address, remark=remark)


def run_study(
    spec: StudySpec,
    observer: RunObserver,
    *,
    ray_address: str | None = None,
    restored: Callable[[], None] = lambda: None,
    advice: Advice = TABLE,
    executor: Callable[[StudySpec, str | None, Callable[[str], None]], Executor] = ray_executor,
) -> RunSummary:
    """Run a study until its budget is spent, or take up one that was interrupted.

    Ctrl-C (or SIGTERM) once: running trials are ended and cleaned up, everything is saved.
    Twice: hosts are restored without waiting for their servers to answer; where there is nothing to
    restore, and at the third time, this process leaves at once: supervisors stop its servers, and
    dead-men restore its hosts.

    Args:
        spec: the study.
        observer: is told what happens.
        ray_address: of a cluster; None: a local Ray of its own.
        restored: called when all hosts have been given back as they were, and only if they were taken.
        advice: how remedies about its hosts are written down.
        executor: makes what runs the trials.

    Raises:
        UsageError: the study's database cannot be used.
        PreflightError: a host or Ray is not ready; nothing was written.
        TooManyFaults: no host is left.
        EvidenceError: results cannot be written.
        RestoreFailed: a host is not what it was before; the results are saved.
    """
    directory = Path(spec.directory)
    owned = tuple(host.name for host in spec.hosts if host.is_owned)

    def given_back() -> None:
        taken.forget(directory, owned)
        restored()

    work = executor(spec, ray_address, observer.remark)
    return asyncio.run(_run(spec, observer, work, given_back, advice))


async def _run(
    spec: StudySpec, observer: RunObserver, executor: Executor, restored: Callable[[], None], advice: Advice
) -> RunSummary:
    require_unlocked(Path(spec.directory))
    moved = begin_anew(spec)
    if moved is not None:
        observer.remark(moved)
    check_ledger(spec)
    if is_spent(spec):
        with StopSignals(observer) as signals:
            return await _search(spec, observer, executor, signals)
    restores = any(host.is_owned for host in spec.hosts)
    if restores:
        observer.starting("checking the hosts")
    await check_hosts(spec, engine(spec.engine), advice)
    if restores:
        taken.note(Path(spec.directory), [host for host in spec.hosts if host.is_owned], advice.restore)
    with StopSignals(observer, executor.hurry, restores=restores) as signals:
        observer.starting("starting Ray, one worker a host")
        try:
            await executor.open()
        except TunerError:  # it has given back what it took
            restored()
            raise
        try:
            signals.check()
            summary = await _search(spec, observer, executor, signals)
        except BaseException:
            # Why the run ended comes before what went wrong after that.
            try:
                await executor.close()
                restored()
            except TunerError as error:
                observer.remark(str(error))
            raise
        await executor.close()
        restored()
        return summary


def is_spent(spec: StudySpec) -> bool:
    """Whether an earlier run left nothing to do: no worker need be started to say so."""
    directory = Path(spec.directory)
    if not (directory / DATABASE).exists():
        return False
    rows = read_stored(directory, spec.name).rows
    if counted(rows) < spec.trials or any(row.outcome is None and row.host is not None for row in rows):
        return False
    repeats = Repeats(terms=spec.repeats, trials=spec.trials, objectives=spec.objectives)
    return repeats.is_done(rows, [host.name for host in spec.hosts])


async def _search(spec: StudySpec, observer: RunObserver, executor: Executor, signals: StopSignals) -> RunSummary:
    adapter = engine(spec.engine)
    ledger = open_ledger(spec, adapter.canonical)
    try:
        settled = ledger.settle()
        files = ResultFiles(spec, observer)
        files.begin(spec, ledger.rows())
        if settled:
            numbers = ", ".join(str(number) for number in settled)
            files.remark(f"an earlier run was cut off in trial {numbers}: the same settings run again")
        campaign = Campaign(
            spec=spec,
            engine=adapter,
            optimizer=ledger,
            executor=executor,
            evidence=FileEvidence(Path(spec.directory), adapter, facts_of(spec)),
            observer=files,
            clock=SystemClock(),
            orders=Inbox(Path(spec.directory)),
            stop_limits_s={host.name: stop_grace_s(host) for host in spec.hosts},
        )
        signals.begin(campaign)
        complete = await campaign.run()
        rows = ledger.rows()
        files.write_tables(rows)
        files.write_plot(rows)
        return RunSummary(spec=spec, complete=complete, rows=rows, directory=Path(spec.directory))
    finally:
        ledger.close()


def facts_of(spec: StudySpec) -> dict[str, Json]:
    """Say under which circumstances a trial was run; part of every manifest."""
    return {
        "simulated": spec.simulated,
        "sampler": spec.sampler,
        "tuner": tuner.__version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
    }
