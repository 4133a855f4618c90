"""Measuring a configuration again: what for, how often, and how much of it a study pays for."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Purpose(Enum):
    """Why a finished trial is measured again on a fresh start."""

    LEVEL = "level"  # of the baseline: what the host gives now
    CONFIRMATION = "confirmation"  # its value may have been luck
    DRIFT = "drift"  # the host gives something else by now: what was measured before is not used any more


@dataclass(frozen=True, slots=True, kw_only=True)
class Repeat:
    """A trial that measures another once more. It is no part of the search, and does not count.

    Attributes:
        of: number of the trial whose configuration it runs.
    """

    of: int
    purpose: Purpose


@dataclass(frozen=True, slots=True, kw_only=True)
class RepeatTerms:
    """How much a study spends on being sure.

    Attributes:
        confirmations: fresh starts that each member of the front and each near miss gets at the end; 0: none.
        baseline_every: counted trials of a host after which the baseline is measured on it again; 0: never.
        drift_limit: relative change of a host's level beyond which what was measured there is measured again.
        most: repeats of all kinds together; None: as many as the study has trials.
    """

    confirmations: int = 0
    baseline_every: int = 0
    drift_limit: float = 0.05
    most: int | None = None

    def limit(self, trials: int) -> int:
        """Return how many repeats a study of so many trials pays for."""
        return trials if self.most is None else self.most
