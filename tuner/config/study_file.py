"""Reads ``studies/NAME.toml``: one experiment, as the person wrote it.

::

    engine = "sglang"
    space = "sglang-mtp"
    seed = 1                        # prompts, their order, the sampler

    [server]
    command = ["sglang", "serve", "--model-path", "...", ...]   # as production runs it: trial 0
    [server.env]                    # added to the server's environment

    [workload]                      # every field of tuner.model.workload.Workload, on a real host
    output_tokens = 512
    [workload.simulated]            # what differs on the simulated host

    [budget]
    trials = 24
    confirmations = 2               # fresh starts for each member of the front and each near miss, at the end
    baseline_every = 8              # counted trials of a host after which it measures the baseline again
    drift_limit = 0.05              # change of a host's level beyond which what it measured is measured again
    most_repeats = 24               # of all kinds together; as many as trials by default
    [search]
    sampler = "auto"

    [[objectives]]                  # see tuner.config.aims; by default the two throughputs
    metric = "single_request_throughput"
    [[constraints]]
    require = "p95(ttft_s)@64 <= 2"

    [simulated]                     # used while there are no [[hosts]]
    profile = "qwen3.5-122b-a10b-4gpu"
    hosts = 1
    speed = 200                     # how many times faster than real the server loads

    [[hosts]]                       # see tuner.config.host_file; where they are units of systemd,
    kind = "ssh"                    # the base command line is the unit's own
    address = "user@gpu01"
    unit = "sglang-qwen.service"
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError

from tuner.config.aims import Aims, ConstraintTable, ObjectiveTable, read_aims
from tuner.config.host_file import HostEntry, read_hosts
from tuner.config.problems import Problem, Table, check_name, failure, problems_of, quoted, read_toml, reading, unknown
from tuner.errors import StudyFileError
from tuner.model.prompt import Api
from tuner.model.repeat import RepeatTerms
from tuner.model.workload import Workload

FOLDER = "studies"
MOST_SIMULATED_HOSTS = 16
HIGHEST_SEED = 2**32 - 1
"""The highest that NumPy's generators take, on which the samplers draw."""


class _ServerTable(Table):
    command: list[str] | None = Field(default=None, min_length=1)
    env: dict[str, str] = Field(default_factory=dict)


class _WorkloadTable(Table):
    prompts: str | None = Field(default=None, min_length=1)
    api: Literal["chat", "completions"] | None = None
    output_tokens: int | None = Field(default=None, ge=2)  # one token has no time per token
    ignore_eos: bool | None = None
    temperature: float | None = Field(default=None, ge=0)
    top_p: float | None = Field(default=None, gt=0, le=1)
    top_k: int | None = Field(default=None, ge=1)
    min_p: float | None = Field(default=None, ge=0, le=1)
    presence_penalty: float | None = Field(default=None, ge=-2, le=2)
    thinking: bool | None = None
    ladder: list[int] | None = None
    level_min_s: float | None = Field(default=None, gt=0)
    level_max_s: float | None = Field(default=None, gt=0)
    interval: float | None = Field(default=None, gt=0, le=1)
    soak_s: float | None = Field(default=None, ge=0)
    warmup_requests: int | None = Field(default=None, ge=0)
    request_timeout_s: float | None = Field(default=None, gt=0)
    silence_s: float | None = Field(default=None, gt=0)
    load_timeout_s: float | None = Field(default=None, gt=0)


class _WorkloadsTable(_WorkloadTable):
    simulated: _WorkloadTable = _WorkloadTable()


class _BudgetTable(Table):
    trials: int = Field(ge=1)
    confirmations: int = Field(default=2, ge=0)
    baseline_every: int = Field(default=8, ge=0)
    drift_limit: float = Field(default=0.05, gt=0)
    most_repeats: int | None = Field(default=None, ge=0)


class _SearchTable(Table):
    sampler: str = "auto"


class _SimulatedTable(Table):
    profile: str
    hosts: int = Field(default=1, ge=1, le=MOST_SIMULATED_HOSTS)
    speed: float = Field(default=1.0, gt=0)
    faults: list[str] = Field(default_factory=list)


class _StudyTable(Table):
    engine: str
    space: str
    seed: int = Field(default=0, ge=0, le=HIGHEST_SEED)
    server: _ServerTable = _ServerTable()
    workload: _WorkloadsTable = _WorkloadsTable()
    budget: _BudgetTable
    search: _SearchTable = _SearchTable()
    objectives: list[ObjectiveTable] = Field(default_factory=list)
    constraints: list[ConstraintTable] = Field(default_factory=list)
    simulated: _SimulatedTable | None = None
    hosts: list[dict[str, Any]] = Field(default_factory=list)  # each kind has its own keys


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedHosts:
    """The study's ``[simulated]`` table."""

    profile: str
    count: int = 1
    speed: float = 1.0
    faults: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyFile:
    """A study file that is right in itself; what it refers to has not been looked up yet.

    Attributes:
        shown: how messages call the file.
        command: as ``[server] command`` has it, without the environment; None: it is not there, which is
            right where the hosts are units.
        env: what ``[server.env]`` adds to the server's environment.
        workload: on a real host.
        simulated_workload: the same with ``[workload.simulated]`` laid over it.
        simulated: None when the study cannot run on the simulated host.
        hosts: all units of systemd or all processes; empty: it runs on the simulated ones.
    """

    name: str
    shown: str
    engine: str
    space: str
    seed: int
    command: tuple[str, ...] | None
    env: tuple[tuple[str, str], ...]
    workload: Workload
    simulated_workload: Workload
    trials: int
    repeats: RepeatTerms
    sampler: str
    simulated: SimulatedHosts | None
    hosts: tuple[HostEntry, ...]
    aims: Aims


def study_names(root: Path) -> tuple[str, ...]:
    """Name the studies there are."""
    with reading(f"{FOLDER}/"):
        return tuple(sorted(path.stem for path in (root / FOLDER).glob("*.toml")))


def read_study(root: Path, name: str) -> StudyFile:
    """Read ``studies/<name>.toml`` under ``root``.

    Raises:
        StudyFileError: there is no such study (the message names those there are), or it is wrong.
    """
    refused = check_name(name, "the study name")
    if refused:
        raise StudyFileError(refused)
    with reading(quoted(str(root))):
        if not (root / FOLDER).is_dir():
            raise StudyFileError(
                f"{root}: has no folder {FOLDER}/; run in the folder that has it, or name it with --root"
            )
    shown = f"{FOLDER}/{name}.toml"
    path = root / FOLDER / f"{name}.toml"
    with reading(shown):
        if not path.is_file():
            raise StudyFileError(f"{shown}: {unknown('study', name, study_names(root))}")
    return parse_study(read_toml(path, shown), name=name, shown=shown)


def parse_study(content: dict[str, Any], *, name: str, shown: str) -> StudyFile:
    """Check the content of a study file.

    Raises:
        StudyFileError: it is wrong.
    """
    try:
        table = _StudyTable.model_validate(content)
    except ValidationError as error:
        raise failure(shown, problems_of(error, _StudyTable)) from error
    workload = _laid_over(Workload(), table.workload)
    simulated_workload = _laid_over(workload, table.workload.simulated)
    problems = _server_problems(table.server) + _workload_problems(workload, "workload")
    if not problems:  # what is wrong on a real host need not be said again of the simulated one
        problems += _workload_problems(simulated_workload, "workload.simulated")
    hosts, wrong_hosts = read_hosts(table.hosts)
    aims, wrong_aims = read_aims(table.objectives, table.constraints)
    problems += [*wrong_hosts, *wrong_aims]
    if problems:
        raise failure(shown, problems)
    return StudyFile(
        name=name,
        shown=shown,
        engine=table.engine,
        space=table.space,
        seed=table.seed,
        command=None if table.server.command is None else tuple(table.server.command),
        env=tuple(sorted(table.server.env.items())),
        workload=workload,
        simulated_workload=simulated_workload,
        trials=table.budget.trials,
        repeats=RepeatTerms(
            confirmations=table.budget.confirmations,
            baseline_every=table.budget.baseline_every,
            drift_limit=table.budget.drift_limit,
            most=table.budget.most_repeats,
        ),
        sampler=table.search.sampler,
        simulated=_simulated(table.simulated),
        hosts=hosts,
        aims=aims,
    )


def _laid_over(workload: Workload, table: _WorkloadTable) -> Workload:
    given: dict[str, Any] = {}
    for item in fields(Workload):
        value = getattr(table, item.name)
        if value is not None:
            given[item.name] = tuple(value) if isinstance(value, list) else value
    if table.api is not None:
        given["api"] = Api(table.api)
    return replace(workload, **given)


def _server_problems(server: _ServerTable) -> list[Problem]:
    problems = [] if server.command is None else _command_problems(server.command)
    problems += [
        Problem(key="server.env", text=f"{quoted(key)} cannot name an environment variable")
        for key in server.env
        if not key or "=" in key or "\0" in key
    ]
    return problems


def _command_problems(command: list[str]) -> list[Problem]:
    problems = []
    if not command[0].strip():
        text = f"is {quoted(command[0])}, but must be the program to start"
        problems.append(Problem(key="server.command[0]", text=text))
    elif _is_several_words(command[0]):
        first = quoted(command[0].split()[0])  # the rest may hold a secret
        text = f"must be the program alone, one word: split it into one text a word, [{first}, ...]"
        problems.append(Problem(key="server.command[0]", text=text))
    problems += [
        Problem(key=f"server.command[{index}]", text="holds a NUL character")
        for index, word in enumerate(command)
        if "\0" in word
    ]
    return problems


def _is_several_words(program: str) -> bool:
    """Whether a whole command line stands where the program should; its folder may hold spaces."""
    name = program.rpartition("/")[2]
    return any(letter.isspace() for letter in name) or " -" in program


def _workload_problems(workload: Workload, key: str) -> list[Problem]:
    problems = []
    ladder, shown = workload.ladder, quoted(list(workload.ladder))
    if not ladder or ladder[0] != 1:
        text = f"is {shown}, but must start with 1, the single-request leg"
        problems.append(Problem(key=f"{key}.ladder", text=text))
    elif any(low >= high for low, high in pairwise(ladder)):
        problems.append(Problem(key=f"{key}.ladder", text=f"is {shown}, but must ascend without repeats"))
    if workload.level_min_s > workload.level_max_s:
        text = f"is {workload.level_min_s:g}, but level_max_s is only {workload.level_max_s:g}"
        problems.append(Problem(key=f"{key}.level_min_s", text=text))
    if workload.thinking is not None and workload.api is not Api.CHAT:
        text = 'is a wish to the chat template, which only api = "chat" has; remove one of the two'
        problems.append(Problem(key=f"{key}.thinking", text=text))
    problems += [
        Problem(key=f"{key}.{name}", text="has no effect at temperature 0, which is greedy; set temperature above 0")
        for name in ("top_p", "top_k", "min_p")
        if workload.temperature == 0 and getattr(workload, name) is not None
    ]
    return problems


def _simulated(table: _SimulatedTable | None) -> SimulatedHosts | None:
    if table is None:
        return None
    return SimulatedHosts(profile=table.profile, count=table.hosts, speed=table.speed, faults=tuple(table.faults))
