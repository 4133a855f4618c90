"""Keeps secrets out of everything that is stored or shown."""

from __future__ import annotations

from dataclasses import replace

from tuner.model.secrets import MASK, masked, secret_values
from tuner.model.trial import Command
from tuner.ports import EngineAdapter


class Scrubber:
    """Replaces the secrets of one command line, and those the engine prints itself."""

    def __init__(self, engine: EngineAdapter, command: Command) -> None:
        self._engine = engine
        self._values = secret_values(command)

    def text(self, text: str) -> str:
        """Scrub free text: log lines, error messages."""
        for value in self._values:
            text = text.replace(value, MASK)
        return self._engine.scrub(text)

    def command(self, command: Command) -> Command:
        """Scrub a command line, argument by argument."""
        hidden = masked(command)
        return replace(
            hidden,
            argv=tuple(self.text(argument) for argument in hidden.argv),
            env=tuple((name, self.text(value)) for name, value in hidden.env),
        )
