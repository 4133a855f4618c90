"""What happened in a trial, start by start and step by step. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tuner.model.outcome import TrialState
from tuner.model.record import LegResult
from tuner.model.trial import Remark, StateEntered
from tuner.report.evidence import Happening, LegDone

_AFTER_THE_SERVER = (TrialState.JUDGING, TrialState.DONE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One thing that happened.

    Attributes:
        at_s: Unix seconds.
        took_s: until the next state; None: it is the last, or a remark.
        state: that was entered; None: a remark.
        text: of a remark; what the trial said on entering the state.
        leg: that was measured in this state; None: none, or it was not finished.
    """

    at_s: float
    took_s: float | None
    state: TrialState | None
    level: int | None
    text: str
    leg: LegResult | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """One start of the server.

    Attributes:
        number: from 1; None: it never came to a start.
        came_to: the last state before it was judged.
        level: concurrency then.
    """

    number: int | None
    steps: tuple[Step, ...]
    came_to: TrialState
    level: int | None


def starts_of(happenings: Sequence[Happening], now_s: float | None) -> tuple[Start, ...]:
    """Cut a trial where the host is made clean for the next server.

    Args:
        happenings: in the order of time.
        now_s: Unix seconds, while the trial runs; None: it has ended.
    """
    groups: list[list[Happening]] = []
    has_begun = False
    for happening in happenings:
        is_anew = isinstance(happening, StateEntered) and happening.state is TrialState.CLEANING
        if not groups or (is_anew and has_begun):
            groups.append([])
        has_begun = has_begun or is_anew
        groups[-1].append(happening)
    starts, number = [], 0
    for index, group in enumerate(groups):
        entered = [each for each in group if isinstance(each, StateEntered)]
        is_start = any(each.state is TrialState.DEPLOYING for each in entered)
        number += is_start
        ends_s = groups[index + 1][0].at_s if index + 1 < len(groups) else now_s
        before = [each for each in entered if each.state not in _AFTER_THE_SERVER]
        starts.append(
            Start(
                number=number if is_start else None,
                steps=_steps(group, ends_s),
                came_to=before[-1].state if before else TrialState.PROPOSED,
                level=before[-1].level if before else None,
            )
        )
    return tuple(starts)


def _steps(group: Sequence[Happening], ends_s: float | None) -> tuple[Step, ...]:
    steps: list[Step] = []
    for index, happening in enumerate(group):
        if isinstance(happening, Remark):
            steps.append(Step(at_s=happening.at_s, took_s=None, state=None, level=None, text=happening.text, leg=None))
        elif isinstance(happening, StateEntered):
            leg, next_s = None, ends_s
            for later in group[index + 1 :]:
                if isinstance(later, StateEntered):
                    next_s = later.at_s
                    break
                if isinstance(later, LegDone):
                    leg = later.leg
            steps.append(
                Step(
                    at_s=happening.at_s,
                    took_s=None if next_s is None else max(0.0, next_s - happening.at_s),
                    state=happening.state,
                    level=happening.level,
                    text=happening.detail,
                    leg=leg,
                )
            )
    return tuple(steps)
