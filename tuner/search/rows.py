"""Trials of the database as TrialRow, for the driver and for whoever looks on."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import optuna
from optuna.trial import FrozenTrial
from optuna.trial import TrialState as OptunaState

from tuner.errors import LedgerError
from tuner.model.metric import Direction, Objective
from tuner.model.outcome import Faulted, Measured, TrialState
from tuner.model.repeat import RepeatTerms
from tuner.model.space import Assignment
from tuner.model.study import TrialRow
from tuner.search.outcome_json import decode_correction, decode_result
from tuner.search.repeats import TERMS, decode_terms, repeat_of
from tuner.search.storage import DATABASE, Purpose, mapped, open_storage, peek
from tuner.stats.repeats import settled

RESULT: Final = "result"
HOST: Final = "host"
BASELINE: Final = "baseline"
RULING: Final = "ruling"
"""The outcome by which a person ended a trial that still cleans up; its result follows."""
CORRECTIONS: Final = "corrections"
"""What people said of a trial after its end."""
AGAIN: Final = "again"
"""Marks a queued trial that is to run although its configuration has counted already."""
BUDGET: Final = "trials"
"""Where the study keeps how many trials are to count; every run sets it anew."""
ENQUEUED_PARAMETERS: Final = "fixed_params"
"""Where ``Study.enqueue_trial`` keeps the parameters of a trial that somebody else queued."""

FOREIGN_END = Faulted(error="ended by another program, which left no result", state=TrialState.DONE)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredStudy:
    """A study as its database shows it to an onlooker.

    Attributes:
        parameters: names, in the order of the space file.
        trials: how many were to count when it was last run; None: an older tuner ran it.
        tuner_version: that began the study.
        rows: settled: see :mod:`tuner.stats.repeats`.
        repeats: how much it spends on being sure, as it was last run.
        constraints: that a configuration must keep, as people write them.
    """

    name: str
    engine: str
    space: str
    parameters: tuple[str, ...]
    sampler: str
    simulated: bool
    trials: int | None
    tuner_version: str
    rows: tuple[TrialRow, ...]
    objectives: tuple[Objective, ...]
    repeats: RepeatTerms
    constraints: tuple[str, ...] = ()


def row_of(trial: FrozenTrial, objectives: tuple[str, ...]) -> TrialRow:
    """Read a trial as its own start ended.

    Args:
        trial: of a study that tuner began.
        objectives: names, in the study's order.

    Raises:
        LedgerError: its result is unreadable.
    """
    params: dict[str, Any] = trial.params or trial.system_attrs.get(ENQUEUED_PARAMETERS, {})
    assignment = Assignment.of(params)
    host: str | None = trial.user_attrs.get(HOST)
    baseline = bool(trial.user_attrs.get(BASELINE, False))
    entry = trial.user_attrs.get(RESULT)
    if not trial.state.is_finished() or entry is None:
        return TrialRow(
            number=trial.number,
            assignment=assignment,
            outcome=FOREIGN_END if trial.state.is_finished() else None,
            host=None if trial.state is OptunaState.WAITING else host,
            baseline=baseline,
            values=None,
            capacity=None,
            duration_s=None,
            repeat=repeat_of(trial),
        )
    try:
        result = decode_result(entry)
        corrections = tuple(decode_correction(each) for each in trial.user_attrs.get(CORRECTIONS, ()))
        outcome = result.outcome
        values = tuple(values_of(outcome, objectives)) if isinstance(outcome, Measured) else None
    except (KeyError, ValueError, TypeError) as error:
        raise LedgerError(
            f"trial {trial.number}: its result is unreadable ({error!r}); it was written by another version of tuner"
        ) from error
    return TrialRow(
        number=trial.number,
        assignment=assignment,
        outcome=outcome,
        host=result.host,
        baseline=baseline,
        values=values,
        capacity=result.capacity,
        duration_s=result.duration_s,
        trust=result.trust,
        by_prompt=result.by_prompt,
        corrections=corrections,
        repeat=repeat_of(trial),
        finished_s=result.finished_s,
    )


def values_of(outcome: Measured, objectives: tuple[str, ...]) -> list[float]:
    """Return the values to tell, in the study's order.

    Raises:
        KeyError: the trial was told without one of them.
    """
    return [float(outcome.estimate(name).value) for name in objectives]


def read_study(directory: str | Path, name: str) -> StoredStudy:
    """Read a study while another process may be running it; writes nothing.

    Raises:
        LedgerError: there is none, or its database is unreadable or of another study.
    """
    path = Path(directory) / DATABASE
    attributes = peek(path, name)
    if attributes is None:
        raise LedgerError(f"{path}: does not exist; begin the study with: python -m tuner run --study {name}")
    try:
        objectives = tuple(
            Objective(name=name, direction=Direction(direction), unit=unit)
            for name, direction, unit in attributes["objectives"]
        )
        names = tuple(objective.name for objective in objectives)
        with mapped(path), open_storage(path, purpose=Purpose.READ) as storage:
            trials = optuna.load_study(study_name=name, storage=storage).get_trials(deepcopy=False)
            rows = settled([row_of(trial, names) for trial in trials], objectives)
        return StoredStudy(
            name=name,
            engine=attributes["engine"],
            space=attributes["space_name"],
            parameters=tuple(attributes["parameters"]),
            sampler=attributes["sampler"],
            simulated=attributes["simulated"],
            trials=attributes.get(BUDGET),
            tuner_version=attributes["tuner_version"],
            rows=rows,
            objectives=objectives,
            repeats=decode_terms(attributes.get(TERMS)),
            constraints=tuple(attributes.get("constraints", ())),
        )
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise LedgerError(f"{path}: was not begun by tuner ({error!r}); move it away to begin anew") from error
