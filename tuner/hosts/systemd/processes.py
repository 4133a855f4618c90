"""Processes of a unit: those in its cgroup, and those that carry one of its invocations in their environment."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tuner.ports import HostTransport

# $1: cgroup, as systemd names it, or empty; the rest: invocation ids. The hierarchy that systemd itself
# uses is named `systemd` (cgroup v1), `unified` (both), or is the whole tree (v2). Prints PID, start time
# (field 22 of /proc/PID/stat; the command in parentheses before it may hold anything) and command line.
_LIST = r"""
cgroup=$1
shift
{
    for tree in /sys/fs/cgroup/systemd /sys/fs/cgroup/unified /sys/fs/cgroup; do
        [ -n "$cgroup" ] && [ -e "$tree$cgroup/cgroup.procs" ] || continue
        find "$tree$cgroup" -name cgroup.procs -exec cat {} + 2>/dev/null
        break
    done
    for id; do
        grep -lsxz "INVOCATION_ID=$id" /proc/[0-9]*/environ
    done | cut -d / -f 3
} | sort -un | while read -r pid; do
    line=$(tr '\n' ' ' 2>/dev/null <"/proc/$pid/stat") || continue
    set -- ${line##*) }
    [ "$#" -ge 20 ] && [ "$1" != Z ] && [ "$1" != X ] || continue
    command=$(tr '\0\n' '  ' 2>/dev/null <"/proc/$pid/cmdline" | head -c 200)
    printf '%s %s %s\n' "$pid" "${20}" "$command"
done
"""
# Arguments: PID START, in pairs. A PID that was used again since has another start time.
_KILL = r"""
while [ "$#" -ge 2 ]; do
    pid=$1 start=$2
    shift 2
    line=$(tr '\n' ' ' 2>/dev/null <"/proc/$pid/stat") || continue
    is_same() { [ "${20}" = "$start" ]; }
    is_same ${line##*) } && kill -s KILL "$pid"
done
:
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A process; ``start`` (clock ticks since boot) tells it from a later one with the same PID."""

    pid: int
    start: int
    command: str


async def processes_of(transport: HostTransport, cgroup: str, invocations: Iterable[str] = ()) -> tuple[Found, ...]:
    """List the processes in a cgroup and below it, and those started by an invocation, zombies left out.

    Args:
        transport: to the host.
        cgroup: as systemd names it; empty: none.
        invocations: ids; only processes whose environment the login may read are found by them.

    Raises:
        TransportFault: the host is not reached.
    """
    result = await transport.run(("sh", "-c", _LIST, "tuner", cgroup, *invocations))
    found = []
    for line in result.stdout.splitlines():
        pid, _, rest = line.partition(" ")
        start, _, command = rest.partition(" ")
        if pid.isdigit() and start.isdigit() and int(pid) > 0:
            found.append(Found(pid=int(pid), start=int(start), command=command.strip()))
    return tuple(found)


async def kill(transport: HostTransport, processes: Iterable[Found]) -> None:
    """SIGKILL these very processes; those that are gone, or not ours to signal, are passed over.

    Raises:
        TransportFault: the host is not reached.
    """
    pairs = [str(number) for process in processes for number in (process.pid, process.start)]
    if pairs:
        await transport.run(("sh", "-c", _KILL, "tuner", *pairs))
