"""What every cause is called in plain words, and what it says of the settings when nothing more precise is known."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from tuner.model.outcome import MEMORY_CAUSES, NEVER_THE_CONFIGURATION, STOPS, Cause, Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class CauseWords:
    """One cause for a reader.

    Attributes:
        what: happened, as a sentence without its end: "the server ran out of …".
        means: for the tuned settings; of a memory cause only what holds where its direction is not known.
    """

    what: str
    means: str


_NOTHING = "nothing: no tuned setting has a part in it"
_MAYBE = "nothing for sure: the same settings on a clean host show whether they have a part in it"

CAUSES: Mapping[Cause, CauseWords] = MappingProxyType(
    {
        Cause.HEALTHY: CauseWords(
            what="nothing shows that the server died: what looks like trouble in its log, it survived",
            means="nothing against them: the server lives with these settings as far as its log goes",
        ),
        Cause.REJECTED_ARGUMENTS: CauseWords(
            what="the engine refused the command line",
            means="this combination cannot be started at all, with any amount of memory",
        ),
        Cause.OOM_WEIGHTS: CauseWords(
            what="the GPU was full before the weights were loaded",
            means="no memory fraction and no number of draft tokens makes the weights fit: "
            "more GPUs, a smaller type, or no draft model of its own",
        ),
        Cause.KV_POOL_TOO_SMALL: CauseWords(
            what="the weights left no room for the KV cache inside the memory fraction",
            means="the cache needs more room: a higher memory fraction, or fewer draft tokens",
        ),
        Cause.OOM_KV_POOL: CauseWords(
            what="the GPU ran out of memory while the KV cache was laid out",
            means="the cache was made larger than what was free: a smaller one fits",
        ),
        Cause.OOM_STATE_POOL: CauseWords(
            what="the state cache of the model does not fit",
            means="each running request keeps a state for every draft token: fewer draft tokens, or fewer requests",
        ),
        Cause.OOM_GRAPH_CAPTURE: CauseWords(
            what="the GPU ran out of memory while CUDA graphs were captured",
            means="too little was left beside weights and cache: a lower memory fraction, or fewer draft tokens",
        ),
        Cause.OOM_VERIFY_WORKSPACE: CauseWords(
            what="the GPU ran out of memory while draft tokens were made or verified",
            means="too little was left beside weights and cache: a lower memory fraction, or fewer draft tokens",
        ),
        Cause.OOM_SERVING: CauseWords(
            what="the GPU ran out of memory while the server served requests",
            means="too little was left beside weights and cache: a lower memory fraction, or fewer draft tokens",
        ),
        Cause.KV_SLOTS_EXHAUSTED: CauseWords(
            what="the slots of the KV cache ran out, not the GPU's memory",
            means="too many tokens at once: fewer draft tokens, or fewer running requests",
        ),
        Cause.HOST_OOM: CauseWords(
            what="the host itself ran out of memory (RAM, not the GPU's), and the kernel ended the server",
            means=_NOTHING,
        ),
        Cause.CUDA_FAULT: CauseWords(
            what="a GPU operation failed (CUDA fault)",
            means="nothing for sure: deep drafts and trees (topk above 1) reach code that breaks more often; "
            "the same settings on a clean host show it",
        ),
        Cause.COLLECTIVE: CauseWords(what="the GPUs lost touch with each other (NCCL)", means=_MAYBE),
        Cause.PORT_IN_USE: CauseWords(what="the port was taken by another process", means=_NOTHING),
        Cause.HANG: CauseWords(what="the server stopped answering without dying", means=_MAYBE),
        Cause.MODEL_MISSING: CauseWords(what="the model is not there, or may not be read", means=_NOTHING),
        Cause.DEPENDENCY_MISMATCH: CauseWords(what="the installed packages do not fit each other", means=_NOTHING),
        Cause.ENGINE_BUG: CauseWords(
            what="the engine broke at an error of its own",
            means="these settings may be what meets the error: neighbours, or another version of the engine, may not",
        ),
        Cause.LEFTOVER_MEMORY: CauseWords(
            what="another process held the GPU's memory",
            means="nothing: with the GPU to itself the server may well fit",
        ),
        Cause.OWN_STOP: CauseWords(what="tuner itself stopped the server", means=_NOTHING),
        Cause.OPERATOR_STOP: CauseWords(what="somebody else stopped the server", means=_NOTHING),
        Cause.START_TIMEOUT: CauseWords(
            what="the server was not ready in time",
            means="nothing for sure: more graphs to capture make a start longer; a longer load_timeout_s tells",
        ),
        Cause.CRASH_LOOP: CauseWords(
            what="the server kept dying, and its service manager kept starting it again",
            means="nothing for sure: the log of its first death says more than that of a later one",
        ),
        Cause.FAILED_REQUESTS: CauseWords(what="the server stayed up, but requests failed", means=_MAYBE),
        Cause.CONFIGURATION_MISMATCH: CauseWords(
            what="the server runs something else than what was asked",
            means="what was asked for is not what runs: the engine changes these settings by itself",
        ),
        Cause.OUTSIDE_LIMITS: CauseWords(
            what="the server is healthy, but outside the study's limits",
            means="the study's [[constraints]] leave it out: with wider limits it would count",
        ),
        Cause.RULED: CauseWords(
            what="a person gave the verdict",
            means="what the person said holds: no log was judged",
        ),
        Cause.UNKNOWN: CauseWords(
            what="the server died, and nothing in its log says why",
            means=_MAYBE,
        ),
    }
)
"""Every cause has its words; a test holds that none is forgotten."""


def blame(verdict: Verdict) -> str:  # noqa: PLR0911  a table of rules, first match wins
    """Say whose fault a death is as far as one log tells, and why."""
    cause = verdict.cause
    if cause is Cause.HEALTHY:
        return "nobody's: there is nothing to blame anybody for"
    if cause is Cause.RULED:
        return "as a person said"
    if cause is Cause.OUTSIDE_LIMITS:
        return "the configuration's: it was measured, and breaks a limit of the study"
    if cause in STOPS:
        return "nobody's: somebody ended the server, which says nothing of it"
    if verdict.config_fault:
        return "the configuration's: what the log says names it, so no second start is needed to tell"
    if verdict.config_fault is False or cause in NEVER_THE_CONFIGURATION:
        return "not the configuration's: another one would have met the same on this host"
    if cause in MEMORY_CAUSES:
        return "not to be told: it lacked memory, but perhaps because somebody else held some"
    if cause is Cause.UNKNOWN:
        return "not to be told from this log"
    return "the configuration's or the host's, which one death does not tell: a second start on a clean host does"
