"""The commands by which people overrule a study: try, abort, verdict. Each returns the line to print."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from tuner.commands.studies import directory_of
from tuner.errors import UsageError
from tuner.model.order import AbortOrder, Order, TryOrder, VerdictOrder
from tuner.model.ruling import Ruling, Word

LONGEST_WHY = 500


def try_settings(root: Path, study: str, pairs: Sequence[str], *, again: bool) -> str:
    """Queue a configuration for the study.

    Raises:
        UsageError: the settings are wrong, or refused.
        PreflightError, EvidenceError: the study cannot be told.
    """
    from tuner.steer.settings import read_settings  # noqa: PLC0415  a wrong study is refused before anything is loaded
    from tuner.wiring.steer import new_id, space_of, who_asks  # noqa: PLC0415

    directory = directory_of(root, study)
    values = read_settings(pairs, space_of(root, study))
    who = who_asks(study, directory)
    order = TryOrder(order=new_id(), who=who, at_s=time.time(), values=values, again=again)
    return _given(order, root, study, directory)


def abort_trial(root: Path, study: str, word: Word, why: str, *, host: str | None, trial: int | None) -> str:
    """End a trial of the study that runs.

    Raises:
        UsageError: there is no such trial, or the reason is missing.
        PreflightError, EvidenceError: the study cannot be told.
    """
    directory = directory_of(root, study)
    order = AbortOrder(ruling=_ruling(study, directory, word, why), host=host, trial=trial)
    return _given(order, root, study, directory)


def correct_trial(root: Path, study: str, trial: int, word: Word, why: str) -> str:
    """Correct how a trial of the study ended.

    Raises:
        UsageError: there is no such trial, it has not ended, or the word does not fit.
        PreflightError, EvidenceError: the study cannot be told.
    """
    directory = directory_of(root, study)
    return _given(VerdictOrder(ruling=_ruling(study, directory, word, why), trial=trial), root, study, directory)


def _ruling(study: str, directory: Path, word: Word, why: str) -> Ruling:
    from tuner.wiring.steer import new_id, who_asks  # noqa: PLC0415  see try_settings

    reason = " ".join(why.split())
    if not reason:
        raise UsageError('--why is empty: say what you saw, as --why "load crashed"; it is kept with the trial')
    if len(reason) > LONGEST_WHY:
        raise UsageError(f"--why has {len(reason)} characters: at most {LONGEST_WHY}")
    who = who_asks(study, directory)
    return Ruling(order=new_id(), word=word, why=reason, who=who, at_s=time.time())


def _given(order: Order, root: Path, study: str, directory: Path) -> str:
    from tuner.wiring.steer import give  # noqa: PLC0415  see try_settings

    answer = give(order, root=root, study=study, directory=directory)
    if not answer.done:
        raise UsageError(answer.text)
    return answer.text
