"""Values as plain JSON material, for evidence and files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import TypeAlias

Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"


def plain(value: object) -> Json:
    """Turn dataclasses, enums, mappings and tuples into dicts, values and lists.

    ``None`` stays None: not measured is never written as a number.

    Raises:
        TypeError: ``value`` holds something that JSON has no word for.
    """
    if isinstance(value, Enum):
        return plain(value.value)
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (tuple, list)):
        return [plain(item) for item in value]
    return plain_fields(value)


def plain_fields(value: object) -> dict[str, Json]:
    """Turn a dataclass into a dict of plain fields.

    Raises:
        TypeError: ``value`` is no dataclass.
    """
    if not is_dataclass(value) or isinstance(value, type):
        raise TypeError(f"{type(value).__name__} has no JSON form")
    return {field.name: plain(getattr(value, field.name)) for field in fields(value)}
