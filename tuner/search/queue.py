"""What waits in a study's database to be run next."""

from __future__ import annotations

from collections.abc import Callable

import optuna
from optuna.storages import RDBStorage
from optuna.trial import FrozenTrial
from optuna.trial import TrialState as OptunaState

from tuner.errors import AssignmentRejected
from tuner.model.outcome import Interrupted, TrialState
from tuner.model.space import Assignment
from tuner.ports import Proposal
from tuner.search.distributions import distributions_of, waiting_trial
from tuner.search.domain import Domain
from tuner.search.history import History
from tuner.search.outcome_json import encode_unfinished
from tuner.search.repeats import OUTCOME
from tuner.search.rows import AGAIN, BASELINE, HOST, RESULT, row_of


class Queue:
    """The waiting trials, first come, first served.

    Args:
        study: returns Optuna's study as it is now.
        storage: of the study.
        domain: its space.
        objectives: names, in the study's order.
    """

    def __init__(
        self,
        study: Callable[[], optuna.Study],
        storage: RDBStorage,
        domain: Domain,
        objectives: tuple[str, ...],
    ) -> None:
        self._study = study
        self._storage = storage
        self._domain = domain
        self._objectives = objectives

    def add(self, assignment: Assignment, *, again: bool) -> None:
        """Let an assignment wait at the end; ``again``: it runs although it has counted."""
        self._study().add_trial(waiting_trial(self._domain, assignment, again=again))

    def add_again(self, trial: FrozenTrial) -> None:
        """Let a trial's assignment wait, unless it does already."""
        assignment = Assignment.of(trial.params)
        if assignment not in {self._assignment(other) for other in self._waiting()}:
            self.add(assignment, again=bool(trial.user_attrs.get(AGAIN)))

    def take(self, host: str, history: History) -> Proposal | None:
        """Start the first that still needs running; what does not is dropped."""
        counted = {experience.assignment for experience in history.counted}
        for trial in self._waiting():
            try:
                assignment = self._domain.canonical(self._assignment(trial))
            except AssignmentRejected as error:
                self._drop(trial, str(error))
                continue
            if assignment in counted and not trial.user_attrs.get(AGAIN):
                self._drop(trial, "this configuration has been tried")
            elif assignment not in history.running:
                return self._start(trial, assignment, host)
        return None

    def remove(self, assignment: Assignment, reason: str) -> None:
        """Take an assignment out."""
        for trial in self._waiting():
            if self._assignment(trial) == assignment:
                self._drop(trial, reason)

    def _waiting(self) -> list[FrozenTrial]:
        return self._study().get_trials(deepcopy=False, states=(OptunaState.WAITING,))

    def _assignment(self, trial: FrozenTrial) -> Assignment:
        return row_of(trial, self._objectives).assignment

    def _start(self, trial: FrozenTrial, assignment: Assignment, host: str) -> Proposal:
        trial_id = trial._trial_id  # noqa: SLF001 (Optuna has no public way to start a given trial)
        baseline = assignment == self._domain.baseline
        for name, distribution in distributions_of(self._domain, assignment).items():
            if name not in trial.params:  # queued by another program: Optuna keeps such parameters elsewhere
                internal = distribution.to_internal_repr(assignment[name])
                self._storage.set_trial_param(trial_id, name, internal, distribution)
        self._storage.set_trial_user_attr(trial_id, HOST, host)
        self._storage.set_trial_user_attr(trial_id, BASELINE, baseline)
        self._storage.set_trial_state_values(trial_id, OptunaState.RUNNING)
        return Proposal(number=trial.number, assignment=assignment, baseline=baseline)

    def _drop(self, trial: FrozenTrial, reason: str) -> None:
        outcome = Interrupted(state=TrialState.PROPOSED, why=f"not run: {reason}")  # nobody's fault
        trial_id = trial._trial_id  # noqa: SLF001
        self._storage.set_trial_user_attr(trial_id, OUTCOME, type(outcome).__name__.lower())
        self._storage.set_trial_user_attr(trial_id, RESULT, encode_unfinished(outcome, None))
        self._storage.set_trial_state_values(trial_id, OptunaState.FAIL)
