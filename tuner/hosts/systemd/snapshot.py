"""What a unit was before we came, kept on the host beside the lease, and what differs afterwards."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from typing import Any

from tuner.hosts.systemd.deadman import KEPT, MADE, RUNNING, STOPPED
from tuner.hosts.systemd.unit import ExecLine, Unit

_NO_INVOCATION = "-"


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """A unit at one moment, as far as its owner would mind a difference.

    Attributes:
        unit_file_state: whether it is enabled, in systemd's word.
        is_running: or on its way: a restart between two lives counts.
        exec_start: as systemd holds it, before it replaces variables.
        text_digest: SHA-256 of what ``systemctl cat`` prints; None: it could not be read.
        need_daemon_reload: the files say something that systemd has not read yet.
        invocation_id: of the server that ran; empty: none did.
        has_folder: the folder that a trial's drop-in lies in was there.
        dependants: units that run, and that a stop of this one stops too.
    """

    fragment_path: str
    drop_in_paths: tuple[str, ...]
    unit_file_state: str
    is_running: bool
    exec_start: tuple[ExecLine, ...]
    text_digest: str | None
    need_daemon_reload: bool
    invocation_id: str = ""
    has_folder: bool = True
    dependants: tuple[str, ...] = ()


def snapshot(unit: Unit, text: str | None, *, has_folder: bool) -> Snapshot:
    """Keep of ``unit`` what is compared later.

    Args:
        unit: as systemd holds it.
        text: what ``systemctl cat`` printed; None: it failed.
        has_folder: the folder that a trial's drop-in lies in is there.
    """
    return Snapshot(
        fragment_path=unit.fragment_path,
        drop_in_paths=unit.drop_in_paths,
        unit_file_state=unit.unit_file_state,
        is_running=unit.is_active,
        exec_start=unit.exec_start,
        text_digest=None if text is None else hashlib.sha256(text.encode()).hexdigest(),
        need_daemon_reload=unit.need_daemon_reload,
        invocation_id=unit.invocation_id if unit.is_up else "",
        has_folder=has_folder,
    )


def differences(before: Snapshot, after: Snapshot) -> tuple[str, ...]:
    """Say what is not as it was, one phrase each; values of the command line are not told, they may be secret."""
    found: list[str] = []
    if before.fragment_path != after.fragment_path:
        found.append(f"its unit file is {_path(after.fragment_path)}, was {_path(before.fragment_path)}")
    found += [f"drop-in {path} is new" for path in _missing(after.drop_in_paths, before.drop_in_paths)]
    found += [f"drop-in {path} is gone" for path in _missing(before.drop_in_paths, after.drop_in_paths)]
    if before.unit_file_state != after.unit_file_state:
        found.append(f"it is {after.unit_file_state or 'nothing'} (enablement), was {before.unit_file_state}")
    if before.is_running != after.is_running:
        found.append("it runs, and did not before" if after.is_running else "it does not run, and did before")
    found += [
        f"{name}, which depends on it, does not run, and did before: start it"
        for name in _missing(before.dependants, after.dependants)
    ]
    # A reload that was due before we came has happened by now, and may have changed what systemd holds.
    if before.exec_start != after.exec_start and not before.need_daemon_reload:
        found.append(f"ExecStart differs{_first_other_word(before.exec_start, after.exec_start)}")
    if None not in (before.text_digest, after.text_digest) and before.text_digest != after.text_digest:
        found.append("the text of its unit files differs")
    if after.need_daemon_reload and not before.need_daemon_reload:
        found.append("its files were changed and systemd has not read them: run `systemctl daemon-reload`")
    return tuple(found)


def write_before(before: Snapshot) -> bytes:
    """Return the content of the file beside the lease: a line for the dead-man's shell, and one for us."""
    known = before.invocation_id or _NO_INVOCATION
    words = (RUNNING if before.is_running else STOPPED, known, KEPT if before.has_folder else MADE)
    return f"{' '.join(words)}\n{json.dumps(asdict(before))}\n".encode()


def read_before(content: str) -> Snapshot | None:
    """Read that file; None: it is not one, or another version's."""
    try:
        fields: dict[str, Any] = json.loads(content.splitlines()[1])
        lines = tuple(
            ExecLine(path=line["path"], argv=tuple(line["argv"]), flags=tuple(line["flags"]))
            for line in fields["exec_start"]
        )
        tuples = {name: tuple(fields.get(name, ())) for name in ("drop_in_paths", "dependants")}
        return Snapshot(**{**fields, **tuples, "exec_start": lines})
    except (ValueError, TypeError, KeyError, IndexError):
        return None


def restarted(before: Snapshot, invocation_id: str) -> Snapshot:
    """Note that the owner's server now has another invocation, which is as much theirs as the first."""
    return replace(before, invocation_id=invocation_id)


def _missing(paths: Iterable[str], among: Iterable[str]) -> list[str]:
    there = frozenset(among)
    return [path for path in paths if path not in there]


def _path(path: str) -> str:
    return path or "nowhere"


def _first_other_word(before: tuple[ExecLine, ...], after: tuple[ExecLine, ...]) -> str:
    if len(before) != 1 or len(after) != 1:
        return f": it has {len(after)} lines, had {len(before)}"
    was, now = (before[0].path, *before[0].argv[1:]), (after[0].path, *after[0].argv[1:])
    for place, (old, new) in enumerate(zip(was, now, strict=False)):
        if old != new:
            return f" from word {place + 1} on"
    return f": it has {len(now)} words, had {len(was)}" if len(was) != len(now) else " in its prefixes"
