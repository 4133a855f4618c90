"""Loads a study: light, so that a wrong file is refused before Ray and the plots are imported."""

from __future__ import annotations

from dataclasses import replace
from itertools import chain, islice, product
from pathlib import Path

from tuner.config.problems import Problem, failure
from tuner.config.resolve import Known, Overrides, resolve
from tuner.config.space_file import FOLDER as SPACES
from tuner.config.study_file import StudyFile, read_study
from tuner.engines import ENGINES
from tuner.errors import AssignmentRejected, UsageError
from tuner.load.prompts import load_prompts
from tuner.model.space import Parameter, Value
from tuner.model.study import StudySpec
from tuner.search.domain import Domain
from tuner.search.identity import fingerprint
from tuner.search.samplers import SAMPLERS, Setting, make_strategy
from tuner.simulator import faults, profile

HIGHEST_PORT = 65535
CORNERS = 1024
PROBES = 100
"""Combinations and values tried, at most about so many; the first few settle it unless something is wrong."""


def load_study(root: Path, name: str, overrides: Overrides | None = None) -> StudySpec:
    """Read a study file and everything it refers to, and hold all of its rules; touches nothing.

    Raises:
        UsageError: a file or an option is wrong.
    """
    known = Known(engines=ENGINES, samplers=SAMPLERS, profiles=profile.names())
    study = read_study(root, name)
    spec = resolve(study, root=root, known=known, overrides=overrides)
    _check_port(study, spec)
    _check_faults(study)
    _check_search(study, spec)
    prompts = load_prompts(spec.workload.prompts)  # a bad line is refused now, not by a worker later
    return replace(spec, prompts_digest=fingerprint([prompt.text for prompt in prompts]))


def _check_port(study: StudyFile, spec: StudySpec) -> None:
    try:
        port = ENGINES[spec.engine].port(spec.base)
        problem = None if 1 <= port <= HIGHEST_PORT else f"--port is {port}, but must be from 1 to {HIGHEST_PORT}"
    except UsageError as error:
        problem = str(error)
    if problem is not None:
        raise failure(study.shown, [Problem(key="server.command", text=problem)])


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
    except AssignmentRejected as error:
        text = f"does not fit {study.shown} and the rules of {spec.engine}: {error}"
        raise failure(shown, [Problem(key="parameters", text=text)]) from error
    problems = [
        Problem(key=f"parameters.{parameter.name}", text=f"can never vary: {reason}")
        for parameter in spec.space.parameters
        if (reason := why_fixed(domain, parameter)) is not None
    ]
    if problems:
        raise failure(shown, problems)
    try:
        make_strategy(spec.sampler, Setting(domain=domain, objectives=spec.objectives, seed=spec.seed))
    except UsageError as error:
        if spec.sampler != study.sampler:
            raise UsageError(f"--sampler: {error}") from error
        raise failure(study.shown, [Problem(key="search.sampler", text=str(error))]) from error


def why_fixed(domain: Domain, parameter: Parameter) -> str | None:
    """Say why the engine's rules leave a parameter only one value in this space; None: it can vary.

    Its values are tried beside the baseline's others, and beside the ends of all other ranges.
    """
    others = [other for other in domain.space.parameters if other is not parameter]
    ends = product(*((other.values()[0], other.values()[-1]) for other in others))
    corners = ({other.name: value for other, value in zip(others, corner, strict=True)} for corner in ends)
    values = parameter.values()
    seen: set[Value | None] = set()
    reason = "the engine ignores it beside the others"
    for beside in chain([domain.filled(domain.baseline)], islice(corners, CORNERS)):
        for value in values[:: max(1, len(values) // PROBES)]:
            try:
                seen.add(domain.canonical(beside | {parameter.name: value}).get(parameter.name))
            except AssignmentRejected as error:
                reason = str(error)
            if len(seen) > 1:
                return None
    return reason
