"""Keeps secrets out of everything that is stored or shown."""

from __future__ import annotations

import re
from collections.abc import Iterable

from tuner.model.trial import Command
from tuner.ports import EngineAdapter

MASK = "***"
_SECRET_NAME = re.compile(
    r"(?:^|[-_])(?:api[-_]?key|secret|passw(?:or)?d|hf[-_]token|auth[-_]token|access[-_]token)", re.IGNORECASE
)


class Scrubber:
    """Replaces the secrets of one command line, and those the engine prints itself."""

    def __init__(self, engine: EngineAdapter, command: Command) -> None:
        self._engine = engine
        self._values = tuple(sorted({value for value in secret_values(command) if value}, key=len, reverse=True))

    def text(self, text: str) -> str:
        """Scrub free text: log lines, error messages."""
        for value in self._values:
            text = text.replace(value, MASK)
        return self._engine.scrub(text)

    def command(self, command: Command) -> Command:
        """Scrub a command line, argument by argument."""
        return Command(
            argv=tuple(self._masked(argument) for argument in command.argv),
            env=tuple(
                (name, MASK if _SECRET_NAME.search(name) else self._masked(value)) for name, value in command.env
            ),
        )

    def _masked(self, argument: str) -> str:
        for value in self._values:
            argument = argument.replace(value, MASK)
        return argument


def secret_values(command: Command) -> Iterable[str]:
    """Yield every value of ``command`` that stands behind a secret's name."""
    for name, value in command.env:
        if _SECRET_NAME.search(name):
            yield value
    for position, argument in enumerate(command.argv):
        name, equals, value = argument.partition("=")
        if not name.startswith("-") or not _SECRET_NAME.search(name):
            continue
        if equals:
            yield value
        elif position + 1 < len(command.argv):
            yield command.argv[position + 1]
