import optuna
import pytest
from optuna.distributions import CategoricalDistribution, IntDistribution
from optuna.samplers import NSGAIISampler, RandomSampler
from optuna.trial import TrialState

from tuner.model.metric import OBJECTIVES
from tuner.model.space import Assignment, ChoiceParameter, SearchSpace
from tuner.search.constraints import KEY
from tuner.search.domain import Domain
from tuner.search.history import Experience, History
from tuner.search.shadow import GENERATION_ATTRIBUTE, POPULATION, Shadow, ShadowSpace, View, worst_values
from tuner.testing.draft_trees import FULL_BASELINE, FULL_SPACE, canonical

DOMAIN = Domain(FULL_SPACE, canonical, FULL_BASELINE)
OFF = Assignment.of({"steps": 0, "fraction": 0.7})
GOOD = Experience(assignment=FULL_BASELINE, values=(234.0, 1979.0))
OTHER = Experience(assignment=OFF, values=(70.0, 2400.0))
DEAD = Experience(
    assignment=Assignment.of({"steps": 10, "topk": 1, "draft": 11, "fraction": 0.85}), values=None, violation=1.4
)


def shadow(view: View, *experiences: Experience, running: tuple[Assignment, ...] = ()) -> Shadow:
    taken = frozenset({experience.assignment for experience in experiences} | set(running))
    history = History(counted=experiences, running=running, taken=taken)
    return Shadow(DOMAIN, history, sampler=RandomSampler(seed=1), view=view, objectives=OBJECTIVES)


def test_a_crash_is_shown_pruned_with_its_violation_to_samplers_that_read_it() -> None:
    _, dead = shadow(View.PRUNED, GOOD, DEAD).trials
    assert dead.state is TrialState.PRUNED
    assert dead.values is None
    assert dead.constraints == {KEY: 1.4}


def test_a_crash_is_shown_with_the_worst_measured_values_to_samplers_that_need_some() -> None:
    *_, dead = shadow(View.IMPUTED, GOOD, OTHER, DEAD).trials
    assert dead.state is TrialState.COMPLETE
    assert dead.values == [70.0, 1979.0]
    assert dead.constraints == {KEY: 1.4}


def test_every_trial_carries_the_same_constraint_and_every_parameter() -> None:
    trials = shadow(View.IMPUTED, GOOD, OTHER, DEAD).trials
    assert {tuple(trial.constraints) for trial in trials} == {(KEY,)}
    assert {frozenset(trial.params) for trial in trials} == {frozenset({"steps", "topk", "draft", "fraction"})}


def test_what_runs_is_shown_running() -> None:
    trials = shadow(View.PRUNED, GOOD, running=(OFF,)).trials
    assert [trial.state for trial in trials] == [TrialState.COMPLETE, TrialState.RUNNING]


@pytest.mark.parametrize(("view", "state"), [(View.PRUNED, TrialState.PRUNED), (View.IMPUTED, TrialState.COMPLETE)])
def test_what_cannot_run_is_taught_and_what_is_taken_stays_running(view: View, state: TrialState) -> None:
    asked = shadow(view, GOOD)
    trial, _ = asked.ask()
    asked.teach_infeasible(trial)
    asked.ask()
    assert [t.state for t in asked.trials[1:]] == [state, TrialState.RUNNING]
    assert asked.trials[1].constraints[KEY] > 0


def test_values_survive_the_way_to_the_sampler_and_back() -> None:
    space = ShadowSpace(FULL_SPACE)
    for assignment in (FULL_BASELINE, OFF, DEAD.assignment):
        filled = DOMAIN.filled(assignment)
        encoded = space.encode(filled)
        assert space.decode(encoded) == filled
        assert all(space.distributions[name]._contains(value) for name, value in encoded.items())


def test_only_choices_without_an_order_are_categories() -> None:
    space = SearchSpace(
        name="mixed",
        engine="x",
        parameters=(ChoiceParameter(name="kind", choices=("a", "b")), *FULL_SPACE.parameters),
    )
    kinds = ShadowSpace(space).distributions
    assert isinstance(kinds["kind"], CategoricalDistribution)
    assert isinstance(kinds["topk"], IntDistribution)


def test_the_worst_values_are_zeros_before_anything_was_measured() -> None:
    assert worst_values([DEAD], OBJECTIVES) == (0.0, 0.0)


def test_optunas_nsga2_finds_the_generations_where_they_are_written() -> None:
    assert NSGAIISampler._get_generation_key() == GENERATION_ATTRIBUTE
    many = tuple(
        Experience(assignment=assignment, values=(float(index), float(-index)))
        for index, assignment in zip(range(POPULATION + 3), DOMAIN.assignments(), strict=False)
    )
    generations = [trial.system_attrs[GENERATION_ATTRIBUTE] for trial in shadow(View.IMPUTED, *many).trials]
    assert generations == [0] * POPULATION + [1] * 3


def test_a_shadow_never_prints_and_never_touches_a_file(capfd: pytest.CaptureFixture[str]) -> None:
    asked = shadow(View.PRUNED, GOOD)
    asked.ask()
    assert isinstance(asked._study._storage, optuna.storages.InMemoryStorage)
    assert capfd.readouterr() == ("", "")
