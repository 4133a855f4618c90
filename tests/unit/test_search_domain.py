import random
from dataclasses import replace
from itertools import islice

import pytest

from tuner.errors import AssignmentRejected
from tuner.model.space import Assignment, FloatParameter
from tuner.search.domain import Domain
from tuner.testing.draft_trees import FULL_BASELINE, FULL_SPACE, SMALL_BASELINE, SMALL_COUNT, SMALL_SPACE, canonical

FULL = Domain(FULL_SPACE, canonical, FULL_BASELINE)


def test_ten_thousand_random_assignments_are_canonical_or_rejected() -> None:
    rng = random.Random(5)
    kept: set[Assignment] = set()
    for _ in range(10_000):
        values = {parameter.name: rng.choice(parameter.values()) for parameter in FULL_SPACE.parameters}
        assignment = FULL.accepts(values)
        if assignment is None:
            assert values["topk"] != 1
            continue
        kept.add(assignment)
        assert FULL.canonical(assignment) == assignment
        assert FULL_SPACE.outside(assignment) is None
        steps = assignment["steps"]
        if steps == 0:
            assert set(assignment) == {"steps", "fraction"}
        elif assignment["topk"] == 1:
            assert assignment["draft"] == steps + 1
        else:
            topk, draft = assignment["topk"], assignment["draft"]
            assert steps < draft <= 1 + topk + (steps - 1) * topk**2
    assert len(kept) > 4000


def test_listing_yields_every_server_once_from_any_start() -> None:
    domain = Domain(SMALL_SPACE, canonical, SMALL_BASELINE)
    lists = [list(domain.assignments(start=start)) for start in (0, 1, 17, 10**9)]
    assert all(len(found) == len(set(found)) == SMALL_COUNT for found in lists)
    assert len({frozenset(found) for found in lists}) == 1
    assert lists[0] != lists[2]


def test_listing_the_shipped_kind_of_space_counts_what_the_rules_allow() -> None:
    one_fraction = FloatParameter(name="fraction", low=0.85, high=0.85, step=0.01)
    space = replace(FULL_SPACE, parameters=(*FULL_SPACE.parameters[:3], one_fraction))
    chains = 16
    trees = sum(
        max(0, min(64, 1 + topk + (steps - 1) * topk**2) - steps) for steps in range(1, 17) for topk in (2, 4, 8)
    )
    assert sum(1 for _ in Domain(space, canonical, FULL_BASELINE).assignments()) == 1 + chains + trees


def test_listing_is_lazy_and_scattered() -> None:
    first = list(islice(FULL.assignments(), 50))
    for name in ("steps", "topk", "fraction"):
        assert len({assignment.get(name) for assignment in first}) >= 4


def test_a_value_beside_the_grid_by_rounding_is_the_value_on_it() -> None:
    beside = Assignment.of(dict(FULL_BASELINE) | {"fraction": 0.8500000000001})
    assert FULL.canonical(beside) == FULL_BASELINE


def test_what_the_rules_force_must_be_inside_the_space_too() -> None:
    narrow = replace(FULL_SPACE, parameters=(*FULL_SPACE.parameters[:2], FULL_SPACE.parameters[3]))
    with pytest.raises(AssignmentRejected, match="draft"):
        Domain(narrow, lambda a: Assignment.of(dict(a) | {"draft": 4}), FULL_BASELINE)


def test_a_baseline_outside_the_space_is_refused() -> None:
    with pytest.raises(AssignmentRejected, match=r"fraction=0\.99"):
        Domain(FULL_SPACE, canonical, Assignment.of(dict(FULL_BASELINE) | {"fraction": 0.99}))


def test_parameters_that_do_not_apply_are_filled_with_the_least() -> None:
    assert FULL.filled(Assignment.of({"steps": 0, "fraction": 0.7})) == {
        "steps": 0,
        "topk": 1,
        "draft": 2,
        "fraction": 0.7,
    }
