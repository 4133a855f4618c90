"""Reads what a study wants: ``[[objectives]]`` and ``[[constraints]]``.

::

    [[objectives]]
    metric = "single_request_throughput"
    [[objectives]]
    metric = "p95(ttft_s)@16"       # its direction is the registry's, unless direction = "maximize" or "minimize"

    [[constraints]]
    require = "p95(ttft_s)@64 <= 2"
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from tuner.config.problems import Problem, Table
from tuner.model.metric import OBJECTIVES, Constraint, Direction, Metric, Objective
from tuner.model.metric_text import MetricTextError, constraint_of, metric_of, objective_of
from tuner.model.study import HostSpec, SimulatedHostSpec
from tuner.model.workload import Workload

FEWEST, MOST = 2, 3
"""Objectives that a study may name."""


class ObjectiveTable(Table):
    """One of ``[[objectives]]``."""

    metric: str
    direction: Literal["maximize", "minimize"] | None = None


class ConstraintTable(Table):
    """One of ``[[constraints]]``."""

    require: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Aims:
    """What a study wants; by default the two throughputs, without a limit."""

    objectives: tuple[Objective, ...] = OBJECTIVES
    constraints: tuple[Constraint, ...] = ()


def read_aims(
    objectives: Sequence[ObjectiveTable], constraints: Sequence[ConstraintTable]
) -> tuple[Aims, list[Problem]]:
    """Read both; and say what is wrong with them."""
    problems: list[Problem] = []
    wanted: list[Objective] = []
    for index, each in enumerate(objectives):
        key = f"objectives[{index}].metric"
        try:
            objective = objective_of(
                metric_of(each.metric), None if each.direction is None else Direction(each.direction)
            )
        except MetricTextError as error:
            problems.append(Problem(key=key, text=str(error)))
            continue
        if any(objective.name == other.name for other in wanted):
            problems.append(Problem(key=key, text=f"{objective.name} is an objective already; remove one of the two"))
        wanted.append(objective)
    if objectives and not FEWEST <= len(objectives) <= MOST:
        text = f"are {len(objectives)}, but must be {FEWEST} or {MOST}; a limit on a metric goes to [[constraints]]"
        problems.append(Problem(key="objectives", text=text))
    limits: list[Constraint] = []
    for index, entry in enumerate(constraints):
        key = f"constraints[{index}].require"
        try:
            constraint = constraint_of(entry.require)
        except MetricTextError as error:
            problems.append(Problem(key=key, text=str(error)))
            continue
        if any((constraint.metric, constraint.at_most) == (other.metric, other.at_most) for other in limits):
            problems.append(Problem(key=key, text=f"limits {constraint.metric.text} twice; keep the stricter"))
        limits.append(constraint)
    return Aims(objectives=tuple(wanted) or OBJECTIVES, constraints=tuple(limits)), problems


def off_the_ladder(aims: Aims, workload: Workload) -> list[Problem]:
    """Say which metrics are of a level that is not measured."""
    levels = " ".join(str(level) for level in workload.ladder)
    return [
        Problem(key=key, text=f"{metric.text} is of a level that is not measured; choose one of the ladder: {levels}")
        for key, metric in _named(aims)
        if metric.at is not None and metric.at not in workload.ladder
    ]


def without_gpus(aims: Aims, hosts: Sequence[HostSpec]) -> list[Problem]:
    """Say which metrics are about GPUs that a host's server does not use."""
    idle = [host.name for host in hosts if not isinstance(host, SimulatedHostSpec) and not host.care.uses_gpus]
    return [
        Problem(key=key, text=f"{metric.text} is of GPUs, and the server of host {idle[0]} uses none; take it out")
        for key, metric in _named(aims)
        if idle and metric.quantity == "joules_per_token"
    ]


def _named(aims: Aims) -> list[tuple[str, Metric]]:
    """Return every metric with its place in the file."""
    return [
        *((f"objectives[{index}].metric", metric_of(each.name)) for index, each in enumerate(aims.objectives)),
        *((f"constraints[{index}].require", each.metric) for index, each in enumerate(aims.constraints)),
    ]
