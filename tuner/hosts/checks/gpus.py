"""The GPUs of a host: which there are, what memory is in use, and by whom."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from tuner.hosts.checks.advice import TABLE, Advice
from tuner.hosts.checks.processes import Owner, ending_words
from tuner.hosts.checks.row import Row, failed, gib, ok, warning
from tuner.hosts.checks.together import together
from tuner.model.host import CommandResult
from tuner.ports import HostTransport

_MIB = 1 << 20  # nvidia-smi's unit with nounits
_NOT_FOUND_STATUS = 127
_FORMAT = "--format=csv,noheader,nounits"
_GPU_QUERY = "--query-gpu=index,memory.used,memory.total,name"
_APP_QUERY = "--query-compute-apps=pid,used_memory,process_name"
_PERSISTENCE_QUERY = "--query-gpu=persistence_mode"
UNEXPLAINED_BYTES = 1 << 30
"""Memory that the driver itself and an idle context hold stays below this."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One GPU; ``None``: the driver does not say."""

    index: int
    name: str
    used_bytes: int | None
    total_bytes: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuUser:
    """A process with GPU memory; ``used_bytes`` None: the driver does not say (MIG, containers)."""

    pid: int
    name: str
    used_bytes: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpus:
    """What nvidia-smi says.

    Attributes:
        problem: why it says nothing; empty when all is well.
        missing: there is no nvidia-smi at all.
        persistent: the driver stays loaded without a client; None: not said.
    """

    gpus: tuple[Gpu, ...] = ()
    users: tuple[GpuUser, ...] = ()
    problem: str = ""
    missing: bool = False
    persistent: bool | None = None


async def read_gpus(transport: HostTransport) -> Gpus:
    """Ask nvidia-smi.

    Raises:
        TransportFault: the host is not reached.
    """
    gpus = await transport.run(("nvidia-smi", _GPU_QUERY, _FORMAT))
    if gpus.status != 0:
        return Gpus(problem=_complaint(gpus), missing=gpus.status == _NOT_FOUND_STATUS)
    users, persistence = await together(
        transport.run(("nvidia-smi", _APP_QUERY, _FORMAT)), transport.run(("nvidia-smi", _PERSISTENCE_QUERY, _FORMAT))
    )
    return Gpus(
        gpus=parse_gpus(gpus.stdout),
        users=parse_users(users.stdout) if users.status == 0 else (),
        problem="" if users.status == 0 else _complaint(users),
        persistent=parse_persistence(persistence.stdout) if persistence.status == 0 else None,
    )


def parse_gpus(text: str) -> tuple[Gpu, ...]:
    """Read ``index, memory.used, memory.total, name`` lines; others are passed over."""
    found = []
    for line in text.splitlines():
        fields = [field.strip() for field in line.split(",", 3)]
        if len(fields) == 4 and fields[0].isdigit():
            found.append(
                Gpu(index=int(fields[0]), name=fields[3], used_bytes=_mib(fields[1]), total_bytes=_mib(fields[2]))
            )
    return tuple(found)


def parse_users(text: str) -> tuple[GpuUser, ...]:
    """Read ``pid, used_memory, process_name`` lines, one row a process whatever its GPUs."""
    found: dict[int, GpuUser] = {}
    for line in text.splitlines():
        fields = [field.strip() for field in line.split(",", 2)]
        if len(fields) != 3 or not fields[0].isdigit():
            continue
        pid, used = int(fields[0]), _mib(fields[1])
        before = found[pid].used_bytes if pid in found else None
        total = used if before is None else before + (used or 0)
        found[pid] = GpuUser(pid=pid, name=fields[2], used_bytes=total)
    return tuple(found.values())


def parse_persistence(text: str) -> bool | None:
    """Read ``persistence_mode`` lines; None: it is not said."""
    modes = {line.strip().lower() for line in text.splitlines() if line.strip()}
    if not modes <= {"enabled", "disabled"} or not modes:
        return None
    return modes == {"enabled"}


def gpus_row(found: Gpus, indices: Sequence[int], *, needed: bool, advice: Advice = TABLE) -> Row:
    """Decide whether the GPUs that the study names can be watched.

    Args:
        found: what nvidia-smi says.
        indices: the study's ``gpu_indices``; empty: all.
        needed: False, for a host that may well have none.
        advice: how remedies are written down.
    """
    check = "nvidia-smi"
    if found.missing:
        remedy = "install the NVIDIA driver's nvidia-smi on the login's PATH: GPU memory is watched by it"
        missing = "there is no nvidia-smi on the PATH"
        return failed(check, missing, remedy) if needed else warning(check, missing, f"for GPUs, {remedy}")
    if found.problem:
        return failed(check, found.problem, "repair the NVIDIA driver on the host, until nvidia-smi answers")
    there = {gpu.index for gpu in found.gpus}
    if not there:
        none = "nvidia-smi shows no GPU"
        remedy = "check that the driver is loaded and the GPUs belong to this host"
        return failed(check, none, remedy) if needed else warning(check, none, remedy)
    unwatched = _unwatched(found, indices, advice)
    if unwatched is not None:
        return failed(check, *unwatched)
    detail = _count(found.gpus)
    if found.persistent is False:
        return warning(
            check,
            f"{detail}; persistence mode is off",
            "on the host, as root: nvidia-smi -pm 1, or enable nvidia-persistenced: else each start loads the driver",
        )
    return ok(check, detail)


def _unwatched(found: Gpus, indices: Sequence[int], advice: Advice) -> tuple[str, str] | None:
    """Say why the memory of the GPUs that the study means cannot be watched, and what to do; None: it can."""
    there = {gpu.index for gpu in found.gpus}
    absent = sorted(set(indices) - there)
    if absent:
        return f"gpu_indices {absent}: this host has GPUs {sorted(there)}", f"correct {advice.key('gpu_indices')}"
    silent = [gpu.index for gpu in _chosen(found, indices) if gpu.used_bytes is None or gpu.total_bytes is None]
    if silent:
        return (
            f"the driver does not tell the memory of GPU {', '.join(map(str, silent))}",
            f"name other GPUs as {advice.key('gpu_indices')}, or switch MIG off there: a run watches that memory",
        )
    return None


def memory_row(
    found: Gpus,
    indices: Sequence[int],
    owners: Mapping[int, Owner],
    unit: str | None,
    *,
    wait_s: float,
    survivors: Collection[int] = (),
) -> Row:
    """Decide who uses the GPUs' memory beside our server.

    Args:
        found: what nvidia-smi says.
        indices: the study's ``gpu_indices``; empty: all.
        owners: the processes with GPU memory that the host's kernel knows.
        unit: the server's; None: no process there is ours.
        wait_s: how long a run waits for others to go.
        survivors: PIDs of servers that an earlier run left, and that the next one ends.
    """
    check = "GPU memory"
    ours = {pid for pid, owner in owners.items() if unit is not None and owner.belongs_to(unit)}
    foreign = [user for user in found.users if user.pid not in ours and user.pid not in survivors]
    chosen = _chosen(found, indices)
    detail = _each(chosen)
    if ours:
        held = [user.used_bytes or 0 for user in found.users if user.pid in ours]
        detail += f"; {gib(sum(held))} by {len(held)} processes of {unit}"
    if foreign:
        named = ", ".join(_named(user, owners.get(user.pid)) for user in foreign)
        return warning(
            check,
            f"{detail}; foreign: {named}",
            f"{ending_words([owners.get(user.pid) for user in foreign])}, or name other GPUs in gpu_indices: "
            f"a run waits {wait_s:g} s for them and never touches them",
        )
    held_by_nobody = [gpu.index for gpu in chosen if not found.users and (gpu.used_bytes or 0) > UNEXPLAINED_BYTES]
    if held_by_nobody:
        return warning(
            check,
            f"{detail}; no process that nvidia-smi names holds it",
            f"look for it with fuser -v /dev/nvidia* on the host: a run waits {wait_s:g} s for it to be freed",
        )
    return ok(check, detail)


def _chosen(found: Gpus, indices: Sequence[int]) -> list[Gpu]:
    return [gpu for gpu in found.gpus if not indices or gpu.index in indices]


def _named(user: GpuUser, owner: Owner | None) -> str:
    used = "memory not said" if user.used_bytes is None else gib(user.used_bytes)
    who = owner.shown() if owner is not None else f"pid {user.pid} {user.name}, not seen from this login"
    return f"{who} {used}"


def _each(gpus: Sequence[Gpu]) -> str:
    """Say what is in use on each GPU, those with the same use together."""
    alike: dict[str, list[str]] = {}
    for gpu in gpus:
        alike.setdefault(_used(gpu), []).append(str(gpu.index))
    return ", ".join(f"GPU {'+'.join(indices)}: {used}" for used, indices in alike.items())


def _used(gpu: Gpu) -> str:
    if gpu.used_bytes is None or gpu.total_bytes is None:
        return "memory not said"
    return f"{gib(gpu.used_bytes)} of {gib(gpu.total_bytes)}"


def _count(gpus: Sequence[Gpu]) -> str:
    names = sorted({gpu.name for gpu in gpus})
    return "; ".join(f"{sum(gpu.name == name for gpu in gpus)}x {name}" for name in names)


def _mib(field: str) -> int | None:
    number = re.fullmatch(r"(\d+)(?: MiB)?", field)
    return None if number is None else int(number[1]) * _MIB


def _complaint(result: CommandResult) -> str:
    said = (result.stdout + result.stderr).strip()
    return f"nvidia-smi: status {result.status}: {said.splitlines()[0] if said else 'it said nothing'}"
