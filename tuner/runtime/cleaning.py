"""Proves a host clean before a deploy, or makes it so."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass, field

from tuner.errors import DirtyHost, HostFault
from tuner.model.host import Activity, CommandResult, ProcessEntry
from tuner.model.http import HttpCall
from tuner.ports import ControlClient, HostPorts
from tuner.runtime.endings import Endings
from tuner.runtime.limits import Limits
from tuner.runtime.memory import Dirt, Memory
from tuner.runtime.stay import Stay

Remarks = Callable[[str], None]

NOBODY = ("refused", "cut")
"""What a call to a port on which nobody listens ends with; through a tunnel the connection is made, and cut."""

PROXY = (502, 503, 504)
"""What a proxy says of a server that is down."""

PAUSE_GROWTH = 1.5
"""Each wait for a clean host is this many times as long as the one before, up to ``limits.gpu_look_s``:
what is back at once is seen at once, and a host in use for minutes is not asked five times a second."""


@dataclass(slots=True)
class HostSession:
    """A host and what was learned about it; lives as long as its worker.

    Attributes:
        gpu_baseline: bytes in use a GPU, by index, when nothing of ours runs: the least ever seen.
        gpu_at_clean: bytes held, by PID, by the processes on the GPUs when the host was last proven clean.
        gpu_bytes: memory of its smallest GPU; None: not seen yet, or it has none.
        our_pids: of the servers since then; some may have ended.
        foreign: other people's processes that held GPU memory when the last server died, one text each.
        endings: how the servers on it ended since we came.
        stay: our right to use it.
    """

    ports: HostPorts
    limits: Limits = field(default_factory=Limits)
    gpu_baseline: dict[int, int] = field(default_factory=dict)
    gpu_at_clean: dict[int, int] = field(default_factory=dict)
    gpu_bytes: int | None = None
    our_pids: set[int] = field(default_factory=set)
    foreign: tuple[str, ...] = ()
    endings: Endings = field(default_factory=Endings)
    stay: Stay = field(init=False)

    def __post_init__(self) -> None:
        self.stay = Stay(self.ports, settled=lambda remark: await_memory(self, remark), left=self.endings.forget)


async def await_memory(session: HostSession, remark: Remarks) -> None:
    """Wait until the GPU memory of the servers that ended here is back: the owner's server needs it to start.

    Memory of a process that was killed comes back late. Longer than ``limits.clean_s`` it is not waited
    for, nor while somebody else has it, nor in a hurry: the owner's server is started all the same.
    """
    if not session.gpu_baseline:  # nothing of ours ever ran
        return
    host, limits = session.ports, session.limits
    memory = Memory(baseline=session.gpu_baseline, at_clean=session.gpu_at_clean, limits=limits)
    deadline_s = host.clock.monotonic_s() + limits.clean_s
    told = False
    try:
        while (await host.service.state()).activity not in (Activity.RUNNING, Activity.RESTARTING):
            dirt = memory.judge(await host.gpu.look(), ours=session.our_pids, now_s=host.clock.monotonic_s())
            if dirt is None or dirt.is_foreign:
                return
            if session.stay.hurried.is_set() or host.clock.monotonic_s() >= deadline_s:
                remark(f"the original is started although GPU memory is in use: {dirt.text}")
                return
            if not told:
                told = True
                remark(f"waiting for GPU memory that the original needs: {dirt.text}")
            await host.clock.sleep(limits.probe_s)
    except HostFault as fault:
        # What can be restored without that knowledge is restored.
        remark(f"whether GPU memory is free is not known: {fault}")


async def make_clean(session: HostSession, control: ControlClient, remark: Remarks) -> None:
    """Stop what is left of earlier servers and wait until the host is clean.

    Clean means: the service is stopped, no process of the engine is left, GPU memory
    is back at the host's baseline and nobody listens on the server's port. The order is:
    stop, kill what is ours, the owner's cleanup command, wait. What is somebody else's is
    named and waited for, and nothing is done about it.

    Raises:
        DirtyHost: it was not within the host's ``wait_s``, or ``limits.clean_s``; the message says what is left.
        HostFault: the host failed us.
    """
    host, limits = session.ports, session.limits
    state = await host.service.state()
    if state.activity in (Activity.RUNNING, Activity.RESTARTING):
        remark("a server still runs: stopping it")
        await host.service.stop(grace_s=host.stop_grace_s)
    limit_s = limits.clean_s if host.wait_s is None else host.wait_s
    began_s = host.clock.monotonic_s()
    cleanup = host.cleanup
    memory = Memory(baseline=session.gpu_baseline, at_clean=session.gpu_at_clean, limits=limits)
    told: set[Hashable] = set()
    pause_s = limits.probe_s
    while True:
        dirt = await _what_is_left(session, memory, control, remark)
        if dirt is None:
            session.our_pids.clear()
            return
        if dirt.key not in told:
            told.add(dirt.key)
            remark(f"waiting for a clean host: {dirt.text}")
        dirty_s = host.clock.monotonic_s() - began_s
        if cleanup is not None and not dirt.is_foreign and dirty_s >= limits.cleanup_after_s:
            await _run_cleanup(cleanup, remark)
            cleanup = None
        if dirty_s >= limit_s:
            raise DirtyHost(
                f"host {host.name} is not clean after {limit_s:g} s: {dirt.text}; "
                "free it by hand, then run the same command again"
            )
        await host.clock.sleep(pause_s)
        pause_s = min(pause_s * PAUSE_GROWTH, limits.gpu_look_s)


async def _run_cleanup(cleanup: Callable[[], Awaitable[CommandResult]], remark: Remarks) -> None:
    """Run the owner's cleanup command; whether it helped, the next look at the host tells."""
    remark("the host stays dirty: running its cleanup_command")
    try:
        result = await cleanup()
    except HostFault as fault:
        remark(f"the cleanup_command failed: {fault}")
        return
    said = (result.stderr.strip() or result.stdout.strip()).splitlines()
    words = f": {said[-1]}" if result.status and said else ""
    remark(f"the cleanup_command ended with status {result.status}{words}")


async def _what_is_left(session: HostSession, memory: Memory, control: ControlClient, remark: Remarks) -> Dirt | None:
    """Look at the host once, after killing what is left of ours; None: it is clean."""
    host = session.ports
    leftovers = await _kill_ours(session, remark)
    if leftovers:
        named = ", ".join(f"{entry.pid} {entry.command}" for entry in leftovers)
        return Dirt(text=f"processes left: {named}", key=named, is_foreign=not any(entry.ours for entry in leftovers))
    look = await host.gpu.look()
    dirt = memory.judge(look, ours=session.our_pids, now_s=host.clock.monotonic_s())
    if dirt is not None:
        return dirt
    reply = await control.call(HttpCall(path="/health", timeout_s=2.0))
    is_of_proxy = host.route.is_through_proxy and reply.status in PROXY
    if not is_of_proxy and (reply.status is not None or reply.error not in NOBODY):
        text = f"something else answers on the server's port at {host.address} ({reply.status or reply.error})"
        return Dirt(text=text, key="port", is_foreign=True)
    session.gpu_at_clean = {process.pid: process.memory_used_bytes for process in look.processes}
    session.gpu_bytes = min((reading.memory_total_bytes for reading in look.readings), default=None)
    session.foreign = ()
    return None


async def _kill_ours(session: HostSession, remark: Remarks) -> tuple[ProcessEntry, ...]:
    """Kill what is left of our servers; return the leftovers that are then still there."""
    service = session.ports.service
    leftovers = await service.leftovers()
    ours = [entry for entry in leftovers if entry.ours]
    if not ours:
        return leftovers
    remark("killing what is left of our servers: " + ", ".join(f"{entry.pid} {entry.command}" for entry in ours))
    session.our_pids.update(entry.pid for entry in ours)
    await service.kill_leftovers()
    return await service.leftovers()
