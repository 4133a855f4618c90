"""How a trial that measures another again stands in the database, and what it does to the other there.

Optuna is told FAIL of every repeat: no sampler and no front looks at it, and the configuration exists once for
them. Its result is kept like any other. The trial that it measures again shows what came out of all starts
together: its rows are rewritten whenever that changed, and hold nothing that could not be worked out again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, Final

from optuna.storages import RDBStorage
from optuna.trial import FrozenTrial
from optuna.trial import TrialState as OptunaState

from tuner.model.outcome import Infeasible
from tuner.model.repeat import Purpose, Repeat, RepeatTerms
from tuner.model.study import TrialRow
from tuner.search.amend import amend
from tuner.search.constraints import NEW_ATTRIBUTE, constraint_of

REPEAT_OF: Final = "repeat_of"
PURPOSE: Final = "purpose"
TERMS: Final = "repeats"
"""Where the study keeps how much it spends on repeats; every run sets it anew."""
CAUSE: Final = "cause"
OUTCOME: Final = "outcome"


def marks_of(repeat: Repeat) -> dict[str, Any]:
    """Return the user attributes of a repeat."""
    return {REPEAT_OF: repeat.of, PURPOSE: repeat.purpose.value}


def repeat_of(trial: FrozenTrial) -> Repeat | None:
    """Read what a trial measures again; None: it is a trial of the search."""
    number = trial.user_attrs.get(REPEAT_OF)
    return None if number is None else Repeat(of=number, purpose=Purpose(trial.user_attrs[PURPOSE]))


def encode_terms(terms: RepeatTerms) -> dict[str, Any]:
    """Return terms as JSON values."""
    return asdict(terms)


def decode_terms(entry: Mapping[str, Any] | None) -> RepeatTerms:
    """Read what :func:`encode_terms` wrote; None: an older tuner ran the study, and nothing is repeated."""
    return RepeatTerms() if entry is None else RepeatTerms(**entry)


def show(storage: RDBStorage, trial: FrozenTrial, row: TrialRow) -> bool:
    """Let a finished trial of the search show what its starts together say; False: it does already.

    Args:
        storage: of the study.
        trial: as it is in the database.
        row: the same, settled; one that counts.
    """
    assert row.outcome is not None
    constraint = constraint_of(row.outcome)
    values = None if row.values is None else list(row.values)
    is_infeasible = isinstance(row.outcome, Infeasible)
    state = OptunaState.PRUNED if is_infeasible else OptunaState.COMPLETE
    shown = (trial.state, trial.values, trial.system_attrs.get(NEW_ATTRIBUTE))
    if shown == (state, values, constraint):
        return False
    amend(
        storage,
        trial,
        state=state,
        values=values,
        constraint=constraint,
        attributes={
            OUTCOME: type(row.outcome).__name__.lower(),
            CAUSE: row.outcome.verdict.cause.value if isinstance(row.outcome, Infeasible) else None,
        },
    )
    return True
