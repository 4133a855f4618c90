"""The one constraint of every counted trial, in both of Optuna's encodings.

``Trial.set_constraint`` (Optuna 5) stores ``constraints:<key>``, which Optuna reads;
optuna-dashboard 0.21 reads only the older list ``constraints``. Every counted trial carries
both, feasible ones too: a sampler that finds different numbers of constraints refuses to work.
Written before ``tell``, because a finished trial cannot be changed.
"""

from __future__ import annotations

from typing import Final

from optuna.storages import BaseStorage
from optuna.trial import FrozenTrial

from tuner.model.outcome import Faulted, Infeasible, Interrupted, Measured, Outcome

KEY: Final = "infeasible"
"""Name of the constraint; feasible is at most 0 (see ``tuner.model.outcome.violation``)."""

NEW_ATTRIBUTE: Final = f"constraints:{KEY}"
OLD_ATTRIBUTE: Final = "constraints"


def constraint_of(outcome: Outcome) -> float | None:
    """Return the constraint's value: 0 is feasible, above 0 is not; None: the trial does not count.

    Raises:
        ValueError: an infeasible outcome whose violation is not positive would pass as feasible.
    """
    match outcome:
        case Measured():
            return 0.0
        case Infeasible(violation=violation):
            if not violation > 0:
                raise ValueError(f"an infeasible trial needs a violation above 0, not {violation}")
            return float(violation)
        case Faulted() | Interrupted():
            return None


def write_constraint(storage: BaseStorage, trial: FrozenTrial, value: float) -> None:
    """Store the constraint of an unfinished trial in both encodings; writing it again is no error."""
    # At the storage, not through set_constraint: after a crash between the two writes the
    # same values are written again, which set_constraint refuses.
    storage.set_trial_system_attr(trial._trial_id, NEW_ATTRIBUTE, value)  # noqa: SLF001 (no public id)
    storage.set_trial_system_attr(trial._trial_id, OLD_ATTRIBUTE, [value])  # noqa: SLF001
