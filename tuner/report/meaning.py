"""What a verdict means for the tuned settings: which way to go, and how far."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping
from typing import TypeAlias

from tuner.model.outcome import BESIDE_STATIC_SHARE, MEMORY_CAUSES, Cause, MemoryDirection, Verdict
from tuner.model.space import Value
from tuner.report.cause_words import CAUSES

Asked: TypeAlias = Mapping[str, Value]

FRACTION = "mem_fraction_static"
_DRAFTS = ("speculative_num_draft_tokens", "draft_max")
"""Settings that say how many tokens are drafted; an engine has one of them."""
_CONTEXT = "ctx_size"
_GRID = 100
"""Fractions are told in hundredths: no log is more exact than that."""
_GIB = 1 << 30
_CAPACITY = re.compile(r"total capacity of ([\d.]*\d) (GiB|MiB)")
"""Words of PyTorch's out-of-memory error on the size of the GPU."""


def meaning(verdict: Verdict, asked: Asked, names: Collection[str]) -> tuple[str, ...]:
    """Say what a verdict means for the settings, most useful first; at least one line.

    Args:
        verdict: on the death.
        asked: the settings that were tried, as far as they are known.
        names: of all settings of the engine.
    """
    cause = verdict.cause
    if cause not in MEMORY_CAUSES or cause is Cause.OOM_WEIGHTS:
        return (CAUSES[cause].means,)
    if verdict.direction is None and not verdict.config_fault:
        return ("nothing for sure: who else held memory then is not known, so no setting is ruled out",)
    lines = _ways_out(verdict, asked, names)
    return lines if verdict.config_fault else (f"if nobody else held memory: {lines[0]}", *lines[1:])


def _ways_out(verdict: Verdict, asked: Asked, names: Collection[str]) -> tuple[str, ...]:
    if verdict.cause is Cause.KV_SLOTS_EXHAUSTED:
        return _slots(verdict, asked, names)
    if FRACTION not in names:
        return _without_fraction(verdict, asked, names)
    match verdict.direction:
        case MemoryDirection.FRACTION_TOO_HIGH:
            return _too_high(verdict, asked, names)
        case MemoryDirection.FRACTION_TOO_LOW:
            return _too_low(verdict, asked, names)
        case MemoryDirection.TOO_MANY_DRAFT_TOKENS:
            return _too_many(verdict, asked, names)
        case None:
            return (CAUSES[verdict.cause].means,)


def gpu_bytes(verdict: Verdict) -> int | None:
    """Return the size of the GPU that ran out of memory, where the evidence says it."""
    for line in verdict.evidence:
        found = _CAPACITY.search(line)
        if found is not None:
            unit = _GIB if found.group(2) == "GiB" else 1 << 20
            return round(float(found.group(1)) * unit)
    return None


def _slots(verdict: Verdict, asked: Asked, names: Collection[str]) -> tuple[str, ...]:
    lines = []
    if FRACTION in names and verdict.direction is MemoryDirection.FRACTION_TOO_LOW:
        lines.append(f"lowering {FRACTION} will not help: slots ran out, not memory; a higher one makes room for more")
    elif FRACTION in names:
        lines.append(f"raising {FRACTION} will not help: slots, not memory")
    drafts = _drafts(asked, names)
    if drafts is not None:
        lines.append(f"{_fewer(drafts, asked)}: each running request holds slots for them ahead of time")
    return (*lines, "or fewer requests at once (max_running_requests)")


def _without_fraction(verdict: Verdict, asked: Asked, names: Collection[str]) -> tuple[str, ...]:
    if _CONTEXT not in names:
        return (CAUSES[verdict.cause].means,)
    size = f" {asked[_CONTEXT]}" if _CONTEXT in asked else ""
    return (f"{_CONTEXT}{size} asks for more memory than there is{_by(verdict, None)}: a smaller one",)


def _too_high(verdict: Verdict, asked: Asked, names: Collection[str]) -> tuple[str, ...]:
    bound = _at_most(verdict, asked)
    lines = [f"{_named(FRACTION, asked)} was too high{_by(verdict, gpu_bytes(verdict))}: {bound or 'a lower one'}"]
    drafts = _drafts(asked, names)
    if drafts is not None and verdict.cause in BESIDE_STATIC_SHARE:
        lines.append(f"or {_fewer(drafts, asked)}: what they need lies beside the static share")
    return tuple(lines)


def _at_most(verdict: Verdict, asked: Asked) -> str:
    """Say which fraction leaves what was missing; empty where the log or the settings do not tell."""
    fraction, total = _fraction(asked), gpu_bytes(verdict)
    if fraction is None or total is None or verdict.shortfall_bytes is None:
        return ""
    most = math.floor((fraction - verdict.shortfall_bytes / total) * _GRID + 1e-9) / _GRID
    return f"at most ~{most:g}" if most > 0 else "no fraction makes up for that"


def _too_low(verdict: Verdict, asked: Asked, names: Collection[str]) -> tuple[str, ...]:
    total = gpu_bytes(verdict)
    fraction, viable = _fraction(asked), verdict.viable_fraction
    if viable is None and fraction is not None and total is not None and verdict.shortfall_bytes is not None:
        viable = fraction + verdict.shortfall_bytes / total
    bound = ": a higher one"
    if viable is not None and (fraction is None or viable >= fraction):
        least = (math.floor(viable * _GRID + 1e-9) + 1) / _GRID
        said = f" (the server itself asks for more than {viable:g})" if verdict.viable_fraction is not None else ""
        bound = f": at least ~{least:g}{said}" if least < 1 else ": no fraction below 1 is enough" + said
    lines = [f"{_named(FRACTION, asked)} was too low{_by(verdict, total)}{bound}"]
    drafts = _drafts(asked, names)
    if drafts is not None:
        lines.append(f"or {_fewer(drafts, asked)}: they leave more of the static share to the cache")
    return tuple(lines)


def _too_many(verdict: Verdict, asked: Asked, names: Collection[str]) -> tuple[str, ...]:
    drafts = _drafts(asked, names)
    if drafts is None:
        return (CAUSES[verdict.cause].means,)
    missing = _by(verdict, gpu_bytes(verdict)).replace(" by about", " they lacked about", 1)
    lines = [f"{_fewer(drafts, asked)}:{missing or ' what they need did not fit'}"]
    if verdict.cause is Cause.OOM_STATE_POOL:
        lines.append("each running request keeps one state for every draft token, inside the static share")
    elif verdict.cause in BESIDE_STATIC_SHARE:
        bound = _at_most(verdict, asked)
        lines.append(f"or a lower {FRACTION}{f': {bound}' if bound else ''}")
    if verdict.viable_fraction is not None:
        lines.append(f"or {FRACTION} above {verdict.viable_fraction:g}, as the server itself says")
    return tuple(lines)


def _by(verdict: Verdict, total: int | None) -> str:
    """Say how much was missing; nothing where the log does not."""
    if verdict.shortfall_bytes is None:
        return ""
    return f" by about {_gib(verdict.shortfall_bytes)} GiB" + (f" of {_gib(total)}" if total else "")


def _gib(count: int) -> str:
    size = count / _GIB
    return f"{size:.1f}".removesuffix(".0") if size >= 0.1 else f"{size:.2f}"


def _fewer(drafts: str, asked: Asked) -> str:
    return f"fewer draft tokens ({drafts} was {asked[drafts]})" if drafts in asked else "fewer draft tokens"


def _drafts(asked: Asked, names: Collection[str]) -> str | None:
    """Name the setting for draft tokens; None: the engine has none, or speculation was off."""
    found = next((name for name in _DRAFTS if name in names), None)
    return None if found is None or (asked and found not in asked) else found


def _fraction(asked: Asked) -> float | None:
    value = asked.get(FRACTION)
    return float(value) if isinstance(value, (int, float)) else None


def _named(name: str, asked: Asked) -> str:
    return f"{name} {asked[name]}" if name in asked else name
