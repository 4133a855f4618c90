"""Runs a study: what the command line calls."""

from __future__ import annotations

import asyncio
import os
import platform
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import tuner
from tuner.engines import engine
from tuner.execution.ray_executor import RayExecutor
from tuner.hosts.clock import SystemClock
from tuner.model.plain import Json
from tuner.model.study import StudySpec, TrialRow
from tuner.ports import Executor, RunObserver
from tuner.runtime.campaign import Campaign
from tuner.runtime.evidence import FileEvidence
from tuner.search.ledger import check_ledger, open_ledger
from tuner.search.lock import require_unlocked
from tuner.wiring.files import ResultFiles
from tuner.wiring.host import build_host
from tuner.wiring.preflight import check_hosts

INTERRUPTED = 130
SAME_SIGNAL_S = 0.5
"""`timeout` and some shells send a signal to a process and again to its group: that is one wish, not two."""


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


def ray_executor(spec: StudySpec, address: str | None) -> RayExecutor:
    """Make the executor of a study's hosts; nothing is started."""
    return RayExecutor({host.name: host for host in spec.hosts}, build=build_host, engine=engine, address=address)


def run_study(
    spec: StudySpec,
    observer: RunObserver,
    *,
    ray_address: str | None = None,
    executor: Callable[[StudySpec, str | None], Executor] = ray_executor,
) -> RunSummary:
    """Run a study until its budget is spent, or take up one that was interrupted.

    Ctrl-C (or SIGTERM) once: running trials are ended and cleaned up, everything is saved.
    Twice: this process leaves at once; its servers are stopped by their supervisors.

    Raises:
        UsageError: the study's database cannot be used.
        PreflightError: a host or Ray is not ready; nothing was written.
        TooManyFaults: no host is left.
        EvidenceError: results cannot be written.
    """
    return asyncio.run(_run(spec, observer, executor(spec, ray_address)))


async def _run(spec: StudySpec, observer: RunObserver, executor: Executor) -> RunSummary:
    adapter = engine(spec.engine)
    check_ledger(spec)
    require_unlocked(Path(spec.directory))
    await check_hosts(spec, adapter)
    observer.starting("starting Ray, one worker a host")
    try:
        await executor.open()
        return await _search(spec, observer, executor)
    finally:
        await executor.close()


async def _search(spec: StudySpec, observer: RunObserver, executor: Executor) -> RunSummary:
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
        )
        with _Signals(campaign, files):
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


class _Signals:
    """While inside: the first Ctrl-C or SIGTERM stops the campaign, the second leaves at once."""

    def __init__(self, campaign: Campaign, observer: RunObserver) -> None:
        self._campaign = campaign
        self._observer = observer
        self._stopping: asyncio.Task[None] | None = None
        self._since_s = 0.0

    def __enter__(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._on_signal)

    def __exit__(self, *_: object) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)

    def _on_signal(self) -> None:
        now_s = asyncio.get_running_loop().time()
        if self._stopping is not None and now_s - self._since_s < SAME_SIGNAL_S:
            return
        if self._stopping is not None:
            self._observer.remark("leaving at once; the servers are stopped by their supervisors")
            os._exit(INTERRUPTED)
        self._observer.remark("stopping: ending the running trials and cleaning up; once more leaves at once")
        self._since_s = now_s
        self._stopping = asyncio.ensure_future(self._campaign.stop())
