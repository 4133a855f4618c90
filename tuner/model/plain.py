"""Values as plain JSON material, for evidence and files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any


def plain(value: Any) -> Any:
    """Turn dataclasses, enums, mappings and tuples into dicts, values and lists.

    ``None`` stays None: not measured is never written as a number.
    """
    if is_dataclass(value) and not isinstance(value, type):
        if isinstance(value, Mapping):
            return dict(value)
        return {field.name: plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (tuple, list)):
        return [plain(item) for item in value]
    return value
