"""What a death from memory rules out at otherwise equal settings.

Kept to the two certain lessons: with everything else equal, a fraction at or above one that
ran out of memory runs out as well (at or below one that left no room for the cache, likewise),
and so does a tree at least as large in every way as one that did. A death without a direction
rules nothing out: one unexplained crash must never close a region.
"""

from __future__ import annotations

from collections.abc import Iterable

from tuner.model.outcome import MemoryDirection
from tuner.model.space import Assignment, ChoiceParameter, FloatParameter, SearchSpace
from tuner.search.history import Experience


def is_ruled_out(candidate: Assignment, experiences: Iterable[Experience], space: SearchSpace) -> bool:
    """Whether a death that was seen tells that ``candidate`` dies as well.

    Shares of memory are the space's float parameters; sizes are its whole numbers and
    ordered choices.
    """
    return any(
        experience.direction is not None and _dies_too(candidate, experience.assignment, experience.direction, space)
        for experience in experiences
        if experience.violation > 0
    )


def _dies_too(candidate: Assignment, dead: Assignment, direction: MemoryDirection, space: SearchSpace) -> bool:
    if set(candidate) != set(dead):
        return False
    for parameter in space.parameters:
        name = parameter.name
        if name not in dead or candidate[name] == dead[name]:
            continue
        values = parameter.values()
        grows = values.index(candidate[name]) > values.index(dead[name])
        if isinstance(parameter, FloatParameter):
            wanted = {
                MemoryDirection.FRACTION_TOO_HIGH: grows,
                MemoryDirection.FRACTION_TOO_LOW: not grows,
                MemoryDirection.TOO_MANY_DRAFT_TOKENS: False,
            }
        else:
            is_size = not isinstance(parameter, ChoiceParameter) or parameter.ordered
            wanted = {
                MemoryDirection.FRACTION_TOO_HIGH: False,
                MemoryDirection.FRACTION_TOO_LOW: False,
                MemoryDirection.TOO_MANY_DRAFT_TOKENS: is_size and grows,
            }
        if not wanted[direction]:
            return False
    return True
