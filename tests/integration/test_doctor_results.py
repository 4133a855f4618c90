"""doctor at a study whose earlier results would stop the run."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tuner.config.overrides import Overrides
from tuner.engines import engine
from tuner.model.finding import Finding, RowVerdict
from tuner.search.ledger import open_ledger
from tuner.testing.project import Project
from tuner.testing.results import interrupted, measured, result_of
from tuner.wiring.doctor import examine
from tuner.wiring.load import load_study

CHECKOUT = Path(__file__).parents[2]
REAL = Overrides(host="root@127.0.0.1:1", unit="sglang.service")
"""Nobody is there: what is measured already shows all the same."""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    shutil.copytree(CHECKOUT / "search_spaces", tmp_path / "search_spaces")
    (tmp_path / "studies").mkdir()
    Project(tmp_path).write(port=30000)
    return tmp_path


def begin(root: Path, *, counts: bool) -> None:
    """Begin the study on the simulated host."""
    spec = load_study(root, "tiny")
    ledger = open_ledger(spec, engine(spec.engine).canonical)
    proposal = ledger.propose("sim0")
    assert proposal is not None
    ledger.tell(result_of(proposal, measured(1, 2) if counts else interrupted(), study="tiny", host="sim0"))
    ledger.close()


def results(root: Path, overrides: Overrides | None = None) -> list[Finding]:
    return [finding for finding in examine(root, "tiny", overrides) if finding.check == "results"]


def test_a_simulated_study_is_no_place_for_a_real_host(root: Path) -> None:
    begin(root, counts=True)
    (found,) = results(root, REAL)
    assert (found.host, found.verdict) == ("study tiny", RowVerdict.FAILED)
    assert found.detail == "the study was begun on the simulated host, and this is a real host"
    assert found.remedy.startswith("copy studies/tiny.toml under another name")
    assert results(root) == []


def test_a_changed_workload_is_told_with_its_key(root: Path) -> None:
    begin(root, counts=True)
    study = root / "studies" / "tiny.toml"
    study.write_text(study.read_text().replace("soak_s = 0.5", "soak_s = 7"))
    (found,) = results(root)
    assert found.detail == "the study was begun with another workload (soak_s 0.5, now 7.0)"


def test_results_in_which_nothing_counts_stop_no_run(root: Path) -> None:
    assert results(root, REAL) == []
    begin(root, counts=False)
    assert results(root, REAL) == []
