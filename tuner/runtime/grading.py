"""Values a trial by its study's objectives and constraints, on its way from the host to whoever keeps it.

The host knows nothing of a study's terms: it measures, and judges whether the server lives. The driver hears every
event first, counts the requests within bounds while their records pass by, and puts the values into the result.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from tuner.model.metric import OBJECTIVES, Bound, Constraint, Metric, Objective
from tuner.model.metric_text import metric_of
from tuner.model.outcome import Measured
from tuner.model.trial import LegFinished, TrialEvent, TrialFinished
from tuner.stats.objectives import GoodShare, bounds_of, good_share, graded

_PLAIN = frozenset(objective.name for objective in OBJECTIVES)


@dataclass(slots=True)
class Grading:
    """Of one trial; hears all its events in order."""

    objectives: Sequence[Objective]
    constraints: Sequence[Constraint]
    _metrics: tuple[Metric, ...] = field(init=False)
    _shares: dict[tuple[tuple[Bound, ...], int], GoodShare] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Read which metrics are wanted beside those that every trial has."""
        named = [metric_of(each.name) for each in self.objectives] + [each.metric for each in self.constraints]
        self._metrics = tuple(dict.fromkeys(metric for metric in named if metric.text not in _PLAIN))

    def heard(self, event: TrialEvent) -> TrialEvent:
        """Return the event as it is to be kept; the end of a measured trial with its values."""
        if isinstance(event, LegFinished) and event.kind == "ladder":
            self._count(event)
        if isinstance(event, TrialFinished):
            return self._valued(event)
        return event

    def _count(self, event: LegFinished) -> None:
        for bounds in bounds_of(self._metrics):
            share = good_share(event.requests, bounds)
            key = (bounds, event.leg.concurrency)
            self._shares.pop(key, None)  # of an earlier start
            if share is not None:
                self._shares[key] = share

    def _valued(self, event: TrialFinished) -> TrialFinished:
        result = event.result
        if not isinstance(result.outcome, Measured):
            return event
        outcome = graded(
            result.outcome,
            metrics=self._metrics,
            constraints=self.constraints,
            legs=result.legs,
            shares=self._shares,
        )
        return replace(event, result=replace(result, outcome=outcome))
