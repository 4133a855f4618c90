"""Who is to blame for a death, and what to do next: pure decisions.

The rules, first match wins; the tests hold a table of them.

1. A cause that names the configuration, on a host that was proven clean and on which nobody else held GPU
   memory: Infeasible at once. Otherwise it is no verdict, and what it says of memory is dropped.
2. A person's ruling that it is not the configuration: Faulted, to be run again.
3. The third configuration in a row that dies of the same cause at the start, a cause that could be the host's,
   with nothing in between that got further: the host is set aside.
4. The same state dying twice on a clean host: Infeasible, even if the log says nothing. Some causes never count
   (:data:`NEVER_THE_CONFIGURATION`), and a death is *doubted*, and does not count, when the same cause has hit
   another configuration in the same state on this host, unless that one was condemned for it and the host has
   proven itself since.
5. Doubted deaths condemn only when there are ``DOUBTED_DEATHS`` of them, and none does at the start while
   several configurations in a row die of the same.
6. ``attempts`` starts of one trial, or two that died of a cause that is never the configuration's: Faulted. The
   assignment comes again, and its deaths are remembered.
7. Anything else is tried once more after cleaning.

How often is a sound configuration condemned on a host on which one start in five fails by chance (p = 0.2)? A
trial ends with its first good start, so only unbroken deaths condemn. On a host of which nothing is known, two:
p**2 = 4 % of the configurations. With the first configuration that is hit and then lives, every death of that
cause is doubted, and it takes five: p**5 = 0.03 %; three in a row (p**3 = 0.8 %) are a fault, and the assignment
runs again. Of the first configuration that is hit at all, p = 20 % are so condemned: one in five of such hosts
costs one sound configuration. Three different configurations that die by chance with nothing in between, which
sets a host aside, are at least 2 + 3 + 1 starts: p**6 = 0.006 %.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from tuner.model.outcome import (
    BY_CHANCE,
    MEMORY_CAUSES,
    NEVER_THE_CONFIGURATION,
    STOPS,
    Cause,
    Faulted,
    Infeasible,
    TrialState,
    Verdict,
    violation,
)
from tuner.model.space import Assignment

CLEAN_DEATHS = 2
"""In one state, none of them doubted: the configuration is at fault (design, section 4)."""

DOUBTED_DEATHS = 5
"""In one state, of causes that have hit other configurations on this host."""

BROKEN_AFTER = 3
"""Configurations in a row that die of the same at the start, after which it is the host that is broken."""

_ORDER = tuple(TrialState)


@dataclass(frozen=True, slots=True, kw_only=True)
class Death:
    """One server start that ended badly.

    Attributes:
        trial: its number.
        level: the concurrency being measured; None outside MEASURING and SOAKING.
        level_index: its position in the ladder, from 0.
        levels: length of the ladder.
        missing: share of a GPU's memory that was missing; None: not known.
        is_clean: the host was proven clean before the start.
        foreign: other people's processes that held GPU memory meanwhile, one text each.
    """

    verdict: Verdict
    state: TrialState
    trial: int = 0
    level: int | None = None
    level_index: int | None = None
    levels: int = 1
    missing: float | None = None
    is_clean: bool = True
    foreign: tuple[str, ...] = ()

    @property
    def is_at_the_start(self) -> bool:
        """Whether the server was not ready yet."""
        return self.state in (TrialState.DEPLOYING, TrialState.LOADING)

    @property
    def proves_nothing(self) -> bool:
        """Whether somebody else may have had a part in it."""
        return not self.is_clean or (bool(self.foreign) and self.verdict.cause in MEMORY_CAUSES)


@dataclass(frozen=True, slots=True, kw_only=True)
class Elsewhere:
    """How a server start of another configuration ended on the same host.

    Attributes:
        death: None: it was measured.
        is_condemned: its trial ended as Infeasible for deaths like this one.
    """

    assignment: Assignment
    trial: int
    death: Death | None = None
    is_condemned: bool = False

    def got_beyond(self, state: TrialState) -> bool:
        """Whether it got further than ``state``."""
        return self.death is None or _ORDER.index(self.death.state) > _ORDER.index(state)


@dataclass(frozen=True, slots=True, kw_only=True)
class HostEvidence:
    """What else happened on the host in this session: other configurations, oldest first."""

    others: tuple[Elsewhere, ...] = ()

    def in_a_row(self, death: Death) -> dict[Assignment, int]:
        """Return the other configurations that died as ``death`` did since any got further, and their last trials."""
        found: dict[Assignment, int] = {}
        for other in reversed(self.others):
            if other.got_beyond(death.state):
                break
            if other.death is not None and _is_alike(other.death, death):
                found.setdefault(other.assignment, other.trial)
        return found

    def doubts(self, death: Death) -> bool:
        """Whether the same cause has hit others in the same state, and not for a fault of their own."""
        has_proven_itself = False
        for other in reversed(self.others):
            if other.death is not None and _is_alike(other.death, death):
                is_explained = other.is_condemned and has_proven_itself and death.verdict.cause not in BY_CHANCE
                if not is_explained:
                    return True
            has_proven_itself = has_proven_itself or other.got_beyond(death.state)
        return False


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryAfterCleaning:
    """Start the same assignment once more on a clean host; ``why`` is for the reader."""

    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SetHostAside:
    """The host is broken: its trial is ``fault``, and nothing else is run on it until it was looked at."""

    fault: Faulted


NextStep: TypeAlias = RetryAfterCleaning | Infeasible | Faulted | SetHostAside


def next_step(
    history: Sequence[Death], death: Death, host: HostEvidence | None = None, *, attempts: int = 3
) -> NextStep:
    """Decide what follows a death.

    Args:
        history: earlier deaths of the same configuration on this host, oldest first: of this trial, and of
            those before it that did not come to a verdict.
        death: the last one.
        host: what other configurations did there.
        attempts: server starts of one trial after which it is a fault.
    """
    host = HostEvidence() if host is None else host
    if death.proves_nothing:
        death = without_verdict(death)
    cause = death.verdict.cause
    if death.verdict.config_fault:
        return _infeasible(death)
    if cause is Cause.RULED:
        return _faulted(death)
    alike = host.in_a_row(death)
    if death.is_at_the_start and cause not in STOPS and len(alike) >= BROKEN_AFTER - 1:
        return _set_aside(death, alike)
    if _counts(death) and not (death.is_at_the_start and alike):
        same = [*_counting(history, death), death]
        undoubted = sum(not host.doubts(each) for each in same)
        if undoubted >= CLEAN_DEATHS or len(same) >= DOUBTED_DEATHS:
            return _infeasible(death)
    starts = 1 + sum(each.trial == death.trial for each in history)
    if starts >= attempts or (starts >= CLEAN_DEATHS and cause in NEVER_THE_CONFIGURATION):
        return _faulted(death)
    return RetryAfterCleaning(why=f"{_what(death)} may be the host's fault{_doubt(death, host)}")


def without_verdict(death: Death) -> Death:
    """Drop what a death says of the configuration: somebody else had a part in it."""
    reason = "somebody else held GPU memory: " + ", ".join(death.foreign) if death.foreign else "the host was not clean"
    advice = f"{death.verdict.advice} ({reason})".strip()
    verdict = replace(
        death.verdict, config_fault=None, direction=None, shortfall_bytes=None, viable_fraction=None, advice=advice
    )
    return replace(death, verdict=verdict, missing=None)


def _is_alike(other: Death, death: Death) -> bool:
    """Whether both died of the same cause in the same state, and it could be the host's."""
    return (
        other.verdict.cause is death.verdict.cause
        and other.state is death.state
        and (not other.verdict.config_fault or other.proves_nothing)
    )


def _counts(death: Death) -> bool:
    return not death.proves_nothing and death.verdict.cause not in NEVER_THE_CONFIGURATION


def _counting(history: Sequence[Death], death: Death) -> Iterator[Death]:
    """Return the deaths before in the same state that may be the configuration's fault."""
    return (each for each in history if each.state is death.state and _counts(each))


def _doubt(death: Death, host: HostEvidence) -> str:
    return ", which has hit other configurations here too" if host.doubts(death) else ""


def _what(death: Death) -> str:
    return f"{death.verdict.cause.value} while {death.state.value}"


def _faulted(death: Death) -> Faulted:
    reason = death.verdict.advice or "see the server log in the trial's evidence"
    return Faulted(error=f"{_what(death)}: {reason}", state=death.state, verdict=death.verdict)


def _set_aside(death: Death, alike: dict[Assignment, int]) -> SetHostAside:
    trials = ", ".join(str(number) for number in sorted(alike.values()))
    reason = death.verdict.advice or "look at its driver and its GPUs"
    error = (
        f"{_what(death)}, as other configurations before it (trials {trials}) with nothing measured in between: "
        f"the host is broken, and their verdicts are doubtful; {reason}"
    )
    return SetHostAside(fault=Faulted(error=error, state=death.state, verdict=death.verdict, set_aside=True))


def _infeasible(death: Death) -> Infeasible:
    # Arguments may be rejected after the first log line; the grade follows the cause.
    is_rejected = death.verdict.cause is Cause.REJECTED_ARGUMENTS
    return Infeasible(
        verdict=death.verdict,
        state=death.state,
        level=death.level,
        violation=violation(
            TrialState.DEPLOYING if is_rejected else death.state,
            level_index=death.level_index,
            levels=death.levels,
            stage=death.verdict.stage,
            missing=death.missing,
        ),
    )
