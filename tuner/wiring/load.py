"""Loads a study: light, so that a wrong file is refused before Ray and the plots are imported."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from tuner.config.problems import Problem, failure
from tuner.config.resolve import Known, Overrides, resolve
from tuner.config.space_file import FOLDER as SPACES
from tuner.config.study_file import StudyFile, read_study
from tuner.engines import ENGINES
from tuner.errors import AssignmentRejected, UsageError
from tuner.load.prompts import load_prompts
from tuner.model.study import StudySpec
from tuner.search.domain import Domain
from tuner.search.identity import fingerprint
from tuner.search.samplers import SAMPLERS, Setting, make_strategy
from tuner.simulator import faults, profile


def load_study(root: Path, name: str, overrides: Overrides | None = None) -> StudySpec:
    """Read a study file and everything it refers to, and hold all of its rules; touches nothing.

    Raises:
        UsageError: a file or an option is wrong.
    """
    known = Known(engines=ENGINES, samplers=SAMPLERS, profiles=profile.names())
    study = read_study(root, name)
    spec = resolve(study, root=root, known=known, overrides=overrides)
    _check_faults(study)
    _check_search(study, spec)
    prompts = load_prompts(spec.workload.prompts)  # a bad line is refused now, not by a worker later
    return replace(spec, prompts_digest=fingerprint([prompt.text for prompt in prompts]))


def _check_faults(study: StudyFile) -> None:
    if study.simulated is None:
        return
    try:
        faults.parse(",".join(study.simulated.faults))
    except faults.FaultSyntaxError as error:
        raise failure(study.shown, [Problem(key="simulated.faults", text=str(error))]) from error


def _check_search(study: StudyFile, spec: StudySpec) -> None:
    """Hold that engine, space and sampler fit together, as the run will build them."""
    shown = f"{SPACES}/{spec.space.name}.toml"
    try:
        domain = Domain(spec.space, ENGINES[spec.engine].canonical, spec.baseline)
        if all(assignment == domain.baseline for assignment in domain.assignments()):
            domain.canonical({parameter.name: parameter.values()[-1] for parameter in spec.space.parameters})
    except AssignmentRejected as error:
        text = f"does not fit {study.shown} and the rules of {spec.engine}: {error}"
        raise failure(shown, [Problem(key="parameters", text=text)]) from error
    try:
        make_strategy(spec.sampler, Setting(domain=domain, objectives=spec.objectives, seed=spec.seed))
    except UsageError as error:
        if spec.sampler != study.sampler:
            raise UsageError(f"--sampler: {error}") from error
        raise failure(study.shown, [Problem(key="search.sampler", text=str(error))]) from error
