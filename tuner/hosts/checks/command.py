"""The command line of a unit: whether it is the engine's own, and which settings it runs today."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import PurePosixPath

from tuner.errors import HostFault, PreflightError, TransportFault, UsageError
from tuner.hosts.checks.bench import Bench
from tuner.hosts.checks.row import Row, failed, ok, warning
from tuner.hosts.checks.serving import Served
from tuner.hosts.checks.unit import UnitView, kind_row
from tuner.hosts.systemd.overridden import overridden
from tuner.hosts.systemd.paths import DROP_IN
from tuner.hosts.systemd.root import Root
from tuner.hosts.systemd.unit import read_unit
from tuner.model.space import Assignment
from tuner.model.study import UnitHostSpec
from tuner.model.trial import Command

CHECK = "command"


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundCommand:
    """What a unit runs.

    Attributes:
        served: None: it cannot be worked with, and the row says why.
        unreadable: environment files that neither we nor sudo may read.
    """

    row: Row
    served: Served | None = None
    unreadable: tuple[str, ...] = ()


async def read_command(spec: UnitHostSpec, bench: Bench, view: UnitView, *, is_root: bool) -> FoundCommand:
    """Read the unit's command line, and the tuned settings in it.

    Raises:
        TransportFault: the host is not reached.
    """
    kind = kind_row(spec.unit, view)
    if kind is not None:
        return FoundCommand(row=kind)
    try:
        unit = await read_unit(bench.transport, spec.unit, Root(bench.transport, sudo=spec.sudo and not is_root))
    except TransportFault:
        raise
    except (HostFault, PreflightError) as error:
        return FoundCommand(row=failed(CHECK, str(error), "busctl and systemctl must answer on the host"))
    try:
        command = unit.command()
    except UsageError as error:
        return FoundCommand(row=refused_row(str(error)), unreadable=unit.unreadable_files)
    problem = overridden(unit, bench.env)
    if problem is not None:
        return FoundCommand(row=refused_row(problem), unreadable=unit.unreadable_files)
    try:
        settings, port = bench.engine.settings_of(command), bench.engine.port(command)
    except UsageError as error:
        row = failed(
            CHECK,
            f"{spec.unit}: {error}",
            f"change ExecStart (systemctl edit --full {spec.unit}), or name the engine that it runs in the study",
        )
        return FoundCommand(row=row, unreadable=unit.unreadable_files)
    return FoundCommand(
        row=command_row(command, settings, unit.drop_in_paths),
        served=Served(command=command, port=port, running=view.is_running),
        unreadable=unit.unreadable_files,
    )


def refused_row(problem: str) -> Row:
    """Split what is wrong from what to do about it: the first colon that is followed by a space."""
    seen, colon, remedy = problem.partition(": ")
    return failed(CHECK, seen, remedy if colon else "put the engine's own command, with its flags, into ExecStart=")


def command_row(command: Command, settings: Assignment, drop_ins: tuple[str, ...]) -> Row:
    """Say what runs today, which is trial 0."""
    today = ", ".join(f"{name}={value}" for name, value in settings.items()) or "no tuned settings"
    detail = f"{command.argv[0]} … today: {today}"
    ours = [path for path in drop_ins if PurePosixPath(path).name == DROP_IN]
    others = [path for path in drop_ins if path not in ours]
    if others:
        detail += f"; drop-ins {', '.join(others)}"
    if ours:
        return warning(
            CHECK,
            f"{detail}; a trial's drop-in lies there: {ours[0]}",
            "a run is under way, or was killed: tuner restore --study NAME puts the original back",
        )
    return ok(CHECK, detail)
