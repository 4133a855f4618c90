"""The study in its database: the Optimizer port over Optuna and SQLite.

The database is the truth. What a trial ended with is written in one attribute before it is
told, so that a driver killed between the two finds it and finishes the telling; what is to
run again is queued before its trial is told, so that it cannot be lost. Trials hold the
canonical assignment as their parameters; those that do not apply are absent.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import optuna
from optuna.storages import RDBStorage
from optuna.trial import FrozenTrial, create_trial
from optuna.trial import TrialState as OptunaState

from tuner.errors import LedgerError
from tuner.model.outcome import Faulted, Infeasible, Interrupted, Measured, Outcome, TrialState
from tuner.model.repeat import Repeat
from tuner.model.ruling import Correction
from tuner.model.space import Assignment, Value
from tuner.model.study import StudySpec, TrialRow
from tuner.model.trial import TrialResult
from tuner.ports import Proposal
from tuner.search.amend import amend
from tuner.search.constraints import constraint_of, write_constraint
from tuner.search.distributions import distributions_of, waiting_trial
from tuner.search.domain import Domain
from tuner.search.history import History
from tuner.search.identity import difference, identity_of
from tuner.search.lock import StudyLock, remove_if_empty
from tuner.search.outcome_json import (
    decode_outcome,
    decode_result,
    encode_correction,
    encode_outcome,
    encode_result,
    encode_unfinished,
)
from tuner.search.queue import Queue
from tuner.search.repeats import CAUSE, OUTCOME, TERMS, encode_terms, marks_of, repeat_of, show
from tuner.search.rows import BASELINE, BUDGET, CORRECTIONS, HOST, RESULT, RULING, row_of, values_of
from tuner.search.samplers import Setting, Strategy, make_strategy
from tuner.search.storage import DATABASE, check_room, create, mapped, open_storage, peek
from tuner.stats.repeats import settled


def check_ledger(spec: StudySpec) -> None:
    """Look whether :func:`open_ledger` could open the study; writes nothing.

    Raises:
        LedgerError: the database is corrupt or of another study.
        StudyUnwritable: the folder cannot be written; each message names the path and the remedy.
    """
    directory = Path(spec.directory)
    check_room(directory)
    path = directory / DATABASE
    stored = peek(path, spec.name)
    if stored is None:
        return
    reason = difference(stored, spec)
    if reason is not None:
        raise LedgerError(f"{path}: study {spec.name} {reason}; choose another study name, or move the folder away")


def open_ledger(spec: StudySpec, canonical: Callable[[Assignment], Assignment]) -> OptunaLedger:
    """Open the study's database for its one driver, making it if there is none.

    A new study's baseline is queued as trial 0.

    Args:
        spec: the study.
        canonical: the engine adapter's.

    Raises:
        LedgerError, StudyUnwritable: see :func:`check_ledger`; or another process runs the study.
        UsageError: unknown sampler, or the baseline is not in the space.
    """
    domain = Domain(spec.space, canonical, spec.baseline)
    setting = Setting(domain=domain, objectives=spec.objectives, seed=spec.seed)
    strategy = make_strategy(spec.sampler, setting)
    check_ledger(spec)
    directory = Path(spec.directory)
    path = directory / DATABASE
    with contextlib.ExitStack() as undo:
        with mapped(directory):
            for folder in reversed([directory, *directory.parents]):
                if not folder.exists():
                    folder.mkdir()
                    undo.callback(remove_if_empty, folder)
        lock = StudyLock.acquire(directory)
        undo.callback(lock.release)
        check_ledger(spec)  # again: another driver may have begun the study since
        if not path.exists():
            undo.callback(lock.remove)
            create(
                path,
                spec.name,
                objectives=spec.objectives,
                attributes=identity_of(spec),
                first=waiting_trial(domain, domain.baseline),
            )
        resources = contextlib.ExitStack()
        resources.callback(lock.release)
        undo.callback(resources.close)
        with mapped(path):
            storage = resources.enter_context(open_storage(path))
            study = optuna.load_study(study_name=spec.name, storage=storage)
            study.set_user_attr(BUDGET, spec.trials)
            study.set_user_attr(TERMS, encode_terms(spec.repeats))
        undo.pop_all()
        return OptunaLedger(
            setting=setting, strategy=strategy, study=study, storage=storage, path=path, resources=resources
        )


class OptunaLedger:
    """The driver's view of the study; see ``tuner.ports.Optimizer``. Made by :func:`open_ledger`."""

    def __init__(
        self,
        *,
        setting: Setting,
        strategy: Strategy,
        study: optuna.Study,
        storage: RDBStorage,
        path: Path,
        resources: contextlib.ExitStack,
    ) -> None:
        self._name = study.study_name
        self._measures = setting.objectives
        self._objectives = tuple(objective.name for objective in setting.objectives)
        self._domain = setting.domain
        self._strategy = strategy
        self._study = study
        self._storage = storage
        self._path = path
        self._resources = resources
        self._queue = Queue(lambda: self._study, storage, setting.domain, self._objectives)

    def settle(self) -> tuple[int, ...]:
        """Tell the trials that a dead driver left RUNNING, and queue their assignments.

        A trial whose result was already written is told with that result, and one that a person
        had ended as that person said: what is finished does not run twice. Returns the numbers of
        the interrupted ones.
        """
        interrupted: list[int] = []
        with mapped(self._path):
            for trial in self._trials(OptunaState.RUNNING):
                entry = trial.user_attrs.get(RESULT)
                if entry is not None:
                    outcome = decode_result(entry).outcome
                else:
                    ruled = trial.user_attrs.get(RULING)
                    outcome = Interrupted(state=TrialState.PROPOSED) if ruled is None else decode_outcome(ruled)
                    self._record(trial, encode_unfinished(outcome, trial.user_attrs.get(HOST)), outcome)
                    if isinstance(outcome, Interrupted):
                        interrupted.append(trial.number)
                self._finish(trial, outcome)
            self._show_repeats()
        return tuple(interrupted)

    def propose(self, host: str) -> Proposal | None:
        """Take the next assignment: the queue's first that still needs running, else the sampler's."""
        with mapped(self._path):
            history = History.of(self.rows(), self._objectives)
            queued = self._queue.take(host, history)
            if queued is not None:
                return queued
            assignment = self._strategy.next(history)
            if assignment is None:
                return None
            number = self._begin(assignment, {HOST: host, BASELINE: False})
            return Proposal(number=number, assignment=assignment, baseline=False)

    def repeat(self, repeat: Repeat, host: str) -> Proposal:
        """Begin to measure a finished trial once more.

        Raises:
            ValueError: there is no such trial, or it was not measured.
        """
        with mapped(self._path):
            rows = self.rows()
            row = rows[repeat.of] if 0 <= repeat.of < len(rows) else None
            if row is None or row.repeat is not None or not isinstance(row.outcome, Measured):
                raise ValueError(f"study {self._name}, trial {repeat.of}: was not measured, so it cannot be repeated")
            marks = marks_of(repeat)
            number = self._begin(row.assignment, {HOST: host, BASELINE: row.baseline, **marks})
            return Proposal(number=number, assignment=row.assignment, baseline=row.baseline, repeat=repeat)

    def _begin(self, assignment: Assignment, attributes: Mapping[str, Any]) -> int:
        trial = create_trial(
            state=OptunaState.RUNNING,
            params=dict(assignment),
            distributions=distributions_of(self._domain, assignment),
            user_attrs=dict(attributes),
        )
        self._study.add_trial(trial)
        return self._trials(OptunaState.RUNNING)[-1].number  # the driver is the only writer of RUNNING

    def canonical(self, values: Mapping[str, Value]) -> Assignment:
        """Return the canonical form of values; see :class:`Domain`."""
        return self._domain.canonical(values)

    def enqueue(self, assignment: Assignment, *, again: bool = False) -> None:
        """Queue an assignment; one that runs or waits already is left as it is, and one that counted but for ``again``.

        Raises:
            AssignmentRejected: the engine refuses it, or it is outside the space.
        """
        canonical = self._domain.canonical(assignment)
        with mapped(self._path):
            rows = self.rows()
            own = (row for row in rows if row.repeat is None)
            is_open = any(row.outcome is None and row.assignment == canonical for row in own)
            if not is_open and (again or canonical not in History.of(rows).taken):
                self._queue.add(canonical, again=again)

    def rule(self, number: int, outcome: Infeasible | Interrupted) -> None:
        """Keep how a person ended a running trial, until it is told.

        Raises:
            ValueError: it does not run.
        """
        constraint_of(outcome)
        with mapped(self._path):
            trial = self._trial(number)
            if trial is None or trial.state is not OptunaState.RUNNING:
                raise ValueError(f"study {self._name}, trial {number}: does not run, so nobody can end it")
            self._storage.set_trial_user_attr(trial._trial_id, RULING, encode_outcome(outcome))  # noqa: SLF001

    def correct(self, number: int, outcome: Outcome, correction: Correction) -> None:
        """Make a finished trial one that ended as ``outcome``; what runs again is queued first.

        A configuration that was queued again, and now counts after all, is taken out of the queue. What was
        said of a repeat changes the trial that it measured again.

        Raises:
            ValueError: the trial is not finished, or did not end as the correction says.
        """
        constraint = constraint_of(outcome)
        with mapped(self._path):
            trial = self._trial(number)
            row = None if trial is None else self.rows()[number]
            if trial is None or row is None or row.outcome != correction.before:
                raise ValueError(f"study {self._name}, trial {number}: has not ended as {correction.before}")
            if constraint is None and row.repeat is None:
                self.enqueue(row.assignment, again=True)
            if row.own is not None:  # what its repeats made of it is never stored as if it had been measured
                correction = replace(correction, before=row.own)
            self._amend(trial, outcome, correction, None if row.repeat is not None else constraint)
            self._reload()
            if constraint is not None and row.repeat is None:
                self._queue.remove(row.assignment, f"trial {number} counts after all")
            self._show_repeats()

    def tell(self, result: TrialResult) -> None:
        """Record a trial's end.

        Raises:
            ValueError: the trial is not running, its assignment is another, or a value is not
                finite: the caller's bug; nothing was written.
            LedgerError: another program ended the trial, or the database failed.
            StudyUnwritable: the disk is full.
        """
        with mapped(self._path):
            trial = self._running(result)
            self._check(result.outcome, result.number)
            self._record(trial, encode_result(result), result.outcome)
            self._finish(trial, result.outcome)
            if repeat_of(trial) is not None:
                self._show_repeats()

    def rows(self) -> tuple[TrialRow, ...]:
        """Every trial, by number; with what its repeats make of it."""
        with mapped(self._path):
            trials = self._study.get_trials(deepcopy=False)
            return settled([row_of(trial, self._objectives) for trial in trials], self._measures)

    def close(self) -> None:
        """Release the database and the lock; closing twice is no error."""
        with mapped(self._path):
            self._resources.close()

    def _trials(self, *states: OptunaState) -> list[FrozenTrial]:
        return self._study.get_trials(deepcopy=False, states=states)

    def _amend(self, trial: FrozenTrial, outcome: Outcome, correction: Correction, constraint: float | None) -> None:
        entry = trial.user_attrs.get(RESULT) or encode_unfinished(outcome, trial.user_attrs.get(HOST))
        earlier = trial.user_attrs.get(CORRECTIONS, [])
        states = {Measured: OptunaState.COMPLETE, Infeasible: OptunaState.PRUNED}
        is_repeat = repeat_of(trial) is not None
        amend(
            self._storage,
            trial,
            state=OptunaState.FAIL if is_repeat else states.get(type(outcome), OptunaState.FAIL),
            values=None if is_repeat or not isinstance(outcome, Measured) else values_of(outcome, self._objectives),
            constraint=constraint,
            attributes={
                RESULT: entry | {"outcome": encode_outcome(outcome)},
                OUTCOME: type(outcome).__name__.lower(),
                CAUSE: outcome.verdict.cause.value if isinstance(outcome, Infeasible) else None,
                CORRECTIONS: [*earlier, encode_correction(correction)],
            },
        )

    def _trial(self, number: int) -> FrozenTrial | None:
        trials = self._study.get_trials(deepcopy=False)
        return trials[number] if 0 <= number < len(trials) else None

    def _running(self, result: TrialResult) -> FrozenTrial:
        trials = self._study.get_trials(deepcopy=False)
        place = f"study {self._name}, trial {result.number}"
        if result.study != self._name or not 0 <= result.number < len(trials):
            raise ValueError(f"{place}: the result is of study {result.study}, or there is no such trial")
        trial = trials[result.number]
        if trial.state.is_finished() and RESULT not in trial.user_attrs:
            raise LedgerError(
                f"{self._path}: {place} was ended by another program while it ran;"
                " leave running trials alone in optuna-dashboard, and run again"
            )
        if trial.state is not OptunaState.RUNNING:
            raise ValueError(f"{place} is told although it is {trial.state.name}")
        if Assignment.of(trial.params) != result.assignment:
            raise ValueError(f"{place} was {Assignment.of(trial.params)}, told as {result.assignment}")
        return trial

    def _check(self, outcome: Outcome, number: int) -> None:
        constraint_of(outcome)
        if isinstance(outcome, Measured):
            values = values_of(outcome, self._objectives)
            if not all(math.isfinite(value) for value in values):
                raise ValueError(f"study {self._name}, trial {number}: values {values} are not finite")

    def _record(self, trial: FrozenTrial, entry: dict[str, Any], outcome: Outcome) -> None:
        trial_id = trial._trial_id  # noqa: SLF001
        # For people who look with optuna-dashboard; the result itself comes last, so that
        # a trial that has it has everything.
        if isinstance(outcome, Infeasible):
            self._storage.set_trial_user_attr(trial_id, CAUSE, outcome.verdict.cause.value)
        elif isinstance(outcome, Faulted):
            self._storage.set_trial_user_attr(trial_id, CAUSE, outcome.error)
        self._storage.set_trial_user_attr(trial_id, OUTCOME, type(outcome).__name__.lower())
        self._storage.set_trial_user_attr(trial_id, RESULT, entry)

    def _finish(self, trial: FrozenTrial, outcome: Outcome) -> None:
        if repeat_of(trial) is not None:  # no sampler and no front of Optuna's is to see its configuration twice
            self._study.tell(trial.number, state=OptunaState.FAIL)
            return
        constraint = constraint_of(outcome)
        if constraint is not None:
            write_constraint(self._storage, trial, constraint)
        match outcome:
            case Measured():
                self._study.tell(trial.number, values_of(outcome, self._objectives))
            case Infeasible():
                self._study.tell(trial.number, state=OptunaState.PRUNED)
            case Faulted() | Interrupted():
                self._queue.add_again(trial)
                self._study.tell(trial.number, state=OptunaState.FAIL)

    def _show_repeats(self) -> None:
        """Let every trial that was repeated show in the database what its starts together say."""
        rows = self.rows()
        trials = self._study.get_trials(deepcopy=False)
        repeated = sorted({row.repeat.of for row in rows if row.repeat is not None})
        changed = [n for n in repeated if rows[n].counts and show(self._storage, trials[n], rows[n])]
        if changed:
            self._reload()

    def _reload(self) -> None:
        # Optuna keeps finished trials in memory: only a study that is opened anew shows them as they are now.
        self._study = optuna.load_study(study_name=self._name, storage=self._storage)
