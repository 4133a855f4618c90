"""Tells from a look at the GPUs whether their memory is what it is when nothing of ours runs."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping
from dataclasses import dataclass

from tuner.model.host import GpuLook, GpuProcess, GpuReading
from tuner.runtime.limits import Limits
from tuner.runtime.strangers import process_text, strangers

_GIB = 2.0**30


@dataclass(frozen=True, slots=True, kw_only=True)
class Dirt:
    """Why a host is not clean.

    Attributes:
        text: for the reader.
        key: is another when there is something new to tell; memory that comes and goes is not.
        is_foreign: somebody else works there. It is waited for: nothing may end it, the owner's
            cleanup command included.
    """

    text: str
    key: Hashable
    is_foreign: bool


@dataclass(slots=True, kw_only=True)
class Memory:
    """GPU memory over the looks of one cleaning.

    Attributes:
        baseline: bytes in use a GPU, by index, when nothing of ours runs: the least ever seen; kept up here.
        at_clean: bytes held, by PID, by the processes on the GPUs when the host was last proven clean.
    """

    baseline: dict[int, int]
    at_clean: Mapping[int, int]
    limits: Limits
    _readings: tuple[int, ...] = ()
    _unchanged_since_s: float = 0.0

    def judge(self, look: GpuLook, *, ours: Collection[int], now_s: float) -> Dirt | None:
        """Take the next look; None: GPU memory is as it is when nothing of ours runs.

        Memory of a process that was killed comes back late. What is in use at the very first is
        therefore taken for the host's own only after it has not changed for ``limits.baseline_s``,
        and never while somebody else's process holds some, or when it is more than a host's own can be:
        whoever holds that is not seen from here. A host whose GPUs are free is not waited for.
        """
        slack_bytes = self.limits.gpu_slack_bytes
        over = tuple(
            reading
            for reading in look.readings
            if reading.memory_used_bytes > self.baseline.get(reading.index, 0) + slack_bytes
        )
        guests = strangers(look.processes, ours=ours, at_clean=self.at_clean, slack_bytes=slack_bytes)
        crowded = {reading.index for reading in over}
        guests = tuple(guest for guest in guests if _fills(guest, crowded, slack_bytes))
        if over and guests:
            return _used_by(guests, over)
        if not self.baseline and (held := tuple(filter(self._is_too_much, over))):
            return _held_by_nobody(held)
        if over and not self.baseline and not self._is_settled(look, now_s):
            wait_s = self.limits.baseline_s
            return Dirt(
                text=f"GPU memory is in use: waiting up to {wait_s:g} s for it to be released",
                key="unsettled",
                is_foreign=False,
            )
        if over and self.baseline:
            return _used_by_nobody(look, over)
        for reading in look.readings:
            known = self.baseline.get(reading.index, reading.memory_used_bytes)
            self.baseline[reading.index] = min(known, reading.memory_used_bytes)
        return None

    def _is_too_much(self, reading: GpuReading) -> bool:
        own_bytes = max(self.limits.own_bytes, self.limits.own_share * reading.memory_total_bytes)
        return reading.memory_used_bytes > own_bytes

    def _is_settled(self, look: GpuLook, now_s: float) -> bool:
        used = tuple(reading.memory_used_bytes for reading in look.readings)
        if used != self._readings:
            self._readings, self._unchanged_since_s = used, now_s
        return now_s - self._unchanged_since_s >= self.limits.baseline_s


def _fills(guest: GpuProcess, crowded: Collection[int], slack_bytes: int) -> bool:
    """Whether a process may be why these GPUs are in use: a monitor's few MiB are not."""
    is_there = not guest.gpus or any(index in crowded for index in guest.gpus)
    return is_there and (guest.memory_used_bytes == 0 or guest.memory_used_bytes > slack_bytes)


def _used_by(guests: tuple[GpuProcess, ...], over: tuple[GpuReading, ...]) -> Dirt:
    named = ", ".join(process_text(process) for process in guests)
    return Dirt(
        text=f"{_worst(over)}; foreign processes hold GPU memory: {named}",
        key=frozenset(process.pid for process in guests),
        is_foreign=True,
    )


def _used_by_nobody(look: GpuLook, over: tuple[GpuReading, ...]) -> Dirt:
    holders = ", ".join(process_text(process) for process in look.processes) or "nobody listed"
    return Dirt(
        text=f"{_worst(over)} ({holders})",
        key=frozenset(process.pid for process in look.processes),
        is_foreign=False,
    )


def _held_by_nobody(held: tuple[GpuReading, ...]) -> Dirt:
    return Dirt(
        text=(
            f"{_worst(held)}, and no process that nvidia-smi names holds it: "
            "look for it with fuser -v /dev/nvidia* on the host, or name other GPUs in gpu_indices"
        ),
        key="held by nobody",
        is_foreign=False,
    )


def _worst(over: tuple[GpuReading, ...]) -> str:
    worst = max(over, key=lambda reading: reading.memory_used_bytes)
    return f"GPU {worst.index} has {worst.memory_used_bytes / _GIB:.1f} GiB in use"
