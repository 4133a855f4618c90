"""A run of which nothing is kept and that nobody watches."""

from __future__ import annotations

from tuner.model.outcome import Outcome
from tuner.model.study import StudySpec, TrialRow
from tuner.model.trial import TrialEvent, TrialRequest, TrialResult
from tuner.ports import Proposal


class NoEvidence:
    """An EvidenceStore that keeps nothing."""

    def begin(self, request: TrialRequest, host: str) -> None:
        """Pass over."""

    def add(self, number: int, event: TrialEvent) -> None:
        """Pass over."""

    def finish(self, number: int, outcome: Outcome) -> None:
        """Pass over."""

    def note(self, number: int, event: TrialEvent) -> None:
        """Pass over."""


class Unwatched:
    """A RunObserver that shows nothing."""

    def starting(self, what: str) -> None:
        """Pass over."""

    def begin(self, spec: StudySpec, rows: tuple[TrialRow, ...]) -> None:
        """Pass over."""

    def proposed(self, host: str, proposal: Proposal) -> None:
        """Pass over."""

    def event(self, host: str, number: int, event: TrialEvent) -> None:
        """Pass over."""

    def told(self, result: TrialResult, rows: tuple[TrialRow, ...]) -> None:
        """Pass over."""

    def corrected(self, text: str, rows: tuple[TrialRow, ...]) -> None:
        """Pass over."""

    def remark(self, text: str) -> None:
        """Pass over."""
