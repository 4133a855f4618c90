"""Reads ``search_spaces/NAME.toml``: what may vary, as pure data.

::

    engine = "sglang"

    [parameters.speculative_num_steps]
    type = "int"
    low = 0
    high = 16
    help = "drafts per verification; 0 is speculation off"

    [parameters.speculative_eagle_topk]
    type = "choice"
    choices = [1, 2, 4, 8]
    ordered = true

    [parameters.mem_fraction_static]
    type = "float"
    low = 0.60
    high = 0.95
    step = 0.01
"""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError, model_validator

from tuner.config.problems import Problem, Table, check_name, failure, problems_of, quoted, read_toml, reading, unknown
from tuner.errors import StudyFileError
from tuner.model.space import ChoiceParameter, FloatParameter, IntParameter, Parameter, SearchSpace, Value

FOLDER = "search_spaces"
_PARAMETER_NAME = re.compile(r"[a-z][a-z0-9_]*")


class _IntTable(Table):
    type: Literal["int"]
    low: int
    high: int
    step: int = Field(default=1, ge=1)
    help: str = ""

    @model_validator(mode="after")
    def _range(self) -> _IntTable:
        _check_range(self.low, self.high, self.step)
        return self

    def parameter(self, name: str) -> Parameter:
        return IntParameter(name=name, low=self.low, high=self.high, step=self.step)


class _FloatTable(Table):
    type: Literal["float"]
    low: float
    high: float
    step: float = Field(gt=0)
    help: str = ""

    @model_validator(mode="after")
    def _range(self) -> _FloatTable:
        _check_range(self.low, self.high, self.step)
        steps = (self.high - self.low) / self.step
        if not math.isclose(steps, round(steps), abs_tol=1e-6):
            raise ValueError(f"high {self.high:g} is not reached from low {self.low:g} in steps of {self.step:g}")
        return self

    def parameter(self, name: str) -> Parameter:
        return FloatParameter(name=name, low=self.low, high=self.high, step=self.step)


class _ChoiceTable(Table):
    type: Literal["choice"]
    choices: list[Any] = Field(min_length=1)
    ordered: bool = False
    help: str = ""

    @model_validator(mode="after")
    def _distinct(self) -> _ChoiceTable:
        if {type(choice) for choice in self.choices} not in ({int}, {float}, {str}):
            raise ValueError(
                f"choices is {quoted(self.choices)}, but must be all whole numbers, all numbers or all texts"
            )
        if len(set(self.choices)) == 1:
            raise ValueError(f"choices has only {quoted(self.choices[0])}: nothing to search; fix it in the command")
        if len(set(self.choices)) != len(self.choices):
            raise ValueError(f"choices {quoted(self.choices)} repeat themselves")
        return self

    def parameter(self, name: str) -> Parameter:
        choices: tuple[Value, ...] = tuple(self.choices)
        return ChoiceParameter(name=name, choices=choices, ordered=self.ordered)


_KINDS: dict[str, type[_IntTable | _FloatTable | _ChoiceTable]] = {
    "int": _IntTable,
    "float": _FloatTable,
    "choice": _ChoiceTable,
}


class _SpaceTable(Table):
    engine: str
    parameters: dict[str, dict[str, Any]] = Field(min_length=1)


def read_space(root: Path, name: str) -> SearchSpace:
    """Read ``search_spaces/<name>.toml`` under ``root``.

    Raises:
        StudyFileError: there is no such space (the message names those there are), or it is wrong.
    """
    refused = check_name(name, "the space name")
    if refused:
        raise StudyFileError(refused)
    shown = f"{FOLDER}/{name}.toml"
    path = root / FOLDER / f"{name}.toml"
    with reading(shown):
        if not path.is_file():
            raise StudyFileError(f"{shown}: {unknown('space', name, space_names(root))}")
    return parse_space(read_toml(path, shown), name=name, shown=shown)


def space_names(root: Path) -> tuple[str, ...]:
    """Name the spaces there are."""
    with reading(f"{FOLDER}/"):
        return tuple(sorted(path.stem for path in (root / FOLDER).glob("*.toml")))


def parse_space(content: dict[str, Any], *, name: str, shown: str) -> SearchSpace:
    """Check the content of a space file.

    Raises:
        StudyFileError: it is wrong.
    """
    try:
        table = _SpaceTable.model_validate(content)
    except ValidationError as error:
        raise failure(shown, problems_of(error, _SpaceTable)) from error
    problems: list[Problem] = []
    parameters: list[Parameter] = []
    for key, content_of in table.parameters.items():
        try:
            parameters.append(_parameter(key, content_of))
        except ValidationError as error:
            problems += problems_of(error, _KINDS[content_of["type"]], f"parameters.{key}")
        except ValueError as error:
            problems.append(Problem(key=f"parameters.{key}", text=str(error)))
    if problems:
        raise failure(shown, problems)
    return SearchSpace(name=name, engine=table.engine, parameters=tuple(parameters))


def _parameter(key: str, content: dict[str, Any]) -> Parameter:
    if not _PARAMETER_NAME.fullmatch(key):
        raise ValueError("a parameter's name is a-z, 0-9 and _")
    kind = content.get("type")
    if not isinstance(kind, str) or kind not in _KINDS:
        given = "is missing" if "type" not in content else f"is {quoted(kind)}"
        raise ValueError(f"type {given}, but must be one of {', '.join(map(quoted, _KINDS))}")
    return _KINDS[kind].model_validate(content).parameter(key)


def _check_range(low: float, high: float, step: float) -> None:
    if low > high:
        raise ValueError(f"the range is inverted: low {low:g} is above high {high:g}")
    if low == high:
        raise ValueError(f"the range is empty: low and high are both {low:g}; fix it in the command instead")
    if (high - low) / step < 1 - 1e-9:
        raise ValueError(f"the range is empty: step {step:g} leads from low {low:g} past high {high:g}")
