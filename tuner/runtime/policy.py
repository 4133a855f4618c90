"""Who is to blame for a death, and what to do next: pure decisions.

The rules are those of the design, section 4: a cause that names the configuration
needs no second try; any other is tried once more on a clean host, and the same
state dying twice on a proven clean host is the configuration's fault, whatever the
log says. Some causes can never be the configuration's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from tuner.model.outcome import Cause, Faulted, Infeasible, TrialState, Verdict, violation

NEVER_THE_CONFIGURATION = frozenset(
    {
        Cause.PORT_IN_USE,
        Cause.MODEL_MISSING,
        Cause.DEPENDENCY_MISMATCH,
        Cause.OWN_STOP,
        Cause.OPERATOR_STOP,
        Cause.LEFTOVER_MEMORY,
        Cause.HOST_OOM,
    }
)
"""Causes that a different assignment would not have avoided."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Death:
    """One server start that ended badly, on a host that was proven clean before it.

    Attributes:
        level: the concurrency being measured; None outside MEASURING and SOAKING.
        level_index: its position in the ladder, from 0.
        levels: length of the ladder.
    """

    verdict: Verdict
    state: TrialState
    level: int | None = None
    level_index: int | None = None
    levels: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryAfterCleaning:
    """Start the same assignment once more on a clean host; ``why`` is for the reader."""

    why: str


NextStep: TypeAlias = RetryAfterCleaning | Infeasible | Faulted


def next_step(deaths: Sequence[Death], *, attempts: int = 3) -> NextStep:
    """Decide what follows the last of ``deaths`` (never empty) of one trial.

    Args:
        deaths: every death of this trial, oldest first.
        attempts: server starts after which deaths in ever other states are a fault.
    """
    last = deaths[-1]
    cause = last.verdict.cause
    if last.verdict.config_fault:
        return _infeasible(last)
    if any(death.state is last.state for death in deaths[:-1]) and cause not in NEVER_THE_CONFIGURATION:
        return _infeasible(last)
    if len(deaths) >= attempts or (len(deaths) >= 2 and cause in NEVER_THE_CONFIGURATION):
        reason = last.verdict.advice or "see the server log in the trial's evidence"
        return Faulted(
            error=f"{cause.value} while {last.state.value}: {reason}", state=last.state, verdict=last.verdict
        )
    return RetryAfterCleaning(why=f"{cause.value} while {last.state.value} may be the host's fault")


def _infeasible(death: Death) -> Infeasible:
    state = death.state
    # Arguments may be rejected after the first log line; the grade follows the cause.
    graded = TrialState.DEPLOYING if death.verdict.cause is Cause.REJECTED_ARGUMENTS else state
    return Infeasible(
        verdict=death.verdict,
        state=state,
        level=death.level,
        violation=violation(graded, level_index=death.level_index, levels=death.levels),
    )
