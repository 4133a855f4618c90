"""What measuring a running server asked for, met and found."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from tuner.model.record import LegResult, RequestStatus
from tuner.model.trial import Capacity
from tuner.model.workload import Workload


class LegKind(Enum):
    """Why a leg was run."""

    LADDER = "ladder"  # a level of its own
    SOAK = "soak"  # the highest level once more, held until it no longer drifts


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerFacts:
    """The server that was measured, as far as it says.

    Attributes:
        base_url: without a trailing slash and without ``/v1``.
        engine: whose protocol was spoken.
        is_recognised: the server showed that it is of this engine; False: a person said so, or nothing is known.
        model: that every request named.
        version: of the engine; None: not said.
        capacity: as the server reports it; None: not said.
        has_running_count: every chunk came with the token count so far; False: only the last event did.
        is_length_fixed: every request decodes exactly as many tokens as were asked for.
    """

    base_url: str
    engine: str
    is_recognised: bool
    model: str
    version: str | None = None
    capacity: Capacity | None = None
    has_running_count: bool = True
    is_length_fixed: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """One leg and what became of it.

    Attributes:
        concurrency: requests that were kept in flight.
        kind: of the leg.
        result: None: there is none, ``why`` says for what reason.
        failures: how many requests ended in which failing status, the most frequent first.
        error: what the server said in one of them; None: nothing.
        why: why there is no result; None: there is one.
    """

    concurrency: int
    kind: LegKind = LegKind.LADDER
    result: LegResult | None = None
    failures: tuple[tuple[RequestStatus, int], ...] = ()
    error: str | None = None
    why: str | None = None

    @property
    def is_sound(self) -> bool:
        """Whether it has a throughput and no request of it failed."""
        result = self.result
        return result is not None and result.failed == 0 and result.aggregate_throughput is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """What was measured of one server, as far as it came.

    Attributes:
        server: what was measured.
        workload: it was put under; ``ladder`` are the levels asked for.
        seed: of the prompts' order.
        began_unix_s, duration_s: when, and how long it took.
        levels: in the order in which they were run; those that were not reached are left out.
        is_interrupted: somebody ended it.
        gone: why the server was given up; None: it was not.
    """

    server: ServerFacts
    workload: Workload
    seed: int
    began_unix_s: float
    duration_s: float
    levels: tuple[Level, ...] = ()
    is_interrupted: bool = False
    gone: str | None = None

    @property
    def missing(self) -> tuple[int, ...]:
        """The levels of the ladder that were not run."""
        run = {level.concurrency for level in self.levels if level.kind is LegKind.LADDER}
        return tuple(level for level in self.workload.ladder if level not in run)
