"""Keeps a study's result files up to date while it runs."""

from __future__ import annotations

from pathlib import Path

from tuner.model.study import StudySpec, TrialRow
from tuner.model.trial import TrialEvent, TrialResult
from tuner.ports import Proposal, RunObserver
from tuner.report.plots import write_front_plot
from tuner.report.tables import write_front_csv, write_trials_csv


class ResultFiles:
    """A RunObserver that writes front.csv and trials.csv after every trial, then tells another."""

    def __init__(self, spec: StudySpec, inner: RunObserver) -> None:
        self._spec = spec
        self._folder = Path(spec.directory)
        self._inner = inner

    def starting(self, what: str) -> None:
        """Pass on."""
        self._inner.starting(what)

    def begin(self, spec: StudySpec, rows: tuple[TrialRow, ...]) -> None:
        """Pass on."""
        self._inner.begin(spec, rows)

    def proposed(self, host: str, proposal: Proposal) -> None:
        """Pass on."""
        self._inner.proposed(host, proposal)

    def event(self, host: str, number: int, event: TrialEvent) -> None:
        """Pass on."""
        self._inner.event(host, number, event)

    def told(self, result: TrialResult, rows: tuple[TrialRow, ...]) -> None:
        """Write both tables, then pass on."""
        self.write_tables(rows)
        self._inner.told(result, rows)

    def remark(self, text: str) -> None:
        """Pass on."""
        self._inner.remark(text)

    def write_tables(self, rows: tuple[TrialRow, ...]) -> None:
        """Replace front.csv and trials.csv."""
        write_trials_csv(self._folder / "trials.csv", self._spec, rows)
        write_front_csv(self._folder / "front.csv", self._spec, rows)

    def write_plot(self, rows: tuple[TrialRow, ...]) -> None:
        """Replace front.png; it costs a second, so it is drawn at the end only."""
        write_front_plot(self._folder / "front.png", self._spec, rows)
