"""The folders that the starts of a host's servers leave, and the processes they name."""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path

from tuner.hosts import files
from tuner.hosts.files import ProcessKey
from tuner.hosts.status import LOG, MARKER, Status, read_status


def new_folder(state_dir: Path) -> Path:
    """Name the folder of the next start; it is not made."""
    return state_dir / f"start-{uuid.uuid4().hex[:12]}"


def keys_of(status: Status) -> list[ProcessKey]:
    """Return every process a status names, the supervisor first."""
    main = [status.main] if status.main is not None else []
    return [status.supervisor, *main, *status.processes]


def supervisors(state_dir: Path) -> set[ProcessKey]:
    """Return the supervisors that live."""
    return {status.supervisor for _, status in _of_this_boot(state_dir) if files.is_running(status.supervisor)}


def living(state_dir: Path, mark: str) -> list[ProcessKey]:
    """Return what lives of all starts, supervisors first: what a status names, and what carries ``mark``."""
    found: dict[ProcessKey, None] = {}
    for _, status in _of_this_boot(state_dir):
        found.update(dict.fromkeys(key for key in keys_of(status) if files.is_running(key)))
    for stat in files.processes():
        if not stat.is_zombie and files.environment(stat.key.pid).get(MARKER, "").startswith(f"{mark}:"):
            found[stat.key] = None
    return list(found)


def forget_dead(state_dir: Path, *, keep: Path | None = None) -> None:
    """Delete what starts of which nothing lives have left, but for ``keep``.

    Where only a server's processes live, the folder stays for the next manager to find them; the log goes.
    """
    alive = {directory: status for directory, status in _of_this_boot(state_dir) if _is_alive(status)}
    for directory in state_dir.glob("start-*"):
        if directory == keep:
            continue
        if directory not in alive:
            shutil.rmtree(directory, ignore_errors=True)
        elif not files.is_running(alive[directory].supervisor):
            (directory / LOG).unlink(missing_ok=True)


def _is_alive(status: Status) -> bool:
    return any(map(files.is_running, keys_of(status)))


def _of_this_boot(state_dir: Path) -> Iterator[tuple[Path, Status]]:
    boot = files.boot_id()
    for directory in state_dir.glob("start-*"):
        status = read_status(directory)
        if status is not None and status.boot_id == boot:
            yield directory, status
