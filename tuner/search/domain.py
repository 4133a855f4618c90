"""The canonical assignments of a space: asked one at a time, or listed lazily."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping

from tuner.errors import AssignmentRejected
from tuner.model.space import Assignment, FloatParameter, SearchSpace, Value

Canonical = Callable[[Assignment], Assignment]
"""An engine's rules: the canonical form of an assignment, or AssignmentRejected."""

GOLDEN_RATIO = (math.sqrt(5) - 1) / 2


class Domain:
    """A search space together with the rules of its engine.

    Raises:
        AssignmentRejected: the baseline is outside the space, or the engine refuses it.
    """

    def __init__(self, space: SearchSpace, canonical: Canonical, baseline: Assignment) -> None:
        self.space = space
        self._rules = canonical
        # A look-up instead of arithmetic: listing a space asks a hundred thousand times.
        self._grids = {p.name: {value: value for value in p.values()} for p in space.parameters}
        self.baseline = self.canonical(baseline)

    def canonical(self, values: Mapping[str, Value]) -> Assignment:
        """Return the canonical form of ``values``.

        Raises:
            AssignmentRejected: the engine refuses it, or a value (also one that the engine's
                rules force) lies outside the space.
        """
        unknown = [name for name in values if name not in self._grids]
        if unknown:
            raise AssignmentRejected(f"{unknown[0]} is not a parameter of space {self.space.name}")
        try:
            assignment = self._rules(Assignment.of(values))
        except KeyError as error:
            missing = error.args[0]
            if missing in self._grids and missing not in values:
                raise AssignmentRejected(f"{missing} is missing") from error
            raise  # a bug in the rules
        if all(self._is_on_grid(name, value) for name, value in assignment.items_):
            return assignment
        reason = self.space.outside(assignment)
        if reason is not None:
            raise AssignmentRejected(reason)
        return Assignment.of({name: self._on_grid(name, value) for name, value in assignment.items()})

    def _is_on_grid(self, name: str, value: Value) -> bool:
        known = self._grids.get(name, {}).get(value)
        return known is not None and type(known) is type(value)

    def _on_grid(self, name: str, value: Value) -> Value:
        parameter = self.space.parameter(name)
        if not isinstance(parameter, FloatParameter) or isinstance(value, str):
            return value
        # 0.7000000001 and 0.7 would launch the same server as two trials.
        return round(parameter.low + round((value - parameter.low) / parameter.step) * parameter.step, 10)

    def accepts(self, values: Mapping[str, Value]) -> Assignment | None:
        """Return the canonical form of ``values``; None when the rules or the space forbid it."""
        try:
            return self.canonical(values)
        except AssignmentRejected:
            return None

    def filled(self, assignment: Assignment) -> dict[str, Value]:
        """Give every parameter of the space a value, for samplers that know no absent ones.

        A parameter that does not apply takes its first value: the least of it.
        """
        return {
            parameter.name: assignment.get(parameter.name, parameter.values()[0]) for parameter in self.space.parameters
        }

    def assignments(self, *, start: int = 0) -> Iterator[Assignment]:
        """Yield every canonical assignment once, lazily, scattered over the space.

        The raw grid is walked with a stride that has no divisor in common with its size, near
        the golden section of it: every point is met once, early ones lie far apart, and
        nothing is held but what was yielded. ``start`` is any whole number.
        """
        names = [parameter.name for parameter in self.space.parameters]
        grids = [parameter.values() for parameter in self.space.parameters]
        size = math.prod(len(grid) for grid in grids)
        stride = max(1, round(size * GOLDEN_RATIO))
        while math.gcd(stride, size) != 1:
            stride += 1
        seen: set[Assignment] = set()
        for turn in range(size):
            index = (start + turn * stride) % size
            values: dict[str, Value] = {}
            for name, grid in zip(names, grids, strict=True):
                index, position = divmod(index, len(grid))
                values[name] = grid[position]
            assignment = self.accepts(values)
            if assignment is not None and assignment not in seen:
                seen.add(assignment)
                yield assignment
