"""Keeps secrets out of everything that is stored or shown."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from tuner.model.secrets import MASK, masked, secret_values
from tuner.model.trial import Command
from tuner.ports import EngineAdapter


class Scrubber:
    """Replaces the secrets of one command line, and those the engine prints itself.

    Args:
        engine: knows what it prints.
        command: its flags and variables.
        more: further values; asked each time, because a host's own are known only once it is entered.
    """

    def __init__(
        self, engine: EngineAdapter, command: Command, more: Callable[[], tuple[str, ...]] = lambda: ()
    ) -> None:
        self._engine = engine
        self._values = secret_values(command)
        self._more = more

    def text(self, text: str) -> str:
        """Scrub free text: log lines, error messages."""
        for value in (*self._values, *self._more()):
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
