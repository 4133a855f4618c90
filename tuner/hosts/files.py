"""Files and processes of this machine: atomic replacement, text cut at a cursor, and what ``/proc`` says.

Standard library only, and little of it: the supervisor starts with this.

A process is known by its PID *and* its start time (clock ticks since boot, field 22 of
``/proc/PID/stat``, proc_pid_stat(5)), because PIDs are used again; a signal goes through a pidfd
opened before the start time is compared, so it can never reach a successor (Linux 5.3 or later).
"""

from __future__ import annotations

import codecs
import os
import signal
import tempfile
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

PROC = Path("/proc")
BOOT_ID = PROC / "sys/kernel/random/boot_id"


class ProcessKey(NamedTuple):
    """One process of this boot, and never another."""

    pid: int
    start_ticks: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessStat:
    """The fields of ``/proc/PID/stat`` that matter here."""

    key: ProcessKey
    parent_pid: int
    is_zombie: bool


def replace_file(path: Path, content: bytes, *, mode: int = 0o600) -> None:
    """Replace a file so that a reader sees the old or the new content, and nothing between.

    Raises:
        OSError: it could not be written; the old content is still there.
    """
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fchmod(file.fileno(), mode)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def boot_id() -> str:
    """Return this boot's id: start times and PIDs of another one mean nothing."""
    return BOOT_ID.read_text().strip()


def process_stat(pid: int) -> ProcessStat | None:
    """Look at one process; None: there is none."""
    try:
        text = (PROC / str(pid) / "stat").read_bytes().decode(errors="replace")
    except OSError:
        return None
    # The command, in parentheses, may contain anything: spaces and parentheses too.
    fields = text.rpartition(")")[2].split()
    return ProcessStat(
        key=ProcessKey(pid, int(fields[19])), parent_pid=int(fields[1]), is_zombie=fields[0] in {"Z", "X"}
    )


def processes() -> Iterator[ProcessStat]:
    """Look at every process there is, zombies included."""
    for entry in os.scandir(PROC):
        if entry.name.isdigit():
            stat = process_stat(int(entry.name))
            if stat is not None:
                yield stat


def descendants(root_pid: int) -> list[ProcessStat]:
    """Return all processes below ``root_pid``, parents first, without itself."""
    children: dict[int, list[ProcessStat]] = {}
    for stat in processes():
        children.setdefault(stat.parent_pid, []).append(stat)
    found: list[ProcessStat] = []
    queue = [root_pid]
    while queue:
        below = children.pop(queue.pop(), [])
        found.extend(below)
        queue.extend(stat.key.pid for stat in below)
    return found


def is_running(key: ProcessKey) -> bool:
    """Whether this very process lives; a zombie does not."""
    stat = process_stat(key.pid)
    return stat is not None and stat.key == key and not stat.is_zombie


def environment(pid: int) -> dict[str, str]:
    """Return the environment a process was started with; empty where it may not be read."""
    try:
        content = (PROC / str(pid) / "environ").read_bytes()
    except OSError:
        return {}
    pairs = (entry.decode(errors="replace").partition("=") for entry in content.split(b"\0") if entry)
    return {name: value for name, _, value in pairs}


def command_line(pid: int) -> str:
    """Return a process's command line for a reader; empty when it is gone."""
    try:
        return (PROC / str(pid) / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        return ""


def send_signal(key: ProcessKey, number: int) -> bool:
    """Signal this very process; False: it is gone, or it is not ours to signal."""
    try:
        handle = os.pidfd_open(key.pid)
    except OSError:
        return False
    try:
        stat = process_stat(key.pid)
        if stat is None or stat.key != key:
            return False
        signal.pidfd_send_signal(handle, number)
    except (ProcessLookupError, PermissionError):
        return False
    finally:
        os.close(handle)
    return True


def kill_all(keys: Iterable[ProcessKey], *, timeout_s: float) -> bool:
    """SIGKILL these processes and wait until none runs; False: some did not go in time."""
    keys = tuple(keys)
    for key in keys:
        send_signal(key, signal.SIGKILL)
    deadline_s = time.monotonic() + timeout_s
    while any(is_running(key) for key in keys):
        if time.monotonic() > deadline_s:
            return False
        time.sleep(0.005)
    return True


def decode_prefix(piece: bytes, *, is_last: bool) -> tuple[str, int]:
    """Decode UTF-8 up to the last whole character.

    Returns the text and how many bytes it took: a character cut at the end is left for the next
    piece unless this one is the last. Bytes that are not UTF-8 are replaced.
    """
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    text = decoder.decode(piece, final=is_last)
    held_back, _ = decoder.getstate()
    return text, len(piece) - len(held_back)
