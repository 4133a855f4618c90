"""Parameters as Optuna's distributions, and a queued trial that carries its own."""

from __future__ import annotations

from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.trial import FrozenTrial, create_trial
from optuna.trial import TrialState as OptunaState

from tuner.model.space import Assignment, ChoiceParameter, FloatParameter, Parameter
from tuner.search.domain import Domain
from tuner.search.rows import AGAIN, BASELINE


def waiting_trial(domain: Domain, assignment: Assignment, *, again: bool = False) -> FrozenTrial:
    """Return a trial for the queue, complete with its parameters and its marks.

    Args:
        domain: the space.
        assignment: canonical.
        again: it is to run although the assignment has counted already.
    """
    return create_trial(
        state=OptunaState.WAITING,
        params=dict(assignment),
        distributions=distributions_of(domain, assignment),
        user_attrs={BASELINE: assignment == domain.baseline} | ({AGAIN: True} if again else {}),
    )


def distributions_of(domain: Domain, assignment: Assignment) -> dict[str, BaseDistribution]:
    """Return the distributions of the parameters that apply, in the order of the space."""
    return {p.name: distribution_of(p) for p in domain.space.parameters if p.name in assignment}


def distribution_of(parameter: Parameter) -> BaseDistribution:
    """Return the parameter's range as Optuna writes it."""
    if isinstance(parameter, ChoiceParameter):
        return CategoricalDistribution(parameter.choices)
    # The last value, not the upper end: Optuna warns when the step does not lead to it.
    if isinstance(parameter, FloatParameter):
        return FloatDistribution(parameter.low, parameter.values()[-1], step=parameter.step)
    return IntDistribution(parameter.low, parameter.values()[-1], step=parameter.step)
