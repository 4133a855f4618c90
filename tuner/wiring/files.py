"""Keeps a study's result files up to date while it runs."""

from __future__ import annotations

from pathlib import Path

from tuner.hosts.files import replace_file
from tuner.model.study import StudySpec, TrialRow
from tuner.model.trial import TrialEvent, TrialResult
from tuner.ports import Proposal, RunObserver
from tuner.report.confidence import chances
from tuner.report.front import Heading, front_rows
from tuner.report.plots import render_front
from tuner.report.tables import to_csv
from tuner.runtime.evidence import cannot_write


class ResultFiles:
    """A RunObserver that writes front.csv and trials.csv after every trial, then tells another."""

    def __init__(self, spec: StudySpec, inner: RunObserver) -> None:
        self._tables = Tables(Heading.of(spec), Path(spec.directory))
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

    def corrected(self, text: str, rows: tuple[TrialRow, ...]) -> None:
        """Write both tables, then pass on."""
        self.write_tables(rows)
        self._inner.corrected(text, rows)

    def remark(self, text: str) -> None:
        """Pass on."""
        self._inner.remark(text)

    def write_tables(self, rows: tuple[TrialRow, ...]) -> None:
        """See :meth:`Tables.write`."""
        self._tables.write(rows)

    def write_plot(self, rows: tuple[TrialRow, ...]) -> None:
        """See :meth:`Tables.draw`."""
        self._tables.draw(rows)


class Tables:
    """The result files of a study in ``folder``."""

    def __init__(self, heading: Heading, folder: Path) -> None:
        self._heading = heading
        self._folder = folder

    def write(self, rows: tuple[TrialRow, ...]) -> None:
        """Replace front.csv and trials.csv.

        Raises:
            EvidenceError: they cannot be written.
        """
        likely = chances(rows, self._heading)
        front = front_rows(rows, self._heading.objectives)
        self._replace("front.csv", to_csv(front, self._heading, likely).encode())
        self._replace("trials.csv", to_csv(rows, self._heading, likely).encode())

    def draw(self, rows: tuple[TrialRow, ...]) -> None:
        """Replace front.png; it costs a second, so it is drawn at the end only.

        Raises:
            EvidenceError: it cannot be written.
        """
        self._replace("front.png", render_front(rows, self._heading))

    def _replace(self, name: str, content: bytes) -> None:
        try:
            replace_file(self._folder / name, content, mode=0o644)
        except OSError as error:
            raise cannot_write(self._folder, error) from error
