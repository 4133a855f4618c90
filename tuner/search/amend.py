"""Rewrites the end of a finished trial, which Optuna has no way to do.

A person may overrule a verdict, and then everybody who reads the database is to see the new one:
samplers, ``best_trials``, optuna-dashboard. So the rows of that one trial are made what they would be
had it been told so in the first place, in one transaction, through the tables as Optuna's own models
describe them. What stood there before is kept in an attribute.

A program that holds the study open keeps finished trials in memory and sees the change when it opens
the study again: that is how Optuna caches. Whoever amends must open its own study anew.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from optuna.storages import RDBStorage
from optuna.storages._rdb import models
from optuna.trial import FrozenTrial
from optuna.trial import TrialState as OptunaState
from sqlalchemy import Connection, Table

from tuner.search.constraints import NEW_ATTRIBUTE, OLD_ATTRIBUTE


def amend(
    storage: RDBStorage,
    trial: FrozenTrial,
    *,
    state: OptunaState,
    values: Sequence[float] | None,
    constraint: float | None,
    attributes: Mapping[str, Any],
) -> None:
    """Make a finished trial one that ended otherwise.

    Args:
        storage: of the study.
        trial: finished.
        state: finished as well.
        values: one per objective; None: it has none.
        constraint: None: it has none.
        attributes: user attributes to set; None as a value removes one.
    """
    trial_id = trial._trial_id  # noqa: SLF001 (no public id)
    constraints = {NEW_ATTRIBUTE: constraint, OLD_ATTRIBUTE: None if constraint is None else [constraint]}
    trials, kept = _table(models.TrialModel), _table(models.TrialValueModel)
    with storage.engine.begin() as connection:
        connection.execute(trials.update().where(trials.c.trial_id == trial_id).values(state=state))
        connection.execute(kept.delete().where(kept.c.trial_id == trial_id))
        for objective, value in enumerate(values or ()):
            stored, kind = models.TrialValueModel.value_to_stored_repr(value)
            row = {"trial_id": trial_id, "objective": objective, "value": stored, "value_type": kind}
            connection.execute(kept.insert().values(row))
        _set(connection, _table(models.TrialSystemAttributeModel), trial_id, constraints)
        _set(connection, _table(models.TrialUserAttributeModel), trial_id, attributes)


def _set(connection: Connection, table: Table, trial_id: int, attributes: Mapping[str, Any]) -> None:
    for key, value in attributes.items():
        connection.execute(table.delete().where(table.c.trial_id == trial_id, table.c.key == key))
        if value is not None:
            connection.execute(table.insert().values(trial_id=trial_id, key=key, value_json=json.dumps(value)))


def _table(model: type[Any]) -> Table:
    table = model.__table__
    assert isinstance(table, Table)
    return table
