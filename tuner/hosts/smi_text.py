"""What nvidia-smi's CSV says; drivers differ in what they can be asked, and in what they answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tuner.errors import HostFault
from tuner.model.host import GpuProcess, GpuReading

_MIB = 1024 * 1024  # nvidia-smi's "MiB" with --format=nounits
_MHZ = 1e6

_MEMORY = ("index", "memory.used", "memory.total", "uuid")
_CLOCK = "clocks.current.sm"
_POWER = "power.draw"  # of the board; newer GPUs average it over a second
_SLOWDOWNS = ("hw_thermal_slowdown", "hw_power_brake_slowdown", "sw_thermal_slowdown", "hw_slowdown")
"""Reasons that mean trouble. ``sw_power_cap``, ``gpu_idle`` and the clocks somebody has set are a GPU's daily life."""

_GONE = "[Not Found]"
"""The name of a process that holds memory and is not there any more."""


def gpu_fields() -> tuple[tuple[str, ...], ...]:
    """Return what to ask for, the most first; the next one for a driver that lacks a field.

    ``clocks_event_reasons`` is the newer drivers' name for ``clocks_throttle_reasons``.
    """
    return (
        (*_MEMORY, _CLOCK, *(f"clocks_event_reasons.{reason}" for reason in _SLOWDOWNS), _POWER),
        (*_MEMORY, _CLOCK, *(f"clocks_throttle_reasons.{reason}" for reason in _SLOWDOWNS), _POWER),
        (*_MEMORY, _CLOCK, _POWER),
        _MEMORY,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One line of ``--query-gpu``; ``reading`` None: it is none of the GPUs that matter."""

    index: int
    uuid: str
    reading: GpuReading | None


def parse_gpus(text: str, fields: Sequence[str], indices: Sequence[int] = ()) -> tuple[Gpu, ...]:
    """Read lines of ``fields``, one a GPU.

    Args:
        text: what nvidia-smi said.
        fields: that it was asked for.
        indices: the GPUs that matter; empty: all. Of another one, memory that the driver does not tell is no matter.

    Raises:
        HostFault: names the line that has no numbers for index and memory.
    """
    return tuple(_gpu(line, fields, indices) for line in _lines(text))


def _gpu(line: str, fields: Sequence[str], indices: Sequence[int]) -> Gpu:
    cells = [cell.strip() for cell in line.split(",")]
    if len(cells) != len(fields):
        raise _unreadable(line)
    row = dict(zip(fields, cells, strict=True))
    index = _number(row["index"], line)
    if indices and index not in indices:
        return Gpu(index=index, uuid=row["uuid"], reading=None)
    clock = row.get(_CLOCK, "")
    reasons = {name.rpartition(".")[2]: cell for name, cell in row.items()}
    return Gpu(
        index=index,
        uuid=row["uuid"],
        reading=GpuReading(
            index=index,
            memory_used_bytes=_number(row["memory.used"], line) * _MIB,
            memory_total_bytes=_number(row["memory.total"], line) * _MIB,
            sm_clock_hz=int(clock) * _MHZ if _is_number(clock) else None,
            # "Not Active", "[N/A]" and "[Not Supported]" are all no slowdown that is known of.
            power_w=_watts(row.get(_POWER, "")),
            slowed_by=tuple(reason for reason in _SLOWDOWNS if reasons.get(reason) == "Active"),
        ),
    )


def parse_processes(text: str, by_uuid: Mapping[str, int], indices: Sequence[int] = ()) -> tuple[GpuProcess, ...]:
    """Read ``pid, process_name, used_memory, gpu_uuid`` lines; a name may have commas in it.

    Memory that the driver does not tell (MIG, containers: ``[N/A]``) counts as 0.

    Args:
        text: what nvidia-smi said.
        by_uuid: indices of the host's GPUs.
        indices: the GPUs that matter; empty: all. A GPU that is not known matters.

    Raises:
        HostFault: names the line that has no number where the PID belongs.
    """
    found: dict[int, GpuProcess] = {}
    for line in _lines(text):
        first, _, rest = line.partition(",")
        cells = rest.rsplit(",", 2)
        if len(cells) != 3:
            raise _unreadable(line)
        pid, index = _number(first, line), by_uuid.get(cells[2].strip())
        if indices and index is not None and index not in indices:
            continue
        name, memory = cells[0].strip(), cells[1].strip()
        used = int(memory) * _MIB if _is_number(memory) else 0
        known = found.get(pid)
        gpus = {*(known.gpus if known else ()), *(() if index is None else (index,))}
        found[pid] = GpuProcess(
            pid=pid,
            name="" if name == _GONE else name,
            memory_used_bytes=used + (known.memory_used_bytes if known else 0),
            gpus=tuple(sorted(gpus)),
        )
    return tuple(found.values())


def _lines(text: str) -> list[str]:
    return [line.strip() for line in text.splitlines() if line.strip()]


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit()


def _watts(text: str) -> float | None:
    """Read ``312.45``; None: ``[N/A]``, ``[Not Supported]``, or not asked for."""
    whole, _, part = text.partition(".")
    return float(text) if _is_number(whole) and (not part or _is_number(part)) else None


def _number(field: str, line: str) -> int:
    text = field.strip()
    if not _is_number(text):  # "[N/A]", "[Not Supported]", "[Insufficient Permissions]"
        raise _unreadable(line)
    return int(text)


def _unreadable(line: str) -> HostFault:
    return HostFault(f"nvidia-smi says {line!r}, which is not numbers: GPUs cannot be watched on this host")
