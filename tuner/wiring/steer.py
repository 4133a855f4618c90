"""Gives a person's order to a study: to its driver while one runs, or carries it out here.

Light: Optuna is imported only where no run is under way, so that an abort is heard at once.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Final

from tuner.config.space_file import read_space
from tuner.config.study_file import read_study
from tuner.engines import ENGINES
from tuner.errors import LedgerError, PreflightError
from tuner.model.order import AbortOrder, Answer, Order
from tuner.model.space import SearchSpace
from tuner.model.trial import Remark
from tuner.search.lock import holder_of
from tuner.steer.inbox import Inbox
from tuner.wiring.holder import holder_of as person

PATIENCE_S: Final = 30.0
"""How long an answer is waited for: a driver looks ten times a second, but may still be checking its hosts."""
_LOOK_S: Final = 0.02
DATABASE: Final = "study.db"


def who_asks(study: str, directory: Path) -> str:
    """Return ``user@machine`` of whoever runs this command."""
    return person(study, str(directory)).owner


def new_id() -> str:
    """Return an id for an order: later ones sort behind earlier ones."""
    return f"{time.time_ns():020d}"


def space_of(root: Path, study: str) -> SearchSpace:
    """Return the space of a study, from its files.

    Raises:
        StudyFileError: a file is wrong.
    """
    return read_space(root, read_study(root, study).space)


def give(order: Order, *, root: Path, study: str, directory: Path, patience_s: float = PATIENCE_S) -> Answer:
    """Give an order and return its answer.

    Args:
        order: new.
        root: the folder that holds ``studies/`` and ``search_spaces/``.
        study: its name.
        directory: of its results.
        patience_s: how long a driver is waited for.

    Raises:
        LedgerError: the study has not begun, or its database cannot be used.
        PreflightError: the driver did not answer in time; says whether the order still stands.
        EvidenceError: the study's folder cannot be written.
    """
    if not (directory / DATABASE).exists() and holder_of(directory) is None:
        raise LedgerError(f"study {study} has not begun: python -m tuner run --study {study}")
    inbox = Inbox(directory)
    inbox.put(order)
    try:
        answer = _answer(order, inbox, root=root, study=study, directory=directory, patience_s=patience_s)
    except BaseException:
        inbox.withdraw(order)  # nobody is left to read the answer
        raise
    if answer is not None:
        return answer
    driver = holder_of(directory) or "another process"
    words = f"study {study} is run by {driver}, which has not answered in {patience_s:g} s"
    if not isinstance(order, AbortOrder):
        raise PreflightError(
            f"{words}; the order lies in {directory / 'orders'} and is carried out as soon as it looks: see status"
        )
    if inbox.withdraw(order):
        raise PreflightError(f"{words}; the order was withdrawn and nothing was done: try again")
    answer = inbox.take_answer(order)  # in the last moment
    assert answer is not None
    return answer


def _answer(order: Order, inbox: Inbox, *, root: Path, study: str, directory: Path, patience_s: float) -> Answer | None:
    """Wait for the driver, or be it where there is none; None: it did not answer in time."""
    deadline_s = time.monotonic() + patience_s
    while time.monotonic() < deadline_s:
        answer = inbox.take_answer(order)
        if answer is not None:
            return answer
        if holder_of(directory) is None:
            try:
                carry_out(inbox, root=root, study=study, directory=directory)
            except LedgerError:
                if holder_of(directory) is None:
                    raise
            continue  # a run has begun meanwhile, or the answer lies there
        time.sleep(_LOOK_S)
    return None


def carry_out(inbox: Inbox, *, root: Path, study: str, directory: Path) -> None:
    """Carry out the orders that lie there, as the study's one writer.

    Raises:
        LedgerError: another process runs the study, or its database cannot be used.
        UsageError: a file of the study is wrong.
        EvidenceError: the study's folder cannot be written.
    """
    from tuner.report.front import Heading  # noqa: PLC0415  seconds, only where it is needed
    from tuner.runtime.evidence import note  # noqa: PLC0415
    from tuner.runtime.steering import Steering  # noqa: PLC0415
    from tuner.search.reopened import reopen_ledger  # noqa: PLC0415
    from tuner.wiring.files import Tables  # noqa: PLC0415

    space = space_of(root, study)
    canonical = ENGINES[space.engine].canonical
    ledger, stored = reopen_ledger(directory, study, space=space, canonical=canonical)
    try:
        baseline = next(row.assignment for row in ledger.rows() if row.baseline)
        steering = Steering(study=study, space=space, baseline=baseline, trials=stored.trials, optimizer=ledger)
        is_corrected = False
        while (order := inbox.first()) is not None:
            deed = steering.obey(order)
            if deed.is_correction and deed.trial is not None:
                is_corrected = True
                note(directory, deed.trial, Remark(at_s=time.time(), text=deed.remark))
            inbox.answer(order, deed.answer)
        if is_corrected:
            heading = Heading(
                study=study,
                engine=stored.engine,
                parameters=stored.parameters,
                simulated=stored.simulated,
                objectives=stored.objectives,
            )
            tables = Tables(heading, directory)
            tables.write(ledger.rows())
            tables.draw(ledger.rows())
    finally:
        ledger.close()
