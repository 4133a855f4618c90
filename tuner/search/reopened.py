"""Opens a study that was begun before, where no run is under way: to queue and to correct, not to search."""

from __future__ import annotations

import contextlib
from pathlib import Path

import optuna

from tuner.errors import LedgerError
from tuner.model.space import Assignment, SearchSpace
from tuner.search.domain import Canonical, Domain
from tuner.search.history import History
from tuner.search.ledger import OptunaLedger
from tuner.search.lock import StudyLock
from tuner.search.rows import StoredStudy, read_study
from tuner.search.samplers import Setting
from tuner.search.storage import DATABASE, mapped, open_storage


class _NoSearch:
    """Proposes nothing of its own: whoever reopens a study has no host."""

    def next(self, history: History) -> Assignment | None:
        """Propose nothing."""
        del history
        return None


def reopen_ledger(
    directory: Path, name: str, *, space: SearchSpace, canonical: Canonical
) -> tuple[OptunaLedger, StoredStudy]:
    """Open a study's database as its one writer; nothing that a killed run left is settled.

    Args:
        directory: of its results.
        name: of the study.
        space: as its file has it now.
        canonical: the engine adapter's.

    Raises:
        LedgerError: there is none, another process runs it, it cannot be read, or its space was another.
        StudyUnwritable: it cannot be written.
    """
    path = directory / DATABASE
    stored = read_study(directory, name)
    names = tuple(parameter.name for parameter in space.parameters)
    if stored.space != space.name or stored.parameters != names:
        raise LedgerError(
            f"{path}: was begun with space {stored.space} ({', '.join(stored.parameters)}), "
            f"not {space.name} ({', '.join(names)}); put the space file back as it was"
        )
    with contextlib.ExitStack() as undo:
        undo.callback(StudyLock.acquire(directory).release)
        with mapped(path):
            storage = undo.enter_context(open_storage(path))
            study = optuna.load_study(study_name=name, storage=storage)
        baseline = next((row.assignment for row in read_study(directory, name).rows if row.baseline), None)
        if baseline is None:
            raise LedgerError(f"{path}: has no baseline trial; begin the study anew")
        setting = Setting(domain=Domain(space, canonical, baseline), objectives=stored.objectives, seed=0)
        ledger = OptunaLedger(
            setting=setting, strategy=_NoSearch(), study=study, storage=storage, path=path, resources=undo.pop_all()
        )
    return ledger, stored
