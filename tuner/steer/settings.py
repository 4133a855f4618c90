"""Settings as a person types them: ``NAME=VALUE``, with full or short names."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence

from tuner.errors import UsageError
from tuner.model.names import short_names
from tuner.model.space import Assignment, ChoiceParameter, IntParameter, Parameter, SearchSpace, Value, describe


def read_settings(pairs: Sequence[str], space: SearchSpace) -> Assignment:
    """Read settings of a space.

    Args:
        pairs: ``speculative_num_steps=10`` or, where it is unique, ``steps=10``.
        space: that they belong to.

    Raises:
        UsageError: one names nothing in the space, is not in its range, or is there twice; one line.
    """
    names = _names(space)
    values: dict[str, Value] = {}
    for pair in pairs:
        typed, sign, text = pair.partition("=")
        if not sign:
            raise UsageError(
                f"{pair}: write NAME=VALUE, as {space.parameters[0].name}={space.parameters[0].values()[0]}"
            )
        parameter = space.parameter(_known(typed, names, space))
        if parameter.name in values:
            raise UsageError(f"{pair}: {parameter.name} is given twice")
        values[parameter.name] = _value(parameter, text, pair)
    if not values:
        raise UsageError(f"name a setting to try, NAME=VALUE; space {space.name} has {', '.join(sorted(names))}")
    return Assignment.of(values)


def _names(space: SearchSpace) -> dict[str, str]:
    """Return every name that may be typed, with the parameter it stands for; a full name wins."""
    full = [parameter.name for parameter in space.parameters]
    return {short: name for name, short in short_names(full).items()} | {name: name for name in full}


def _known(typed: str, names: Mapping[str, str], space: SearchSpace) -> str:
    if typed in names:
        return names[typed]
    # Any part of one name only: `fraction`, `num_steps`.
    found = {name for name in names.values() if typed and f"_{typed}_" in f"_{name}_"}
    if len(found) == 1:
        return found.pop()
    if found:
        raise UsageError(f"{typed}: may be {' or '.join(sorted(found))}; write more of the name")
    near = difflib.get_close_matches(typed, list(names), n=1, cutoff=0.6)
    meant = f"; did you mean {near[0]}?" if near else ""
    full = ", ".join(parameter.name for parameter in space.parameters)
    raise UsageError(f"{typed}: is no parameter of space {space.name}{meant} (it has {full})")


def _value(parameter: Parameter, text: str, pair: str) -> Value:
    value = _typed(parameter, text)
    if value is None or not parameter.contains(value):
        raise UsageError(f"{pair}: {parameter.name} must be {describe(parameter)}")
    return value


def _typed(parameter: Parameter, text: str) -> Value | None:
    """Read a value of the parameter's type; None: it is none."""
    if isinstance(parameter, ChoiceParameter):
        return next((choice for choice in parameter.choices if text == str(choice)), None)
    try:
        return int(text) if isinstance(parameter, IntParameter) else float(text)
    except ValueError:
        return None
