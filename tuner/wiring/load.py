"""Loads a study: light, so that a wrong file is refused before Ray and the plots are imported."""

from __future__ import annotations

from dataclasses import replace
from itertools import chain, islice, product
from pathlib import Path

from tuner.config.address import HIGHEST_PORT
from tuner.config.overrides import Overrides
from tuner.config.problems import Problem, failure
from tuner.config.resolve import Known, base_refused, check_parts, needs_unit, resolve, resolve_hosts
from tuner.config.space_file import FOLDER as SPACES
from tuner.config.study_file import StudyFile, read_study
from tuner.engines import ENGINES, ONLY_MEASURED
from tuner.errors import AssignmentRejected, UsageError
from tuner.load.prompts import load_prompts
from tuner.model.prompt import Prompt, plain_prompt
from tuner.model.space import Parameter, Value
from tuner.model.study import HostSpec, StudySpec, UnitHostSpec
from tuner.model.trial import Command
from tuner.search.domain import Domain
from tuner.search.identity import fingerprint
from tuner.search.samplers import SAMPLERS, Setting, make_strategy
from tuner.simulator import faults, profile

__all__ = ["base_remark", "check_study", "hosts_of", "load_study", "needs_unit", "why_fixed"]

CORNERS = 1024
PROBES = 100
"""Combinations and values tried, at most about so many; the first few settle it unless something is wrong."""


def hosts_of(root: Path, name: str, overrides: Overrides | None = None) -> tuple[HostSpec, ...]:
    """Say where a run of a study would take place; touches nothing.

    Raises:
        UsageError: what the file or an option says of hosts is wrong.
    """
    return resolve_hosts(read_study(root, name), root=root, known=_known(), overrides=overrides)


def check_study(root: Path, name: str, overrides: Overrides | None = None) -> None:
    """Hold all rules of a study that need no base command line, before a host is asked for its own.

    Raises:
        UsageError: a file or an option is wrong.
    """
    study = read_study(root, name)
    check_parts(study, root=root, known=_known(), overrides=overrides)
    _check_faults(study)


def load_study(root: Path, name: str, overrides: Overrides | None = None, base: Command | None = None) -> StudySpec:
    """Read a study file and everything it refers to, and hold all of its rules; touches nothing.

    Args:
        root: the folder that holds ``studies/`` and ``search_spaces/``.
        name: of the study.
        overrides: options of the command line.
        base: what the hosts' units run, where :func:`needs_unit` holds.

    Raises:
        UsageError: a file or an option is wrong, or the base command line does not fit.
    """
    study = read_study(root, name)
    spec = resolve(study, root=root, known=_known(), overrides=overrides, base=base)
    _check_port(study, spec)
    _check_faults(study)
    _check_search(study, spec)
    prompts = load_prompts(spec.workload.prompts)  # a bad line is refused now, not by a worker later
    return replace(spec, prompts_digest=fingerprint([_words(prompt) for prompt in prompts]))


def _words(prompt: Prompt) -> object:
    """Return what makes a prompt another one; its name does not."""
    if prompt == replace(plain_prompt(prompt.text), id=prompt.id):
        return prompt.text
    return [[[turn.role, turn.content] for turn in prompt.turns], prompt.prompt_class, prompt.output_tokens]


def base_remark(root: Path, name: str, hosts: tuple[HostSpec, ...]) -> str | None:
    """Say that the study's own command line is not used, where the hosts' units have theirs."""
    study = read_study(root, name)
    unit = next((host.unit for host in hosts if isinstance(host, UnitHostSpec)), None)
    if unit is None or study.command is None:
        return None
    env = ", [server.env] is added to it" if study.env else ""
    return f"trial 0 is what {unit} runs{env}; [server] command of {study.shown} is not used"


def _known() -> Known:
    return Known(engines=ENGINES, samplers=SAMPLERS, profiles=profile.names(), only_measured=ONLY_MEASURED)


def _check_port(study: StudyFile, spec: StudySpec) -> None:
    try:
        port = ENGINES[spec.engine].port(spec.base)
        problem = None if 1 <= port <= HIGHEST_PORT else f"--port is {port}, but must be from 1 to {HIGHEST_PORT}"
    except UsageError as error:
        problem = str(error)
    if problem is not None:
        raise base_refused(study, spec.hosts, problem)


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
