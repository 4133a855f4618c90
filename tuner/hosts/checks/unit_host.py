"""The rows of a host whose server is a unit of systemd."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from tuner.errors import HostFault, TransportFault
from tuner.hosts.checks import needs
from tuner.hosts.checks.address import address_row, listen_address
from tuner.hosts.checks.bench import Bench
from tuner.hosts.checks.clock import clock_row, read_offset
from tuner.hosts.checks.command import read_command
from tuner.hosts.checks.disk import FOLDERS, disk_row, read_space, run_row
from tuner.hosts.checks.gpus import gpus_row, memory_row, read_gpus
from tuner.hosts.checks.journal import journal_row, read_journal
from tuner.hosts.checks.kernel import CHECK as KERNEL
from tuner.hosts.checks.kernel import kernel_row, read_kernel
from tuner.hosts.checks.lease import lease_row, read_lease
from tuner.hosts.checks.login import CHECKS, login_rows, lost_rows, refused_rows
from tuner.hosts.checks.machine import Machine, read_machine, systemd_row
from tuner.hosts.checks.port import meets, port_row, read_listeners
from tuner.hosts.checks.processes import read_owners
from tuner.hosts.checks.rights import Argv, read_rights, rights_row
from tuner.hosts.checks.row import Row, is_failed, unknown
from tuner.hosts.checks.serving import Served, serving_rows
from tuner.hosts.checks.together import together
from tuner.hosts.checks.unit import UnitView, effects_row, is_absent, read_names, read_view, unit_row
from tuner.hosts.systemd.holding import Seen
from tuner.hosts.systemd.lease import LeaseFolder
from tuner.hosts.systemd.tenancy import lease_folder
from tuner.model.study import UnitHostSpec

_RUN = "/run"
_OF_UNIT = ("command", "side effects", "permissions", "journal", KERNEL, "lease")
_MEMORY = "GPU memory"
_OF_HOST = (f"{_RUN} writable", "disk", "nvidia-smi", _MEMORY, "clock")
_OF_SERVER = ("port", "address", "engine version", "route")
EVERY = ("systemd", "unit", *_OF_UNIT, *_OF_HOST, *_OF_SERVER)
"""The checks after the login."""


@dataclass(slots=True, kw_only=True)
class _Look:
    """What has been found out so far."""

    machine: Machine
    view: UnitView = field(default_factory=UnitView)
    served: Served | None = None
    unreadable: tuple[str, ...] = ()
    lease: Seen | HostFault = field(default_factory=Seen)


async def unit_host_rows(spec: UnitHostSpec, bench: Bench) -> tuple[Row, ...]:
    """Look at everything a run needs of a host, and change nothing there."""
    wanted = needs.commands(spec.unit, spec.care.lease)
    try:
        machine = await read_machine(bench.transport, needs.programs(wanted))
    except TransportFault as error:
        return (*refused_rows(spec.login, error, bench.advice), *unknown(EVERY, "the host does not let us in"))
    look = _Look(machine=machine)
    rows = list(login_rows(spec.login, machine, bench.accepted_key()))
    try:
        offset = await read_offset(bench.transport, bench.clock)  # alone, so that nothing delays it
        unit, host = await together(_unit_rows(spec, bench, look), _host_rows(spec, bench))
        if is_absent(look.view):  # whose the processes are is not known: production's, as likely as not
            host = tuple(row for row in host if row.check != _MEMORY) + unknown((_MEMORY,), "the unit is not there")
        rows += [*unit, *host, clock_row(offset)]
        rows += await _right_rows(spec, bench, look, wanted)
        rows += await _server_rows(spec, bench, look)
    except TransportFault as error:
        rows += lost_rows(error, EVERY, rows)
    order = {check: place for place, check in enumerate((*CHECKS, *EVERY))}
    return tuple(sorted(rows, key=lambda row: order.get(row.check, len(order))))


async def _unit_rows(spec: UnitHostSpec, bench: Bench, look: _Look) -> tuple[Row, ...]:
    """Look at systemd and at the unit's command line."""
    systemd = systemd_row(look.machine)
    if is_failed((systemd,)):
        return (systemd, *unknown(("unit", "command", "side effects"), "this host has no systemd to work with"))
    folder = LeaseFolder(bench.transport, lease_folder(spec.unit), place=spec.unit, sudo=spec.sudo)
    look.lease = await read_lease(folder)
    look.view = await read_view(bench.transport, spec.unit)
    names = await read_names(bench.transport) if is_absent(look.view) else frozenset()
    unit = unit_row(spec.unit, look.view, names, bench.advice)
    if is_failed((unit,)):
        return (systemd, unit, *unknown(("command", "side effects"), "the unit cannot be used"))
    lease = look.lease if isinstance(look.lease, Seen) else None
    found = await read_command(spec, bench, look.view, lease, is_root=look.machine.is_root)
    look.served, look.unreadable = found.served, found.unreadable
    return (systemd, unit, found.row, effects_row(look.view))


async def _right_rows(spec: UnitHostSpec, bench: Bench, look: _Look, wanted: tuple[Argv, ...]) -> tuple[Row, ...]:
    """Look at what we may do there, and whether somebody else does."""
    checks = ("permissions", "journal", KERNEL, "lease")
    if is_failed((systemd_row(look.machine),)):
        return unknown(checks, "this host has no systemd to work with")
    machine = look.machine
    places = dict(machine.tools)
    journal = journal_row(
        await read_journal(bench.transport), machine.user, through_sudo=_by_sudo(wanted) and spec.sudo
    )
    kernel = kernel_row(await read_kernel(bench.transport))
    lease = lease_row(look.lease, bench.asking, spec.unit)
    if is_absent(look.view):
        return (*unknown(("permissions",), "the unit is not there"), journal, kernel, lease)
    wanted += tuple(("cat", path) for path in look.unreadable)
    rights = None
    if spec.sudo and not machine.is_root:
        rights = await read_rights(bench.transport, wanted)
        wanted = rights.missing
    lines = () if machine.is_root else needs.lines(machine.user, wanted, places)
    return (rights_row(machine, rights, sudo=spec.sudo, lines=lines, advice=bench.advice), journal, kernel, lease)


def _by_sudo(wanted: tuple[Argv, ...]) -> bool:
    """Whether the log is read as root."""
    return any(command[0] == "journalctl" for command in wanted)


async def _host_rows(spec: UnitHostSpec, bench: Bench) -> tuple[Row, ...]:
    """Look at disks and GPUs."""
    spaces, gpus = await together(read_space(bench.transport, (_RUN, *FOLDERS)), read_gpus(bench.transport))
    owners = await read_owners(bench.transport, {user.pid for user in gpus.users})
    row = gpus_row(gpus, spec.care.gpu_indices, needed=True, advice=bench.advice)
    memory = (
        unknown((_MEMORY,), "nvidia-smi does not tell")
        if is_failed((row,))
        else (memory_row(gpus, spec.care.gpu_indices, owners, spec.unit, wait_s=spec.care.wait_s),)
    )
    others = [space for space in spaces if space.folder != _RUN]
    return (run_row(spaces, _RUN), disk_row(others), row, *memory)


async def _server_rows(spec: UnitHostSpec, bench: Bench, look: _Look) -> tuple[Row, ...]:
    """Look at the server behind the unit, and at the way to it."""
    served = look.served
    if served is None:
        return unknown(_OF_SERVER, "the server's command line is not known")
    listen = listen_address(served.command.argv)
    listeners, owners = await read_listeners(bench.transport, served.port)
    mine = [listener for listener in listeners if meets(listener, listen)]
    port = port_row(served.port, mine, owners, spec.unit, running=look.view.is_running)
    address = address_row(listen, spec.reach, bench.address, served.port, bench.advice)
    if is_failed((address,)):
        return (port, address, *unknown(("engine version", "route"), "the load does not reach the server's address"))
    return (port, address, *await serving_rows(bench, replace(served, listens=bool(mine))))
