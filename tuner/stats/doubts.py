"""What is worth a word about a leg although it counts. Pure."""

from __future__ import annotations

from tuner.model.record import LegResult
from tuner.stats.server import INTENDED_CACHED_SHARE


def doubts(leg: LegResult) -> tuple[str, ...]:
    """Return one line each; none of a leg without failures that is as it was meant to be.

    A prefix cache that serves prompts made unique changes TTFT and the share of the prefill, and no decode speed:
    that is said and does not void the leg, because a system prompt or a chat template is shared for good reasons.
    """
    share = None if leg.server is None else leg.server.cached_share
    if share is None or share <= INTENDED_CACHED_SHARE:
        return ()
    text = (
        f"{100 * share:.0f} % of the prompt tokens came from the prefix cache although every prompt is made unique: "
        "TTFT and prefill are better than new prompts would have; look for a system prompt that all share"
    )
    return (text,)
