"""Ends of trials, made up: the few fields a test cares about, the rest plausible."""

from __future__ import annotations

from tuner.model.metric import Estimate
from tuner.model.outcome import (
    Cause,
    Faulted,
    Infeasible,
    Interrupted,
    Measured,
    MemoryDirection,
    Outcome,
    TrialState,
    Verdict,
    violation,
)
from tuner.model.trial import Capacity, Effective, ServiceIdentity, TrialResult
from tuner.ports import Proposal


def estimate(value: float, share: float = 0.02) -> Estimate:
    """Return a value with an interval of ± ``share``."""
    return Estimate(value=value, low=value * (1 - share), high=value * (1 + share), samples=12)


def measured(single: float, aggregate: float, *, peak_concurrency: int = 16) -> Measured:
    """Return a measured outcome, tok/s."""
    return Measured(
        single_request_throughput=estimate(single),
        aggregate_throughput=estimate(aggregate),
        peak_concurrency=peak_concurrency,
    )


def infeasible(
    cause: Cause = Cause.OOM_SERVING,
    *,
    state: TrialState = TrialState.SOAKING,
    level: int | None = None,
    direction: MemoryDirection | None = None,
) -> Infeasible:
    """Return an infeasible outcome, graded as the runtime grades it."""
    return Infeasible(
        verdict=Verdict(
            cause=cause,
            config_fault=True,
            direction=direction,
            shortfall_bytes=2**30,
            evidence=("torch.OutOfMemoryError: CUDA out of memory.",),
            advice="Lower the memory fraction.",
        ),
        state=state,
        level=level,
        violation=violation(state, level_index=1, levels=5),
    )


def faulted(error: str = "gpu01: connection lost; check the network") -> Faulted:
    """Return a fault of the host."""
    return Faulted(error=error, state=TrialState.DEPLOYING)


def interrupted() -> Interrupted:
    """Return the end of a trial that was stopped."""
    return Interrupted(state=TrialState.MEASURING)


def result_of(proposal: Proposal, outcome: Outcome, *, study: str, host: str = "gpu01") -> TrialResult:
    """Return the end of a proposed trial that took 60 s, while the wall clock was set back."""
    return TrialResult(
        study=study,
        number=proposal.number,
        host=host,
        assignment=proposal.assignment,
        outcome=outcome,
        started_s=1000.0,
        finished_s=940.0,
        attempts=1,
        identity=ServiceIdentity(invocation_id="a1", main_pid=4711),
        effective=Effective(
            settings=tuple(proposal.assignment.items()),
            capacity=Capacity(max_total_num_tokens=295_931, max_running_requests=17),
            version="0.5.23",
        ),
        legs=(),
        duration_s=60.0,
    )
