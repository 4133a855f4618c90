"""Reads what the units of a study run; the base command line comes from there."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace

from tuner.errors import HostFault, PreflightError, UsageError
from tuner.hosts.checks.advice import TABLE, Advice
from tuner.hosts.checks.unit import read_names, read_view, unit_row
from tuner.hosts.clock import SystemClock
from tuner.hosts.systemd.overridden import overridden
from tuner.hosts.systemd.paths import drop_in_path
from tuner.hosts.systemd.root import Root
from tuner.hosts.systemd.tenancy import UnitTenancy
from tuner.hosts.systemd.unit import read_unit
from tuner.model.lease import Holder
from tuner.model.study import HostSpec, UnitHostSpec
from tuner.model.trial import Command
from tuner.wiring.reach import way_to

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Heir:
    """A run that takes over what a killed run of the same study left.

    Attributes:
        taken: hosts that were taken over: whatever comes next, they are to be restored.
    """

    holder: Holder
    taken: list[HostSpec] = field(default_factory=list)


def read_base(
    hosts: tuple[HostSpec, ...],
    say: Say,
    heir: Heir | None = None,
    env: Collection[str] = (),
    advice: Advice = TABLE,
) -> Command:
    """Return the command line that the hosts' units run, with every variable expanded.

    Args:
        hosts: of one study; those that are no units are passed over.
        say: takes lines of prose: a host key that was accepted.
        heir: takes over what a killed run of the same study left on a host, and removes its drop-in; it
            has to restore that host. None: nothing is changed, and a drop-in of ours in the way is an error.
        env: names of the variables that every trial sets.
        advice: how remedies are written down.

    Raises:
        UsageError: a unit cannot be tuned as it is.
        PreflightError: a host cannot be reached, or two units run different commands.
    """
    units = tuple(host for host in hosts if isinstance(host, UnitHostSpec))
    try:
        commands = asyncio.run(_read_all(units, say, heir, env, advice))
    except HostFault as fault:
        raise PreflightError(str(fault)) from fault
    first, base = units[0], commands[0]
    for host, command in zip(units[1:], commands[1:], strict=True):
        if command != base:
            raise PreflightError(
                f"host {host.name}: {host.unit} runs another command than {first.unit} of {first.name} "
                f"({_difference(base, command)}): hosts of one study must run the same, or their results do not compare"
            )
    return base


async def _read_all(
    units: tuple[UnitHostSpec, ...], say: Say, heir: Heir | None, env: Collection[str], advice: Advice
) -> list[Command]:
    return list(await asyncio.gather(*(_read(host, say, heir, env, advice) for host in units)))


async def _read(host: UnitHostSpec, say: Say, heir: Heir | None, env: Collection[str], advice: Advice) -> Command:
    way = way_to(host)
    root = Root(way.transport, sudo=host.sudo)
    try:
        unit = await read_unit(way.transport, host.unit, root)
        if not unit.is_found:
            names = await read_names(way.transport)
            row = unit_row(host.unit, await read_view(way.transport, host.unit), names, advice)
            raise PreflightError(f"host {host.name}: {row.detail}: {row.remedy}")
        if drop_in_path(host.unit) in unit.drop_in_paths:
            if heir is None:
                raise PreflightError(
                    f"host {host.name}: a trial's drop-in replaces the command of {host.unit}: a run is under way, "
                    f"or was killed; the same `run` goes on, and `{advice.restore}` puts the original back"
                )
            heir.taken.append(host)
            holder = replace(heir.holder, host=host.name)
            tenancy = UnitTenancy(way.transport, root, host.unit, holder, host.care.lease, SystemClock())
            for text in (await tenancy.enter()).remarks:
                say(f"host {host.name}: {text}")
            unit = await read_unit(way.transport, host.unit, root)
        problem = overridden(unit, env)
        if problem is not None:
            raise UsageError(f"host {host.name}: {problem}")
        try:
            return unit.command()
        except UsageError as error:
            raise UsageError(f"host {host.name}: {error}") from error
    finally:
        if key := way.accepted_key():
            say(f"host {host.name}: took its key, which was not known: {key}")
        await way.transport.close()


def _difference(one: Command, other: Command) -> str:
    """Name the first word in which two commands differ; never their values, which may be keys."""
    for index, (word, its) in enumerate(zip(one.argv, other.argv, strict=False)):
        if word != its:
            flag = next((w for w in reversed(one.argv[: index + 1]) if w.startswith("-")), one.argv[0])
            return f"at {flag.partition('=')[0]}"
    return f"{len(one.argv)} against {len(other.argv)} words"
