"""Whose a process is: by its control group, which everybody may read."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from tuner.hosts.checks.row import one_line
from tuner.ports import HostTransport

_SHOWN = 48

LOOK = """
for pid in "$@"; do
    [ -r "/proc/$pid/cgroup" ] || continue
    printf '%s\\t%s\\t%s\\t%s\\n' "$pid" "$(stat -c %U "/proc/$pid" 2>/dev/null)" \
        "$(cat "/proc/$pid/comm" 2>/dev/null)" "$(tr '\\n' ' ' < "/proc/$pid/cgroup" 2>/dev/null)"
done
exit 0
"""
"""POSIX sh; arguments: the PIDs. Command lines are left alone: they may hold keys."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """A process as the host's kernel knows it; ``cgroups`` are paths."""

    pid: int
    user: str
    name: str
    cgroups: tuple[str, ...]

    def belongs_to(self, unit: str) -> bool:
        """Whether the process is in the unit's control group or below it."""
        return any(unit in path.split("/") for path in self.cgroups)

    @property
    def place(self) -> str:
        """The unit or scope it runs in, for a reader; empty outside of any."""
        parts = (part for path in self.cgroups for part in reversed(path.split("/")))
        return next((part for part in parts if part.endswith((".service", ".scope"))), "")

    def shown(self) -> str:
        """Name the process in a few words."""
        where = f" of {self.place}" if self.place else ""
        return f"pid {self.pid} {one_line(self.name)[:_SHOWN]} ({self.user or 'unknown user'}{where})"


def ending_words(owners: Iterable[Owner | None]) -> str:
    """Say how foreign processes go away: what a service runs may be somebody's production."""
    places = (owner.place for owner in owners if owner is not None)
    services = list(dict.fromkeys(place for place in places if _is_of_system(place)))
    if not services:
        return "end them"
    return f"{', '.join(services)} may be somebody's production: ask its owner before anything is ended"


def _is_of_system(place: str) -> bool:
    return place.endswith(".service") and not place.startswith("user@")


async def read_owners(transport: HostTransport, pids: Collection[int]) -> Mapping[int, Owner]:
    """Look up each process that still lives.

    Raises:
        TransportFault: the host is not reached.
    """
    if not pids:
        return {}
    words = [str(pid) for pid in sorted(pids)]
    result = await transport.run(("sh", "-c", LOOK, "sh", *words), timeout_s=20.0)
    return {owner.pid: owner for owner in parse_owners(result.stdout)}


def parse_owners(text: str) -> Sequence[Owner]:
    """Read what :data:`LOOK` prints."""
    found = []
    for line in text.splitlines():
        pid, *rest = line.split("\t")
        if pid.isdigit() and len(rest) == 3:
            user, name, groups = rest
            paths = tuple(group.split(":", 2)[2] for group in groups.split() if group.count(":") >= 2)
            found.append(Owner(pid=int(pid), user=user, name=name, cgroups=paths))
    return found
