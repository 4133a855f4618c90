"""Looks up what a study file refers to and lays the command line's options over it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from tuner.config.aims import off_the_ladder, without_gpus
from tuner.config.overrides import Overrides, check_numbers
from tuner.config.places import hosts_of
from tuner.config.problems import Problem, check_name, failure, quoted, reading, unknown
from tuner.config.space_file import read_space, space_names
from tuner.config.study_file import FOLDER, StudyFile
from tuner.errors import UsageError
from tuner.model.prompt import SHIPPED, is_shipped
from tuner.model.space import Assignment, SearchSpace
from tuner.model.study import HostSpec, SimulatedHostSpec, StudySpec, UnitHostSpec
from tuner.model.trial import Command
from tuner.model.workload import Workload

__all__ = ["Known", "Overrides", "base_refused", "check_parts", "needs_unit", "resolve", "resolve_hosts"]


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
    """The names a study file may use; servers of the engines ``only_measured`` cannot be started."""

    engines: Mapping[str, EngineRules]
    samplers: Collection[str]
    profiles: Collection[str] = ()
    only_measured: Collection[str] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Parts:
    """All of a study but its base command line."""

    space: SearchSpace
    sampler: str
    hosts: tuple[HostSpec, ...]
    workload: Workload
    directory: Path


def resolve_hosts(
    study: StudyFile, *, root: Path, known: Known, overrides: Overrides | None = None
) -> tuple[HostSpec, ...]:
    """Return where a run would take place, whatever its search space: hosts are restored all the same.

    Args:
        study: as read.
        root: the folder that holds ``studies/`` and ``search_spaces/``.
        known: the engines, samplers and profiles there are.
        overrides: options of the command line.

    Raises:
        StudyFileError: a name is not known, or a host is not as it must be.
        UsageError: an option does not fit the study.
    """
    over = overrides or Overrides()
    _check_names(study, known)
    check_numbers(over)
    with reading(quoted(str(root))):
        root = root.resolve()
    hosts = hosts_of(study, over, root=root, directory=root / FOLDER / study.name)
    if study.command is None and not needs_unit(hosts):
        text = "is missing: write the server's command line, or name the systemd unit that has it ([[hosts]] unit)"
        raise failure(study.shown, [Problem(key="server.command", text=text)])
    return hosts


def check_parts(study: StudyFile, *, root: Path, known: Known, overrides: Overrides | None = None) -> None:
    """Hold everything that needs no base command line; arguments and errors as :func:`resolve`."""
    _parts(study, root, known, overrides or Overrides())


def needs_unit(hosts: tuple[HostSpec, ...]) -> bool:
    """Whether the base command line is to be read from the hosts' units."""
    return any(isinstance(host, UnitHostSpec) for host in hosts)


def resolve(
    study: StudyFile, *, root: Path, known: Known, overrides: Overrides | None = None, base: Command | None = None
) -> StudySpec:
    """Look up what the study refers to and lay the command line's options over it.

    Args:
        study: as read.
        root: the folder that holds ``studies/`` and ``search_spaces/``.
        known: the engines, samplers and profiles there are.
        overrides: options of the command line.
        base: what the hosts' units run, where :func:`needs_unit` holds.

    Raises:
        StudyFileError: a name is not known, or two parts do not fit together.
        UsageError: an option does not fit the study.
    """
    over = overrides or Overrides()
    parts = _parts(study, root, known, over)
    command = _base(study, parts.hosts, base)
    return StudySpec(
        name=study.name,
        engine=study.engine,
        space=parts.space,
        base=command,
        baseline=_baseline(study, parts, known, command),
        hosts=parts.hosts,
        workload=parts.workload,
        trials=study.trials if over.trials is None else over.trials,
        seed=study.seed if over.seed is None else over.seed,
        sampler=parts.sampler,
        directory=str(parts.directory),
        repeats=study.repeats,
        objectives=study.aims.objectives,
        constraints=study.aims.constraints,
    )


def base_refused(study: StudyFile, hosts: tuple[HostSpec, ...], text: str) -> UsageError:
    """Build the error for a base command line that cannot be used; it names where that comes from."""
    units = [host for host in hosts if isinstance(host, UnitHostSpec)]
    if units:
        return UsageError(f"host {units[0].name}, unit {units[0].unit}: {' '.join(text.split())}")
    return failure(study.shown, [Problem(key="server.command", text=text)])


def _parts(study: StudyFile, root: Path, known: Known, over: Overrides) -> _Parts:
    hosts = resolve_hosts(study, root=root, known=known, overrides=over)
    with reading(quoted(str(root))):
        root = root.resolve()
    space = _space(study, root, known)
    sampler = study.sampler if over.sampler is None else over.sampler
    if sampler not in known.samplers:
        raise UsageError(f"--sampler: {unknown('sampler', sampler, known.samplers)}")
    simulated = any(isinstance(host, SimulatedHostSpec) for host in hosts)
    workload = study.simulated_workload if simulated else study.workload
    workload = (
        _with_prompts(workload, study, root) if over.prompts is None else _with_given_prompts(workload, over.prompts)
    )
    wrong = off_the_ladder(study.aims, workload) + without_gpus(study.aims, hosts)
    if wrong:
        raise failure(study.shown, wrong)
    return _Parts(space=space, sampler=sampler, hosts=hosts, workload=workload, directory=root / FOLDER / study.name)


def _base(study: StudyFile, hosts: tuple[HostSpec, ...], base: Command | None) -> Command:
    """Return what production runs, with ``[server.env]`` on top."""
    if not needs_unit(hosts):
        assert study.command is not None, "held by _parts"
        return Command(argv=study.command, env=study.env)
    if base is None:
        raise UsageError(f"study {study.name}: its base command line is the unit's, which has to be read first")
    return replace(base, env=tuple(sorted({**dict(base.env), **dict(study.env)}.items())))


def _check_names(study: StudyFile, known: Known) -> None:
    problems = []
    if study.engine in known.only_measured:
        there = " or ".join(sorted(known.engines))
        text = f"servers of engine {quoted(study.engine)} can be measured (tuner measure), not started: use {there}"
        problems.append(Problem(key="engine", text=text))
    elif study.engine not in known.engines:
        problems.append(Problem(key="engine", text=unknown("engine", study.engine, known.engines)))
    if study.sampler not in known.samplers:
        problems.append(Problem(key="search.sampler", text=unknown("sampler", study.sampler, known.samplers)))
    if study.simulated is not None and study.simulated.profile not in known.profiles:
        text = unknown("profile", study.simulated.profile, known.profiles)
        problems.append(Problem(key="simulated.profile", text=text))
    if problems:
        raise failure(study.shown, problems)


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


def _baseline(study: StudyFile, parts: _Parts, known: Known, command: Command) -> Assignment:
    space = parts.space
    try:
        settings = known.engines[study.engine].settings_of(command)
    except UsageError as error:
        raise base_refused(study, parts.hosts, str(error)) from error
    baseline = Assignment.of({name: value for name, value in settings.items() if _is_tuned(name, space)})
    outside = space.outside(baseline)
    if outside:
        text = f"the baseline is outside the space: {outside}; change the command or search_spaces/{space.name}.toml"
        raise base_refused(study, parts.hosts, text)
    return baseline


def _is_tuned(name: str, space: SearchSpace) -> bool:
    return any(parameter.name == name for parameter in space.parameters)


def _with_given_prompts(workload: Workload, given: str) -> Workload:
    """Lay ``--prompts`` over a workload; a file is found from the current folder, as everywhere on a command line."""
    if is_shipped(given):
        return replace(workload, prompts=given)
    path = Path(given).expanduser().absolute()
    try:
        is_there = path.is_file()
    except OSError as error:
        raise UsageError(f"--prompts {quoted(given)}: {error.strerror}; name another file") from error
    if not is_there:
        raise UsageError(f"--prompts {quoted(given)}: there is no such file; name one, or {', '.join(SHIPPED)}")
    return replace(workload, prompts=str(path))


def _with_prompts(workload: Workload, study: StudyFile, root: Path) -> Workload:
    """Find a study's prompt file relative to ``root``."""
    if is_shipped(workload.prompts):
        return workload
    path = root / workload.prompts
    with reading(f"{study.shown}: workload.prompts {quoted(workload.prompts)}"):
        if not path.is_file():
            there = f"there is no such file under {root}"
            text = f"is {quoted(workload.prompts)}: {there}; name a JSONL file, or a shipped set: {', '.join(SHIPPED)}"
            raise failure(study.shown, [Problem(key="workload.prompts", text=text)])
    return replace(workload, prompts=str(path))
