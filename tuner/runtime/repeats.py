"""What is measured again, and when: pure decisions, made anew from the trials each time.

Since nothing is remembered but the trials themselves, a run that was killed goes on where it was.

1. While the search lasts, a host measures the baseline again after every ``baseline_every`` trials that counted on
   it, and once more when it has no search trial left.
2. After the search, where a host's level has changed by more than ``drift_limit`` and the change is seen (its 95 %
   interval leaves out zero), what was measured there under another level is measured again once: the baseline, and
   what would be a member of the front or a near miss at the present level.
3. Then members of the front and near misses are confirmed, those with the fewest fresh starts first, until each has
   ``confirmations`` of them. Near misses are what belongs to the front with a probability of at least
   ``NEAR_CHANCE``, at most ``NEAR_MOST`` at once. With each result the front may change, and others be wanted.
4. Between confirmations a host measures the baseline, after every sqrt(k) of them for k wanted configurations: the
   best share for a control that k others are compared with (C. W. Dunnett, A multiple comparison procedure for
   comparing several treatments with a control, JASA 50 (1955) 1096).

What ends as a fault three times in a row is given up. All repeats together are at most ``RepeatTerms.limit``.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from tuner.model.metric import Objective
from tuner.model.outcome import Faulted, Infeasible, Interrupted, Measured
from tuner.model.repeat import Purpose, Repeat, RepeatTerms
from tuner.model.study import TrialRow
from tuner.stats.drift import Drift
from tuner.stats.repeats import Standing, drifts, standings

NEAR_CHANCE = 0.05
"""Probability of belonging to the front from which a configuration is worth a second look."""

NEAR_MOST = 3
"""Near misses wanted at once."""

GIVEN_UP_AFTER = 3
"""Faults in a row of repeats of one configuration."""

_Drifts: TypeAlias = dict[str, tuple[Drift | None, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far the confirmations are.

    Attributes:
        done: that came to a result.
        left: that are to follow as the front is now, those under way included.
    """

    done: int
    left: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Repeats:
    """What a study repeats.

    Attributes:
        trials: that are to count in the search.
    """

    terms: RepeatTerms
    trials: int
    objectives: tuple[Objective, ...]

    def during_search(self, rows: Sequence[TrialRow], host: str) -> Repeat | None:
        """Say what a free host measures again before its next trial of the search; None: nothing."""
        base = _baseline(rows)
        every = self.terms.baseline_every
        if base is None or every == 0 or self._is_spent(rows) or _is_given_up(rows, base.number):
            return None
        counted = sum(row.counts and row.host == host for row in rows)
        levels = sum(_is_good(row) and row.host == host for row in _repeats(rows, of=base.number))
        return Repeat(of=base.number, purpose=Purpose.LEVEL) if counted >= every * (levels + 1) else None

    def at_the_end(self, rows: Sequence[TrialRow], host: str) -> Repeat | None:
        """Say what a host measures again once the search has nothing more for it; None: nothing.

        While trials of the search run elsewhere, this is its baseline at most: their ends may change the front.
        """
        if self._is_spent(rows):
            return None
        level = self._last_level(rows, host)
        if level is not None or any(row.repeat is None and _runs(row) for row in rows):
            return level
        return self._after_drift(rows) or self._confirmation(rows, host)

    def is_done(self, rows: Sequence[TrialRow], hosts: Collection[str]) -> bool:
        """Whether nothing is left to measure again on any of the hosts, the search being over."""
        return all(self.during_search(rows, host) is None and self.at_the_end(rows, host) is None for host in hosts)

    def progress(self, rows: Sequence[TrialRow]) -> Progress:
        """Say how far the confirmations are."""
        done = sum(_is_confirmation(row) and isinstance(row.outcome, (Measured, Infeasible)) for row in rows)
        running = sum(_is_confirmation(row) and _runs(row) for row in rows)
        if self.terms.confirmations == 0:
            return Progress(done=done, left=running)
        room = max(0, self.terms.limit(self.trials) - sum(_is_good(row) for row in rows if row.repeat is not None))
        missing = sum(self._missing(rows, each) for each in self._wanted(rows))
        return Progress(done=done, left=running + min(room, missing))

    def _is_spent(self, rows: Sequence[TrialRow]) -> bool:
        return sum(_is_good(row) for row in rows if row.repeat is not None) >= self.terms.limit(self.trials)

    def _last_level(self, rows: Sequence[TrialRow], host: str) -> Repeat | None:
        """Return the baseline's repeat at the end of a host's search."""
        base = _baseline(rows)
        if base is None or self.terms.baseline_every == 0 or _is_given_up(rows, base.number):
            return None
        last = max((row.number for row in rows if row.counts and row.host == host), default=None)
        levels = [row.number for row in rows if _is_level(row, base) and row.host == host]
        if last is None or (levels and levels[-1] >= last):
            return None
        return Repeat(of=base.number, purpose=Purpose.LEVEL)

    # -- drift -------------------------------------------------------------------------

    def _after_drift(self, rows: Sequence[TrialRow]) -> Repeat | None:
        found = {
            host: each
            for host, each in drifts(rows, self.objectives).items()
            if any(drift is not None and drift.exceeds(self.terms.drift_limit) for drift in each)
        }
        if not found:
            return None
        affected = {row.number for row in rows if row.counts and self._is_affected(row, rows, found)}
        worth = {each.row.number for each in _in_front(standings(self._at_present(rows, found), self.objectives))}
        worth |= {row.number for row in rows if row.baseline}
        for number in sorted(affected & worth):
            again = [row for row in _repeats(rows, of=number) if row.repeat and row.repeat.purpose is Purpose.DRIFT]
            if not any(_is_good(row) for row in again) and not _is_given_up(rows, number):
                return Repeat(of=number, purpose=Purpose.DRIFT)
        return None

    def _is_affected(self, row: TrialRow, rows: Sequence[TrialRow], found: _Drifts) -> bool:
        starts = [rows[number] for number in row.starts or (row.number,)]
        return any(
            abs(drift.behind(start.finished_s)) > self.terms.drift_limit
            for start in starts
            if start.host in found and start.finished_s is not None
            for drift in found[start.host or ""]
            if drift is not None and drift.exceeds(self.terms.drift_limit)
        )

    def _at_present(self, rows: Sequence[TrialRow], found: _Drifts) -> list[TrialRow]:
        """Return the trials with the values that they would have at their hosts' present levels."""
        return [self._moved(row, found.get(row.host or "")) for row in rows]

    def _moved(self, row: TrialRow, drift: tuple[Drift | None, ...] | None) -> TrialRow:
        if drift is None or row.values is None or row.finished_s is None:
            return row
        moved = [
            value if each is None else value / (1 + each.behind(row.finished_s))
            for value, each in zip(row.values, drift, strict=True)
        ]
        return replace(row, values=tuple(moved))

    # -- confirmations -----------------------------------------------------------------

    def _wanted(self, rows: Sequence[TrialRow]) -> list[Standing]:
        if self.terms.confirmations == 0:
            return []
        return [each for each in _in_front(standings(rows, self.objectives)) if not _is_given_up(rows, each.row.number)]

    def _missing(self, rows: Sequence[TrialRow], standing: Standing) -> int:
        """Count the fresh starts that a configuration still needs, those under way not counted.

        One whose starts disagree gets one more, which decides between them.
        """
        running = sum(_runs(row) for row in _repeats(rows, of=standing.row.number))
        wanted = self.terms.confirmations + (1 if standing.is_discordant else 0)
        return max(0, wanted - standing.repeats - running)

    def _confirmation(self, rows: Sequence[TrialRow], host: str) -> Repeat | None:
        wanted = self._wanted(rows)
        open_ = [each for each in wanted if self._missing(rows, each) > 0]
        if not open_:
            return None
        base = _baseline(rows)
        between = max(1, round(math.sqrt(len(wanted))))
        if base is not None and not _is_given_up(rows, base.number) and _since_level(rows, base, host) >= between:
            return Repeat(of=base.number, purpose=Purpose.LEVEL)
        chosen = min(open_, key=lambda each: (-self._missing(rows, each), not each.is_member, each.row.number))
        return Repeat(of=chosen.row.number, purpose=Purpose.CONFIRMATION)


def _in_front(found: Iterable[Standing]) -> list[Standing]:
    """Return the members of the front, then the near misses, the likeliest first."""
    every = list(found)
    near = [each for each in every if not each.is_member and each.chance >= NEAR_CHANCE]
    near.sort(key=lambda each: (-each.chance, each.row.number))
    return [each for each in every if each.is_member] + near[:NEAR_MOST]


def _baseline(rows: Iterable[TrialRow]) -> TrialRow | None:
    return next(
        (row for row in rows if row.baseline and row.repeat is None and isinstance(row.outcome, Measured)), None
    )


def _repeats(rows: Iterable[TrialRow], *, of: int) -> list[TrialRow]:
    return [row for row in rows if row.repeat is not None and row.repeat.of == of]


def _runs(row: TrialRow) -> bool:
    return row.outcome is None and row.host is not None


def _is_good(row: TrialRow) -> bool:
    """Whether it runs, or came to a result."""
    return _runs(row) or isinstance(row.outcome, (Measured, Infeasible))


def _is_confirmation(row: TrialRow) -> bool:
    return row.repeat is not None and row.repeat.purpose is Purpose.CONFIRMATION


def _is_level(row: TrialRow, base: TrialRow) -> bool:
    """Whether it measures, or measured, the baseline."""
    is_base = row.number == base.number or (row.repeat is not None and row.repeat.of == base.number)
    return is_base and _is_good(row)


def _since_level(rows: Sequence[TrialRow], base: TrialRow, host: str) -> int:
    """Count the confirmations on a host since the baseline was measured there."""
    here = [row for row in rows if row.host == host and _is_good(row)]
    last = max((row.number for row in here if _is_level(row, base)), default=-1)
    return sum(_is_confirmation(row) and row.number > last for row in here)


def _is_given_up(rows: Iterable[TrialRow], number: int) -> bool:
    """Whether the last repeats of a configuration were all faults."""
    ends = [row.outcome for row in _repeats(rows, of=number) if row.outcome is not None]
    told = [outcome for outcome in ends if not isinstance(outcome, Interrupted)][-GIVEN_UP_AFTER:]
    return len(told) == GIVEN_UP_AFTER and all(isinstance(outcome, Faulted) for outcome in told)
