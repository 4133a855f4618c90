import importlib.util
from collections.abc import Callable
from dataclasses import replace

import pytest

from tuner.errors import UsageError
from tuner.model.metric import OBJECTIVES
from tuner.model.outcome import MemoryDirection
from tuner.model.space import Assignment
from tuner.search.domain import Domain
from tuner.search.history import Experience, History
from tuner.search.opening import opening
from tuner.search.safety import is_ruled_out
from tuner.search.samplers import SAMPLERS, Setting, make_strategy
from tuner.testing.draft_trees import FULL_BASELINE, FULL_SPACE, SMALL_BASELINE, SMALL_COUNT, SMALL_SPACE, canonical

HERE = [name for name in SAMPLERS if name != "gp" or importlib.util.find_spec("torch") is not None]
NOTHING = History(counted=(), running=(), taken=frozenset())


def setting(*, small: bool = False, seed: int = 3) -> Setting:
    domain = Domain(SMALL_SPACE, canonical, SMALL_BASELINE) if small else Domain(FULL_SPACE, canonical, FULL_BASELINE)
    return Setting(domain=domain, objectives=OBJECTIVES, seed=seed)


def after(history: History, experience: Experience) -> History:
    return replace(
        history,
        counted=(*history.counted, experience),
        taken=history.taken | {experience.assignment},
    )


def lives(assignment: Assignment) -> Experience:
    """Speed grows with steps, capacity with the fraction."""
    steps, fraction = float(assignment["steps"]), float(assignment["fraction"])
    return Experience(assignment=assignment, values=(60 * (1 + steps) ** 0.7, 4000 * fraction - 90 * steps))


def dies_above_five_steps(assignment: Assignment) -> Experience:
    if int(assignment["steps"]) > 5:
        return Experience(assignment=assignment, values=None, violation=1.5)
    return lives(assignment)


def run(
    name: str, world: Callable[[Assignment], Experience], trials: int, *, small: bool = False, seed: int = 3
) -> list[Experience]:
    chosen = setting(small=small, seed=seed)
    strategy = make_strategy(name, chosen)
    history = after(NOTHING, world(chosen.domain.baseline))
    while len(history.counted) < trials:
        assignment = strategy.next(history)
        if assignment is None:
            break
        history = after(history, world(assignment))
    return list(history.counted)


@pytest.mark.parametrize("name", HERE)
def test_every_sampler_proposes_canonical_assignments_without_repeats_until_none_is_left(name: str) -> None:
    found = [experience.assignment for experience in run(name, lives, 99, small=True)]
    assert len(found) == len(set(found)) == SMALL_COUNT
    assert all(canonical(assignment) == assignment for assignment in found)


@pytest.mark.parametrize("name", HERE)
def test_every_sampler_goes_on_in_the_same_way_from_the_same_history(name: str) -> None:
    trials = run(name, dies_above_five_steps, 14)
    history = NOTHING
    for experience in trials[:-1]:
        history = after(history, experience)
    # A fresh strategy, as after a restart of the driver.
    assert make_strategy(name, setting()).next(history) == trials[-1].assignment


@pytest.mark.parametrize("name", HERE)
def test_every_sampler_avoids_what_runs_on_another_host(name: str) -> None:
    strategy = make_strategy(name, setting())
    history = after(NOTHING, lives(FULL_BASELINE))
    first = strategy.next(history)
    assert first is not None
    running = replace(history, running=(first,), taken=history.taken | {first})
    assert strategy.next(running) not in (None, first)


@pytest.mark.parametrize("name", ["auto", "tpe", "nsga2"])
def test_crashes_teach_a_sampler_to_stay_away(name: str) -> None:
    crashes = {
        who: sum(
            experience.violation > 0
            for seed in range(2)
            for experience in run(who, dies_above_five_steps, 30, seed=seed)[15:]
        )
        for who in (name, "random")
    }
    assert crashes[name] < 0.75 * crashes["random"]


def test_auto_begins_with_the_opening() -> None:
    chosen = [experience.assignment for experience in run("auto", lives, 7)]
    assert chosen == [FULL_BASELINE, *opening(setting().domain)]


def test_auto_skips_a_move_of_the_opening_that_is_shown_to_die() -> None:
    def world(assignment: Assignment) -> Experience:
        if int(assignment["steps"]) >= 5:
            return Experience(
                assignment=assignment,
                values=None,
                violation=1.0,
                direction=MemoryDirection.TOO_MANY_DRAFT_TOKENS,
            )
        return lives(assignment)

    steps = [experience.assignment["steps"] for experience in run("auto", world, 7)]
    assert 5 in steps
    assert 8 not in steps


def test_auto_never_proposes_what_a_death_from_memory_rules_out() -> None:
    def world(assignment: Assignment) -> Experience:
        if float(assignment["fraction"]) > 0.8:
            return Experience(
                assignment=assignment, values=None, violation=1.0, direction=MemoryDirection.FRACTION_TOO_HIGH
            )
        return lives(assignment)

    trials = run("auto", world, 25)
    for index, experience in enumerate(trials[1:], start=1):
        assert not is_ruled_out(experience.assignment, trials[:index], FULL_SPACE)


def test_auto_proposes_what_is_ruled_out_when_nothing_else_is_left() -> None:
    def world(assignment: Assignment) -> Experience:
        return Experience(
            assignment=assignment, values=None, violation=1.0, direction=MemoryDirection.TOO_MANY_DRAFT_TOKENS
        )

    found = [experience.assignment for experience in run("auto", world, 99, small=True)]
    assert len(set(found)) == SMALL_COUNT


def test_the_grid_is_coarse_first() -> None:
    chosen = [experience.assignment for experience in run("grid", lives, 20)][1:]
    assert {assignment["fraction"] for assignment in chosen} <= {0.6, 0.78, 0.95}
    assert {assignment["steps"] for assignment in chosen} <= {0, 8, 16}


def test_another_seed_is_another_study() -> None:
    one, other = run("random", lives, 10, seed=1), run("random", lives, 10, seed=2)
    assert one != other


@pytest.mark.parametrize("name", HERE)
def test_the_highest_seed_a_study_may_have_is_one_that_numpy_takes(name: str) -> None:
    strategy = make_strategy(name, setting(small=True, seed=2**32 - 1))
    history = History(counted=(), running=(), taken=frozenset({SMALL_BASELINE}))
    assert strategy.next(after(history, lives(SMALL_BASELINE))) is not None


def test_an_unknown_sampler_is_refused_with_the_known_ones() -> None:
    with pytest.raises(UsageError, match=r"'bayes' does not exist; use one of: auto, tpe, gp, nsga2, random, grid"):
        make_strategy("bayes", setting())


def test_gp_without_pytorch_is_refused_with_the_remedy() -> None:
    if importlib.util.find_spec("torch") is None:
        with pytest.raises(UsageError, match="pip install torch"):
            make_strategy("gp", setting())
    else:
        assert make_strategy("gp", setting()).next(NOTHING) is not None
