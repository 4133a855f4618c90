"""One trial: what is asked of a host, and what comes back while it runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from tuner.model.outcome import Outcome, TrialState
from tuner.model.record import LegResult, RequestRecord
from tuner.model.repeat import Repeat
from tuner.model.space import Assignment, Value
from tuner.model.workload import Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """A server's command line; argv stays a tuple from end to end."""

    argv: tuple[str, ...]
    env: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialRequest:
    """All a host needs to run one trial.

    Attributes:
        study: name of the study.
        number: the trial's number in the study's database.
        assignment: canonical.
        command: the full command line of this trial.
        engine: name in the engine registry.
        workload: the load.
        seed: for prompts and their order.
        baseline: this is the unit's own command line, unchanged.
        repeat: set where it measures another trial once more.
    """

    study: str
    number: int
    assignment: Assignment
    command: Command
    engine: str
    workload: Workload
    seed: int
    baseline: bool = False
    repeat: Repeat | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceIdentity:
    """Which server this is: the same at the start and at the end, or it was another."""

    invocation_id: str
    main_pid: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """What the server itself says it can hold; None where it does not say."""

    max_total_num_tokens: int | None = None
    max_running_requests: int | None = None
    available_gpu_mem_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Effective:
    """The configuration read back from a running server.

    Attributes:
        settings: the tuned parameters as the server reports them.
        capacity: as the server reports it.
        version: the engine's version; None when not reported.
        model: the served model; None when not reported.
    """

    settings: tuple[tuple[str, Value | None], ...]
    capacity: Capacity
    version: str | None = None
    model: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialResult:
    """The end of a trial. Times are Unix seconds.

    Attributes:
        attempts: server starts it took (a second clean death is a second start).
        legs: one per level measured, also of a trial that died later.
        duration_s: by a monotonic clock, which a step of the wall clock does not bend;
            None from a producer that has none.
    """

    study: str
    number: int
    host: str
    assignment: Assignment
    outcome: Outcome
    started_s: float
    finished_s: float
    attempts: int
    identity: ServiceIdentity | None
    effective: Effective | None
    legs: tuple[LegResult, ...]
    duration_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StateEntered:
    """The trial moved on; ``level`` is set while measuring and soaking."""

    at_s: float
    state: TrialState
    level: int | None = None
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogText:
    """Server log as it arrived, secrets already scrubbed."""

    at_s: float
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LegProgress:
    """A leg is under way; throughput so far, tok/s, None until there is any."""

    at_s: float
    concurrency: int
    elapsed_s: float
    aggregate_throughput: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LegFinished:
    """A leg is done, with every request of it; ``kind`` is ``ladder`` or ``soak``.

    ``unix_offset_s`` added to a request's times gives Unix time.
    """

    at_s: float
    unix_offset_s: float
    leg: LegResult
    requests: tuple[RequestRecord, ...]
    kind: str = "ladder"


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmedUp:
    """The warm-up is over; its requests are kept and count for nothing.

    ``unix_offset_s`` added to a request's times gives Unix time.
    """

    at_s: float
    unix_offset_s: float
    requests: tuple[RequestRecord, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Remark:
    """Something a reader of the evidence wants to know: a retry, a kill, a wait."""

    at_s: float
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialFinished:
    """Always the last event of a trial."""

    at_s: float
    result: TrialResult


TrialEvent: TypeAlias = StateEntered | LogText | LegProgress | LegFinished | WarmedUp | Remark | TrialFinished
