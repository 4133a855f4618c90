"""What systemd says of the server's unit, and what a trial of it would set off."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tuner.hosts.checks.advice import TABLE, Advice
from tuner.hosts.checks.row import Row, failed, ok, warning
from tuner.hosts.systemd.owners_unit import active_among
from tuner.ports import HostTransport

_PROPERTIES = (
    "LoadState",
    "LoadError",
    "ActiveState",
    "SubState",
    "UnitFileState",
    "FragmentPath",
    "DropInPaths",
    "Type",
    "User",
    "MainPID",
    "NRestarts",
    "NeedDaemonReload",
    "ExecStart",
    "ExecStopPost",
    "OnFailure",
    "FailureAction",
    "SuccessAction",
    "StartLimitAction",
    "RequiredBy",
    "BoundBy",
    "ConsistsOf",
    "TriggeredBy",
)
_TYPES = frozenset({"simple", "exec", "idle", "notify", "notify-reload"})
"""The types whose main process is what ExecStart names."""
_RUNNING_DEPENDANTS = "running dependants"
"""Beside the properties: those of RequiredBy=, BoundBy= and ConsistsOf= that run."""
_NEAREST = 3
_SUFFIX = ".service"

NAMES = """
systemctl list-unit-files --type=service --no-legend --no-pager --plain 2>/dev/null
systemctl list-units --all --type=service --no-legend --no-pager --plain 2>/dev/null
exit 0
"""
"""POSIX sh; the first word of each line is a name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitView:
    """A unit's properties, as ``systemctl show`` prints them.

    Attributes:
        said: property to value; properties that this systemd does not know are not there.
        starts: how many ExecStart lines it has.
        problem: what systemctl said when it said nothing else.
    """

    said: tuple[tuple[str, str], ...] = ()
    starts: int = 0
    problem: str = ""

    def __getitem__(self, name: str) -> str:
        return dict(self.said).get(name, "")

    @property
    def is_running(self) -> bool:
        """Whether its main process lives."""
        return self["ActiveState"] in {"active", "activating", "reloading", "deactivating"} and self.main_pid > 0

    @property
    def main_pid(self) -> int:
        """PID of its main process; 0: none."""
        return int(self["MainPID"]) if self["MainPID"].isdigit() else 0


async def read_view(transport: HostTransport, unit: str) -> UnitView:
    """Look at the unit.

    Raises:
        TransportFault: the host is not reached.
    """
    result = await transport.run(("systemctl", "show", "-p", ",".join(_PROPERTIES), "--", unit))
    if result.status != 0:
        said = (result.stderr + result.stdout).strip()
        return UnitView(problem=said.splitlines()[0] if said else f"systemctl show: status {result.status}")
    view = parse_view(result.stdout)
    running = await active_among(transport, _dependants(view))
    return UnitView(said=(*view.said, (_RUNNING_DEPENDANTS, " ".join(running))), starts=view.starts)


def parse_view(text: str) -> UnitView:
    """Read ``Name=value`` lines; a property with several values comes on several lines, and the first is kept."""
    said: dict[str, str] = {}
    starts = 0
    for line in text.splitlines():
        name, equals, value = line.partition("=")
        if not equals:
            continue
        starts += name == "ExecStart"
        said.setdefault(name, value.strip())
    return UnitView(said=tuple(said.items()), starts=starts)


async def read_names(transport: HostTransport) -> frozenset[str]:
    """Return the names of all services of the host, templates included.

    Raises:
        TransportFault: the host is not reached.
    """
    result = await transport.run(("sh", "-c", NAMES, "sh"))
    return frozenset(line.split()[0] for line in result.stdout.splitlines() if line.split())


def nearest(unit: str, names: Iterable[str]) -> tuple[str, ...]:
    """Return the services whose names are most like ``unit``, those that contain its stem first."""
    stems = {name.removesuffix(_SUFFIX).lower(): name for name in sorted(names)}
    stem = unit.removesuffix(_SUFFIX).lower()
    containing = [known for known in stems if stem in known]
    alike = difflib.get_close_matches(stem, stems, n=_NEAREST, cutoff=0.6)
    return tuple(stems[known] for known in dict.fromkeys((*containing, *alike)))[:_NEAREST]


def is_absent(view: UnitView) -> bool:
    """Whether the host has no such unit, so that its names are worth reading."""
    return bool(view.problem) or view["LoadState"] == "not-found"


def unit_row(unit: str, view: UnitView, names: Iterable[str] = (), advice: Advice = TABLE) -> Row:
    """Decide whether this is a unit that trials can be made of.

    Args:
        unit: its name.
        view: what systemd says.
        names: of the host's services, where the unit is absent.
        advice: how remedies are written down.
    """
    check = "unit"
    if is_absent(view):
        meant = nearest(unit, names)
        guess = f"did you mean {', '.join(meant)}? " if meant else ""
        remedy = f"{guess}systemctl list-unit-files --type=service lists them; {advice.unit}"
        if unit.rpartition(".")[0].endswith("@"):
            remedy = f"name an instance of the template: {unit.replace('@.', '@NAME.')}"
        return failed(check, view.problem or f"this host has no unit {unit}", remedy)
    refusal = _refusal(unit, view)
    if refusal is not None:
        return failed(check, *refusal)
    state = f"{unit} is {view['ActiveState']} ({view['SubState']}), {view['UnitFileState'] or 'without a file'}"
    if view["NeedDaemonReload"] == "yes":
        return warning(
            check,
            f"{state}; its files were changed since systemd read them",
            "on the host, as root: systemctl daemon-reload: else the first trial would bring the change into effect",
        )
    if view["SubState"] == "auto-restart":
        return warning(
            check,
            f"{state}: it crashes and is started again",
            f"journalctl -u {unit} says why: trial 0 would crash too",
        )
    return ok(check, state)


def _refusal(unit: str, view: UnitView) -> tuple[str, str] | None:
    """Say why systemd's unit cannot be taken and put back, and what to do; None: it can."""
    if view["LoadState"] == "masked":
        return f"{unit} is masked", f"on the host, as root: systemctl unmask {unit}"
    if view["LoadState"] != "loaded":
        error = view["LoadError"].strip('"') or view["LoadState"]
        return f"{unit} cannot be loaded: {error}", f"systemd-analyze verify {unit} says what to mend"
    if view["UnitFileState"] == "transient":
        return (
            f"{unit} was made by systemd-run: the first stop would delete it",
            "write a unit file for it (systemctl cat shows what it says), and start that",
        )
    return None


def kind_row(unit: str, view: UnitView) -> Row | None:
    """Say why the unit's main process cannot be replaced; None: it can."""
    check = "command"
    if view["Type"] not in _TYPES:
        return failed(
            check,
            f"{unit} is Type={view['Type']}: its main process is not what ExecStart names",
            f"make it Type=exec with the engine's own command in ExecStart (systemctl edit --full {unit})",
        )
    if view.starts != 1 or not view["ExecStart"]:
        return failed(
            check,
            f"{unit} has {view.starts if view['ExecStart'] else 0} ExecStart lines",
            "leave one ExecStart with the engine's own command, and make ExecStartPre of what has to run before it",
        )
    return None


def effects_row(view: UnitView) -> Row:
    """Say what stopping and crashing trials would set off beside the unit itself."""
    check = "side effects"
    found = [f"OnFailure={view['OnFailure']} starts at each trial that crashes"] if view["OnFailure"] else []
    if view["ExecStopPost"]:
        found.append("ExecStopPost= runs after every trial")
    running = view[_RUNNING_DEPENDANTS].split()
    if running:
        return failed(
            check,
            f"{', '.join(running)} would be stopped with it and not started again",
            f"stop it for the night (systemctl stop {' '.join(running)}), and start it again afterwards",
        )
    bound = _dependants(view)
    if bound:
        found.append(f"{', '.join(bound)} is stopped with it and not started again")
    triggers = _words(view["TriggeredBy"])
    if triggers:
        found.append(f"{', '.join(triggers)} may start it between trials")
    if found:
        return warning(
            check,
            "; ".join(found),
            "stop what must not be touched for the night (systemctl stop …), and start it again afterwards",
        )
    actions = [
        name for name in ("FailureAction", "SuccessAction", "StartLimitAction") if view[name] not in ("", "none")
    ]
    if actions:
        return ok(check, f"{', '.join(f'{name}={view[name]}' for name in actions)}: switched off while a trial runs")
    return ok(check, "none: nothing depends on it")


def _dependants(view: UnitView) -> Sequence[str]:
    return _words(view["RequiredBy"], view["BoundBy"], view["ConsistsOf"])


def _words(*values: str) -> Sequence[str]:
    # Targets are only reached, never served: they stay up without what they wanted.
    words = (word for value in values for word in value.split())
    return tuple(dict.fromkeys(word for word in words if not word.endswith(".target")))
