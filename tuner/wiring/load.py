"""Loads a study: light, so that a wrong file is refused before Ray and the plots are imported."""

from __future__ import annotations

from pathlib import Path

from tuner.config.resolve import Known, Overrides, resolve
from tuner.config.study_file import read_study
from tuner.engines import ENGINES
from tuner.load.prompts import load_prompts
from tuner.model.study import StudySpec
from tuner.search.samplers import SAMPLERS
from tuner.simulator import profile


def load_study(root: Path, name: str, overrides: Overrides | None = None) -> StudySpec:
    """Read a study file and everything it refers to; touches nothing.

    Raises:
        UsageError: a file or an option is wrong.
    """
    known = Known(engines=ENGINES, samplers=SAMPLERS, profiles=profile.names())
    spec = resolve(read_study(root, name), root=root, known=known, overrides=overrides)
    load_prompts(spec.workload.prompts)  # a bad line is refused now, not by a worker later
    return spec
