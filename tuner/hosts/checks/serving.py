"""The server behind the unit: its version, and the way to it."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tuner.errors import HostFault
from tuner.hosts.checks.address import other_port
from tuner.hosts.checks.bench import Bench
from tuner.hosts.checks.installed import read_installed
from tuner.hosts.checks.route import RouteReading, Way, measure, read_bandwidth, route_row, silent_row
from tuner.hosts.checks.row import Row, failed, is_ok, warning
from tuner.model.trial import Command

_TRIPS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """The command line of a server, whether it runs now, and whether somebody listens on its port."""

    command: Command
    port: int
    running: bool
    listens: bool = False


async def serving_rows(bench: Bench, served: Served) -> tuple[Row, ...]:
    """Look at the version and at the route, without a generation.

    Raises:
        TransportFault: the host is not reached.
    """
    try:
        try:
            base_url = await bench.route.open(served.port)
        except HostFault as error:
            remedy = "until ssh -L works from this machine (AllowTcpForwarding in the host's sshd_config)"
            return (
                bench.judge_version(await _installed(bench, served.command)),
                failed("route", f"{bench.way}: {error}", remedy),
            )
        version = await _reported(bench, base_url, served) or await _installed(bench, served.command)
        route = await _route_row(bench, base_url, served)
        if version is None and served.running and bench.distribution is not None and not is_ok(route):
            return _unasked_row(bench, base_url), route
        return bench.judge_version(version), route
    finally:
        await bench.route.close()


async def _reported(bench: Bench, base_url: str, served: Served) -> str | None:
    """Return what the running server says of itself; None: it does not run, or says nothing."""
    if not served.running:
        return None
    try:
        return bench.engine.effective(await bench.ask(base_url, served.command)).version
    except HostFault:
        return None


def _unasked_row(bench: Bench, base_url: str) -> Row:
    return warning(
        "engine version",
        f"{bench.engine.name} version unknown: the server that runs could not be asked at {base_url}",
        "mend the route first, then run doctor again",
    )


async def _installed(bench: Bench, command: Command) -> str | None:
    if bench.distribution is None:
        return None
    return await read_installed(bench.transport, command.argv, bench.distribution)


async def _route_row(bench: Bench, base_url: str, served: Served) -> Row:
    bytes_per_s = await read_bandwidth(bench.transport, bench.clock) if bench.is_remote else None
    if served.running:
        headers = bench.headers(served.command)
        reading = await measure(base_url, headers, is_through_proxy=bench.route.is_through_proxy)
        way = Way(
            text=bench.way,
            advice=bench.advice,
            is_tunnel=bench.reach.tunnel,
            base_url=bench.reach.base_url,
            other_port=other_port(bench.reach.base_url, served.port),
        )
        return route_row(replace(reading, bytes_per_s=bytes_per_s), bench.ladder, way, listens=served.listens)
    trips = []
    for _ in range(_TRIPS):
        started_s = bench.clock.monotonic_s()
        await bench.transport.run(("true",))
        trips.append(bench.clock.monotonic_s() - started_s)
    return silent_row(min(trips), RouteReading(bytes_per_s=bytes_per_s), bench.ladder, bench.way)
