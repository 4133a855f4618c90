"""One experiment: engine, space, hosts, workload, objectives, budget."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from tuner.model.metric import OBJECTIVES, Objective
from tuner.model.outcome import Outcome
from tuner.model.space import Assignment, SearchSpace
from tuner.model.trial import Capacity, Command
from tuner.model.workload import Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedHostSpec:
    """The embedded simulated GPU host.

    Attributes:
        name: unique in the study.
        address: loopback address that is this host's own (127.0.0.1, 127.0.0.2, …).
        state_dir: absolute folder that is this host's "disk": memory book, pid files, logs.
        profile: name of a simulator profile.
        speed: how many times faster than real the server loads; decoding is real time.
        faults: fault switches, ``("nccl-flake:0.2", …)``.
    """

    name: str
    address: str
    state_dir: str
    profile: str
    speed: float = 1.0
    faults: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessHostSpec:
    """This machine, without systemd: the engine runs as a supervised process.

    Attributes:
        name: unique in the study.
        state_dir: absolute folder for pid files and logs.
    """

    name: str
    state_dir: str


HostSpec: TypeAlias = SimulatedHostSpec | ProcessHostSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class StudySpec:
    """A study file, checked and resolved.

    Attributes:
        base: the command line as production runs it; trial 0.
        baseline: the tuned settings that ``base`` amounts to.
        trials: how many trials that count (Measured or Infeasible) make the study.
        directory: absolute folder of the study's results.
        prompts_digest: of what the prompts say; wherever they lie, the same texts are the same load.
        sampler: name in the sampler registry.
    """

    name: str
    engine: str
    space: SearchSpace
    base: Command
    baseline: Assignment
    hosts: tuple[HostSpec, ...]
    workload: Workload
    trials: int
    seed: int
    sampler: str
    directory: str
    prompts_digest: str = ""
    objectives: tuple[Objective, ...] = OBJECTIVES

    @property
    def simulated(self) -> bool:
        """Whether the results come from the simulated GPU host."""
        return any(isinstance(host, SimulatedHostSpec) for host in self.hosts)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialRow:
    """One trial as the study's database knows it.

    Attributes:
        number: Optuna's trial number.
        assignment: canonical.
        outcome: None while the trial runs or waits.
        host: where it ran; None while it waits.
        baseline: the base command line as it stands.
        values: one per objective, in the study's order; None unless Measured.
        capacity: as the server reported it; None when it never got so far.
        duration_s: None while it runs or waits.
    """

    number: int
    assignment: Assignment
    outcome: Outcome | None
    host: str | None
    baseline: bool
    values: tuple[float, ...] | None
    capacity: Capacity | None
    duration_s: float | None
