"""How the server starts of one host ended, as far as its session remembers: evidence for the next verdict."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from tuner.model.outcome import TrialState
from tuner.model.space import Assignment
from tuner.runtime.policy import Death, Elsewhere, HostEvidence

REMEMBERED = 200
"""Server starts; a night has fewer, and none older than that says much of the host."""


@dataclass(slots=True)
class Endings:
    """Server starts of one host, oldest first."""

    _all: deque[Elsewhere] = field(default_factory=lambda: deque(maxlen=REMEMBERED))

    def died(self, assignment: Assignment, death: Death) -> None:
        """Note that a server died."""
        self._all.append(Elsewhere(assignment=assignment, trial=death.trial, death=death))

    def lived(self, assignment: Assignment, trial: int) -> None:
        """Note that a configuration was measured."""
        self._all.append(Elsewhere(assignment=assignment, trial=trial))

    def condemned(self, assignment: Assignment, state: TrialState) -> None:
        """Note that a configuration is infeasible because of its deaths in ``state``."""
        for index, entry in enumerate(self._all):
            if entry.assignment == assignment and entry.death is not None and entry.death.state is state:
                self._all[index] = replace(entry, is_condemned=True)

    def deaths_of(self, assignment: Assignment) -> tuple[Death, ...]:
        """Return the deaths of a configuration since it was last measured, oldest first.

        Without those it was condemned for: it runs again because a person overruled them.
        """
        return tuple(reversed(tuple(self._since_it_lived(assignment))))

    def _since_it_lived(self, assignment: Assignment) -> Iterator[Death]:
        for entry in reversed(self._all):
            if entry.assignment != assignment:
                continue
            if entry.death is None:
                return
            if not entry.is_condemned:
                yield entry.death

    def around(self, assignment: Assignment) -> HostEvidence:
        """Return how all other configurations ended."""
        return HostEvidence(others=tuple(entry for entry in self._all if entry.assignment != assignment))

    def forget(self) -> None:
        """The host was set aside and given back: what was before says nothing of it any more."""
        self._all.clear()
