"""Decides when a leg is over; pure, so that a simulation drives the very same code.

It is looked at in growing steps (:mod:`tuner.stats.batches`): an interval that is looked at all the
time, until it is narrow by chance, covers too little.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tuner.load.reading import LegReader, LiveRequest, Reading
from tuner.load.schedule import evaluation_period_s, is_hopeless, is_narrow, is_over
from tuner.model.record import RequestRecord, RequestStatus
from tuner.ports import Leg
from tuner.stats.batches import batch_size, look_share, next_look, required_batches
from tuner.stats.steadiness import is_steady
from tuner.stats.window import most_at_once, opening_s

_PERIODS_A_READING = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What a look at a leg gave.

    Attributes:
        reading: the last one; None: the window has not opened.
        is_over: the leg is to end.
        is_converged: the wanted interval was reached (or the leg came to rest).
    """

    reading: Reading | None = None
    is_over: bool = False
    is_converged: bool = False


class LegWatch:
    """Watches one leg until its window can close.

    Args:
        leg: what is wanted.
        request_timeout_s: after which a request has failed.
        began_s: when the leg began.
        refresh_s: a reading without a new batch, which is only for those who watch the progress, is made
            when the last is this old; None: four periods.
    """

    def __init__(self, leg: Leg, *, request_timeout_s: float, began_s: float, refresh_s: float | None = None) -> None:
        self._leg = leg
        self._request_timeout_s = request_timeout_s
        self._began_s = began_s
        self._reader: LegReader | None = None
        self._reading: Reading | None = None
        self._read_s = began_s
        self._looks = 0
        self._next_look = required_batches(leg.concurrency)
        self.period_s = evaluation_period_s(leg)
        self._refresh_s = _PERIODS_A_READING * self.period_s if refresh_s is None else refresh_s

    def look(
        self,
        now_s: float,
        started_s: Sequence[float],
        records: Sequence[RequestRecord],
        live: Sequence[LiveRequest],
    ) -> Decision:
        """Say whether the leg is over.

        Args:
            now_s: the present; it grows from look to look.
            started_s: when each slot sent its first request.
            records: every request that ended, in the order of their ends; the list only grows.
            live: the requests in flight.
        """
        if self._reader is None:
            waiting = [request.sent_s for request in live if request.sent_s is not None and not request.stamps_s]
            opened_s = opening_s(started_s, records, waiting, concurrency=self._leg.concurrency, now_s=now_s)
            if opened_s is None:
                return Decision(is_over=self._is_hopeless(now_s, records))
            spans = [(r.first_s, r.last_s) for r in records if r.first_s is not None and r.last_s is not None]
            spans += [(request.stamps_s[0], now_s) for request in live if request.stamps_s]
            self._reader = LegReader(
                opened_s,
                self._leg.concurrency,
                size=batch_size(self._leg.concurrency, most_at_once(spans)),
                in_equal_batches=self._leg.until_steady,
            )
        return self._look(self._reader, now_s, records, live)

    def _look(
        self, reader: LegReader, now_s: float, records: Sequence[RequestRecord], live: Sequence[LiveRequest]
    ) -> Decision:
        leg = self._leg
        reader.take(records)
        window_s = now_s - reader.opened_s
        is_due = window_s >= leg.min_s and self._is_due(reader, now_s)
        is_stale = now_s - self._read_s >= self._refresh_s
        is_late = self._is_over(window_s, is_converged=False)
        if not (is_due or is_stale or is_late or self._reading is None):
            return Decision(reading=self._reading)
        reading = reader.read(now_s, records, live, share=look_share(self._looks, leg.concurrency))
        self._reading, self._read_s = reading, now_s
        is_late = is_late and self._is_over(window_s, is_converged=False)
        if not (is_due or is_late):
            return Decision(reading=reading)
        is_converged = self._is_converged(reading)
        is_over = is_late or self._is_over(window_s, is_converged=is_converged)
        if is_due and not is_over:
            self._looks += 1
            self._next_look = next_look(self._samples(reader, now_s))
        return Decision(reading=reading, is_over=is_over, is_converged=is_converged)

    def _samples(self, reader: LegReader, now_s: float) -> int:
        return reader.requests_by(now_s) if self._leg.concurrency == 1 else reader.batches_by(now_s)

    def _is_due(self, reader: LegReader, now_s: float) -> bool:
        if self._leg.until_steady:
            return now_s - self._read_s >= self._refresh_s
        return self._samples(reader, now_s) >= self._next_look

    def _is_converged(self, reading: Reading) -> bool:
        if self._leg.until_steady:
            return is_steady(reading.batch_throughputs, self._leg.interval)
        return is_narrow(self._leg, reading.single, reading.aggregate)

    def _is_over(self, window_s: float, *, is_converged: bool) -> bool:
        return is_over(
            self._leg,
            window_s=window_s,
            is_narrow=is_converged,
            single=None if self._reading is None else self._reading.single,
            request_timeout_s=self._request_timeout_s,
        )

    def _is_hopeless(self, now_s: float, records: Sequence[RequestRecord]) -> bool:
        return is_hopeless(
            self._leg,
            elapsed_s=now_s - self._began_s,
            complete=sum(record.status is RequestStatus.OK for record in records),
            failed=sum(record.status is not RequestStatus.OK for record in records),
            request_timeout_s=self._request_timeout_s,
        )
