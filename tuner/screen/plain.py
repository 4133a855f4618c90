"""The run as plain lines, one an event: for files, pipes and logs."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import tzinfo
from typing import Self

from tuner.model.outcome import TrialState
from tuner.model.study import StudySpec, TrialRow
from tuner.model.trial import LegFinished, Remark, StateEntered, TrialEvent, TrialResult
from tuner.ports import Proposal
from tuner.screen.view import RunView, leg_throughput
from tuner.screen.words import (
    counted,
    duration,
    outcome_words,
    rate,
    repeat_words,
    settings,
    state_words,
    time_of_day,
)

_TOLD_OTHERWISE = frozenset({TrialState.PROPOSED, TrialState.MEASURING, TrialState.JUDGING, TrialState.DONE})
"""States whose line would repeat another: the proposal, each leg's result, the outcome."""


class PlainScreen:
    """A RunObserver that hands each line to ``write``."""

    def __init__(
        self,
        write: Callable[[str], None],
        *,
        now: Callable[[], float] = time.time,
        ticks: Callable[[], float] = time.monotonic,
        zone: tzinfo | None = None,
    ) -> None:
        """Write lines with the time by ``now`` (Unix); ``ticks`` (monotonic) is for how long things take."""
        self.view = RunView()
        self._write = write
        self._now = now
        self._ticks = ticks
        self._zone = zone

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def starting(self, what: str) -> None:
        """Say what the run waits for."""
        self.view.starting(what)
        self._line(self._now(), what)

    def begin(self, spec: StudySpec, rows: tuple[TrialRow, ...]) -> None:
        """Say what is run, where, and how much of it is done already."""
        self.view.begin(spec, rows, self._ticks())
        badge = "SIMULATED: " if spec.simulated else ""
        hosts = ", ".join(host.name for host in spec.hosts)
        done = f", {self.view.done} done already" if rows else ""
        self._line(self._now(), f"{badge}study {spec.name}: {counted(spec.trials, 'trial')} on {hosts}{done}")

    def proposed(self, host: str, proposal: Proposal) -> None:
        """Say which configuration a host takes."""
        self.view.proposed(host, proposal, self._ticks())
        what = settings(proposal.assignment, self.view.names)
        base = " (the base command as it stands)" if proposal.baseline else ""
        if proposal.repeat is not None:
            base = f" ({repeat_words(proposal.repeat)})"
        self._line(self._now(), f"{host} trial {proposal.number}: {what}{base}")

    def event(self, host: str, number: int, event: TrialEvent) -> None:
        """Say how a trial moves on."""
        self.view.event(host, number, event, self._ticks())
        text = event_text(event)
        if text is not None:
            self._line(event.at_s, f"{host} trial {number} {text}")

    def told(self, result: TrialResult, rows: tuple[TrialRow, ...]) -> None:
        """Say how a trial ended, and how far the study is."""
        self.view.told(result, rows)
        left_s = self.view.time_left_s(self._ticks())
        left = f", about {duration(left_s)} left" if left_s else ""
        total = self.view.done + self.view.left
        confirmations = self.view.confirmed + self.view.unconfirmed
        end = outcome_words(result.outcome)
        again = f", {self.view.confirmed} of {confirmations} confirmed" if confirmations else ""
        self._line(self._now(), f"{result.host} trial {result.number} {end}; {self.view.done} of {total}{again}{left}")

    def corrected(self, text: str, rows: tuple[TrialRow, ...]) -> None:
        """Say what a person changed."""
        self.view.corrected(text, rows, self._now())
        self._line(self._now(), text)

    def remark(self, text: str) -> None:
        """Say something about the run as a whole."""
        self.view.remark(text, self._now())
        self._line(self._now(), text)

    def _line(self, at_s: float, text: str) -> None:
        self._write(f"{time_of_day(at_s, self._zone)} {' '.join(text.split())}")


def event_text(event: TrialEvent) -> str | None:
    """Write an event of a trial; None: not worth a line of its own."""
    if isinstance(event, StateEntered) and event.state not in _TOLD_OTHERWISE:
        words = state_words(event.state, event.level)
        return f"{words}: {event.detail}" if event.detail else words
    if isinstance(event, LegFinished):
        state = TrialState.MEASURING if event.kind == "ladder" else TrialState.SOAKING
        return f"{state_words(state, event.leg.concurrency)}: {rate(leg_throughput(event))} tok/s"
    if isinstance(event, Remark):
        return f"remark: {event.text}"
    return None
