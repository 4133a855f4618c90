"""The rows of a host without systemd, where the engine runs as a supervised process."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import PurePosixPath

from tuner.errors import TransportFault, UsageError
from tuner.hosts.checks.address import address_row, listen_address
from tuner.hosts.checks.bench import Bench
from tuner.hosts.checks.clock import clock_row, read_offset
from tuner.hosts.checks.disk import FOLDERS, disk_row, read_space
from tuner.hosts.checks.gpus import gpus_row, memory_row, read_gpus
from tuner.hosts.checks.kernel import CHECK as KERNEL
from tuner.hosts.checks.kernel import kernel_row, read_kernel
from tuner.hosts.checks.lease import lease_row, read_lease
from tuner.hosts.checks.login import login_rows, lost_rows, refused_rows
from tuner.hosts.checks.machine import read_machine, tools_row
from tuner.hosts.checks.port import meets, port_row, read_listeners
from tuner.hosts.checks.processes import read_owners
from tuner.hosts.checks.row import Row, failed, is_failed, ok, unknown
from tuner.hosts.checks.serving import Served, serving_rows
from tuner.hosts.checks.together import together
from tuner.hosts.shell.order import checked_directory
from tuner.hosts.shell.tenancy import lease_folder
from tuner.hosts.systemd.lease import LeaseFolder
from tuner.model.study import ProcessHostSpec
from tuner.ports import HostTransport

_BOOT_ID = "/proc/sys/kernel/random/boot_id"
_SUPERVISOR = ("sh", "setsid", "tail", "head", "mv", "mkdir", "rm", "rmdir", "cat", "sleep", "kill", "tr", "grep")
_LEASE = ("flock", "install", "tee", "wc")
_CHECKS = ("date", "df", "ls", "dirname")
TOOLS = (*_SUPERVISOR, *_LEASE, *_CHECKS)
"""What the supervisor of such a host, its lease and these checks are made of."""
_LATER = (
    *("tools", "state_dir", "lease", "disk", "nvidia-smi", "GPU memory", "clock", KERNEL),
    *("program", "port", "address"),
)
_LAST = ("engine version", "route")
EVERY = (*_LATER, *_LAST)
"""The checks after the login."""

WRITABLE = """
folder=$1
while [ ! -e "$folder" ]; do folder=$(dirname "$folder"); done
if [ ! -d "$folder" ]; then printf 'file %s\\n' "$folder"
elif [ -w "$folder" ] && [ -x "$folder" ]; then printf 'yes %s\\n' "$folder"
else printf 'no %s\\n' "$folder"; fi
"""
"""POSIX sh; argument: a folder. Of one that is not there, its nearest parent counts; nothing is made."""

PROGRAM = """
PATH=$2:$PATH
command -v "$1" || exit 3
"""
"""POSIX sh; arguments: the engine's program, folders that the run puts before PATH."""


Survivors = Callable[[], Awaitable[frozenset[int]]]
"""Returns the PIDs of the servers that earlier runs left in the host's ``state_dir``."""


async def process_host_rows(
    spec: ProcessHostSpec, bench: Bench, survivors: Survivors, path: str = ""
) -> tuple[Row, ...]:
    """Look at everything a run needs of a host without systemd, and change nothing there.

    Args:
        spec: the host.
        bench: to look with.
        survivors: finds what earlier runs left.
        path: folders that a run there puts before PATH.
    """
    try:
        machine = await read_machine(bench.transport, TOOLS)
    except TransportFault as error:
        return (*refused_rows(spec.login, error, bench.advice), *unknown(EVERY, "the host does not let us in"))
    rows = [*login_rows(spec.login, machine, bench.accepted_key()), tools_row(machine, TOOLS)]
    try:
        rows.append(await _state_row(bench.transport, spec.state_dir, machine.user))
        rows += await _lease_rows(spec, bench, rows[-1])
        # A server of somebody else's lease is none that a run of ours would end.
        ours = frozenset() if is_failed(rows) else await survivors()
        rows += await _host_rows(spec, bench, ours)
        rows.append(kernel_row(await read_kernel(bench.transport)))
        rows += await _server_rows(spec, bench, path, ours)
    except TransportFault as error:
        rows += lost_rows(error, EVERY, rows)
    return tuple(rows)


async def _state_row(transport: HostTransport, folder: str, user: str) -> Row:
    result = await transport.run(("sh", "-c", WRITABLE, "sh", folder))
    answer, _, place = result.stdout.strip().partition(" ")
    return state_row(folder, answer, place, user)


def state_row(folder: str, answer: str, place: str, user: str) -> Row:
    """Decide whether PID files, logs and the lease can be written.

    Args:
        folder: the study's ``state_dir``.
        answer: what :data:`WRITABLE` says.
        place: of which folder it says so.
        user: who we are there.
    """
    check = "state_dir"
    if answer == "yes":
        return ok(check, folder if place == folder else f"{folder}, to be made in {place}")
    seen = f"{place or folder} is no folder" if answer == "file" else f"{user} may not write into {place or folder}"
    return failed(check, seen, "write another state_dir in its [[hosts]] table, or give the user this folder")


async def _lease_rows(spec: ProcessHostSpec, bench: Bench, state: Row) -> tuple[Row, ...]:
    """Look whether somebody else uses the servers of the folder; this machine's own have no lease."""
    if spec.login is None:
        return ()
    if is_failed((state,)):
        return unknown(("lease",), "state_dir cannot be used")
    boot_id = (await bench.transport.read_file(_BOOT_ID)).decode(errors="replace").strip()
    directory = checked_directory(spec.state_dir)
    folder = LeaseFolder(bench.transport, lease_folder(directory, boot_id), place=directory, sudo=False)
    return (lease_row(await read_lease(folder), bench.asking, directory),)


async def _host_rows(spec: ProcessHostSpec, bench: Bench, ours: frozenset[int]) -> tuple[Row, ...]:
    offset = await read_offset(bench.transport, bench.clock)
    folders = tuple(dict.fromkeys((*FOLDERS, str(PurePosixPath(spec.state_dir)))))
    if not spec.care.uses_gpus:
        spaces = await read_space(bench.transport, folders)
        return (disk_row(spaces), ok("nvidia-smi", "not looked at: uses_gpus = false"), clock_row(offset))
    spaces, gpus = await together(read_space(bench.transport, folders), read_gpus(bench.transport))
    owners = await read_owners(bench.transport, {user.pid for user in gpus.users})
    chosen = spec.care.gpu_indices
    row = gpus_row(gpus, chosen, needed=bool(chosen), advice=bench.advice)
    is_silent = gpus.missing or is_failed((row,)) or not gpus.gpus
    memory = (
        unknown(("GPU memory",), "nvidia-smi does not tell")
        if is_silent
        else (memory_row(gpus, chosen, owners, None, wait_s=spec.care.wait_s, survivors=ours),)
    )
    return (disk_row(spaces), row, *memory, clock_row(offset))


async def _server_rows(spec: ProcessHostSpec, bench: Bench, path: str, ours: frozenset[int]) -> tuple[Row, ...]:
    checks = ("program", "port", "address", *_LAST)
    if bench.base is None:
        return unknown(checks, "the study's command line is not known")
    program = bench.base.argv[0]
    result = await bench.transport.run(("sh", "-c", PROGRAM, "sh", program, path))
    found = result.stdout.strip() if result.status == 0 else ""
    rows = [program_row(program, found, spec.name)]
    try:
        port = bench.engine.port(bench.base)
    except UsageError as error:
        return (*rows, failed("port", str(error), "correct [server] command in the study"), *unknown(_LAST, "no port"))
    listen = listen_address(bench.base.argv)
    listeners, owners = await read_listeners(bench.transport, port)
    mine = [listener for listener in listeners if meets(listener, listen)]
    rows += [
        port_row(port, mine, owners, None, running=False, survivors=ours),
        address_row(listen, spec.reach, bench.address, port, bench.advice),
    ]
    if is_failed(rows):
        return (*rows, *unknown(_LAST, "the server could not run, or not be reached"))
    command = replace(bench.base, argv=(found, *bench.base.argv[1:]))
    return (*rows, *await serving_rows(bench, Served(command=command, port=port, running=False)))


def program_row(program: str, found: str, host: str) -> Row:
    """Decide whether the engine's program is there."""
    check = "program"
    if found:
        return ok(check, found)
    return failed(
        check,
        f"{program} is not on the PATH of the login",
        f"install the engine on {host}, or write its absolute path in [server] command",
    )
