"""The first assignments after the baseline: few, safe, and spread along every axis.

A random opening costs trials and crashes. Walking outward from the configuration that is
known to run teaches more. The leading axis (the first whole number of the file with five
values or more that does something) is moved to half, a sixth up and three eighths up; every
other one is doubled and quadrupled, a share is raised by a third of what is left, a choice is
switched. An axis that the engine's rules force at the baseline (draft tokens without a tree)
moves together with the one that frees it. For SGLang from 3 steps without a tree that is
steps 1, 5 and 8, a 2x8 and a 4x16 tree, and a higher memory fraction.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import zip_longest

from tuner.model.space import Assignment, ChoiceParameter, FloatParameter, IntParameter, Parameter, Value
from tuner.search.domain import Domain

SIZE = 6
LEADING_VALUES = 5
"""An axis with fewer values has no room for three moves."""
PROBES = 100
"""Values tried, at most about twice as many, to see whether an axis does anything."""


def opening(domain: Domain, size: int = SIZE) -> tuple[Assignment, ...]:
    """Return at most ``size`` canonical assignments, none of them the baseline or a repeat.

    When there are more moves than places, every axis gets its first before one gets its second.
    """
    routes: list[list[Assignment]] = []
    seen = {domain.baseline}
    lead = _leading(domain)
    starts = [domain.filled(domain.baseline)]
    for parameter in domain.space.parameters:
        route: list[Assignment] = []
        for start in starts:
            moves = _leading_moves(domain, parameter) if parameter is lead else _moves(domain, parameter, start)
            for assignment in moves:
                if assignment not in seen:
                    seen.add(assignment)
                    route.append(assignment)
            if route:
                break
        if route and len(starts) == 1:
            # What does nothing at the baseline (a tree, with speculation off) may do something here.
            starts.append(domain.filled(route[0]))
        routes.append(route)
    in_rounds = [assignment for step in zip_longest(*routes) for assignment in step if assignment is not None]
    chosen = set(in_rounds[:size])
    return tuple(assignment for route in routes for assignment in route if assignment in chosen)


def _leading(domain: Domain) -> Parameter | None:
    start = domain.filled(domain.baseline)
    for parameter in domain.space.parameters:
        if (
            isinstance(parameter, IntParameter)
            and len(parameter.values()) >= LEADING_VALUES
            and _is_free(domain, parameter, start)
        ):
            return parameter
    return None


def _is_size(parameter: Parameter) -> bool:
    return not isinstance(parameter, FloatParameter) and not (
        isinstance(parameter, ChoiceParameter) and not parameter.ordered
    )


def _is_free(domain: Domain, parameter: Parameter, start: dict[str, Value]) -> bool:
    """Whether the parameter, moved alone from ``start``, makes another server."""
    values = parameter.values()
    probes = values[:: max(1, len(values) // PROBES)]
    outcomes = {domain.accepts(start | {parameter.name: value}) for value in probes}
    return len(outcomes - {None}) > 1


def _leading_moves(domain: Domain, parameter: Parameter) -> Iterator[Assignment]:
    values = parameter.values()
    start = domain.filled(domain.baseline)
    here = values.index(start[parameter.name])
    room = len(values) - 1 - here
    for position in (here // 2, here + max(1, round(room / 6)), here + max(2, round(room * 3 / 8))):
        if position < len(values):
            assignment = domain.accepts(start | {parameter.name: values[position]})
            if assignment is not None:
                yield assignment


def _moves(domain: Domain, parameter: Parameter, start: dict[str, Value]) -> Iterator[Assignment]:
    here = start[parameter.name]
    if isinstance(parameter, FloatParameter):
        targets: Sequence[Value] = (_raised(parameter, here),)
    elif _is_size(parameter):
        targets = (_scaled(parameter, here, 2), _scaled(parameter, here, 4))
    else:
        targets = [value for value in parameter.values() if value != here][:2]
    for power, target in enumerate(targets, start=1):
        change: dict[str, Value] = {parameter.name: target}
        companions: dict[str, Value] = {
            other.name: _scaled(other, start[other.name], 2**power)
            for other in domain.space.parameters
            if other is not parameter
            and _is_size(other)
            and not _is_free(domain, other, start)
            and _is_free(domain, other, start | change)
        }
        assignment = domain.accepts(start | change | companions) or domain.accepts(start | change)
        if assignment is not None:
            yield assignment


def _raised(parameter: FloatParameter, here: Value) -> Value:
    values: Sequence[Value] = parameter.values()
    position = values.index(here)
    room = len(values) - 1 - position
    return values[position + max(1, round(room / 3))] if room else values[position - max(1, position // 3)]


def _scaled(parameter: Parameter, here: Value, factor: int) -> Value:
    """Return the value nearest to ``factor`` times ``here``; at the top of the range, to the same share of it."""
    values = parameter.values()
    position = values.index(here)
    if isinstance(here, str) or any(isinstance(value, str) for value in values):
        step = factor.bit_length() - 1  # values without a ratio: one place for double, two for four times
        return values[position + step] if position + step < len(values) else values[max(0, position - step)]
    target = here * factor if here > 0 else factor / 2  # from "off": 1, then 2
    if position == len(values) - 1:
        target = here / factor
    return min(values, key=lambda value: (abs(float(value) - target), float(value)))
