"""Looks up what a study file refers to and lays the command line's options over it."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from tuner.config.problems import Problem, check_name, failure, quoted, reading, unknown
from tuner.config.space_file import read_space, space_names
from tuner.config.study_file import FOLDER, HIGHEST_SEED, SSH_LATER, StudyFile
from tuner.errors import UsageError
from tuner.model.space import Assignment, SearchSpace
from tuner.model.study import HostSpec, ProcessHostSpec, SimulatedHostSpec, StudySpec
from tuner.model.trial import Command
from tuner.model.workload import Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class Overrides:
    """Options of the command line that replace what the file says; None leaves it.

    Attributes:
        simulated_hosts: how many simulated hosts.
        host: run on this one of the study's hosts only.
    """

    trials: int | None = None
    sampler: str | None = None
    seed: int | None = None
    speed: float | None = None
    simulated_hosts: int | None = None
    host: str | None = None


class EngineRules(Protocol):
    """What a study file has to know of an engine; every engine adapter has it."""

    parameters: frozenset[str]

    def settings_of(self, command: Command) -> Assignment:
        """Read the tuned settings out of a command line, canonical.

        Raises:
            UsageError: a setting is malformed or cannot be known from the command.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """The names a study file may use."""

    engines: Mapping[str, EngineRules]
    samplers: Collection[str]
    profiles: Collection[str] = ()


def resolve(study: StudyFile, *, root: Path, known: Known, overrides: Overrides | None = None) -> StudySpec:
    """Look up what the study refers to and lay the command line's options over it.

    Args:
        study: as read.
        root: the folder that holds ``studies/`` and ``search_spaces/``.
        known: the engines, samplers and profiles there are.
        overrides: options of the command line.

    Raises:
        StudyFileError: a name is not known, or two parts do not fit together.
        UsageError: an option does not fit the study.
    """
    over = overrides or Overrides()
    with reading(quoted(str(root))):
        root = root.resolve()
    _check_names(study, known)
    _check_numbers(over)
    space = _space(study, root, known)
    baseline = _baseline(study, space, known)
    sampler = study.sampler if over.sampler is None else over.sampler
    if sampler not in known.samplers:
        raise UsageError(f"--sampler: {unknown('sampler', sampler, known.samplers)}")
    directory = root / FOLDER / study.name
    hosts = _hosts(study, over, directory)
    simulated = any(isinstance(host, SimulatedHostSpec) for host in hosts)
    return StudySpec(
        name=study.name,
        engine=study.engine,
        space=space,
        base=study.command,
        baseline=baseline,
        hosts=hosts,
        workload=_with_prompts(study, root, simulated=simulated),
        trials=study.trials if over.trials is None else over.trials,
        seed=study.seed if over.seed is None else over.seed,
        sampler=sampler,
        directory=str(directory),
    )


def _check_names(study: StudyFile, known: Known) -> None:
    problems = []
    if study.engine not in known.engines:
        problems.append(Problem(key="engine", text=unknown("engine", study.engine, known.engines)))
    if study.sampler not in known.samplers:
        problems.append(Problem(key="search.sampler", text=unknown("sampler", study.sampler, known.samplers)))
    if study.simulated is not None and study.simulated.profile not in known.profiles:
        text = unknown("profile", study.simulated.profile, known.profiles)
        problems.append(Problem(key="simulated.profile", text=text))
    if problems:
        raise failure(study.shown, problems)


def _check_numbers(over: Overrides) -> None:
    if over.speed is not None and not (math.isfinite(over.speed) and over.speed > 0):
        raise UsageError(f"--speed: is {over.speed}, but must be a finite number above 0")
    if over.seed is not None and not 0 <= over.seed <= HIGHEST_SEED:
        raise UsageError(f"--seed: is {over.seed}, but must be a whole number from 0 to {HIGHEST_SEED}")


def _space(study: StudyFile, root: Path, known: Known) -> SearchSpace:
    refused = check_name(study.space, "the space name")
    names = space_names(root)
    if refused or study.space not in names:
        text = refused or unknown("space", study.space, names)
        raise failure(study.shown, [Problem(key="space", text=text)])
    space = read_space(root, study.space)
    shown = f"search_spaces/{space.name}.toml"
    if space.engine != study.engine:
        text = f"space {quoted(space.name)} is of engine {quoted(space.engine)}, the study is of {quoted(study.engine)}"
        raise failure(study.shown, [Problem(key="space", text=text)])
    allowed = known.engines[study.engine].parameters
    problems = [
        Problem(
            key=f"parameters.{parameter.name}", text=f"{study.engine}: {unknown('parameter', parameter.name, allowed)}"
        )
        for parameter in space.parameters
        if parameter.name not in allowed
    ]
    if problems:
        raise failure(shown, problems)
    return space


def _baseline(study: StudyFile, space: SearchSpace, known: Known) -> Assignment:
    key = "server.command"
    try:
        settings = known.engines[study.engine].settings_of(study.command)
    except UsageError as error:
        raise failure(study.shown, [Problem(key=key, text=str(error))]) from error
    baseline = Assignment.of({name: value for name, value in settings.items() if _is_tuned(name, space)})
    outside = space.outside(baseline)
    if outside:
        text = f"the baseline is outside the space: {outside}; change the command or search_spaces/{space.name}.toml"
        raise failure(study.shown, [Problem(key=key, text=text)])
    return baseline


def _is_tuned(name: str, space: SearchSpace) -> bool:
    return any(parameter.name == name for parameter in space.parameters)


def _hosts(study: StudyFile, over: Overrides, directory: Path) -> tuple[HostSpec, ...]:
    disks = directory / "hosts"
    if over.host is not None and "@" in over.host:
        raise UsageError(f"--host {over.host}: {SSH_LATER}")
    hosts: tuple[HostSpec, ...]
    if study.hosts:
        for option, value in (("--speed", over.speed), ("--hosts", over.simulated_hosts)):
            if value is not None:
                raise UsageError(f"{option} is for simulated hosts; {study.shown} names its own [[hosts]]")
        hosts = tuple(ProcessHostSpec(name=name, state_dir=str(disks / name)) for name in study.hosts)
    else:
        hosts = _simulated_hosts(study, over, disks)
    if over.host is None:
        return hosts
    chosen = tuple(host for host in hosts if host.name == over.host)
    if not chosen:
        raise UsageError(f"--host: {unknown('host', over.host, [host.name for host in hosts])}")
    return chosen


def _simulated_hosts(study: StudyFile, over: Overrides, disks: Path) -> tuple[HostSpec, ...]:
    if study.simulated is None:
        text = 'is missing: name where to run ([[hosts]] kind = "process"), or add [simulated] with a profile'
        raise failure(study.shown, [Problem(key="hosts", text=text)])
    count = study.simulated.count if over.simulated_hosts is None else over.simulated_hosts
    return tuple(
        SimulatedHostSpec(
            name=f"sim{index}",
            address=f"127.0.0.{index + 1}",
            state_dir=str(disks / f"sim{index}"),
            profile=study.simulated.profile,
            speed=study.simulated.speed if over.speed is None else over.speed,
            faults=study.simulated.faults,
        )
        for index in range(count)
    )


def _with_prompts(study: StudyFile, root: Path, *, simulated: bool) -> Workload:
    """Choose the workload of the hosts; a prompt file is found relative to ``root``."""
    workload = study.simulated_workload if simulated else study.workload
    if workload.prompts == "builtin":
        return workload
    path = root / workload.prompts
    with reading(f"{study.shown}: workload.prompts {quoted(workload.prompts)}"):
        if not path.is_file():
            text = f'is {quoted(workload.prompts)}: there is no such file under {root}; name a JSONL file, or "builtin"'
            raise failure(study.shown, [Problem(key="workload.prompts", text=text)])
    return replace(workload, prompts=str(path))
