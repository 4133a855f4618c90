"""The scripted server behind :mod:`tuner.testing.fake_host`, and the service manager that runs it.

The server is a time line and no process: every look at it first lets happen what should have
happened by the clock's time. Nothing runs in the background.
"""

from __future__ import annotations

import bisect
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from tuner.errors import HostFault, TransportFault
from tuner.model.host import Activity, LogChunk, ProcessEntry, ServiceState
from tuner.model.outcome import TrialState
from tuner.model.space import Value
from tuner.model.trial import Capacity, Command, ServiceIdentity
from tuner.ports import Clock

GIB = 1024**3
DEFAULT_CAPACITY = Capacity(max_total_num_tokens=300_000, max_running_requests=48)
_CHUNK_BYTES = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Death:
    """When and how the server dies; exactly one of ``exit_status`` and ``exit_signal`` is set.

    Attributes:
        at: DEPLOYING, LOADING: ``after_s`` counts from the exec; READY: from the moment the server
            is ready; WARMING_UP: from the start of the warm-up; MEASURING: from the start of
            ``level``; SOAKING: from the start of the second leg at the same concurrency;
            JUDGING: from the end of that leg.
        level: the concurrency it dies at (MEASURING only).
        result: systemd's word for it.
        log: its last words.
    """

    at: TrialState = TrialState.LOADING
    after_s: float = 1.0
    level: int | None = None
    exit_status: int | None = None
    exit_signal: int | None = None
    result: str | None = None
    log: str = ""

    def __post_init__(self) -> None:
        """Refuse a death without, or with two, ways to go."""
        if (self.exit_status is None) == (self.exit_signal is None):
            msg = "a death has an exit_status or an exit_signal"
            raise ValueError(msg)
        if (self.level is None) == (self.at is TrialState.MEASURING):
            msg = "a death in MEASURING has a level, and no other has one"
            raise ValueError(msg)


def even_speed(concurrency: int) -> tuple[float, float]:
    """100 tok/s for everybody, however many there are."""
    return 100.0, 100.0 * concurrency


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """What one server start does.

    Attributes:
        ready_s: seconds from exec until it listens and answers; None: it loads for ever.
        log: (seconds since exec, text) in order; what comes after its death is never written.
        death: how it dies by itself; None: it lives until it is stopped.
        restart_s: the manager starts it again this long after each death, with a new identity;
            None: it stays dead.
        refuses: ``start`` raises HostFault with this text and nothing runs.
        lies: settings it reports instead of those it was asked for.
        capacity: what it reports.
        speed: concurrency -> (single-request, aggregate) throughput, tok/s.
        failed_requests: concurrency -> how many requests of the leg fail while the server lives.
        client_bound: concurrencies at which the client turns out to be the bottleneck.
        drifts: its throughput never becomes steady.
        generates: False: it is healthy, but every generation is answered with 500.
        hangs_after_s: seconds after it is ready; from then on /health is 200 and nothing is generated.
        unreachable_s: (from, to) seconds since the first exec in which the host cannot be reached.
        stop_s: how long it takes to end after SIGTERM; None: it ignores it.
        gpu_bytes: what it holds on each GPU while it lives.
        gpu_returns_s: seconds until that is free after the last holder is gone; None: never.
        leaves: processes that outlive it, holding its GPU memory, until they are killed.
    """

    ready_s: float | None = 5.0
    log: tuple[tuple[float, str], ...] = ()
    death: Death | None = None
    restart_s: float | None = None
    refuses: str | None = None
    lies: Mapping[str, Value] = field(default_factory=dict)
    capacity: Capacity = DEFAULT_CAPACITY
    speed: Callable[[int], tuple[float, float]] = even_speed
    failed_requests: Mapping[int, int] = field(default_factory=dict)
    client_bound: frozenset[int] = frozenset()
    drifts: bool = False
    generates: bool = True
    hangs_after_s: float | None = None
    unreachable_s: tuple[float, float] | None = None
    stop_s: float | None = 0.5
    gpu_bytes: int = 60 * GIB
    gpu_returns_s: float | None = 0.0
    leaves: tuple[ProcessEntry, ...] = ()


Script: TypeAlias = Callable[[Command, int], Start] | Sequence[Start] | Start
"""One start for all, a start for each :meth:`FakeService.start` (the last one repeats), or a function
of the command and the number of the start, from 0."""


@dataclass(slots=True, kw_only=True)
class _Holding:
    """GPU memory that outlives the server: until its holders are gone, and ``returns_s`` longer."""

    bytes: int
    pids: frozenset[int]
    returns_s: float | None
    freed_at_s: float = float("inf")


class FakeService:
    """``ports.ServiceManager`` over a script; also what the other fakes of a host ask about the server.

    Args:
        leftovers: processes that are there before the first start.
        leftover_gpu_bytes: what these hold on each GPU.
    """

    def __init__(
        self,
        script: Script,
        clock: Clock,
        *,
        leftovers: Sequence[ProcessEntry] = (),
        leftover_gpu_bytes: int = 0,
    ) -> None:
        self._script = script
        self._clock = clock
        self._leftovers = list(leftovers)
        held_by = frozenset(entry.pid for entry in leftovers)
        self._holdings = [_Holding(bytes=leftover_gpu_bytes, pids=held_by, returns_s=0.0)]
        self.commands: list[Command] = []
        self.current: Start | None = None
        self._first_exec_s = 0.0
        self._exec_s = 0.0
        self._death_s: float | None = None
        self._alive = False
        self._restart_at_s: float | None = None
        self._written = 0  # log lines of this life
        self._log = b""
        self._identity: ServiceIdentity | None = None
        self._pids = 4000
        self._restarts = 0
        self._exit: tuple[int | None, int | None] = (None, None)
        self._result: str | None = None
        self._stop_requested = False
        self._legs_seen: dict[int, int] = {}
        self.graces: list[float] = []  # what each stop of a living server granted

    # ------------------------------------------------------------------ the port

    async def start(self, command: Command) -> ServiceIdentity:
        """Start the next server of the script."""
        self._settle()
        if self._alive:
            msg = "the service runs already: stop it first"
            raise HostFault(msg)
        start = self._next(command, len(self.commands))
        self.commands.append(command)
        self.current = start
        self._first_exec_s = self._clock.monotonic_s()
        self._require_reachable()
        if start.refuses is not None:
            raise HostFault(start.refuses)
        self._log = b""
        self._restarts = 0
        self._stop_requested = False
        self._exit = (None, None)
        self._result = None
        self._legs_seen = {}
        self._exec(self._first_exec_s)
        self._settle()
        assert self._identity is not None
        return self._identity

    async def state(self) -> ServiceState:
        """Look at the service."""
        self._settle()
        self._require_reachable()
        if self._alive:
            activity = Activity.RUNNING
        elif self._restart_at_s is not None:
            activity = Activity.RESTARTING
        elif self._identity is None or self._stop_requested:
            activity = Activity.INACTIVE
        else:
            activity = Activity.FAILED
        return ServiceState(
            activity=activity,
            identity=self._identity,
            restarts=self._restarts,
            exit_status=self._exit[0],
            exit_signal=self._exit[1],
            stop_requested=self._stop_requested,
            result=self._result,
        )

    async def read_log(self, cursor: str | None) -> LogChunk:
        """Return what was logged since ``cursor``."""
        self._settle()
        self._require_reachable()
        offset = int(cursor) if cursor is not None else 0
        piece = self._log[offset : offset + _CHUNK_BYTES]
        return LogChunk(text=piece.decode(errors="replace"), cursor=str(offset + len(piece)))

    async def stop(self, *, grace_s: float) -> None:
        """Record the stop, then end the server."""
        self._settle()
        self._require_reachable()
        if self._restart_at_s is not None:
            self._stop_requested = True
            self._restart_at_s = None
        if not self._alive or self.current is None:
            return
        self._stop_requested = True
        self.graces.append(grace_s)
        self._death_s = None
        ready = self.is_listening
        if self.current.stop_s is None or self.current.stop_s > grace_s:
            await self._clock.sleep(grace_s)
            self._end((None, signal.SIGKILL))
        else:
            await self._clock.sleep(self.current.stop_s)
            self._end((0, None) if ready else (None, signal.SIGTERM))

    async def forget(self) -> None:
        """Drop the log of a server that is stopped."""
        self._settle()
        self._require_reachable()
        if not self._alive and self._restart_at_s is None:
            self._log = b""

    async def leftovers(self) -> tuple[ProcessEntry, ...]:
        """Return what is left while the service is stopped."""
        self._settle()
        self._require_reachable()
        return () if self._alive else tuple(self._leftovers)

    async def kill_leftovers(self) -> None:
        """Kill those that are ours."""
        self._require_reachable()
        self._settle()
        self._leftovers = [entry for entry in self._leftovers if not entry.ours]
        self._free_memory(self._clock.monotonic_s())

    async def members(self) -> frozenset[int]:
        """Return the main process, while it lives."""
        self._settle()
        self._require_reachable()
        return frozenset({self._identity.main_pid} if self._alive and self._identity else ())

    # ------------------------------------------------------------------ for the other fakes

    @property
    def is_alive(self) -> bool:
        """Whether the main process lives now."""
        self._settle()
        return self._alive

    @property
    def is_listening(self) -> bool:
        """Whether it lives and is ready."""
        self._settle()
        return self._alive and self._age_s() >= self._ready_s()

    @property
    def is_hanging(self) -> bool:
        """Whether it lives and generates nothing any more."""
        after_s = self.current.hangs_after_s if self.current else None
        return after_s is not None and self.is_listening and self._age_s() >= self._ready_s() + after_s

    @property
    def is_reachable(self) -> bool:
        """Whether the host answers now."""
        window = self.current.unreachable_s if self.current else None
        since_s = self._clock.monotonic_s() - self._first_exec_s
        return window is None or not window[0] <= since_s < window[1]

    @property
    def gpu_bytes(self) -> int:
        """What server and leftovers hold on each GPU now."""
        self._settle()
        now_s = self._clock.monotonic_s()
        self._holdings = [holding for holding in self._holdings if holding.freed_at_s > now_s]
        own = self.current.gpu_bytes if self._alive and self.current else 0
        return own + sum(holding.bytes for holding in self._holdings)

    @property
    def gpu_holders(self) -> tuple[int, ...]:
        """PIDs nvidia-smi would show."""
        main = (self._identity.main_pid,) if self.is_alive and self._identity else ()
        return main + tuple(entry.pid for entry in self._leftovers)

    def has_leftover(self, pid: int) -> bool:
        """Whether a leftover of this PID lives; the service may run beside it."""
        return any(entry.pid == pid for entry in self._leftovers)

    def warming_up(self) -> None:
        """Note that the warm-up begins."""
        self._arm(TrialState.WARMING_UP)

    def leg_begins(self, concurrency: int) -> None:
        """Note that a leg begins."""
        seen = self._legs_seen.get(concurrency, 0)
        self._legs_seen[concurrency] = seen + 1
        if seen:
            self._arm(TrialState.SOAKING)
        else:
            self._arm(TrialState.MEASURING, concurrency)

    def leg_ends(self, concurrency: int) -> None:
        """Note that a leg is over."""
        if self._legs_seen.get(concurrency, 0) > 1:
            self._arm(TrialState.JUDGING)

    # ------------------------------------------------------------------ the time line

    def _next(self, command: Command, number: int) -> Start:
        if isinstance(self._script, Start):
            return self._script
        if callable(self._script):
            return self._script(command, number)
        return self._script[min(number, len(self._script) - 1)]

    def _require_reachable(self) -> None:
        if not self.is_reachable:
            msg = "the host does not answer"
            raise TransportFault(msg)

    def _age_s(self) -> float:
        return self._clock.monotonic_s() - self._exec_s

    def _ready_s(self) -> float:
        ready_s = self.current.ready_s if self.current else None
        return float("inf") if ready_s is None else ready_s

    def _exec(self, at_s: float) -> None:
        self._pids += 17
        self._exec_s = at_s
        self._alive = True
        self._restart_at_s = None
        self._written = 0
        self._identity = ServiceIdentity(invocation_id=f"{self._pids:032x}", main_pid=self._pids)
        self._death_s = None
        for state, since_s in (
            (TrialState.DEPLOYING, at_s),
            (TrialState.LOADING, at_s),
            (TrialState.READY, at_s + self._ready_s()),
        ):
            self._arm(state, since_s=since_s)

    def _arm(self, state: TrialState, level: int | None = None, *, since_s: float | None = None) -> None:
        death = self.current.death if self.current else None
        if death and self._alive and death.at is state and death.level == level:
            self._death_s = (self._clock.monotonic_s() if since_s is None else since_s) + death.after_s

    def _settle(self) -> None:
        """Let everything happen that was due by now."""
        now_s = self._clock.monotonic_s()
        while True:
            if self._alive:
                dies_s = self._death_s if self._death_s is not None else float("inf")
                self._write_log(min(now_s, dies_s))
                death = self.current.death if self.current else None
                if dies_s > now_s or death is None:
                    return
                self._log += death.log.encode()
                self._result = death.result
                self._end((death.exit_status, death.exit_signal), at_s=dies_s)
            elif self._restart_at_s is not None and self._restart_at_s <= now_s:
                self._restarts += 1
                self._exec(self._restart_at_s)
            else:
                return

    def _write_log(self, until_s: float) -> None:
        if self.current:
            due = bisect.bisect_right(self.current.log, until_s - self._exec_s, key=lambda line: line[0])
            for _, text in self.current.log[self._written : due]:
                self._log += text.encode()
            self._written = max(self._written, due)

    def _end(self, how: tuple[int | None, int | None], *, at_s: float | None = None) -> None:
        assert self.current is not None
        if not self._alive:
            return
        died_s = self._clock.monotonic_s() if at_s is None else at_s
        self._alive = False
        self._death_s = None
        self._exit = how
        self._leftovers.extend(self.current.leaves)
        holders = frozenset(entry.pid for entry in self.current.leaves)
        self._holdings.append(
            _Holding(bytes=self.current.gpu_bytes, pids=holders, returns_s=self.current.gpu_returns_s)
        )
        self._free_memory(died_s)
        if self.current.restart_s is not None and not self._stop_requested:
            self._restart_at_s = died_s + self.current.restart_s

    def _free_memory(self, at_s: float) -> None:
        living = {entry.pid for entry in self._leftovers}
        for holding in self._holdings:
            if not holding.pids & living and holding.returns_s is not None:
                holding.freed_at_s = min(holding.freed_at_s, at_s + holding.returns_s)
