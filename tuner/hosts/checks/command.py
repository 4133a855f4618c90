"""The command line of a unit: whether it is the engine's own, and which settings it runs today."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath

from tuner.errors import HostFault, PreflightError, TransportFault, UsageError
from tuner.hosts.checks.advice import Advice
from tuner.hosts.checks.bench import Bench
from tuner.hosts.checks.row import Row, failed, ok, warning
from tuner.hosts.checks.serving import Served
from tuner.hosts.checks.unit import UnitView, kind_row
from tuner.hosts.systemd.holding import Seen, whose
from tuner.hosts.systemd.overridden import overridden
from tuner.hosts.systemd.paths import DROP_IN
from tuner.hosts.systemd.root import Root
from tuner.hosts.systemd.unit import read_unit
from tuner.model.lease import Holder
from tuner.model.space import Assignment
from tuner.model.study import UnitHostSpec
from tuner.model.trial import Command

CHECK = "command"
_SIGNS: Mapping[str, str] = {"llamacpp": "llama"}
"""What an engine's own command line always holds somewhere, where that is not its name."""


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


async def read_command(
    spec: UnitHostSpec, bench: Bench, view: UnitView, lease: Seen | None, *, is_root: bool
) -> FoundCommand:
    """Read the unit's command line, and the tuned settings in it.

    Args:
        spec: the host.
        bench: to look with.
        view: what systemd says of the unit.
        lease: on it, as it lies there; None: it cannot be read.
        is_root: the login is root's.

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
        row = unfit_row(spec.unit, bench.engine.name, command, str(error), bench.advice)
        return FoundCommand(row=row, unreadable=unit.unreadable_files)
    return FoundCommand(
        row=command_row(command, settings, unit.drop_in_paths, run_words(lease, bench.asking, bench.advice)),
        served=Served(command=command, port=port, running=view.is_running),
        unreadable=unit.unreadable_files,
    )


def refused_row(problem: str) -> Row:
    """Split what is wrong from what to do about it: the first colon that is followed by a space."""
    seen, colon, remedy = problem.partition(": ")
    return failed(CHECK, seen, remedy if colon else "put the engine's own command, with its flags, into ExecStart=")


def unfit_row(unit: str, engine: str, command: Command, problem: str, advice: Advice) -> Row:
    """Say why a command line cannot be tuned: it is of another program, or a setting is missing in it."""
    if not looks_like(engine, command):
        return failed(CHECK, f"ExecStart of {unit} is {command.argv[0]}, which is not {engine}", advice.unit)
    return failed(
        CHECK,
        f"{unit}: {problem}",
        f"change ExecStart (systemctl edit --full {unit}), or name the engine that it runs in the study",
    )


def looks_like(engine: str, command: Command) -> bool:
    """Whether a command that the engine cannot read may be the engine's all the same."""
    sign = _SIGNS.get(engine, engine)
    return any(sign in word.lower() for word in command.argv)


def run_words(lease: Seen | None, asking: Holder, advice: Advice) -> str:
    """Say what to do about a trial's drop-in: somebody's run is under way, or was killed."""
    holder = None if lease is None or lease.left_s <= 0 else lease.holder
    if holder is None:
        return f"a run was killed here; {advice.restore} puts the original back"
    if holder.is_same_study(asking):
        return f"a run of this study is under way, or was killed: then {advice.restore} puts the original back"
    return f"wait for the run of {whose(holder)}; if it was killed, restore its study from there"


def command_row(command: Command, settings: Assignment, drop_ins: tuple[str, ...], run: str = "") -> Row:
    """Say what runs today, which is trial 0.

    Args:
        command: that the unit runs.
        settings: the tuned ones in it.
        drop_ins: of the unit.
        run: what to do where one of them is a trial's.
    """
    shown = ", ".join(f"{name}={value}" for name, value in settings.items()) or "no tuned settings"
    ours = [path for path in drop_ins if PurePosixPath(path).name == DROP_IN]
    others = [path for path in drop_ins if path not in ours]
    when = "in a trial's drop-in, not what runs without it" if ours else "today"
    detail = f"{command.argv[0]} … {when}: {shown}"
    if others:
        detail += f"; drop-ins {', '.join(others)}"
    if ours:
        return warning(CHECK, f"{detail}; {ours[0]}", run)
    return ok(CHECK, detail)
