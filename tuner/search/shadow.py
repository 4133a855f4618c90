"""An in-memory study that shows a built-in sampler what it can learn from.

The study in the database holds the truth: crashed trials are PRUNED and have no values. Some
samplers ignore PRUNED, some need every parameter on every trial. So a sampler is never run on
the database: for each proposal a shadow is built from the counted history, in the form that
this sampler reads, asked, and thrown away. What is made up for it never reaches the database.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any, Final

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, IntDistribution
from optuna.samplers import BaseSampler
from optuna.trial import FrozenTrial, Trial, TrialState, create_trial

from tuner.model.metric import Direction, Objective
from tuner.model.space import Assignment, ChoiceParameter, Parameter, SearchSpace, Value
from tuner.search.constraints import KEY
from tuner.search.domain import Domain
from tuner.search.history import Experience, History
from tuner.search.storage import quiet_optuna

POPULATION: Final = 10
"""Trials a generation for NSGA-II: Optuna's 50 would never leave the first in a night."""

GENERATION_ATTRIBUTE: Final = "NSGAIISampler:generation"
"""Where Optuna's NSGA-II keeps a trial's generation; without it no trial is ever a parent."""

REJECTED_VIOLATION: Final = 4.0
"""As ``violation`` grades a server that refuses its arguments."""


class View(Enum):
    """How a sampler is shown a crashed trial."""

    PRUNED = "pruned"  # without values, with its violation: TPE learns from it
    # COMPLETE with its violation, and its own values where only a constraint is broken, else the worst measured: for
    # those that ignore PRUNED.
    IMPUTED = "imputed"


class ShadowSpace:
    """The space as a sampler sees it: positions on the grid instead of values.

    Position 1 is a parameter's first value. Ordered choices have neighbours that way, and
    floats cannot leave their grid by rounding.
    """

    def __init__(self, space: SearchSpace) -> None:
        self._grids: dict[str, Sequence[Value]] = {p.name: p.values() for p in space.parameters}
        self.distributions: dict[str, BaseDistribution] = {p.name: _distribution(p) for p in space.parameters}

    def encode(self, values: Mapping[str, Value]) -> dict[str, Any]:
        """Turn values (one for every parameter) into what the sampler sees."""
        return {
            name: values[name]
            if isinstance(self.distributions[name], CategoricalDistribution)
            else grid.index(values[name]) + 1
            for name, grid in self._grids.items()
        }

    def decode(self, params: Mapping[str, Any]) -> dict[str, Value]:
        """Turn what the sampler chose into values."""
        return {
            name: params[name]
            if isinstance(self.distributions[name], CategoricalDistribution)
            else grid[params[name] - 1]
            for name, grid in self._grids.items()
        }


def _distribution(parameter: Parameter) -> BaseDistribution:
    if isinstance(parameter, ChoiceParameter) and not parameter.ordered:
        return CategoricalDistribution(parameter.choices)
    return IntDistribution(1, len(parameter.values()))


class Shadow:
    """One proposal's study; ask it until it gives something usable, then drop it."""

    def __init__(
        self, domain: Domain, history: History, *, sampler: BaseSampler, view: View, objectives: Sequence[Objective]
    ) -> None:
        self._space = ShadowSpace(domain.space)
        self._domain = domain
        self._view = view
        self._imputed = worst_values(history.counted, objectives)
        quiet_optuna()
        self._study = optuna.create_study(
            directions=[objective.direction.value for objective in objectives], sampler=sampler
        )
        for order, experience in enumerate(history.counted):
            self._study.add_trial(self._counted(experience, generation=order // POPULATION))
        for assignment in history.running:
            self._study.add_trial(self._running(assignment))

    def ask(self) -> tuple[Trial, dict[str, Value]]:
        """Ask the sampler; the trial stays RUNNING, which pushes the sampler elsewhere."""
        trial = self._study.ask(fixed_distributions=self._space.distributions)
        return trial, self._space.decode(trial.params)

    def teach_infeasible(self, trial: Trial) -> None:
        """Tell the sampler that what it chose cannot run."""
        trial.set_constraint(KEY, REJECTED_VIOLATION)
        if self._view is View.PRUNED:
            self._study.tell(trial, state=TrialState.PRUNED)
        else:
            self._study.tell(trial, self._imputed)

    @property
    def trials(self) -> list[FrozenTrial]:
        """What the sampler is shown."""
        return self._study.trials

    def _params(self, assignment: Assignment) -> dict[str, Any]:
        return self._space.encode(self._domain.filled(assignment))

    def _running(self, assignment: Assignment) -> FrozenTrial:
        return create_trial(
            state=TrialState.RUNNING, params=self._params(assignment), distributions=self._space.distributions
        )

    def _counted(self, experience: Experience, *, generation: int) -> FrozenTrial:
        values = experience.values
        if values is None and self._view is View.IMPUTED:
            values = experience.outside or self._imputed
        return create_trial(
            state=TrialState.PRUNED if values is None else TrialState.COMPLETE,
            values=values,
            params=self._params(experience.assignment),
            distributions=self._space.distributions,
            constraints={KEY: experience.violation},
            system_attrs={GENERATION_ATTRIBUTE: generation},
        )


def worst_values(counted: Sequence[Experience], objectives: Sequence[Objective]) -> tuple[float, ...]:
    """Return the worst measured value of each objective; zeros before anything was measured.

    Shown only to samplers that need values for a crashed trial: bad enough not to attract,
    near enough not to bend the model of the objective.
    """
    measured = [experience.values for experience in counted if experience.values is not None]
    if not measured:
        return (0.0,) * len(objectives)
    return tuple(
        (min if objective.direction is Direction.MAXIMIZE else max)(column)
        for objective, column in zip(objectives, zip(*measured, strict=True), strict=True)
    )
