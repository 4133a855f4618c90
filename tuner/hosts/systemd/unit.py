"""Asks systemd for a unit: scalars from ``systemctl show``, arrays over D-Bus, where no quoting blurs them."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace

from tuner.errors import HostFault, PreflightError
from tuner.hosts.systemd.definition import EnvironmentFile, ExecLine, Unit
from tuner.hosts.systemd.expansion import parse_environment_file
from tuner.hosts.systemd.paths import object_path, shown_words
from tuner.hosts.systemd.root import Root
from tuner.model.host import CommandResult
from tuner.ports import HostTransport

__all__ = [
    "OLDEST",
    "EnvironmentFile",
    "ExecLine",
    "Unit",
    "cat_command",
    "parse_unit",
    "read_command_line",
    "read_unit",
]

OLDEST = 244
"""The first version that tells every prefix of ExecStart (ExecStartEx) over D-Bus; Type=exec is from 240."""

_SHOWN = (
    "Id LoadState ActiveState SubState UnitFileState FragmentPath DropInPaths NeedDaemonReload Type User "
    "ControlGroup Slice MainPID InvocationID Restart KillMode TimeoutStopUSec OnFailure TriggeredBy "
    "StandardOutput RefuseManualStart RefuseManualStop RequiredBy BoundBy ConsistsOf"
).replace(" ", ",")
_READ = f"""\
export LC_ALL=C SYSTEMD_PAGER= SYSTEMD_COLORS=0
manager=/org/freedesktop/systemd1
systemctl show --no-pager -p {_SHOWN} -- "$1" || exit
echo "SystemState=$(systemctl is-system-running)"
job=$(systemctl show -p Job --value -- "$1")
case $job in
    ''|0) ;;
    *) echo "JobType=$(
        exec 2>/dev/null  # by now it may be done
        busctl get-property org.freedesktop.systemd1 "$manager/job/$job" org.freedesktop.systemd1.Job JobType
    )" ;;
esac
echo
bus() {{ busctl --json=short get-property org.freedesktop.systemd1 "$@" || exit; }}
bus "$manager" org.freedesktop.systemd1.Manager Version Environment
bus "$2" org.freedesktop.systemd1.Service ExecStartEx ExecStartPre Environment EnvironmentFiles UnsetEnvironment
user=$(systemctl show -p User -- "$1")
[ "$user" = User= ] || getent passwd "${{user#User=}}" || :
# One line a file: what is known of it, its path, and its content, in an encoding without line ends.
kind_of() {{
    [ ! -r "$1" ] || {{ echo read; return; }}
    parent=$1
    while [ ! -e "$parent" ]; do parent=${{parent%/*}}; parent=${{parent:-/}}; done
    # Missing for certain only where the login may look.
    if [ ! -e "$1" ] && [ -x "$parent" ]; then echo missing; else echo hidden; fi
}}
systemctl show --no-pager -p EnvironmentFiles -- "$1" |
sed -n 's/^EnvironmentFiles=\\(.*\\) (ignore_errors=.*)$/\\1/p' |
while IFS= read -r pattern; do
    IFS=
    for path in $pattern; do
        kind=$(kind_of "$path")
        printf '%s\\t%s\\t' "$kind" "$path"
        [ "$kind" != read ] || base64 -w 0 <"$path"
        echo
    done
done
"""
_NO_SYSTEMD = re.compile(r"not been booted with systemd|systemctl: (?:command )?not found|Failed to connect to bus")


async def read_unit(transport: HostTransport, unit: str, root: Root | None = None) -> Unit:
    """Ask systemd for a unit; a unit that is not there is a value (``load_state``).

    Args:
        transport: to the host.
        unit: full name.
        root: reads environment files that the login may not; None: they stay unread.

    Raises:
        PreflightError: the host has no systemd, or one that is too old.
        HostFault: systemd did not answer.
        TransportFault: the host is not reached.
    """
    result = await transport.run(("sh", "-c", _READ, "tuner", unit, object_path(unit)))
    if result.status != 0:
        raise _unanswered(unit, result)
    found = parse_unit(unit, result.stdout)
    pairs: list[tuple[str, str]] = []
    unreadable: list[str] = []
    for kind, path, content in _files(result.stdout):
        text = content if kind == "read" else None
        if kind == "hidden":
            text = await _as_root(path, root)
        if text is not None:
            pairs += parse_environment_file(text)
        elif kind == "hidden" or not any(file.path == path and file.optional for file in found.environment_files):
            unreadable.append(path)
    return replace(found, file_environment=tuple(pairs), unreadable_files=tuple(unreadable))


async def read_command_line(transport: HostTransport, pid: int) -> tuple[str, ...]:
    """Return the words a process was executed with, or what it wrote over them since; empty: it is gone.

    Raises:
        TransportFault: the host is not reached.
    """
    result = await transport.run(("cat", f"/proc/{pid}/cmdline"))
    return tuple(result.stdout.removesuffix("\0").split("\0")) if result.stdout else ()


def cat_command(path: str) -> tuple[str, ...]:
    """Return the root command that reads an environment file the login may not read."""
    return ("cat", path)


async def _as_root(path: str, root: Root | None) -> str | None:
    """Read what the login may not, or what lies in a folder it may not look into."""
    if root is None:
        return None
    result = await root.run(cat_command(path))
    return result.stdout if result.status == 0 else None


def _files(text: str) -> Iterator[tuple[str, str, str]]:
    for line in text.splitlines():
        kind, tab, rest = line.partition("\t")
        if tab and kind in {"read", "hidden", "missing"}:
            path, _, content = rest.partition("\t")
            yield kind, path, base64.b64decode(content).decode(errors="replace")


def _unanswered(unit: str, result: CommandResult) -> Exception:
    said = (result.stderr.strip() or result.stdout.strip() or "it said nothing").splitlines()[0]
    if result.status == 127 or _NO_SYSTEMD.search(result.stderr):
        return PreflightError(f'this host does not run systemd ({said}): write kind = "process" for it')
    if "ExecStartEx" in result.stderr or "--json" in result.stderr:
        return PreflightError(f"systemd on this host is too old ({said}): {OLDEST} or later is needed")
    return HostFault(f"systemd did not tell about unit {unit} (status {result.status}): {said}")


def parse_unit(unit: str, text: str) -> Unit:
    """Read what ``_READ`` printed: properties, an empty line, JSON lines, and a line of passwd(5).

    Raises:
        PreflightError: systemd is too old.
        HostFault: it is something else.
    """
    shown, _, rest = text.partition("\n\n")
    properties = dict(line.split("=", 1) for line in shown.splitlines() if "=" in line)
    try:
        answers = [json.loads(line)["data"] for line in rest.splitlines()[:7]]
        version, surroundings, lines, before, environment, files, unset = answers
        main_pid = int(properties["MainPID"])
    except (ValueError, KeyError, TypeError) as error:
        msg = f"what systemd says of unit {unit} cannot be read ({error}): {text[:200]!r}"
        raise HostFault(msg) from error
    number = re.match(r"\d+", version)
    if number is None or int(number.group()) < OLDEST:
        msg = f"systemd {version} on this host is too old: {OLDEST} or later is needed"
        raise PreflightError(msg)
    words = {name: shown_words(properties.get(name, "")) for name in ("DropInPaths", "OnFailure", "TriggeredBy")}
    return Unit(
        name=unit,
        id=properties.get("Id", unit),
        version=version,
        load_state=properties.get("LoadState", ""),
        active_state=properties.get("ActiveState", ""),
        sub_state=properties.get("SubState", ""),
        unit_file_state=properties.get("UnitFileState", ""),
        fragment_path=properties.get("FragmentPath", ""),
        drop_in_paths=words["DropInPaths"],
        need_daemon_reload=_is_yes(properties, "NeedDaemonReload"),
        type=properties.get("Type", ""),
        user=properties.get("User", ""),
        exec_start=tuple(ExecLine(path=line[0], argv=tuple(line[1]), flags=tuple(line[2])) for line in lines),
        exec_start_pre=len(before),
        environment=_pairs(environment),
        environment_files=tuple(EnvironmentFile(path=path, optional=optional) for path, optional in files),
        surroundings=(*_pairs(surroundings), *_of_user(rest.splitlines()[7:])),
        unset=tuple(unset),
        control_group=properties.get("ControlGroup", ""),
        slice=properties.get("Slice", ""),
        main_pid=main_pid,
        invocation_id=properties.get("InvocationID", ""),
        restart=properties.get("Restart", ""),
        kill_mode=properties.get("KillMode", ""),
        timeout_stop=properties.get("TimeoutStopUSec", ""),
        on_failure=words["OnFailure"],
        triggered_by=words["TriggeredBy"],
        standard_output=properties.get("StandardOutput", ""),
        refuse_manual_start=_is_yes(properties, "RefuseManualStart"),
        refuse_manual_stop=_is_yes(properties, "RefuseManualStop"),
        job=properties.get("JobType", "").removeprefix("s ").strip('"'),
        system_state=properties.get("SystemState", ""),
        dependants=tuple(
            name for key in ("RequiredBy", "BoundBy", "ConsistsOf") for name in shown_words(properties.get(key, ""))
        ),
    )


def _is_yes(properties: Mapping[str, str], name: str) -> bool:
    return properties.get(name) == "yes"


def _pairs(assignments: list[str]) -> tuple[tuple[str, str], ...]:
    return tuple((name, value) for name, _, value in (entry.partition("=") for entry in assignments))


def _of_user(lines: list[str]) -> tuple[tuple[str, str], ...]:
    """Return what systemd sets for a unit with User=, from its passwd(5) line."""
    if not lines or lines[0].count(":") != 6 or "\t" in lines[0]:
        return ()
    name, _, _, _, _, home, shell = lines[0].split(":")
    return (("HOME", home), ("LOGNAME", name), ("USER", name), ("SHELL", shell))
