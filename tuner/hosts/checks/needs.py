"""What a run will want to do as root on a unit's host."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from tuner.errors import UsageError
from tuner.hosts.checks.rights import Argv
from tuner.hosts.systemd import root, tenancy
from tuner.model.lease import LeaseTerms


def commands(unit: str, terms: LeaseTerms) -> tuple[Argv, ...]:
    """List every command that a run on ``unit`` needs root for, each once."""
    return tuple(dict.fromkeys((*tenancy.commands(unit, terms), *root.commands(unit))))


def programs(commands: Iterable[Argv]) -> tuple[str, ...]:
    """Return the names of the programs, to be looked for on the host."""
    return tuple(dict.fromkeys(command[0] for command in commands))


def lines(user: str, commands: Iterable[Argv], places: Mapping[str, str]) -> tuple[str, ...]:
    """Return the lines of sudoers that allow these commands; a program that was not found is looked for in /usr/bin."""
    wanted = tuple(commands)
    known = {name: places.get(name, f"/usr/bin/{name}") for name in programs(wanted)}
    try:
        return root.sudoers_lines(user, wanted, known)
    except UsageError as error:
        return (f"# {error}",)
