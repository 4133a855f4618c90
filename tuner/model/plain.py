"""Values as plain JSON material, for evidence and files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

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
    if is_dataclass(value) and not isinstance(value, type):
        return plain_fields(value)
    raise TypeError(f"{type(value).__name__} has no JSON form")


def plain_fields(value: DataclassInstance) -> dict[str, Json]:
    """Turn a dataclass into a dict of plain fields."""
    return {field.name: plain(getattr(value, field.name)) for field in fields(value)}
