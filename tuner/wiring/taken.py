"""Which hosts a run has taken and not given back yet: a note that outlives a killed run.

A killed run can tell nobody. Its note lies beside its results, and ``status`` reads it.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from tuner.errors import EvidenceError
from tuner.hosts.files import replace_file
from tuner.model.study import HostSpec, SimulatedHostSpec

NOTE = "taken.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """The note.

    Attributes:
        hosts: names of the hosts that were not given back.
        restore: the command that puts them back.
        dead_man_s: the longest of their times after which they restore themselves, seconds.
    """

    hosts: tuple[str, ...]
    restore: str
    dead_man_s: float

    def words(self) -> str:
        """Say it to a reader."""
        minutes = max(1, round(self.dead_man_s / 60))
        are = "was" if len(self.hosts) == 1 else "were"
        return (
            f"{', '.join(self.hosts)} {are} not given back by the run that was cut off: {self.restore} "
            f"(without it a host restores itself about {minutes} min after that run)"
        )


def note(directory: Path, hosts: Sequence[HostSpec], restore: str) -> None:
    """Write down that a run is about to take hosts.

    Raises:
        EvidenceError: it cannot be written.
    """
    dead_man_s = max(host.care.lease.lasts_s for host in hosts if not isinstance(host, SimulatedHostSpec))
    _write(directory, Taken(hosts=tuple(host.name for host in hosts), restore=restore, dead_man_s=dead_man_s))


def forget(directory: Path, hosts: Collection[str]) -> None:
    """Take hosts that were given back off the note, and remove it with the last one.

    Raises:
        EvidenceError: it cannot be written.
    """
    found = read(directory)
    if found is None:
        return
    left = tuple(name for name in found.hosts if name not in hosts)
    _write(directory, Taken(hosts=left, restore=found.restore, dead_man_s=found.dead_man_s))


def read(directory: Path) -> Taken | None:
    """Return the note; None: every host has been given back.

    Raises:
        EvidenceError: it cannot be read.
    """
    path = directory / NOTE
    try:
        said = json.loads(path.read_text(encoding="utf-8"))
        return Taken(
            hosts=tuple(map(str, said["hosts"])), restore=str(said["restore"]), dead_man_s=float(said["dead_man_s"])
        )
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise EvidenceError(
            f"{path}: cannot be read ({error}); remove it once the study's hosts are restored"
        ) from error


def _write(directory: Path, content: Taken) -> None:
    path = directory / NOTE
    try:
        if content.hosts:
            directory.mkdir(parents=True, exist_ok=True)
            replace_file(path, json.dumps(asdict(content)).encode(), mode=0o644)
        else:
            path.unlink(missing_ok=True)
    except OSError as error:
        raise EvidenceError(f"{path}: cannot be written ({error.strerror}); make room, or make it writable") from error
