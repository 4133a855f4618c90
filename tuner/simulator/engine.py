"""Runs the scheduler in real time and tells whoever waits for a request.

Steps are paced on absolute deadlines: a late wake-up shortens the next wait, so that the
mean rate is the model's. Time lost by more than a step is lost; nothing bursts.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from enum import Enum
from typing import NoReturn

from tuner.simulator import crash
from tuner.simulator.machine import Machine
from tuner.simulator.memory import MemoryPlan
from tuner.simulator.request import Request, Sampling, persona
from tuner.simulator.scheduler import Hooks, OutOfWorkspace, Scheduler, Step

_PASSING_S = 5.0
"""How long the faults last that pass by themselves."""
_FOREIGN_PID = 4_194_305  # above the highest that Linux gives (proc(5), pid_max): nobody's
_FOREIGN_BYTES = 2 * 1024**3

_FRIGHT_S = 0.5
_FRIGHT = (
    "KV cache pool is full. Retract requests. #retracted_reqs: 1, #new_tokens_gained: 212, "
    "#new_token_ratio: 0.2310 -> 0.3310"
)


class Status(Enum):
    """What /health goes by."""

    STARTING = "Starting"  # the warm-up generation has not come back
    UP = "Up"  # serving
    UNHEALTHY = "UnHealthy"  # a health check got no answer


class Engine:
    """The served model of one machine.

    Args:
        plan: its memory.
        held_bytes: what each GPU's process holds before it serves.
        finished: called with each request that ended.
    """

    def __init__(
        self, machine: Machine, plan: MemoryPlan, held_bytes: int, finished: Callable[[Request], None]
    ) -> None:
        self._machine = machine
        self._held_bytes = held_bytes
        self._booked_bytes = 0
        self._wake = asyncio.Event()
        self._crashed = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._events: dict[Request, asyncio.Event] = {}
        self._seed = machine.args.random_seed or 0
        self.scheduler = Scheduler(
            profile=machine.profile,
            args=machine.args,
            plan=plan,
            rng=random.Random(self._seed + machine.start),  # noqa: S311 - noise, not a secret
            slow=machine.host.faults.slow_gpu,
            hooks=Hooks(log=lambda line: machine.log.record(line, 0), finished=finished),
        )
        self.plan = plan
        self.status = Status.STARTING
        self.draining = False
        self.stalled = False
        self.last_message_s = -1.0

    def now_s(self) -> float:
        """Seconds on the clock of all request times."""
        return self._loop.time()

    def submit(self, rid: str, tokens: tuple[str | int, ...], sampling: Sampling, *, streamed: bool) -> Request:
        """Queue a request."""
        who = persona(tokens, sampling, seed=self._seed, profile=self._machine.profile)
        event = asyncio.Event()
        request = Request(
            rid=rid,
            tokens=tokens,
            sampling=sampling,
            natural_tokens=who.natural_tokens,
            difficulty=who.difficulty,
            rng=who.rng,
            streamed=streamed,
            changed=event.set,
            arrived_s=self.now_s(),
        )
        self._events[request] = event
        self.scheduler.submit(request)
        self._wake.set()
        return request

    async def progress(self, request: Request) -> AsyncGenerator[str, None]:
        """Yield new text as it comes until the request ended.

        One item a step if the reader keeps up; with ``--stream-interval`` one in so many steps.

        A reader who leaves early aborts the request, as a closed connection does.
        """
        event, read = self._events[request], 0
        try:
            while True:
                await event.wait()
                event.clear()
                ended = request.finish is not None
                if read > 0 and len(request.parts) - read < self._machine.args.stream_interval and not ended:
                    continue
                fresh = "".join(request.parts[read:])
                read = len(request.parts)
                yield fresh
                if ended:
                    return
        finally:
            self.forget(request)

    def forget(self, request: Request) -> None:
        """Abort a request if it still runs; nobody reads it any more."""
        self._events.pop(request, None)
        self.scheduler.abort(request, "Abort before prefill")

    async def generate(self, request: Request) -> Request:
        """Wait until a request ended."""
        async with aclosing(self.progress(request)) as progress:
            async for _ in progress:
                pass
        return request

    async def run(self) -> NoReturn:
        """Serve for ever."""
        deadline_s = self.now_s()
        while True:
            try:
                step = self.scheduler.plan_step()
            except OutOfWorkspace as error:
                await self._run_out(error)
            self._book_workspace()
            if step is None:
                self._wake.clear()
                await self._wake.wait()
                deadline_s = self.now_s()
                continue
            self._note_starts(step)
            deadline_s = max(deadline_s + step.seconds, self.now_s())
            await asyncio.sleep(deadline_s - self.now_s())
            if self.stalled:
                await self._never()
            self._complete(step)

    def _note_starts(self, step: Step) -> None:
        """Note when a request is taken out of the queue; one that was retracted waits a second time uncounted."""
        if step.kind == "prefill":
            for request in step.requests:
                if request.started_s is None:
                    request.started_s = self.now_s()

    def _complete(self, step: Step) -> None:
        now_s = self.now_s()
        self.scheduler.complete(step, now_s)
        self.last_message_s = now_s

    async def misbehave(self) -> None:
        """Play the faults that come while serving; returns at once on a healthy host."""
        faults = self._machine.host.faults
        async with asyncio.TaskGroup() as group:
            if faults.frightening_log:
                group.create_task(self._frighten())
            if faults.hang_serving_after_s is not None:
                group.create_task(self._stall(faults.hang_serving_after_s))
            if faults.die_serving_after_s is not None:
                group.create_task(self._die(faults.die_serving_after_s))
            if faults.foreign_gpu_after_s is not None and self._machine.start == 1:
                group.create_task(self._be_joined(faults.foreign_gpu_after_s))
            if faults.throttle_after_s is not None and self._machine.start == 1:
                group.create_task(self._overheat(faults.throttle_after_s))

    async def _frighten(self) -> NoReturn:
        while True:
            self._machine.log.record(_FRIGHT, 0)
            await asyncio.sleep(_FRIGHT_S)

    async def _stall(self, after_s: float) -> None:
        await asyncio.sleep(after_s)
        self.stalled = True

    async def _die(self, after_s: float) -> None:
        await self._stall(after_s)
        self._machine.tree.crash(self._machine.args.tp_size - 1, crash.exception(crash.illegal_access()))

    async def _be_joined(self, after_s: float) -> None:
        await asyncio.sleep(after_s)
        self._machine.book.foreign(
            _FOREIGN_PID, name="python train.py", bytes_per_gpu={0: _FOREIGN_BYTES}, for_s=_PASSING_S
        )

    async def _overheat(self, after_s: float) -> None:
        await asyncio.sleep(after_s)
        self._machine.book.overheat(for_s=_PASSING_S)

    @staticmethod
    async def _never() -> NoReturn:
        while True:
            await asyncio.Event().wait()

    async def _run_out(self, error: OutOfWorkspace) -> NoReturn:
        rank = self._machine.start % self._machine.args.tp_size
        lines = crash.serving_oom(
            self._machine.profile,
            rank=rank,
            speculative=self._machine.args.speculative,
            needed_bytes=error.needed_bytes,
            free_bytes=error.free_bytes,
        )
        self._machine.tree.crash(rank, crash.exception(lines))
        await self._never()  # the child's SIGQUIT ends this process

    def _book_workspace(self) -> None:
        """The allocator keeps what it once took, so only growth is booked."""
        if self.scheduler.peak_workspace_bytes > self._booked_bytes:
            self._booked_bytes = self.scheduler.peak_workspace_bytes
            self._machine.hold(self._held_bytes + self._booked_bytes)
