"""What a run needs of this machine, checked before anything is written or started."""

from __future__ import annotations

import errno
import socket

from tuner.errors import PreflightError
from tuner.hosts.checks.advice import TABLE, Advice
from tuner.hosts.process import ProcessServiceManager
from tuner.model.study import HostSpec, ProcessHostSpec, SimulatedHostSpec, StudySpec, UnitHostSpec
from tuner.ports import EngineAdapter
from tuner.wiring.doctor import Aim, first_failed
from tuner.wiring.doctor import check_hosts as check_owned
from tuner.wiring.holder import holder_of
from tuner.wiring.host import service_dir
from tuner.wiring.reach import LOOPBACK


async def check_hosts(spec: StudySpec, engine: EngineAdapter, advice: Advice = TABLE) -> None:
    """Hold that every host of the study can take a server; nothing is written.

    Raises:
        PreflightError: an address is not this machine's, a foreign program is on the port, or doctor
            finds something that stops a run.
    """
    port = engine.port(spec.base)
    owned = tuple(host for host in spec.hosts if host.is_owned)
    if owned:
        await _check_owned(spec, owned, engine, advice)
    for host in spec.hosts:
        if isinstance(host, UnitHostSpec) or host.is_owned:
            continue
        if await _is_ours(host):
            continue  # left by a killed run: the first trial's cleaning ends it
        address = host.address if isinstance(host, SimulatedHostSpec) else LOOPBACK
        _check_port(spec, host.name, address, port)


async def _check_owned(spec: StudySpec, hosts: tuple[HostSpec, ...], engine: EngineAdapter, advice: Advice) -> None:
    """Hold that doctor finds nothing at hosts of somebody's that would stop a run."""
    aim = Aim(
        engine=engine,
        base=spec.base,
        ladder=spec.workload.ladder,
        asking=holder_of(spec.name, spec.directory),
        advice=advice,
    )
    failed = first_failed(await check_owned(hosts, aim))
    if failed is not None:
        remedy = f": {failed.remedy}" if failed.remedy else ""
        raise PreflightError(
            f"study {spec.name}, host {failed.host}: {failed.check}: {failed.detail}{remedy} "
            f"(all rows: {advice.doctor})"
        )


async def _is_ours(host: SimulatedHostSpec | ProcessHostSpec) -> bool:
    folder = service_dir(host)
    if not folder.exists():
        return False
    return any(entry.ours for entry in await ProcessServiceManager(folder, {}).leftovers())


def _check_port(spec: StudySpec, host: str, address: str, port: int) -> None:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((address, port))
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise PreflightError(
                    f"study {spec.name}, host {host}: {address}:{port} is taken by another program; "
                    "end it, or set another --port in [server] command"
                ) from error
            raise PreflightError(
                f"study {spec.name}, host {host}: cannot listen on {address}:{port} ({error.strerror})"
            ) from error
