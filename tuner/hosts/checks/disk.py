"""Free space where the trial's drop-in and the engine write."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tuner.hosts.checks.row import Row, failed, gib, ok, warning
from tuner.ports import HostTransport

FOLDERS = ("/", "/tmp", "/dev/shm")  # noqa: S108 - looked at, never written
RUN_NEEDS_BYTES = 256 << 10
"""A drop-in, a lease and what systemd writes beside them are a few KiB each; daemon-reload wants some more."""
RUN_LOW_BYTES = 8 << 20
DISK_NEEDS_BYTES = 16 << 20
DISK_LOW_BYTES = 1 << 30
"""Kernel caches and NCCL's shared memory take hundreds of MiB at a start."""
INODES_NEEDED = 16

LOOK = """
for folder in "$@"; do
    [ -d "$folder" ] || continue
    printf 'folder %s\\n' "$folder"
    df -Pk "$folder" 2>/dev/null | tail -n 1 | { read -r _ _ _ free _; printf 'kib %s\\n' "$free"; }
    df -Pi "$folder" 2>/dev/null | tail -n 1 | { read -r _ _ _ free _; printf 'inodes %s\\n' "$free"; }
    place=$(df -P "$folder" 2>/dev/null | tail -n 1 | { read -r _ _ _ _ _ on; printf '%s' "$on"; })
    while read -r _ on _ options _; do
        [ "$on" = "$place" ] && flags=$options
    done < /proc/mounts
    printf 'options %s\\n' "$flags"
done
exit 0
"""
"""POSIX sh; arguments: the folders. The last line of /proc/mounts for a mount point is the one on top."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Space:
    """What is free in a folder; None: the host does not say.

    Attributes:
        inodes: free ones; None also where the file system has no fixed number of them.
    """

    folder: str
    free_bytes: int | None
    inodes: int | None
    read_only: bool


async def read_space(transport: HostTransport, folders: Sequence[str]) -> tuple[Space, ...]:
    """Look at each folder that exists.

    Raises:
        TransportFault: the host is not reached.
    """
    result = await transport.run(("sh", "-c", LOOK, "sh", *folders), timeout_s=20.0)
    return parse_space(result.stdout)


def parse_space(text: str) -> tuple[Space, ...]:
    """Read what :data:`LOOK` prints."""
    found: list[dict[str, str]] = []
    for line in text.splitlines():
        key, _, value = line.partition(" ")
        if key == "folder":
            found.append({})
        if found:
            found[-1][key] = value
    return tuple(
        Space(
            folder=said["folder"],
            free_bytes=int(said["kib"]) << 10 if said.get("kib", "").isdigit() else None,
            inodes=_inodes(said.get("inodes", "")),
            read_only="ro" in said.get("options", "").split(","),
        )
        for said in found
    )


def _inodes(text: str) -> int | None:
    # btrfs and others make inodes as they need them and say "0" or "-".
    return int(text) if text.isdigit() and text != "0" else None


def run_row(spaces: Sequence[Space], folder: str = "/run") -> Row:
    """Decide whether a drop-in and a lease can be written."""
    check = f"{folder} writable"
    space = next((space for space in spaces if space.folder == folder), None)
    if space is None:
        return failed(check, f"there is no folder {folder}", f"make {folder} a tmpfs, as every systemd host has it")
    if space.read_only:
        return failed(check, f"{folder} is mounted read-only", f"mount -o remount,rw {folder}")
    if space.free_bytes is None:
        return warning(check, f"df does not say what is free in {folder}", "install coreutils on the host")
    return _room_row(check, space, space.free_bytes)


def _room_row(check: str, space: Space, free_bytes: int) -> Row:
    folder = space.folder
    detail = f"{gib(free_bytes)} free"
    if free_bytes < RUN_NEEDS_BYTES:
        return failed(
            check,
            f"{folder} is full: {detail}",
            f"free {gib(RUN_LOW_BYTES)} in {folder} (du -xa {folder} | sort -n | tail): drop-in and lease go there",
        )
    if space.inodes is not None and space.inodes < INODES_NEEDED:
        return failed(check, f"{folder} has {space.inodes} inodes left", f"delete files in {folder}")
    if free_bytes < RUN_LOW_BYTES:
        return warning(check, detail, f"free some of {folder} before a night's run (du -xa {folder} | sort -n | tail)")
    return ok(check, detail)


def disk_row(spaces: Sequence[Space]) -> Row:
    """Decide whether an engine has room to start."""
    detail = ", ".join(f"{space.folder} {_free(space)}" for space in spaces) or "df says nothing"
    # A system image that nobody can write is full by its nature.
    room = [
        (space.folder, space.free_bytes) for space in spaces if not space.read_only and space.free_bytes is not None
    ]
    full = [folder for folder, free_bytes in room if free_bytes < DISK_NEEDS_BYTES]
    low = [folder for folder, free_bytes in room if free_bytes < DISK_LOW_BYTES]
    if full:
        return failed("disk", detail, f"free 1 GiB in {', '.join(full)}: the engine cannot start there")
    if low or not spaces:
        where = ", ".join(low) or "/"
        return warning("disk", detail, f"free 1 GiB in {where}: caches and shared memory of a start go there")
    return ok("disk", detail)


def _free(space: Space) -> str:
    free = "unknown" if space.free_bytes is None else f"{gib(space.free_bytes)} free"
    return f"{free}, read-only" if space.read_only else free
