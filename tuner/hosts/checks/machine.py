"""Who we are on a host, what manages its services, and which tools it has."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from tuner.hosts.checks.row import Row, failed, ok
from tuner.hosts.systemd.unit import OLDEST as OLDEST_SYSTEMD
from tuner.ports import HostTransport

LOOK = """
printf 'user %s\\n' "$(id -un)"
printf 'uid %s\\n' "$(id -u)"
printf 'groups %s\\n' "$(id -Gn)"
printf 'name %s\\n' "$(uname -n)"
[ -d /run/systemd/system ] && printf 'booted yes\\n'
printf 'systemd %s\\n' "$(systemctl --version 2>/dev/null | head -n 1)"
printf 'init %s\\n' "$(cat /proc/1/comm 2>/dev/null)"
for tool in "$@"; do
    place=$(command -v "$tool") && printf 'tool %s %s\\n' "$tool" "$place"
done
exit 0
"""
"""POSIX sh; arguments: the tools to look for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What a first look at a host shows.

    Attributes:
        user, uid, groups: as whom commands run there.
        name: as the host calls itself.
        booted_with_systemd: systemd is PID 1 (sd_booted(3)).
        systemd: first line of ``systemctl --version``; empty where there is none.
        init: name of process 1.
        tools: name and place of each tool asked for that is there.
    """

    user: str
    uid: int
    groups: frozenset[str]
    name: str
    booted_with_systemd: bool
    systemd: str
    init: str
    tools: tuple[tuple[str, str], ...]

    @property
    def is_root(self) -> bool:
        """Whether commands run as root without sudo."""
        return self.uid == 0


async def read_machine(transport: HostTransport, tools: Sequence[str]) -> Machine:
    """Take the first look.

    Raises:
        TransportFault: the host is not reached.
    """
    result = await transport.run(("sh", "-c", LOOK, "sh", *tools), timeout_s=20.0)
    return parse_machine(result.stdout)


def parse_machine(text: str) -> Machine:
    """Read what :data:`LOOK` prints; what it could not find out is empty, the uid then -1."""
    said: dict[str, str] = {}
    tools: list[tuple[str, str]] = []
    for line in text.splitlines():
        key, _, value = line.partition(" ")
        if key == "tool":
            tool, _, place = value.partition(" ")
            tools.append((tool, place))
        elif key:
            said.setdefault(key, value.strip())
    uid = said.get("uid", "")
    return Machine(
        user=said.get("user", ""),
        uid=int(uid) if uid.isdigit() else -1,
        groups=frozenset(said.get("groups", "").split()),
        name=said.get("name", ""),
        booted_with_systemd="booted" in said,
        systemd=said.get("systemd", ""),
        init=said.get("init", ""),
        tools=tuple(tools),
    )


def systemd_row(machine: Machine) -> Row:
    """Decide whether this host's systemd can be worked with."""
    if not machine.systemd or not machine.booted_with_systemd:
        init = machine.init or "something else"
        return failed(
            "systemd",
            f"this host was not booted with systemd: process 1 is {init}",
            'write kind = "process" in its [[hosts]] table: the engine then runs without systemd',
        )
    number = re.match(r"systemd (\d+)", machine.systemd)
    if number is None:
        return failed(
            "systemd",
            f"systemctl --version says {machine.systemd!r}, which is no version",
            f"install systemd {OLDEST_SYSTEMD} or later",
        )
    if int(number[1]) < OLDEST_SYSTEMD:
        return failed(
            "systemd",
            f"version {number[1]} is older than {OLDEST_SYSTEMD}, the first whose properties can be read exactly",
            'upgrade the host\'s systemd, or write kind = "process" in its [[hosts]] table',
        )
    return ok("systemd", f"version {number[1]}")


def tools_row(machine: Machine, needed: Collection[str]) -> Row:
    """Decide whether the tools that a process host is driven with are there."""
    there = {tool for tool, _ in machine.tools}
    missing = sorted(set(needed) - there)
    if missing:
        return failed(
            "tools",
            f"not on the PATH of {machine.user}: {', '.join(missing)}",
            "install them (Debian: coreutils, util-linux), or add their folder to the login's PATH",
        )
    return ok("tools", ", ".join(sorted(there & set(needed))))
