"""``tuner doctor``: looks at the hosts of a study and changes nothing there."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from tuner.config.overrides import Overrides
from tuner.config.study_file import FOLDER, StudyFile, read_study
from tuner.engines import ENGINES
from tuner.engines.versions import DISTRIBUTIONS, judge
from tuner.errors import HostFault, TransportFault
from tuner.hosts.checks import process_host, unit_host
from tuner.hosts.checks.advice import TABLE, Advice
from tuner.hosts.checks.bench import Bench
from tuner.hosts.checks.login import refused_rows
from tuner.hosts.checks.row import Row, failed, ok, unknown, warning
from tuner.hosts.clock import SystemClock
from tuner.hosts.process import ProcessServiceManager
from tuner.hosts.shell.service import ShellServiceManager
from tuner.hosts.ssh.connection import Patience
from tuner.load.http import HttpControlClient
from tuner.model.finding import Finding, RowVerdict
from tuner.model.lease import Holder
from tuner.model.study import HostSpec, ProcessHostSpec, SimulatedHostSpec, UnitHostSpec
from tuner.model.trial import Command
from tuner.model.workload import Workload
from tuner.ports import EngineAdapter, HostTransport, ServiceManager
from tuner.search.anew import is_empty
from tuner.search.identity import kind_difference, workload_difference
from tuner.search.storage import DATABASE, peek
from tuner.wiring.advice import advice_of
from tuner.wiring.holder import holder_of
from tuner.wiring.host import service_dir
from tuner.wiring.load import hosts_of
from tuner.wiring.reach import Way, way_to

PATIENCE = Patience(reconnect_s=15.0)
"""A person waits for the answer: a host that is not back by then is not reached."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Aim:
    """What the hosts are to be used for.

    Attributes:
        base: the study's own command line; None: the units have it.
        ladder: levels of the load.
        asking: who would take them.
        env: names of the variables that a trial sets on top of a unit's own.
        advice: how remedies are written down.
    """

    engine: EngineAdapter
    base: Command | None
    ladder: tuple[int, ...]
    asking: Holder
    env: tuple[str, ...] = ()
    advice: Advice = TABLE


def examine(root: Path, name: str, overrides: Overrides | None = None) -> tuple[Finding, ...]:
    """Check every host of a study, all at the same time; the hosts come in the study's order.

    What a host is like is in the findings and never an error.

    Raises:
        UsageError: the study file or an option is wrong.
    """
    hosts = hosts_of(root, name, overrides)
    study = read_study(root, name)
    simulated = any(isinstance(host, SimulatedHostSpec) for host in hosts)
    workload = study.simulated_workload if simulated else study.workload
    aim = Aim(
        engine=ENGINES[study.engine],
        base=None if study.command is None else Command(argv=study.command, env=study.env),
        ladder=workload.ladder,
        asking=holder_of(study.name, str(root.resolve() / FOLDER / study.name)),
        env=tuple(name for name, _ in study.env),
        advice=advice_of(root, name, overrides),
    )
    found = asyncio.run(check_hosts(hosts, aim))
    return (*found, *_results(root, study, workload, simulated=simulated))


def _results(root: Path, study: StudyFile, workload: Workload, *, simulated: bool) -> tuple[Finding, ...]:
    """Say what stands against a run in what the study has measured before, as far as no unit need be asked."""
    directory = root.resolve() / FOLDER / study.name
    stored = peek(directory / DATABASE, study.name)
    if stored is None or is_empty(directory, study.name):
        return ()
    reason = kind_difference(stored, simulated=simulated) or workload_difference(stored, workload)
    if reason is None:
        return ()
    remedy = f"copy {study.shown} under another name and give that, or move {directory} away"
    return (failed("results", f"the study {reason}", remedy).of(f"study {study.name}"),)


async def check_hosts(hosts: Iterable[HostSpec], aim: Aim) -> tuple[Finding, ...]:
    """Check hosts, all at the same time."""
    found = await asyncio.gather(*(check_host(host, aim) for host in hosts))
    return tuple(finding for findings in found for finding in findings)


def first_failed(findings: Iterable[Finding]) -> Finding | None:
    """Return the finding because of which a run cannot be; None: it can."""
    return next((finding for finding in findings if finding.verdict is RowVerdict.FAILED), None)


async def check_host(spec: HostSpec, aim: Aim, transport: HostTransport | None = None) -> tuple[Finding, ...]:
    """Check one host: every row of it, whatever the host is like.

    Args:
        spec: the host.
        aim: what it is to be used for.
        transport: to it, which stays open; None: one of the check's own.
    """
    rows = await _rows(spec, aim, transport)
    return tuple(_scrubbed(row, aim.engine).of(spec.name) for row in rows)


def _scrubbed(row: Row, engine: EngineAdapter) -> Row:
    # A command line or a complaint of the host may hold a key.
    return replace(row, detail=engine.scrub(row.detail), remedy=engine.scrub(row.remedy))


async def _rows(spec: HostSpec, aim: Aim, given: HostTransport | None) -> tuple[Row, ...]:
    if isinstance(spec, SimulatedHostSpec):
        return (ok("reachable", f"simulated on this machine at {spec.address}"),)
    try:
        async with _open(spec, given) as way:
            bench = _bench(spec, aim, way)
            if isinstance(spec, UnitHostSpec):
                return await unit_host.unit_host_rows(spec, bench)
            here = str(Path(sys.executable).parent) if spec.login is None else ""
            return await process_host.process_host_rows(spec, bench, _survivors(spec, way.transport), path=here)
    except TransportFault as error:  # ssh_config cannot be followed, say
        every = unit_host.EVERY if isinstance(spec, UnitHostSpec) else process_host.EVERY
        return (*refused_rows(spec.login, error, aim.advice), *unknown(every, "the host is not reached"))


def _survivors(spec: ProcessHostSpec, transport: HostTransport) -> process_host.Survivors:
    """Make what finds the servers that earlier runs left on a host without systemd."""
    here = spec.login is None
    service: ServiceManager = (
        ProcessServiceManager(service_dir(spec), {})
        if here
        else ShellServiceManager(transport, spec.state_dir, SystemClock())
    )

    async def pids() -> frozenset[int]:
        try:
            return frozenset(entry.pid for entry in await service.leftovers() if entry.ours)
        except TransportFault:
            raise
        except HostFault:  # a tool is missing there, which is a row of its own
            return frozenset()

    return pids


@contextlib.asynccontextmanager
async def _open(spec: UnitHostSpec | ProcessHostSpec, given: HostTransport | None) -> AsyncIterator[Way]:
    way = await asyncio.to_thread(way_to, spec, PATIENCE)
    try:
        yield way if given is None else replace(way, transport=given)
    finally:
        with contextlib.suppress(HostFault):
            await way.transport.close()


def _bench(spec: UnitHostSpec | ProcessHostSpec, aim: Aim, way: Way) -> Bench:
    return Bench(
        transport=way.transport,
        engine=aim.engine,
        distribution=DISTRIBUTIONS.get(aim.engine.name),
        judge_version=lambda version: version_row(aim.engine.name, version),
        control=HttpControlClient,
        route=way.route,
        way=_way(spec, way.address),
        reach=spec.reach,
        advice=aim.advice,
        is_remote=spec.login is not None,
        address=way.address,
        ladder=aim.ladder,
        clock=SystemClock(),
        asking=replace(aim.asking, host=spec.name),
        base=aim.base,
        env=aim.env,
        accepted_key=way.accepted_key,
    )


def _way(spec: UnitHostSpec | ProcessHostSpec, address: str) -> str:
    if spec.reach.tunnel:
        return "ssh -L"
    return spec.reach.base_url or f"direct to {address}"


def version_row(engine: str, version: str | None) -> Row:
    """Say what is to be thought of the engine's version."""
    found = judge(engine, version)
    if found.is_tested:
        return ok("engine version", found.text)
    return warning("engine version", found.text, found.remedy)
