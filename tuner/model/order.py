"""What a person asks of a study, and what is answered."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from tuner.model.ruling import Ruling
from tuner.model.space import Assignment


@dataclass(frozen=True, slots=True, kw_only=True)
class TryOrder:
    """Run a configuration next.

    Attributes:
        order: unique; orders are taken in the sequence of their ids.
        who: ``user@machine``.
        at_s: when it was given, Unix time.
        values: in the space; what is absent is as in the baseline.
        again: also where it was tried before.
    """

    order: str
    who: str
    at_s: float
    values: Assignment
    again: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class AbortOrder:
    """End a trial that was under way when the ruling was made.

    Attributes:
        ruling: infeasible or retry.
        host: on this host; None: wherever one runs.
        trial: this number; None: whichever runs.
    """

    ruling: Ruling
    host: str | None = None
    trial: int | None = None

    @property
    def order(self) -> str:
        """The order's id."""
        return self.ruling.order


@dataclass(frozen=True, slots=True, kw_only=True)
class VerdictOrder:
    """Correct how a finished trial ended."""

    ruling: Ruling
    trial: int

    @property
    def order(self) -> str:
        """The order's id."""
        return self.ruling.order


Order: TypeAlias = TryOrder | AbortOrder | VerdictOrder


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What became of an order.

    Attributes:
        done: it was carried out; False: it was refused, and nothing was changed.
        text: one line for the person.
    """

    done: bool
    text: str
