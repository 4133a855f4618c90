from tuner.errors import AssignmentRejected
from tuner.model.space import Assignment, ChoiceParameter, FloatParameter, IntParameter, SearchSpace
from tuner.search.domain import Domain
from tuner.search.opening import SIZE, opening
from tuner.testing.draft_trees import FULL_BASELINE, FULL_SPACE, SMALL_BASELINE, SMALL_SPACE, canonical


def server(steps: int, topk: int, draft: int, fraction: float) -> Assignment:
    return Assignment.of({"steps": steps, "topk": topk, "draft": draft, "fraction": fraction})


def test_for_draft_trees_it_walks_the_steps_then_two_trees_then_the_fraction() -> None:
    assert opening(Domain(FULL_SPACE, canonical, FULL_BASELINE)) == (
        server(1, 1, 2, 0.85),
        server(5, 1, 6, 0.85),
        server(8, 1, 9, 0.85),
        server(3, 2, 8, 0.85),
        server(3, 4, 16, 0.85),
        server(3, 1, 4, 0.88),
    )


def test_from_speculation_switched_off_it_still_finds_trees() -> None:
    off = Assignment.of({"steps": 0, "fraction": 0.85})
    moves = opening(Domain(FULL_SPACE, canonical, off))
    assert len(moves) == len(set(moves)) >= 5
    assert {move.get("topk") for move in moves} >= {1, 2, 4}
    assert off not in moves


def test_at_the_top_of_the_fraction_it_goes_down() -> None:
    top = Assignment.of(dict(FULL_BASELINE) | {"fraction": 0.95})
    fractions = {move["fraction"] for move in opening(Domain(FULL_SPACE, canonical, top))}
    assert min(fractions) < 0.95


def test_a_small_space_gives_what_it_has_without_repeats() -> None:
    domain = Domain(SMALL_SPACE, canonical, SMALL_BASELINE)
    moves = opening(domain)
    assert len(moves) == len(set(moves)) <= SIZE
    assert domain.baseline not in moves
    assert all(domain.canonical(move) == move for move in moves)


def test_another_engine_with_other_parameters_gets_one_move_on_every_axis_that_does_something() -> None:
    space = SearchSpace(
        name="cpu",
        engine="cpu",
        parameters=(
            ChoiceParameter(name="speculation", choices=("none", "ngram", "draft")),
            IntParameter(name="draft_max", low=2, high=48),
            IntParameter(name="slots", low=1, high=16),
            ChoiceParameter(name="batch", choices=(256, 512, 1024, 2048), ordered=True),
            IntParameter(name="threads", low=1, high=2),
        ),
    )

    def rules(assignment: Assignment) -> Assignment:
        values = dict(assignment)
        if values["speculation"] == "none":
            values.pop("draft_max", None)
        elif "draft_max" not in values:
            raise AssignmentRejected("draft_max is missing")
        return Assignment.of(values)

    baseline = Assignment.of({"speculation": "none", "slots": 1, "batch": 512, "threads": 1})
    moves = opening(Domain(space, rules, baseline))
    assert len(moves) == SIZE
    assert {move["speculation"] for move in moves} >= {"ngram"}
    for name in ("slots", "batch", "threads"):
        assert any(move[name] != baseline[name] for move in moves), name
    # Drafts do nothing at the baseline; they are moved where speculation is on.
    assert len({move["draft_max"] for move in moves if "draft_max" in move}) > 1


def test_a_space_of_one_point_has_no_moves() -> None:
    space = SearchSpace(
        name="one", engine="one", parameters=(FloatParameter(name="fraction", low=0.8, high=0.8, step=0.1),)
    )
    assert opening(Domain(space, lambda assignment: assignment, Assignment.of({"fraction": 0.8}))) == ()
