"""The text of a trial's drop-in: the unit's own command line with other arguments, and a crash that shows."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from typing import Literal

from tuner.hosts.systemd.definition import ExecLine, Unit
from tuner.hosts.systemd.quoting import assignment, checked_line, constant, program, quoted
from tuner.model.trial import Command

_HEAD = """\
# Written by tuner for one trial; it goes with the trial, or with a reboot.
# By hand: tuner restore, or delete this file, then systemctl daemon-reload and restart the unit.
[Unit]
Documentation={mark}
StartLimitIntervalSec=0
StartLimitAction=none
FailureAction=none
SuccessAction=none

[Service]
# exec: a start is over when the program has been executed, and fails when that cannot be done.
Type=exec
WatchdogSec=0
TimeoutStartSec=infinity
RuntimeMaxSec=infinity
SuccessExitStatus=
RestartPreventExitStatus=
RestartForceExitStatus=
KillMode=control-group
SendSIGKILL=yes
# All that the engine says goes to the journal of this host, none of it is dropped.
StandardOutput=journal
StandardError=journal
LogRateLimitIntervalSec=0
# Not debug, at which systemd tells how it executes the command, keys and all; no line of the engine is of that level.
LogLevelMax=info
SyslogLevel=info
SyslogLevelPrefix=no
LogNamespace=
"""
_PREFIXES = {"ignore-failure": "", "privileged": "+", "no-setuid": "!", "ambient": "!!"}
"""Of ExecStart: ``-`` would make a failure a success; ``:`` is not needed, we escape."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecStart:
    """A trial's ExecStart= line.

    Attributes:
        text: as it is written into the file, without ``ExecStart=``.
        held: the same as systemd then holds it, to be compared with what it says it runs.
    """

    text: str
    held: ExecLine


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceTerms:
    """How systemd is to treat a trial's server.

    Attributes:
        restart: as Restart=; ``no``, so that a crash is seen and not hidden.
        stop_timeout_s: between SIGTERM and systemd's own SIGKILL: longer than any drain we grant.
    """

    restart: Literal["no", "always"] = "no"
    stop_timeout_s: float = 600.0


def mark_of(token: str) -> str:
    """Return the Documentation= of a drop-in: systemd tells it to everybody, and gives it to no process."""
    return f"file:/run/tuner/trial-{token}"


def exec_start(unit: Unit, command: Command) -> ExecStart:
    """Return the line that runs ``command`` in the place of the unit's own.

    What the trial did not change is written as the unit has it, variables unexpanded: a key that comes
    from an environment file stays there.

    Raises:
        UsageError: the command cannot be written into a unit file.
    """
    path, *arguments = command.argv
    own = unit.exec_start[0] if len(unit.exec_start) == 1 else None
    kept = _kept_words(unit, tuple(arguments)) if own is not None and own.expands else {}
    # Variables and literals are both written as systemd holds them: before variables are replaced.
    held: list[str] = []
    position = 0
    while position < len(arguments):
        raw, length = kept.get(position, (constant(arguments[position]), 1))
        held.append(raw)
        position += length
    name = path
    prefixes = ""
    if own is not None:
        prefixes = "".join(_PREFIXES.get(flag, "") for flag in own.flags)
        if path == own.path and own.argv[:1] != (path,):
            name = own.argv[0]
    words = [program(path, prefixes + ("@" if name != path else "")), *([quoted(name)] if name != path else [])]
    text = " ".join((*words, *map(quoted, held)))
    flags = () if own is None else tuple(flag for flag in own.flags if _PREFIXES.get(flag))
    return ExecStart(
        text=checked_line(f"ExecStart={text}").removeprefix("ExecStart="),
        held=ExecLine(path=path, argv=(name, *held), flags=flags),
    )


def drop_in(line: ExecStart, command: Command, terms: ServiceTerms, *, token: str) -> str:
    """Return the file's text.

    Args:
        line: that runs the command.
        command: of the trial.
        terms: how systemd treats it.
        token: of hexadecimal digits; says whose drop-in it is, for every tuner writes the same file.

    Raises:
        UsageError: the command's environment cannot be written into a unit file.
    """
    lines = [
        f"Restart={terms.restart}",
        # Without it, a server that exits with status 0 is forgotten at once, and its status with it.
        *(["RemainAfterExit=yes"] if terms.restart == "no" else ["RemainAfterExit=no"]),
        f"TimeoutStopSec={terms.stop_timeout_s:.3f}",
        *(checked_line(f"Environment={assignment(name, value)}") for name, value in command.env),
        "ExecStart=",
        f"ExecStart={line.text}",
    ]
    return _HEAD.format(mark=mark_of(token)) + "".join(f"{entry}\n" for entry in lines)


def _kept_words(unit: Unit, arguments: tuple[str, ...]) -> dict[int, tuple[str, int]]:
    """Return, by position in ``arguments``, the unit's words that all their expansion is found at, and its length.

    Only words with a variable in them; those that expand to nothing are left out, for they pass nothing.
    """
    words = unit.words()
    expanded = tuple(part for _, parts in words for part in parts)
    shift: dict[int, int] = {}
    matcher = difflib.SequenceMatcher(a=expanded, b=arguments, autojunk=False)
    for block in matcher.get_matching_blocks():
        for offset in range(block.size):
            shift[block.a + offset] = block.b + offset
    kept: dict[int, tuple[str, int]] = {}
    place = 0
    for raw, parts in words:
        here = [shift.get(place + offset) for offset in range(len(parts))]
        first = here[0] if here else None
        is_whole = first is not None and here == list(range(first, first + len(parts)))
        if first is not None and is_whole and (raw,) != tuple(map(constant, parts)):
            kept[first] = (raw, len(parts))
        place += len(parts)
    return kept
