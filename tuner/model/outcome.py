"""How a trial ended, and who is to blame."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import TypeAlias

from tuner.model.metric import AGGREGATE_THROUGHPUT, SINGLE_REQUEST_THROUGHPUT, Estimate


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
    OUTSIDE_LIMITS = "outside_limits"  # it was measured, and breaks a constraint of the study
    RULED = "ruled"  # a person said so
    UNKNOWN = "unknown"


MEMORY_CAUSES = frozenset(
    {
        Cause.OOM_WEIGHTS,
        Cause.KV_POOL_TOO_SMALL,
        Cause.OOM_KV_POOL,
        Cause.OOM_STATE_POOL,
        Cause.OOM_GRAPH_CAPTURE,
        Cause.OOM_VERIFY_WORKSPACE,
        Cause.OOM_SERVING,
        Cause.KV_SLOTS_EXHAUSTED,
    }
)
"""Causes that another memory fraction or fewer draft tokens may cure; they prove nothing while somebody else
holds GPU memory."""

BESIDE_STATIC_SHARE = frozenset({Cause.OOM_GRAPH_CAPTURE, Cause.OOM_VERIFY_WORKSPACE, Cause.OOM_SERVING})
"""Causes for want of memory that the static share (weights and caches) leaves over: a higher share leaves less."""

STOPS = frozenset({Cause.OWN_STOP, Cause.OPERATOR_STOP})
"""Somebody ended the server: that says nothing of it, nor of its host."""

NEVER_THE_CONFIGURATION = STOPS | frozenset(
    {
        Cause.HEALTHY,
        Cause.PORT_IN_USE,
        Cause.MODEL_MISSING,
        Cause.DEPENDENCY_MISMATCH,
        Cause.LEFTOVER_MEMORY,
        Cause.HOST_OOM,
    }
)
"""Causes that a different assignment would not have avoided: they condemn none, however often they come."""

BY_CHANCE = frozenset({Cause.COLLECTIVE})
"""Causes that strike single starts at random on some hosts, and the next start of the same server not."""


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
    """All legs done on one server from ready to end.

    Attributes:
        peak_concurrency: the level of ``aggregate_throughput``.
        others: what else the study's objectives and constraints are about, by the metric's text.
    """

    single_request_throughput: Estimate
    aggregate_throughput: Estimate
    peak_concurrency: int
    others: tuple[tuple[str, Estimate], ...] = ()

    def estimate(self, name: str) -> Estimate:
        """Return the value of a metric by its text.

        Raises:
            KeyError: the study did not ask for it when the trial was told.
        """
        if name == SINGLE_REQUEST_THROUGHPUT:
            return self.single_request_throughput
        if name == AGGREGATE_THROUGHPUT:
            return self.aggregate_throughput
        return dict(self.others)[name]

    def with_estimates(self, named: Mapping[str, Estimate]) -> Measured:
        """Return it with other values of the metrics named."""
        others = dict(self.others) | {
            name: value
            for name, value in named.items()
            if name not in (SINGLE_REQUEST_THROUGHPUT, AGGREGATE_THROUGHPUT)
        }
        return replace(
            self,
            single_request_throughput=named.get(SINGLE_REQUEST_THROUGHPUT, self.single_request_throughput),
            aggregate_throughput=named.get(AGGREGATE_THROUGHPUT, self.aggregate_throughput),
            others=tuple(others.items()),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Infeasible:
    """The configuration's fault, shown on a clean host.

    Attributes:
        verdict: why.
        state: the trial's state when the server died.
        level: the concurrency being measured then; None outside MEASURING and SOAKING.
        violation: > 0; the graded constraint value (see :func:`violation`).
        measured: what it measured, where it lives but breaks a constraint of the study; else None.
    """

    verdict: Verdict
    state: TrialState
    level: int | None
    violation: float
    measured: Measured | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Faulted:
    """The host's, the network's or our own fault; the same assignment runs again.

    Attributes:
        set_aside: the host itself is broken as far as its servers show: it gets no trial until it was looked at.
    """

    error: str
    state: TrialState
    verdict: Verdict | None = None
    set_aside: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Interrupted:
    """The run was stopped, or a person ended the trial, while it was under way.

    Attributes:
        why: a person's reason to end it and have it run again; empty: the run was stopped.
    """

    state: TrialState
    why: str = ""


Outcome: TypeAlias = Measured | Infeasible | Faulted | Interrupted


def measured_by(outcome: Outcome | None) -> Measured | None:
    """Return what a trial measured, also where it breaks a constraint; None: it did not get so far."""
    if isinstance(outcome, Infeasible):
        return outcome.measured
    return outcome if isinstance(outcome, Measured) else None


LOADING_STAGES = ("load_weights", "load_model", "load_draft", "pool", "slots", "capture", "ready")
"""The engines' own words for how far a start came, in order; see ``LogReader.stage``."""

_UNKNOWN_STAGE = "pool"  # in the middle
_HALF_WAY = 0.1


def missing_share(verdict: Verdict, *, gpu_bytes: int | None, fraction: float | None) -> float | None:
    """Say how much memory was missing, as a share of one GPU's; None: the log does not say, or nobody knows the GPU.

    The larger of ``shortfall_bytes / gpu_bytes`` and ``viable_fraction - fraction``.

    Args:
        verdict: on the death.
        gpu_bytes: of the smallest GPU.
        fraction: of GPU memory that was asked for.
    """
    shares = []
    if verdict.shortfall_bytes is not None and gpu_bytes:
        shares.append(verdict.shortfall_bytes / gpu_bytes)
    if verdict.viable_fraction is not None and fraction is not None:
        shares.append(verdict.viable_fraction - fraction)
    return max((share for share in shares if share > 0.0), default=None)


def violation(
    state: TrialState,
    *,
    level_index: int | None = None,
    levels: int = 1,
    stage: str = "",
    missing: float | None = None,
) -> float:
    """Grade how far a trial was from feasible: the constraint value that a sampler learns from.

    Strictly by how far the trial got, whatever the rest says; then by how much memory was missing. With
    d = m / (m + 0.1), where m is the share of a GPU's memory that was missing, at most 1 (a tenth of a GPU
    is half way; so counts, too, what is not known):

    ==================================  =========================  ======================
    where                               violation                  lies in
    ==================================  =========================  ======================
    rejected (DEPLOYING or before)      4                          4
    LOADING, stage k of the n loading   3 + (n - 1 - k + d) / n    [3, 4)
    READY, WARMING_UP                   2 + d                      [2, 3)
    MEASURING, level i of n             1 + (n - 1 - i + d) / n    [1, 2)
    SOAKING or later                    (1 + d) / 2                (0.5, 1)
    measured, outside a limit           :func:`limit_violation`    (0, 0.5]
    a feasible trial                    0                          0
    ==================================  =========================  ======================

    Args:
        state: where the trial was.
        level_index: position in the ladder of the level being measured, from 0.
        levels: length of the ladder.
        stage: the last that the server's log shows, one of :data:`LOADING_STAGES`; another counts as ``pool``.
        missing: see :func:`missing_share`; None: not known, and so is what is not above 0.
    """
    distance = 0.5 if missing is None or not missing > 0.0 else min(missing, 1.0) / (min(missing, 1.0) + _HALF_WAY)
    if state in (TrialState.PROPOSED, TrialState.CLEANING, TrialState.DEPLOYING):
        return 4.0
    if state is TrialState.LOADING:
        last = len(LOADING_STAGES) - 1
        passed = LOADING_STAGES.index(stage if stage in LOADING_STAGES else _UNKNOWN_STAGE)
        return 3.0 + (last - passed + distance) / (last + 1)
    if state in (TrialState.READY, TrialState.WARMING_UP):
        return 2.0 + distance
    if state is TrialState.MEASURING:
        return 1.0 + (levels - 1 - (level_index or 0) + distance) / levels
    return (1.0 + distance) / 2


def limit_violation(exceedance: float) -> float:
    """Grade a trial that was measured and breaks constraints: below every death, above every feasible one.

    x / (1 + x) / 2, which keeps growing however far it is outside: half way at twice a limit that is an upper one.

    Args:
        exceedance: sum of the relative exceedances, > 0 (:meth:`tuner.model.metric.Constraint.exceedance`).
    """
    return 0.5 if exceedance == float("inf") else 0.5 * exceedance / (1.0 + exceedance)
