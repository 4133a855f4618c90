r"""A scripted GPU host in memory: every port of a host, on a fake clock, for tests of the runtime.

A host is made of an engine adapter and a script of server starts; time passes only when everybody
sleeps (:mod:`tuner.testing.fake_clock`), so a night of trials takes milliseconds and is the same
each time::

    host = FakeHost(engine, Start(ready_s=30.0, log=((0.0, "Load weight begin\n"), (30.0, "ready\n"))))
    trial = run_trial(request, host.ports(), …)

Scripts, each one a :class:`Start` (or a list of them, one a server start; the last one repeats;
or a function of the command and the number of the start)::

    # dies loading with its last words; the second start lives
    [Start(death=Death(at=TrialState.LOADING, after_s=12.0, exit_status=1, log="CUDA out of memory\n")), Start()]
    # dies two seconds into the level of 16 requests, by a signal
    Start(death=Death(at=TrialState.MEASURING, level=16, after_s=2.0, exit_signal=9))
    # a crash loop that is healthy in between
    Start(death=Death(at=TrialState.READY, after_s=3.0, exit_signal=9), restart_s=1.0)
    # never ready; hangs with /health 200; answers 500; fails three requests at level 4
    Start(ready_s=None)
    Start(hangs_after_s=20.0)
    Start(generates=False)
    Start(failed_requests={4: 3})
    # reports other settings than asked; GPU memory late, or never, free again
    Start(lies={"num_steps": 1})
    Start(gpu_returns_s=8.0)
    Start(gpu_returns_s=None)
    # a process survives and holds the memory until it is killed
    Start(leaves=(ProcessEntry(pid=77, command="scheduler", ours=True),))
    # slower with more draft tokens: read the assignment out of the command
    lambda command, number: Start(speed=lambda n: (50.0 * steps(command), 400.0))

    # an old server is on the port and says that it is healthy; leftovers before the first start
    FakeHost(engine, old_server=OldServer(settings={"num_steps": 3}))
    FakeHost(engine, leftovers=(ProcessEntry(pid=66, command="old", ours=False),), leftover_gpu_bytes=GIB)

    # somebody else computes on the GPUs, or they are too hot, or the connection is out; the owner's cleanup
    host.gpu.guests = (Guest(from_s=12.0, to_s=40.0),)
    host.gpu.slowdowns = (Slowdown(from_s=12.0),)
    host.outages = ((12.0, 17.0),)
    host.kernel = FakeKernelLog(lines=("Out of memory: Killed process 4017 (python3)",))
    host.listening = ("127.0.0.1",)  # somebody listens on the server's port, seen from the host
    host.route_dies_s = (12.0,)  # until it is opened again, nothing reaches the server
    host.cleanup = a_coroutine_function

What a test asks afterwards: ``host.service.commands`` (every command started), ``host.calls``
(every control call with its time), ``host.clock``.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from tuner.model.host import CommandResult, ProcessEntry
from tuner.model.http import HttpCall, HttpReply
from tuner.model.record import Counters
from tuner.model.space import Value
from tuner.model.trial import Capacity
from tuner.ports import (
    Clock,
    EngineAdapter,
    HostPorts,
    KernelLog,
)
from tuner.testing.fake_clock import FakeClock
from tuner.testing.fake_gpu import FakeGpu, Guest, Slowdown
from tuner.testing.fake_load import FakeLoad
from tuner.testing.fake_service import GIB, Death, FakeService, Script, Start, even_speed

__all__ = [
    "GIB",
    "Death",
    "FakeControl",
    "FakeGpu",
    "FakeHost",
    "FakeKernelLog",
    "FakeLoad",
    "FakeService",
    "Guest",
    "JsonWire",
    "OldServer",
    "Script",
    "Slowdown",
    "Start",
    "Wire",
    "even_speed",
]

OLD_PROCESS = ProcessEntry(pid=666, command="old server", ours=True)

_LATENCY_S = 0.002


class Wire(Protocol):
    """How the fake server words its replies, so that the engine's adapter can read them."""

    def info(self, call: HttpCall, settings: Mapping[str, Value], capacity: Capacity) -> bytes:
        """Return the reply to one of ``engine.info_calls()``."""

    def generation(self, call: HttpCall) -> bytes:
        """Return the reply to a non-streamed generation."""

    def counters(self, counters: Counters) -> bytes:
        """Return the reply to ``engine.counters_call()``."""


class JsonWire:
    """Plain JSON: the settings by name, the capacity beside them, OpenAI's ``usage``."""

    def info(self, call: HttpCall, settings: Mapping[str, Value], capacity: Capacity) -> bytes:  # noqa: ARG002 - one reply for all calls
        """Return settings and capacity in one object."""
        return json.dumps(
            {
                **settings,
                "settings": dict(settings),
                "max_total_num_tokens": capacity.max_total_num_tokens,
                "max_running_requests": capacity.max_running_requests,
                "available_gpu_mem_bytes": capacity.available_gpu_mem_bytes,
                "version": "fake",
                "model": "fake",
            }
        ).encode()

    def generation(self, call: HttpCall) -> bytes:
        """Return a completion with as many tokens as asked for."""
        tokens = dict(call.body or {}).get("max_tokens", 1)
        choice = {"index": 0, "text": " one" * tokens, "finish_reason": "length"}
        usage = {"prompt_tokens": 4, "completion_tokens": tokens, "total_tokens": 4 + tokens}
        return json.dumps({"choices": [choice], "usage": usage}).encode()

    def counters(self, counters: Counters) -> bytes:
        """Return the totals by their names."""
        return json.dumps(
            {
                "generated_tokens": counters.generated_tokens,
                "verify_steps": counters.verify_steps,
                "running": counters.running,
                "queued": counters.queued,
            }
        ).encode()


@dataclass(frozen=True, slots=True, kw_only=True)
class OldServer:
    """A server that is not ours to measure: it holds the port and answers until it is killed.

    Attributes:
        settings: what it reports.
        process: how it shows among the leftovers; not ``ours``: nothing can end it.
    """

    settings: Mapping[str, Value]
    process: ProcessEntry = OLD_PROCESS


class FakeControl:
    """``ports.ControlClient``: the fake server's HTTP side."""

    def __init__(self, host: FakeHost) -> None:
        self._host = host
        self.is_closed = False

    async def call(self, call: HttpCall) -> HttpReply:
        """Answer as the server of this moment would."""
        host, service, clock = self._host, self._host.service, self._host.clock
        host.calls.append((clock.monotonic_s(), call.path))
        await clock.sleep(_LATENCY_S)
        old = host.answering_old_server()
        if not service.is_reachable:
            return await self._time_out(call)
        if host.route.is_dead or (old is None and not service.is_listening):
            return HttpReply(status=None, body=b"", error="refused")
        reply = self._answer(call, old)
        return reply if reply is not None else await self._time_out(call)

    async def close(self) -> None:
        """Nothing to close."""
        self.is_closed = True

    async def _time_out(self, call: HttpCall) -> HttpReply:
        await self._host.clock.sleep(call.timeout_s)
        return HttpReply(status=None, body=b"", error="timed_out")

    def _answer(self, call: HttpCall, old: OldServer | None) -> HttpReply | None:
        """Return the reply of a listening server; None: it never comes."""
        host, service = self._host, self._host.service
        engine, wire = host.engine, host.wire
        current = service.current
        start = current if current is not None and old is None else Start()
        plain = {other.path for other in (engine.health_call(), engine.flush_call(), engine.abort_call()) if other}
        counters = engine.counters_call()
        status, body = 200, b""
        if call.path in {info.path for info in engine.info_calls()}:
            settings = old.settings if old else {**engine.settings_of(service.commands[-1]), **start.lies}
            body = wire.info(call, settings, start.capacity)
        elif counters is not None and call.path == counters.path:
            body = wire.counters(host.counters)
        elif call.path not in plain:
            if old is None and service.is_hanging:
                return None
            if call.body is None:
                status = 404
            elif not start.generates:
                status, body = 500, b'{"error": "no"}'
            else:
                body = wire.generation(call)
        return HttpReply(status=status, body=body)


@dataclass(slots=True, kw_only=True)
class FakeKernelLog:
    """``ports.KernelLog`` that always shows the same.

    Attributes:
        lines: what it shows.
        takes_s: how long a look takes, on ``clock``.
        hidden: what is to be remarked, once.
        asked_s: the times it was asked with.
    """

    lines: tuple[str, ...] = ()
    takes_s: float = 0.0
    clock: Clock | None = None
    hidden: str | None = None
    asked_s: list[float] = field(default_factory=list)

    async def since(self, unix_s: float) -> tuple[str, ...]:
        """Return the lines."""
        self.asked_s.append(unix_s)
        if self.clock is not None:
            await self.clock.sleep(self.takes_s)
        return self.lines

    def remark(self) -> str | None:
        """Say once that it is hidden."""
        hidden, self.hidden = self.hidden, None
        return hidden


class FakeRoute:
    """A Route that dies when its host says so; the fakes' HTTP does not look at the URL."""

    def __init__(self, host: FakeHost) -> None:
        self.is_through_proxy = False
        self._host = host
        self._made_s = 0.0

    @property
    def deaths(self) -> int:
        """How often it has died."""
        return sum(died_s <= self._host.clock.monotonic_s() for died_s in self._host.route_dies_s)

    @property
    def is_dead(self) -> bool:
        """Whether it has died and nobody has made it anew."""
        return any(self._made_s < died_s <= self._host.clock.monotonic_s() for died_s in self._host.route_dies_s)

    async def open(self, port: int) -> str:
        """Return a base URL."""
        self._made_s = self._host.clock.monotonic_s()
        return f"http://127.0.0.1:{port}"

    async def close(self) -> None:
        """Nothing to end."""


class FakeHost:
    """One host; see the module's docstring.

    Args:
        engine: reads the commands and says which call is which.
        script: what each server start does.
        wire: how replies are worded; must suit ``engine``.
        clock: shared by all ports; a new one by default.
        gpus: 0 is a CPU host.
        leftovers: processes that are there before the first start.
    """

    def __init__(  # noqa: PLR0913 - a script has many independent parts
        self,
        engine: EngineAdapter,
        script: Script | None = None,
        *,
        wire: Wire | None = None,
        clock: FakeClock | None = None,
        name: str = "gpu01",
        gpus: int = 1,
        baseline_bytes: int = GIB // 2,
        leftovers: Sequence[ProcessEntry] = (),
        leftover_gpu_bytes: int = 0,
        old_server: OldServer | None = None,
        stop_grace_s: float = 30.0,
    ) -> None:
        self.engine = engine
        self.wire = wire or JsonWire()
        self.clock = clock or FakeClock()
        self.name = name
        self.calls: list[tuple[float, str]] = []
        self.counters = Counters(generated_tokens=0.0, verify_steps=0.0, running=0.0, queued=0.0)
        self._old_server = old_server
        self._stop_grace_s = stop_grace_s
        self.outages: tuple[tuple[float, float], ...] = ()
        self.route_dies_s: tuple[float, ...] = ()
        self.route = FakeRoute(self)
        self.kernel: KernelLog | None = None
        self.listening: tuple[str, ...] | None = None
        self.cleanup: Callable[[], Awaitable[CommandResult]] | None = None
        self.wait_s: float | None = None
        self.service = FakeService(
            Start() if script is None else script,
            self.clock,
            leftovers=(*leftovers, *((old_server.process,) if old_server else ())),
            leftover_gpu_bytes=leftover_gpu_bytes,
        )
        self.gpu = FakeGpu(self.service, self.clock, gpus=gpus, baseline_bytes=baseline_bytes, total_bytes=80 * GIB)
        self.load = FakeLoad(self)

    def ports(self) -> HostPorts:
        """Return the host as the runtime gets it."""
        return HostPorts(
            name=self.name,
            address="127.0.0.1",
            service=self.service,
            gpu=self.gpu,
            load=self.load,
            control=lambda _base_url: FakeControl(self),
            clock=self.clock,
            route=self.route,
            outage_s=self._outage_s,
            kernel=self.kernel,
            listening=None if self.listening is None else self._listening,
            cleanup=self.cleanup,
            wait_s=self.wait_s,
            stop_grace_s=self._stop_grace_s,
        )

    async def _listening(self, port: int) -> tuple[str, ...]:  # noqa: ARG002 - it has one server
        await self.clock.sleep(_LATENCY_S)
        return self.listening or ()

    def _outage_s(self) -> float:
        now_s = self.clock.monotonic_s()
        return sum(min(now_s, to_s) - from_s for from_s, to_s in self.outages if from_s < now_s)

    def count(self, tokens: float) -> None:
        """Add to the server's running totals: two tokens a verification step."""
        generated, steps = self.counters.generated_tokens or 0.0, self.counters.verify_steps or 0.0
        self.counters = Counters(
            generated_tokens=generated + tokens, verify_steps=steps + tokens / 2, running=0.0, queued=0.0
        )

    def answering_old_server(self) -> OldServer | None:
        """Return the old server while it lives: it has the port, so it answers."""
        if self._old_server is not None and self.service.has_leftover(self._old_server.process.pid):
            return self._old_server
        return None
