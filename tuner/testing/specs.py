"""Study specifications for tests of the search."""

from __future__ import annotations

from pathlib import Path

from tuner.model.study import SimulatedHostSpec, StudySpec
from tuner.model.trial import Command
from tuner.model.workload import Workload
from tuner.testing.draft_trees import FULL_BASELINE, FULL_SPACE, SMALL_BASELINE, SMALL_SPACE


def small_spec(directory: Path, *, name: str = "small", sampler: str = "auto") -> StudySpec:
    """Return a study over fourteen servers."""
    return StudySpec(
        name=name,
        engine=SMALL_SPACE.engine,
        space=SMALL_SPACE,
        base=Command(argv=("serve", "--steps", "1", "--fraction", "0.8")),
        baseline=SMALL_BASELINE,
        hosts=(_simulated(directory),),
        workload=Workload(),
        trials=14,
        seed=7,
        sampler=sampler,
        directory=str(directory / "study"),
    )


def full_spec(directory: Path, *, name: str = "full", sampler: str = "auto", seed: int = 7) -> StudySpec:
    """Return a study over tens of thousands of servers."""
    return StudySpec(
        name=name,
        engine=FULL_SPACE.engine,
        space=FULL_SPACE,
        base=Command(argv=("serve", "--steps", "3", "--fraction", "0.85")),
        baseline=FULL_BASELINE,
        hosts=(_simulated(directory),),
        workload=Workload(),
        trials=24,
        seed=seed,
        sampler=sampler,
        directory=str(directory / "study"),
    )


def _simulated(directory: Path) -> SimulatedHostSpec:
    return SimulatedHostSpec(name="gpu01", address="127.0.0.1", state_dir=str(directory / "gpu01"), profile="test")
