"""How a trial ended, and who is to blame."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias

from tuner.model.metric import Estimate


class TrialState(Enum):
    """Where a trial is; it only ever moves forward through these."""

    PROPOSED = "proposed"  # assignment chosen, nothing touched yet
    CLEANING = "cleaning"  # the host is proven clean, or made so
    DEPLOYING = "deploying"  # the server is being started
    LOADING = "loading"  # the process lives, the port is closed
    READY = "ready"  # identity proven, a real generation came back
    WARMING_UP = "warming_up"  # requests whose results are thrown away
    MEASURING = "measuring"  # at one level of the ladder
    SOAKING = "soaking"  # the highest level held
    JUDGING = "judging"  # the verdict is being formed
    DONE = "done"  # the outcome is final


class Cause(Enum):
    """Why a server died or could not be used."""

    HEALTHY = "healthy"  # nothing shows a death; only where a log is read that nobody knows the end of
    REJECTED_ARGUMENTS = "rejected_arguments"
    OOM_WEIGHTS = "oom_weights"
    KV_POOL_TOO_SMALL = "kv_pool_too_small"  # nothing left for the cache: fraction too low
    OOM_KV_POOL = "oom_kv_pool"  # allocating the KV cache ran out
    OOM_STATE_POOL = "oom_state_pool"  # the state cache of a hybrid model does not fit: it grows with draft tokens
    OOM_GRAPH_CAPTURE = "oom_graph_capture"
    OOM_VERIFY_WORKSPACE = "oom_verify_workspace"  # drafting or verifying ran out, under load or warming up
    OOM_SERVING = "oom_serving"  # anything else that ran out of GPU memory once the server was up
    KV_SLOTS_EXHAUSTED = "kv_slots_exhausted"  # slots, not memory: the opposite remedy
    HOST_OOM = "host_oom"
    CUDA_FAULT = "cuda_fault"
    COLLECTIVE = "collective"  # NCCL
    PORT_IN_USE = "port_in_use"
    HANG = "hang"
    MODEL_MISSING = "model_missing"
    DEPENDENCY_MISMATCH = "dependency_mismatch"
    ENGINE_BUG = "engine_bug"
    LEFTOVER_MEMORY = "leftover_memory"  # another process held GPU memory
    OWN_STOP = "own_stop"
    OPERATOR_STOP = "operator_stop"
    START_TIMEOUT = "start_timeout"
    CRASH_LOOP = "crash_loop"
    FAILED_REQUESTS = "failed_requests"
    CONFIGURATION_MISMATCH = "configuration_mismatch"  # the server runs something else than asked
    RULED = "ruled"  # a person said so
    UNKNOWN = "unknown"


class MemoryDirection(Enum):
    """Which way a memory cause points."""

    FRACTION_TOO_HIGH = "fraction_too_high"
    FRACTION_TOO_LOW = "fraction_too_low"
    TOO_MANY_DRAFT_TOKENS = "too_many_draft_tokens"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """How a server ended, as far as it shows outside its log. What is not known stays at its default.

    Attributes:
        exit_status: of the main process, if it exited.
        exit_signal: that ended the main process, if one did.
        state: where the trial was; None: it was no trial.
        signals_sent: by us, before the death.
        service_result: systemd's ``Result=``: ``oom-kill``, ``watchdog``, ``timeout``, ``core-dump``, …
        restarts: how often the service manager started it again.
        stopped_by_others: somebody else told the service manager to stop it.
        kernel: lines of the kernel's log, of the time of this start, about processes killed for memory
            or GPU faults (Xid).
        foreign: other people's processes that held memory on this server's GPUs, one text each.
        has_ended: whether the process is known to have ended; False: it lives, or nobody knows.
    """

    exit_status: int | None = None
    exit_signal: int | None = None
    state: TrialState | None = None
    signals_sent: tuple[int, ...] = ()
    service_result: str | None = None
    restarts: int = 0
    stopped_by_others: bool = False
    kernel: tuple[str, ...] = ()
    foreign: tuple[str, ...] = ()
    has_ended: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Why a server died, and whose fault it was.

    Attributes:
        cause: the earliest cause seen; UNKNOWN is never a guess.
        config_fault: True names the configuration (no second try is needed);
            False names the host; None: could be either.
        stage: the last start-up stage that the log shows, in the engine's words; empty before any.
        direction: for memory causes, which way to move.
        shortfall_bytes: how much memory was missing, where the log says it. None also where another
            process held memory: what it says then is not about the configuration.
        viable_fraction: smallest fraction the server itself calls viable, where it does; None likewise.
        evidence: the decisive log lines, at most ten.
        advice: one sentence for the engineer.
    """

    cause: Cause
    config_fault: bool | None
    stage: str = ""
    direction: MemoryDirection | None = None
    shortfall_bytes: int | None = None
    viable_fraction: float | None = None
    evidence: tuple[str, ...] = ()
    advice: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """All legs done on one server from ready to end."""

    single_request_throughput: Estimate
    aggregate_throughput: Estimate
    peak_concurrency: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Infeasible:
    """The configuration's fault, shown on a clean host.

    Attributes:
        verdict: why.
        state: the trial's state when the server died.
        level: the concurrency being measured then; None outside MEASURING and SOAKING.
        violation: > 0; the graded constraint value (see :func:`violation`).
    """

    verdict: Verdict
    state: TrialState
    level: int | None
    violation: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Faulted:
    """The host's, the network's or our own fault; the same assignment runs again."""

    error: str
    state: TrialState
    verdict: Verdict | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Interrupted:
    """The run was stopped while the trial was under way."""

    state: TrialState


Outcome: TypeAlias = Measured | Infeasible | Faulted | Interrupted


def violation(state: TrialState, *, level_index: int | None = None, levels: int = 1) -> float:
    """Grade how far a trial was from feasible; the constraint value a sampler learns from.

    4 rejected (DEPLOYING or before) · 3 died loading · 2 died ready or warming up ·
    2 minus the share of the ladder passed while measuring, in (1, 2) · 1 soaking or judging.
    A feasible trial has 0.

    Args:
        state: where the trial was.
        level_index: position in the ladder of the level being measured, from 0.
        levels: length of the ladder.
    """
    if state in (TrialState.PROPOSED, TrialState.CLEANING, TrialState.DEPLOYING):
        return 4.0
    if state is TrialState.LOADING:
        return 3.0
    if state in (TrialState.READY, TrialState.WARMING_UP):
        return 2.0
    if state is TrialState.MEASURING:
        return 2.0 - ((level_index or 0) + 0.5) / (levels + 0.5)
    return 1.0
