"""What may vary: parameters, the space they span, and one point of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TypeAlias

Value: TypeAlias = int | float | str


@dataclass(frozen=True, slots=True, kw_only=True)
class IntParameter:
    """Whole numbers from ``low`` to ``high`` (both included) in steps of ``step``."""

    name: str
    low: int
    high: int
    step: int = 1

    def values(self) -> tuple[int, ...]:
        """Every allowed value, ascending."""
        return tuple(range(self.low, self.high + 1, self.step))

    def contains(self, value: Value) -> bool:
        """Whether ``value`` is one of :meth:`values`; a bool or float never is."""
        return type(value) is int and self.low <= value <= self.high and (value - self.low) % self.step == 0


@dataclass(frozen=True, slots=True, kw_only=True)
class FloatParameter:
    """Numbers on the grid ``low, low + step, …, high``; rounded so that 0.7 is 0.7."""

    name: str
    low: float
    high: float
    step: float

    def values(self) -> tuple[float, ...]:
        """Every allowed value, ascending, rounded to ten decimals."""
        count = round((self.high - self.low) / self.step) + 1
        return tuple(round(self.low + i * self.step, 10) for i in range(count))

    def contains(self, value: Value) -> bool:
        """Whether ``value`` lies on the grid, to within a millionth of a step."""
        if isinstance(value, (str, bool)):
            return False
        steps = (value - self.low) / self.step
        return -1e-6 <= steps <= (self.high - self.low) / self.step + 1e-6 and abs(steps - round(steps)) < 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class ChoiceParameter:
    """One of ``choices``; ``ordered`` says that neighbours in the tuple are alike."""

    name: str
    choices: tuple[Value, ...]
    ordered: bool = False

    def values(self) -> tuple[Value, ...]:
        """Every allowed value, in the order of the space file."""
        return self.choices

    def contains(self, value: Value) -> bool:
        """Whether ``value`` is one of the choices, of the same type."""
        return any(value == choice and type(value) is type(choice) for choice in self.choices)


Parameter: TypeAlias = IntParameter | FloatParameter | ChoiceParameter


@dataclass(frozen=True, slots=True)
class Assignment(Mapping[str, Value]):
    """One point of a space: parameter names and their values, in the order of the names.

    Hashable and equal by content, so that a set of assignments has no repeats.
    A parameter that does not apply (speculation off) is absent, never None.
    """

    items_: tuple[tuple[str, Value], ...]

    @classmethod
    def of(cls, values: Mapping[str, Value]) -> Assignment:
        """Build from any mapping."""
        return cls(tuple(sorted(values.items())))

    def __getitem__(self, name: str) -> Value:
        """Return the value of ``name``.

        Raises:
            KeyError: the parameter does not apply here.
        """
        for key, value in self.items_:
            if key == name:
                return value
        raise KeyError(name)

    def __iter__(self) -> Iterator[str]:
        """Iterate over the parameter names."""
        return (key for key, _ in self.items_)

    def __len__(self) -> int:
        """Return the number of parameters that apply."""
        return len(self.items_)

    def __str__(self) -> str:
        """Render as ``name=value name=value``."""
        return " ".join(f"{key}={value}" for key, value in self.items_)


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchSpace:
    """A named set of parameters of one engine, in the order of the file."""

    name: str
    engine: str
    parameters: tuple[Parameter, ...]

    def parameter(self, name: str) -> Parameter:
        """Return the parameter called ``name``.

        Raises:
            KeyError: the space has no such parameter.
        """
        for parameter in self.parameters:
            if parameter.name == name:
                return parameter
        raise KeyError(name)

    def outside(self, assignment: Assignment) -> str | None:
        """Say which value of ``assignment`` is not in the space; None when all are."""
        names = {parameter.name for parameter in self.parameters}
        for name, value in assignment.items():
            if name not in names:
                return f"{name} is not a parameter of space {self.name}"
            if not self.parameter(name).contains(value):
                return f"{name}={value} is outside {describe(self.parameter(name))}"
        return None


def describe(parameter: Parameter) -> str:
    """Say in a few words which values a parameter may take."""
    if isinstance(parameter, ChoiceParameter):
        return "one of " + ", ".join(str(choice) for choice in parameter.choices)
    step = "" if parameter.step == 1 else f" in steps of {parameter.step}"
    return f"{parameter.low} to {parameter.high}{step}"
