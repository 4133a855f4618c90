"""Who listens on the server's port."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from tuner.hosts.checks.processes import Owner, ending_words, read_owners
from tuner.hosts.checks.row import Row, failed, ok
from tuner.ports import HostTransport

_LISTENING = "0A"  # st of /proc/net/tcp (include/net/tcp_states.h)
_EVERYWHERE = frozenset({"0.0.0.0", "*", "::"})  # noqa: S104 - as ss prints them, nothing is bound

LOOK = """
if command -v ss >/dev/null 2>&1; then
    printf 'ss\\n'
    ss -Hltnpe "sport = :$1"
else
    printf 'proc\\n'
    cat /proc/net/tcp /proc/net/tcp6 2>/dev/null
fi
exit 0
"""
"""POSIX sh; argument: the port."""

FIND_INODE = """
ls -ld /proc/[0-9]*/fd/* 2>/dev/null | grep -F -e "socket:[$1]" | head -n 20
exit 0
"""
"""POSIX sh; argument: a socket's inode. Only our own processes' sockets are seen, unless we are root."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Listener:
    """A socket that listens on the port.

    Attributes:
        address: as ss prints it, without brackets.
        pids: None of them: not ours to see.
        cgroup: path; empty where ss or the kernel does not say.
    """

    address: str
    pids: tuple[int, ...] = ()
    cgroup: str = ""
    inode: int | None = None


async def read_listeners(transport: HostTransport, port: int) -> tuple[tuple[Listener, ...], Mapping[int, Owner]]:
    """Look who listens on ``port``, by ss, or by /proc/net/tcp without it.

    Raises:
        TransportFault: the host is not reached.
    """
    result = await transport.run(("sh", "-c", LOOK, "sh", str(port)), timeout_s=20.0)
    source, _, text = result.stdout.partition("\n")
    if source == "ss":
        found = parse_ss(text)
    else:
        found = tuple([await _with_pids(transport, listener) for listener in parse_proc(text, port)])
    return found, await read_owners(transport, {pid for listener in found for pid in listener.pids})


async def _with_pids(transport: HostTransport, listener: Listener) -> Listener:
    result = await transport.run(("sh", "-c", FIND_INODE, "sh", str(listener.inode)), timeout_s=30.0)
    pids = sorted({int(pid) for pid in re.findall(r"/proc/(\d+)/fd/", result.stdout)})
    return Listener(address=listener.address, pids=tuple(pids), inode=listener.inode)


def parse_ss(text: str) -> tuple[Listener, ...]:
    """Read the lines of ``ss -Hltnpe``."""
    found = []
    for line in text.splitlines():
        fields = line.split()
        if len(fields) < 5 or ":" not in fields[3]:
            continue
        address = fields[3].rpartition(":")[0].partition("%")[0].strip("[]")
        cgroup = re.search(r"\bcgroup:(\S+)", line)
        inode = re.search(r"\bino:(\d+)", line)
        found.append(
            Listener(
                address=address,
                pids=tuple(sorted({int(pid) for pid in re.findall(r"\bpid=(\d+)", line)})),
                cgroup=cgroup[1] if cgroup else "",
                inode=int(inode[1]) if inode else None,
            )
        )
    return tuple(found)


def parse_proc(text: str, port: int) -> tuple[Listener, ...]:
    """Read /proc/net/tcp and tcp6; addresses are hexadecimal words in the host's byte order (little)."""
    found = []
    for line in text.splitlines():
        fields = line.split()
        if len(fields) < 10 or fields[3] != _LISTENING:
            continue
        address, _, number = fields[1].partition(":")
        if int(number, 16) == port:
            found.append(Listener(address=_address(address), inode=int(fields[9])))
    return tuple(found)


def _address(text: str) -> str:
    if len(text) == 8:
        return ".".join(str(byte) for byte in reversed(bytes.fromhex(text)))
    return "::" if set(text) == {"0"} else f"IPv6 {text.lower()}"


def meets(listener: Listener, listen: str) -> bool:
    """Whether a server that binds ``listen`` would collide with ``listener``."""
    mine = "127.0.0.1" if listen == "localhost" else listen
    return listener.address == mine or listener.address in _EVERYWHERE or mine in _EVERYWHERE


def port_row(
    port: int,
    listeners: Sequence[Listener],
    owners: Mapping[int, Owner],
    unit: str | None,
    *,
    running: bool,
    survivors: Collection[int] = (),
) -> Row:
    """Decide whether a trial's server can have the port.

    Args:
        port: of the server's command line.
        listeners: those that a server there would collide with.
        owners: their processes, as far as they are seen.
        unit: the server's; None: no process there is ours.
        running: the unit's server runs, so that a listener we cannot look into is most likely it.
        survivors: PIDs of servers that an earlier run left, and that the next one ends.
    """
    check = "port"
    if not listeners:
        return ok(check, f"{port} is free")
    left = sorted({pid for listener in listeners for pid in listener.pids if pid in survivors})
    others = [listener for listener in listeners if not any(pid in survivors for pid in listener.pids)]
    strangers = [listener for listener in others if not _is_of(unit, listener, owners)]
    foreign = [name for listener in strangers for name in _foreigners(listener, owners, running=running)]
    if foreign:
        return failed(
            check,
            f"{port} is taken by {', '.join(dict.fromkeys(foreign))}",
            f"{ending_words(_seen(strangers, owners))}, or give the server another --port: "
            "a trial's server could not listen",
        )
    if left:
        pids = ", ".join(map(str, left))
        return ok(check, f"{port} is held by what an earlier run of ours left (pid {pids}): a run ends it")
    if len(strangers) < len(others):
        return ok(check, f"{port} is {unit}'s own")
    return ok(check, f"{port} is listened on by a process that this login may not see, and the server runs")


def _seen(listeners: Iterable[Listener], owners: Mapping[int, Owner]) -> list[Owner]:
    return [owners[pid] for listener in listeners for pid in listener.pids if pid in owners]


def _is_of(unit: str | None, listener: Listener, owners: Mapping[int, Owner]) -> bool:
    if unit is None:
        return False
    its = (owners[pid] for pid in listener.pids if pid in owners)
    return unit in listener.cgroup.split("/") or any(owner.belongs_to(unit) for owner in its)


def _foreigners(listener: Listener, owners: Mapping[int, Owner], *, running: bool) -> list[str]:
    """Name those not of our unit who listen there; empty: that cannot be seen, and is most likely our server."""
    seen = [owners[pid].shown() for pid in listener.pids if pid in owners]
    if seen:
        return seen
    if listener.cgroup.strip("/"):
        return [listener.cgroup]
    return [] if running else [f"a process on {listener.address} that this login may not see"]
