"""The Optimizer port's contract, over the Optuna ledger and over the fake."""

from pathlib import Path

from tuner.ports import Optimizer
from tuner.search.domain import Domain
from tuner.search.ledger import open_ledger
from tuner.testing.draft_trees import SMALL_BASELINE, SMALL_SPACE, canonical
from tuner.testing.fake_optimizer import FakeOptimizer, FakeStudy
from tuner.testing.optimizer_suite import STUDY, OptimizerSuite
from tuner.testing.specs import small_spec


class TestLedger(OptimizerSuite):
    # What the samplers choose is tests/unit/test_search_samplers.py's; the ledger is one for all.
    def open(self, place: Path) -> Optimizer:
        return open_ledger(small_spec(place, name=STUDY), canonical)


class TestFake(OptimizerSuite):
    def setup_method(self) -> None:
        self.studies: dict[Path, FakeStudy] = {}

    def open(self, place: Path) -> Optimizer:
        every = Domain(SMALL_SPACE, canonical, SMALL_BASELINE).assignments()
        study = self.studies.setdefault(place, FakeStudy())
        return FakeOptimizer(every, baseline=SMALL_BASELINE, study=study, canonical=canonical)
