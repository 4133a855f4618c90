from dataclasses import replace

import pytest

from tuner.model.outcome import MemoryDirection
from tuner.model.space import Assignment
from tuner.search.history import Experience
from tuner.search.safety import is_ruled_out
from tuner.testing.draft_trees import FULL_SPACE

HIGH, LOW, MANY = (
    MemoryDirection.FRACTION_TOO_HIGH,
    MemoryDirection.FRACTION_TOO_LOW,
    MemoryDirection.TOO_MANY_DRAFT_TOKENS,
)


def server(steps: int, topk: int, draft: int, fraction: float) -> Assignment:
    return Assignment.of({"steps": steps, "topk": topk, "draft": draft, "fraction": fraction})


def death(assignment: Assignment, direction: MemoryDirection | None) -> Experience:
    return Experience(assignment=assignment, values=None, violation=1.0, direction=direction)


DEAD = server(4, 2, 8, 0.85)


@pytest.mark.parametrize(
    ("direction", "candidate", "ruled_out"),
    [
        (HIGH, server(4, 2, 8, 0.85), True),
        (HIGH, server(4, 2, 8, 0.9), True),
        (HIGH, server(4, 2, 8, 0.84), False),
        (HIGH, server(5, 2, 9, 0.9), True),
        (HIGH, server(5, 2, 9, 0.85), True),
        (HIGH, server(5, 2, 9, 0.84), False),
        (HIGH, server(4, 1, 8, 0.9), False),
        (LOW, server(4, 2, 8, 0.84), True),
        (LOW, server(4, 2, 8, 0.86), False),
        (LOW, server(4, 2, 9, 0.84), True),
        (LOW, server(4, 2, 7, 0.84), False),
        (MANY, server(4, 2, 9, 0.85), True),
        (MANY, server(5, 4, 8, 0.85), True),
        (MANY, server(5, 2, 7, 0.85), False),
        (MANY, server(4, 2, 9, 0.84), False),
        (MANY, Assignment.of({"steps": 0, "fraction": 0.85}), False),
        (None, server(4, 2, 9, 0.95), False),
    ],
)
def test_a_death_rules_out_what_asks_for_at_least_as_much_in_every_way(
    direction: MemoryDirection | None, candidate: Assignment, ruled_out: bool
) -> None:
    assert is_ruled_out(candidate, [death(DEAD, direction)], FULL_SPACE) is ruled_out


def test_what_lived_rules_nothing_out() -> None:
    lived = Experience(assignment=DEAD, values=(1.0, 1.0))
    assert not is_ruled_out(DEAD, [lived], FULL_SPACE)


@pytest.mark.parametrize(("fraction", "ruled_out"), [(0.84, False), (0.85, True), (0.9, True)])
def test_drafts_that_found_no_room_beside_the_static_share_find_less_beside_a_larger_one(
    fraction: float, ruled_out: bool
) -> None:
    beside = replace(death(DEAD, MANY), is_beside_static_share=True)
    assert is_ruled_out(server(4, 2, 9, fraction), [beside], FULL_SPACE) is ruled_out
