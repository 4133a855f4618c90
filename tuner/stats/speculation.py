"""What speculation did over a leg: tokens per verification step and the time of a step."""

from __future__ import annotations

from tuner.model.metric import Estimate
from tuner.model.record import Counters


def acceptance_length(before: Counters | None, after: Counters | None) -> float | None:
    """Return generated tokens per verification step between two readings of the counters.

    The bonus token counts. None when the engine does not report both totals, when no
    step was verified in between, or when a total fell (the server is another one).
    """
    if before is None or after is None:
        return None
    if before.generated_tokens is None or after.generated_tokens is None:
        return None
    if before.verify_steps is None or after.verify_steps is None:
        return None
    generated = after.generated_tokens - before.generated_tokens
    steps = after.verify_steps - before.verify_steps
    if steps <= 0 or generated < 0:
        return None
    return generated / steps


def step_time_s(acceptance: float | None, throughput: Estimate | None) -> float | None:
    """Return the seconds one verification step of one request takes; None when either is unknown."""
    if acceptance is None or throughput is None or throughput.value <= 0:
        return None
    return acceptance / throughput.value
