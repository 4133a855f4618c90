"""Every seam between the pure parts and the world.

Conventions of all ports: coroutines may be cancelled at any await and then leave
nothing running that ``stop`` or ``clean`` would not find; one object is used from
one event loop; foreign exceptions never pass, they are mapped to ``tuner.errors``.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from tuner.model.host import (
    CommandResult,
    Entered,
    GpuLook,
    GpuProcess,
    GpuReading,
    LogChunk,
    Original,
    ProcessEntry,
    ServiceState,
)
from tuner.model.http import HttpCall, HttpReply, StreamDelta
from tuner.model.outcome import Diagnosis, Outcome, TrialState
from tuner.model.record import Counters, LegResult, RequestRecord
from tuner.model.space import Assignment
from tuner.model.study import StudySpec, TrialRow
from tuner.model.trial import Command, Effective, ServiceIdentity, TrialEvent, TrialRequest, TrialResult
from tuner.model.workload import Workload

# ---------------------------------------------------------------------------- time


class Clock(Protocol):
    """Time and sleep behind one seam, so that back-off and time-outs are testable."""

    def now_s(self) -> float:
        """Unix time, for the reader."""

    def monotonic_s(self) -> float:
        """Monotonic time, for durations."""

    async def sleep(self, seconds: float) -> None:
        """Suspend the caller."""


# ---------------------------------------------------------------------------- host


class HostTransport(Protocol):
    """Runs commands on a host and moves small files."""

    async def run(
        self, argv: Sequence[str], *, stdin: bytes = b"", timeout_s: float = 30.0, repeat: bool = True
    ) -> CommandResult:
        """Run ``argv`` without a shell; each word is quoted once, at the host's shell, if there is one.

        Args:
            argv: program and arguments.
            stdin: what the command reads, then end of file.
            timeout_s: for the command itself, without what it takes to connect again.
            repeat: a connection that is lost before the result came is made again and the command
                run again. False, for what must not run twice: TransportFault instead.

        Raises:
            TransportFault: the result is not known (connection lost and not back, timed out).
        """

    async def read_file(self, path: str) -> bytes:
        """Read a small file.

        Raises:
            TransportFault: it cannot be read; the message names path and reason.
        """

    async def write_file(self, path: str, content: bytes, *, mode: int = 0o600) -> None:
        """Replace a file atomically, making its folder.

        Raises:
            TransportFault: it cannot be written.
        """

    async def close(self) -> None:
        """Close the connection, if there is one; a later call opens it again."""


class ServiceManager(Protocol):
    """Starts, watches and stops the one server of a host (systemd, or our supervisor)."""

    async def start(self, command: Command) -> ServiceIdentity:
        """Start a server; returns once its main process has been executed.

        Raises:
            ServerInTheWay: another server runs; nothing was started.
            HostFault: the manager itself failed. A command that dies at once is no error.
        """

    async def state(self) -> ServiceState:
        """Look at the service.

        Raises:
            TransportFault: the state is not known.
        """

    async def read_log(self, cursor: str | None) -> LogChunk:
        """Return what the current invocation (and its restarts) logged since ``cursor``.

        ``None`` starts at the first line of the last :meth:`start`. At most 1 MiB at once;
        bytes that are not UTF-8 are replaced.
        """

    async def stop(self, *, grace_s: float) -> None:
        """Record that we stop it, ask it to end, kill what is left after ``grace_s``.

        Returns when no process of it is left. Stopping a stopped server is no error.
        """

    async def forget(self) -> None:
        """Delete what stopped servers left on disk: their logs, which hold command lines and keys.

        :meth:`read_log` returns nothing afterwards; :meth:`state` still says how the last one ended.
        No error when nothing was ever started; what belongs to a server that runs stays.
        """

    async def leftovers(self) -> tuple[ProcessEntry, ...]:
        """Return the processes of the engine that live although the service is stopped."""

    async def kill_leftovers(self) -> None:
        """Kill the leftovers that are ours; foreign processes are never touched."""

    async def members(self) -> frozenset[int]:
        """Return the PIDs of all processes of the server that runs; empty when none does."""


class Tenancy(Protocol):
    """Our use of a host that belongs to somebody: the lease, the dead-man, and what was there before.

    The first thing that is written on a host is the lease, and nothing is changed without it.
    """

    async def enter(self) -> Entered:
        """Take the lease, keep what is there now, arm the dead-man; nothing else changes.

        A lease of the same study, or one that has run out, is taken over: what it kept as the
        original stays the original, and a drop-in that is still there is removed. Entering again
        while the lease is ours renews it.

        Raises:
            LeaseHeld: somebody else's.
            HostFault: the host failed us.
        """

    async def renew(self) -> None:
        """Push the end of the lease away.

        Raises:
            LeaseLost: it is no longer ours; enter again.
            TransportFault: the host is not reached.
        """

    async def restore(self) -> Original:
        """Put back what was there: no drop-in, the original started if it ran before, else stopped.

        Returns once the original's main process lives; the caller proves that it answers. The
        lease and the dead-man stay until :meth:`leave`. Without a lease on the host, nothing is
        changed. May be repeated.

        Raises:
            HostFault: the host failed us; the dead-man tries again by itself.
        """

    async def leave(self) -> None:
        """Hold that everything is as it was before, disarm the dead-man, give the lease back.

        Raises:
            RestoreFailed: something differs; the message names it. The lease is given back all the same.
            HostFault: the host failed us.
        """


class Route(Protocol):
    """How the load's traffic reaches the server.

    Attributes:
        deaths: how often the way has broken down so far, also if nobody has made it anew yet.
        is_through_proxy: a proxy of somebody's may answer for a server that is down.
    """

    @property
    def deaths(self) -> int: ...  # noqa: D102 - above

    @property
    def is_through_proxy(self) -> bool: ...  # noqa: D102 - above

    async def open(self, port: int) -> str:
        """Make the server's ``port`` reachable and return its base URL; a tunnel that died is made anew.

        Cheap while the way stands, so that a caller who waits for the server may call it at every look.

        Raises:
            HostFault: it cannot be made.
        """

    async def close(self) -> None:
        """End what :meth:`open` made."""


class GpuProbe(Protocol):
    """Reads the GPUs that matter to the server of this host: all, or those its owner named."""

    async def read(self) -> tuple[GpuReading, ...]:
        """Return one reading a GPU; empty on a host without GPUs.

        Raises:
            HostFault: nvidia-smi is there and failed.
        """

    async def processes(self) -> tuple[GpuProcess, ...]:
        """Return the processes that hold GPU memory."""

    async def look(self) -> GpuLook:
        """Return both at once, by one command on the host: looking must not disturb what is measured."""


# ---------------------------------------------------------------------------- HTTP


class ControlClient(Protocol):
    """Single requests to the server: health, configuration, counters."""

    async def call(self, call: HttpCall) -> HttpReply:
        """Send one request; failures are values."""

    async def close(self) -> None:
        """Close its connections."""


# ---------------------------------------------------------------------------- engine


class LogReader(Protocol):
    """Reads one server's log as it arrives and knows how far the start-up got."""

    def feed(self, text: str) -> None:
        """Take the next piece of log; pieces may end anywhere in a line."""

    @property
    def stage(self) -> str:
        """The last start-up stage seen, in the engine's words (``load_weights``, …).

        Empty before any; ``args`` while the command line is being read, which every engine does first.
        """

    @property
    def fatal(self) -> bool:
        """A line was seen after which the server cannot live; waiting can end."""

    @property
    def is_configuration_fault(self) -> bool:
        """Whether a cause seen so far names the configuration (needs no second try)."""

    def diagnose(
        self, *, exit_status: int | None, exit_signal: int | None, state: TrialState, signals_sent: Sequence[int]
    ) -> Diagnosis:
        """Say why the server died.

        Args:
            exit_status: of the main process, if it exited.
            exit_signal: that ended the main process, if one did.
            state: where the trial was.
            signals_sent: by us, before the death.
        """


class EngineAdapter(Protocol):
    """Everything tuner knows of one engine; pure, and one object for all trials."""

    name: str
    parameters: frozenset[str]

    def canonical(self, assignment: Assignment) -> Assignment:
        """Map an assignment to the one that launches the same server, in one form only.

        Parameters that do not apply are dropped, forced ones are set; idempotent.

        Raises:
            AssignmentRejected: the engine would refuse it; the message is the rule.
        """

    def settings_of(self, command: Command) -> Assignment:
        """Read the tuned settings out of a base command line, defaults resolved; canonical.

        Raises:
            UsageError: a tuned flag is malformed, or a setting cannot be known from the command.
        """

    def command(self, base: Command, assignment: Assignment) -> Command:
        """Replace the tuned flags of ``base``; everything else stays as it is."""

    def port(self, command: Command) -> int:
        """Return the HTTP port the server will listen on."""

    def api_key(self, command: Command) -> str | None:
        """Return the key its clients must send as ``Authorization: Bearer``; None: it asks for none."""

    def log_reader(self) -> LogReader:
        """Return a reader for one server start."""

    def health_call(self) -> HttpCall:
        """Return the call that answers 200 once the server serves."""

    def info_calls(self) -> tuple[HttpCall, ...]:
        """Return the calls whose replies :meth:`effective` reads."""

    def effective(self, replies: Sequence[HttpReply]) -> Effective:
        """Read the configuration that really runs.

        Raises:
            HostFault: the replies cannot be read.
        """

    def generation_call(self, prompt: str, *, max_tokens: int, workload: Workload, stream: bool, seed: int) -> HttpCall:
        """Return a generation request in the engine's protocol, asking for the server's token counts."""

    def generated_tokens(self, reply: HttpReply) -> int | None:
        """Count the completion tokens of a non-streamed reply; None: it is not a generation."""

    def read_event(self, event: bytes) -> StreamDelta:
        """Read the ``data:`` payload of one server-sent event."""

    def flush_call(self) -> HttpCall | None:
        """Return the call that empties the prefix cache; None: the engine has none."""

    def abort_call(self) -> HttpCall | None:
        """Return the call that aborts all requests; None: closing connections does."""

    def counters_call(self) -> HttpCall | None:
        """Return the call whose reply :meth:`counters` reads; None: the engine counts nothing."""

    def counters(self, reply: HttpReply) -> Counters:
        """Read the running totals; fields it does not find are None."""

    def scrub(self, text: str) -> str:
        """Replace secrets the engine prints (API keys) by ``***``."""


# ---------------------------------------------------------------------------- load


@dataclass(frozen=True, slots=True, kw_only=True)
class Leg:
    """One level to measure.

    Attributes:
        concurrency: requests kept in flight, closed loop.
        min_s, max_s: shortest and longest measuring window.
        interval: wanted relative half width of the 95 % interval.
        salt: makes this leg's prompts differ from every other leg's (defeats the prefix cache).
    """

    concurrency: int
    min_s: float
    max_s: float
    interval: float
    salt: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """The server under load; ``headers`` go with every request."""

    base_url: str
    engine: EngineAdapter
    workload: Workload
    seed: int
    headers: tuple[tuple[str, str], ...] = ()


ProgressSink = Callable[[float, float | None], None]
"""Called with (seconds since the leg began, aggregate tok/s so far)."""


class LoadGenerator(Protocol):
    """Puts a server under load and measures it."""

    async def warm_up(self, target: Target, requests: int, concurrency: int) -> tuple[RequestRecord, ...]:
        """Send ``requests`` requests; their records are kept but count for nothing."""

    async def measure(
        self, target: Target, leg: Leg, control: ControlClient, progress: ProgressSink
    ) -> tuple[LegResult, tuple[RequestRecord, ...]]:
        """Run one leg to its end; cancelled, it closes every connection.

        Raises:
            MeasurementFault: the client was the bottleneck.
        """


# ---------------------------------------------------------------------------- host bundle


@dataclass(frozen=True, slots=True, kw_only=True)
class HostPorts:
    """All a trial needs of one host.

    Attributes:
        address: the host as messages name it.
        stop_grace_s: how long a server may take to end before it is killed.
        look_s: between two looks at the service; a look over a network costs more than one at home.
        renew_s: between two renewals of the lease.
        outage_s: seconds the connection to the host has been out, all in all; None: there is none to lose.
        new_key: host and fingerprint of a key that was not known and was taken; None: there is no such thing.
        tenancy: None: the host is nobody else's, and nothing on it is to be restored.
        cleanup: the owner's own way to free the GPUs; None: there is none.
        wait_s: how long the host may take to become clean; None: the runtime's own limit.
    """

    name: str
    address: str
    service: ServiceManager
    gpu: GpuProbe
    load: LoadGenerator
    control: Callable[[str], ControlClient]  # base URL -> client
    clock: Clock
    route: Route
    stop_grace_s: float = 30.0
    look_s: float = 0.1
    tenancy: Tenancy | None = None
    renew_s: float = 60.0
    outage_s: Callable[[], float] | None = None
    new_key: Callable[[], str | None] | None = None
    cleanup: Callable[[], Awaitable[CommandResult]] | None = None
    wait_s: float | None = None


# ---------------------------------------------------------------------------- search


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """A trial that exists in the study's database as RUNNING and must be told exactly once."""

    number: int
    assignment: Assignment
    baseline: bool


class Optimizer(Protocol):
    """The study: proposes assignments, remembers outcomes. The driver is its only caller."""

    def settle(self) -> tuple[int, ...]:
        """After a crash of the driver: tell RUNNING trials Interrupted, queue their assignments.

        Returns their numbers. The lock on the study guarantees that no other driver lives.
        """

    def propose(self, host: str) -> Proposal | None:
        """Take the next assignment: queued ones first, then the sampler's.

        Never one that is running or has counted already. None: the space is exhausted.
        """

    def enqueue(self, assignment: Assignment) -> None:
        """Queue an assignment to be proposed next."""

    def tell(self, result: TrialResult) -> None:
        """Record a trial's end. Faulted and Interrupted trials queue their assignment again."""

    def rows(self) -> tuple[TrialRow, ...]:
        """Every trial, by number."""

    def close(self) -> None:
        """Release the database."""


# ---------------------------------------------------------------------------- execution


class Executor(Protocol):
    """Runs trials on hosts, one at a time on each."""

    async def open(self) -> None:
        """Start the workers, and take their hosts: see :class:`Tenancy`.

        Raises:
            PreflightError: they cannot be started, or a host cannot be taken; what was taken is given back.
        """

    async def release(self, host: str) -> None:
        """Restore a host that is set aside and give it back; it is taken again by its next trial.

        Raises:
            HostFault: it could not be restored; its dead-man will, or a person must look.
        """

    async def probe(self, host: str) -> None:
        """Hold that a host that was set aside can be used again.

        Raises:
            HostFault, PreflightError: it cannot, and why.
        """

    def run(self, host: str, request: TrialRequest) -> AsyncIterator[TrialEvent]:
        """Run a trial; the last event is TrialFinished.

        Raises:
            ExecutorFault: the worker died; a later call gets a new worker.
        """

    async def stop(self, host: str) -> None:
        """Ask the host's trial to end now: it cleans up and finishes as Interrupted."""

    async def close(self) -> None:
        """Restore the hosts and give them back, then stop the workers.

        Raises:
            HostFault: a host is not what it was before; the workers are stopped all the same.
        """

    def hurry(self) -> bool:
        """Restore, but do not wait for the originals to answer; False: there is nothing to restore."""


# ---------------------------------------------------------------------------- evidence


class EvidenceStore(Protocol):
    """Keeps what happened in a trial, as it happens."""

    def begin(self, request: TrialRequest, host: str) -> None:
        """Open a trial's folder and write its manifest."""

    def add(self, number: int, event: TrialEvent) -> None:
        """Keep one event; what was added survives a kill of the driver."""

    def finish(self, number: int, outcome: Outcome) -> None:
        """Close the trial's files."""


# ---------------------------------------------------------------------------- observer


class RunObserver(Protocol):
    """Watches a run as it happens: the screen. Called from the driver's event loop; never blocks for long."""

    def starting(self, what: str) -> None:
        """Say what the run is waiting for before its first trial (workers, hosts, database)."""

    def begin(self, spec: StudySpec, rows: tuple[TrialRow, ...]) -> None:
        """The run begins; ``rows`` are what an earlier run of the same study left."""

    def proposed(self, host: str, proposal: Proposal) -> None:
        """``host`` takes the next trial."""

    def event(self, host: str, number: int, event: TrialEvent) -> None:
        """Something happened in trial ``number``."""

    def told(self, result: TrialResult, rows: tuple[TrialRow, ...]) -> None:
        """A trial's end is in the database; ``rows`` are all trials, this one included."""

    def remark(self, text: str) -> None:
        """Something about the run as a whole: a host set aside, an interrupt taken."""
