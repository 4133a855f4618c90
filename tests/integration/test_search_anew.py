"""A study that was begun under other terms: refused, unless nothing was measured in it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tuner.errors import LedgerError
from tuner.model.study import StudySpec
from tuner.search.anew import begin_anew, check_terms
from tuner.search.ledger import check_ledger, open_ledger
from tuner.search.lock import StudyLock
from tuner.search.rows import read_study
from tuner.testing.draft_trees import canonical
from tuner.testing.results import interrupted, measured, result_of
from tuner.testing.specs import small_spec


def begun(spec: StudySpec, *, counts: bool) -> None:
    ledger = open_ledger(spec, canonical)
    proposal = ledger.propose("sim0")
    assert proposal is not None
    ledger.tell(result_of(proposal, measured(1, 2) if counts else interrupted(), study=spec.name, host="sim0"))
    ledger.close()


def longer(spec: StudySpec) -> StudySpec:
    return replace(spec, workload=replace(spec.workload, soak_s=77.0))


def test_other_terms_begin_anew_while_nothing_counts_and_the_old_database_is_kept(tmp_path: Path) -> None:
    spec = small_spec(tmp_path)
    begun(spec, counts=False)
    check_terms(longer(spec))
    told = begin_anew(longer(spec))
    assert told is not None
    assert "another workload (soak_s " in told
    assert "now 77.0); nothing was measured, so it begins anew (study.db.old1 is what was there)" in told
    open_ledger(longer(spec), canonical).close()
    assert (Path(spec.directory) / "study.db.old1").exists()
    assert len(read_study(spec.directory, spec.name).rows) == 1


def test_other_terms_are_refused_once_something_counts_by_run_and_validate_alike(tmp_path: Path) -> None:
    spec = small_spec(tmp_path)
    begun(spec, counts=True)
    assert begin_anew(longer(spec)) is None
    for check in (check_terms, check_ledger):
        with pytest.raises(LedgerError, match=r"another workload \(soak_s .*, now 77\.0\); choose another study name"):
            check(longer(spec))


def test_the_same_terms_go_on_with_what_is_there(tmp_path: Path) -> None:
    spec = small_spec(tmp_path)
    assert begin_anew(spec) is None
    begun(spec, counts=False)
    assert begin_anew(spec) is None
    check_terms(spec)


def test_a_study_that_another_process_runs_is_not_moved_away_under_it(tmp_path: Path) -> None:
    spec = small_spec(tmp_path)
    begun(spec, counts=False)
    lock = StudyLock.acquire(Path(spec.directory))
    with pytest.raises(LedgerError, match="process"):
        begin_anew(longer(spec))
    lock.release()
    assert (Path(spec.directory) / "study.db").exists()
