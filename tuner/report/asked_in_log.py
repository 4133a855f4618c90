"""Finds the settings that a server prints about itself at its start."""

from __future__ import annotations

import re
from collections.abc import Collection

from tuner.model.space import Value

_MARK = "args"
"""Stands in the lines in which engines print their settings: ``server_args=…``, ``args={…``."""
_LEAST = 2
"""Settings in a line that prints them all; advice names one."""


class AskedInLog:
    """Reads a log piece by piece; the last start that it holds counts.

    Attributes:
        found: the settings so far.
    """

    def __init__(self, names: Collection[str]) -> None:
        """Look for the settings called ``names``."""
        words = "|".join(re.escape(name) for name in sorted(names, key=len, reverse=True))
        # 'name': 3 of a dict, "name": 3 of JSON, name=3 of a dataclass.
        self._pattern = re.compile(rf"(?<![\w-])({words})['\"]?\s*[:=]\s*['\"]?(-?\d+(?:\.\d+)?)(?![\w.])")
        self.found: dict[str, Value] = {}

    def feed(self, text: str) -> None:
        """Take the next piece, whole lines."""
        if _MARK not in text:
            return
        for line in text.split("\n"):
            if _MARK not in line:
                continue
            found = dict(self._pattern.findall(line))
            if len(found) >= _LEAST:
                self.found = {name: float(value) if "." in value else int(value) for name, value in found.items()}
