"""Proves a host clean before a deploy, or makes it so."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from tuner.errors import DirtyHost
from tuner.model.host import Activity, GpuReading, ProcessEntry
from tuner.model.http import HttpCall
from tuner.ports import ControlClient, HostPorts
from tuner.runtime.limits import Limits

Remarks = Callable[[str], None]


@dataclass(slots=True)
class HostSession:
    """A host and what was learned about it; lives as long as its worker.

    Attributes:
        gpu_baseline: bytes in use a GPU, by index, when nothing of ours runs: the least ever seen.
    """

    ports: HostPorts
    limits: Limits = field(default_factory=Limits)
    gpu_baseline: dict[int, int] = field(default_factory=dict)


async def make_clean(session: HostSession, control: ControlClient, remark: Remarks) -> None:
    """Stop what is left of earlier servers and wait until the host is clean.

    Clean means: the service is stopped, no process of the engine is left, GPU memory
    is back at the host's baseline and nobody listens on the server's port.

    Raises:
        DirtyHost: it was not within ``limits.clean_s``; the message says what is left.
    """
    host, limits = session.ports, session.limits
    state = await host.service.state()
    if state.activity in (Activity.RUNNING, Activity.RESTARTING):
        remark("a server of an earlier trial still runs: stopping it")
        await host.service.stop(grace_s=host.stop_grace_s)
    await _kill_ours(session, remark)
    await learn_baseline(session, remark)
    deadline = host.clock.monotonic_s() + limits.clean_s
    told: set[str] = set()
    while True:
        problem = await _what_is_left(session, control, remark)
        if problem is None:
            return
        if problem not in told:
            told.add(problem)
            remark(f"waiting for a clean host: {problem}")
        if host.clock.monotonic_s() >= deadline:
            raise DirtyHost(
                f"host {host.name} is not clean after {limits.clean_s:g} s: {problem}; "
                "free it by hand, then run the same command again"
            )
        await host.clock.sleep(limits.probe_s)


async def _what_is_left(session: HostSession, control: ControlClient, remark: Remarks) -> str | None:
    host = session.ports
    leftovers = await _kill_ours(session, remark)
    if leftovers:
        return "processes left: " + ", ".join(f"{entry.pid} {entry.command}" for entry in leftovers)
    dirty = [reading for reading in await host.gpu.read() if _above_baseline(session, reading)]
    if dirty:
        holders = (
            ", ".join(f"{process.pid} {process.name}" for process in await host.gpu.processes()) or "nobody listed"
        )
        worst = max(dirty, key=lambda reading: reading.memory_used_bytes)
        return f"GPU {worst.index} has {worst.memory_used_bytes / 2**30:.1f} GiB in use ({holders})"
    reply = await control.call(HttpCall(path="/health", timeout_s=2.0))
    if reply.status is not None or reply.error != "refused":
        return f"something answers on the server's port at {host.address} ({reply.status or reply.error})"
    return None


async def _kill_ours(session: HostSession, remark: Remarks) -> tuple[ProcessEntry, ...]:
    """Kill what is left of our servers; return the leftovers that are then still there."""
    service = session.ports.service
    leftovers = await service.leftovers()
    ours = [entry for entry in leftovers if entry.ours]
    if not ours:
        return leftovers
    remark("killing what is left of our servers: " + ", ".join(f"{entry.pid} {entry.command}" for entry in ours))
    await service.kill_leftovers()
    return await service.leftovers()


def _above_baseline(session: HostSession, reading: GpuReading) -> bool:
    baseline = session.gpu_baseline.get(reading.index, 0)
    return reading.memory_used_bytes > baseline + session.limits.gpu_slack_bytes


async def learn_baseline(session: HostSession, remark: Remarks) -> None:
    """Keep the least GPU memory ever seen in use; the first time, make sure that it is the host's own.

    Memory of a process that was killed comes back late. What is in use at first is
    therefore taken for the host's own only after it has not changed for
    ``limits.baseline_s``; a host whose GPUs are free is not waited for.
    """
    host, limits = session.ports, session.limits
    readings = await host.gpu.read()
    if not session.gpu_baseline and _in_use(readings, limits):
        remark(f"GPU memory is in use: waiting up to {limits.baseline_s:g} s for it to be released")
        unchanged_since = host.clock.monotonic_s()
        while _in_use(readings, limits) and host.clock.monotonic_s() - unchanged_since < limits.baseline_s:
            await host.clock.sleep(limits.probe_s)
            later = await host.gpu.read()
            if later != readings:
                unchanged_since = host.clock.monotonic_s()
            readings = later
    for reading in readings:
        known = session.gpu_baseline.get(reading.index, reading.memory_used_bytes)
        session.gpu_baseline[reading.index] = min(known, reading.memory_used_bytes)


def _in_use(readings: tuple[GpuReading, ...], limits: Limits) -> bool:
    return any(reading.memory_used_bytes > limits.gpu_slack_bytes for reading in readings)
