"""Follows one server's log: what every engine's reader does the same way.

An engine's reader says what its lines mean (:meth:`LogFollower.read`); this class cuts the log,
holds what was seen first, and asks :func:`tuner.engines.logs.judging.judge` in the end.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from tuner.engines.logs.findings import Finding, Seen
from tuner.engines.logs.judging import Engine, judge
from tuner.engines.logs.lines import SERVED, LineCutter, Steady
from tuner.engines.logs.shippers import bare
from tuner.model.outcome import Ending, Verdict


class LogFollower:
    """``ports.LogReader`` for a subclass that implements :meth:`read`; constant memory.

    Args:
        engine: what judging must know.
        steady: lines that never matter.
        triggers: lower-case texts of which a line holds one if it may matter.
    """

    def __init__(self, engine: Engine, steady: Steady, triggers: Iterable[str]) -> None:
        self._engine = engine
        self._cutter = LineCutter(steady, triggers)
        self.seen = Seen()
        self._is_past = False

    # ------------------------------------------------------------------ the engine's

    def read(self, line: str, message: str, lowered: str) -> None:
        """Take from one line what it says; put it into ``self.seen``.

        Args:
            line: as it came, for the evidence.
            message: without what shippers wrote before it.
            lowered: the message in lower case.
        """
        raise NotImplementedError

    # ------------------------------------------------------------------ the port

    def feed(self, text: str) -> None:
        """Take the next piece."""
        if self.seen.sure is not None and self.seen.death:
            return  # the first cause is known and that it was fatal: what comes now may be megabytes of last words
        self._take(self._cutter.cut(text))

    @property
    def stage(self) -> str:
        """The last start-up stage seen; empty before any."""
        return self.seen.stage

    @property
    def fatal(self) -> bool:
        """The log says that the server cannot live."""
        return self.seen.is_lost

    @property
    def is_configuration_fault(self) -> bool:
        """The cause seen so far names the configuration."""
        sure = self.seen.sure
        return sure is not None and sure.config_fault is True and not sure.other_holder and not self.seen.doubt

    def diagnose(self, ending: Ending) -> Verdict:
        """Say why the server died."""
        if self.seen.sure is None or not self.seen.death:
            self._take(self._cutter.rest())
        return judge(replace(self.seen, last=self._cutter.last()), ending, self._engine)

    # ------------------------------------------------------------------ for the engine's

    def find(self, finding: Finding, *, is_sure: bool) -> None:
        """Keep the first cause there is, and the first hint that it did not survive; nothing after a stop."""
        if self.seen.stop or self.seen.sure is not None:
            return
        finding = replace(finding, stage=self.seen.stage)
        if is_sure:
            self.seen = replace(self.seen, sure=finding, has_recovered=False)
        elif self.seen.hint is None or self.seen.has_recovered:
            self.seen = replace(self.seen, hint=finding, has_recovered=False)

    def live_again(self) -> None:
        """Note that a new life begins in the same log: what was seen before is nothing that this one survives."""
        self._is_past = self._is_past or self.seen.is_troubled

    def _take(self, lines: list[str]) -> None:
        for line in lines:
            if self.seen.sure is not None and self.seen.death:
                return
            if line == SERVED:
                self._serve_on()
                continue
            message = bare(line)
            self.read(line, message, message.lower())

    def _serve_on(self) -> None:
        """Note that the server survived what was seen, if it is something that a server may survive."""
        seen = self.seen
        if seen.is_troubled and not self._is_past and seen.is_serving and not seen.is_lost and not seen.has_recovered:
            self.seen = replace(seen, has_recovered=True)
