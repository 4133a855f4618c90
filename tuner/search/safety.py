"""What a death from memory rules out: whatever asks for at least as much in every way.

More draft tokens, and larger sizes of any kind, never free memory. A server that ran out
beside its static share dies as well with a higher fraction and sizes at least as large; one
that had no room inside it, with a lower fraction and sizes at least as large. A death without
a direction rules nothing out: one unexplained crash must never close a region.
"""

from __future__ import annotations

from collections.abc import Iterable

from tuner.model.outcome import MemoryDirection
from tuner.model.space import Assignment, ChoiceParameter, FloatParameter, Parameter, SearchSpace
from tuner.search.history import Experience


def is_ruled_out(candidate: Assignment, experiences: Iterable[Experience], space: SearchSpace) -> bool:
    """Whether a death that was seen tells that ``candidate`` dies as well.

    Shares of memory are the space's float parameters; sizes are its whole numbers and
    ordered choices.
    """
    return any(
        experience.direction is not None and _dies_too(candidate, experience, experience.direction, space)
        for experience in experiences
        if experience.violation > 0
    )


def _dies_too(candidate: Assignment, death: Experience, direction: MemoryDirection, space: SearchSpace) -> bool:
    dead = death.assignment
    if set(candidate) != set(dead):
        return False
    return all(
        _asks_as_much(parameter, candidate, death, direction)
        for parameter in space.parameters
        if parameter.name in dead and candidate[parameter.name] != dead[parameter.name]
    )


def _asks_as_much(parameter: Parameter, candidate: Assignment, death: Experience, direction: MemoryDirection) -> bool:
    """Whether the candidate's (different) value cannot save it from the death seen."""
    dead = death.assignment
    values = parameter.values()
    grows = values.index(candidate[parameter.name]) > values.index(dead[parameter.name])
    if isinstance(parameter, FloatParameter):
        return {
            MemoryDirection.FRACTION_TOO_HIGH: grows,
            MemoryDirection.FRACTION_TOO_LOW: not grows,
            # Inside the static share either pool may have run out: another fraction says nothing then.
            MemoryDirection.TOO_MANY_DRAFT_TOKENS: grows and death.is_beside_static_share,
        }[direction]
    is_size = not isinstance(parameter, ChoiceParameter) or parameter.ordered
    return is_size and grows
