"""Where a trial is, told to whoever listens as it changes."""

from __future__ import annotations

from collections.abc import Callable

from tuner.model.outcome import TrialState
from tuner.model.trial import LegProgress, Remark, StateEntered, TrialEvent
from tuner.ports import Clock

Emit = Callable[[TrialEvent], None]


class Progress:
    """The state and level of a running trial; every change becomes an event."""

    def __init__(self, emit: Emit, clock: Clock, scrub: Callable[[str], str]) -> None:
        self.emit = emit
        self.scrub = scrub
        self.state = TrialState.PROPOSED
        self.level: int | None = None
        self._clock = clock

    def enter(self, state: TrialState, *, level: int | None = None, detail: str = "") -> None:
        """Move to ``state``; the level of the last leg is kept while it is judged."""
        if level is None and state in (TrialState.JUDGING, TrialState.DONE):
            level = self.level
        self.state, self.level = state, level
        self.emit(StateEntered(at_s=self._clock.now_s(), state=state, level=level, detail=self.scrub(detail)))

    def remark(self, text: str) -> None:
        """Tell the reader of the evidence something worth knowing."""
        self.emit(Remark(at_s=self._clock.now_s(), text=self.scrub(text)))

    def leg(self, concurrency: int, elapsed_s: float, throughput: float | None) -> None:
        """Tell how a leg is coming along."""
        self.emit(
            LegProgress(
                at_s=self._clock.now_s(),
                concurrency=concurrency,
                elapsed_s=elapsed_s,
                aggregate_throughput=throughput,
            )
        )
