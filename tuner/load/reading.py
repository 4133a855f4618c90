"""Reads a leg's throughput while it runs, each finished request looked at once; pure.

A leg is read in its own process, between the chunks of its streams, so a reading must be cheap: the
tokens at the edges of batches are settled once, and streams that ended before the last settled edge
are kept as one number.
"""

from __future__ import annotations

import math
from bisect import bisect_right, insort
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

from tuner.model.metric import Estimate
from tuner.model.record import RequestRecord
from tuner.stats.batches import FEWEST_REPORTED, batches_throughput, edges_s
from tuner.stats.intervals import ratio_of_sums
from tuner.stats.latency import decode_s, decode_tokens
from tuner.stats.steadiness import BATCHES
from tuner.stats.window import (
    COMPLETE,
    Arrivals,
    Window,
    aggregate_throughput,
    arrivals_of,
    batch_throughputs,
    horizon_s,
    is_in_window,
    mean_gap_s,
    median_decode_s,
    tokens_at,
    tokens_per_chunk,
)


class LiveRequest(Protocol):
    """A request in flight, as far as a reading looks at it."""

    @property
    def sent_s(self) -> float | None:
        """When it was sent; None: not yet."""

    @property
    def stamps_s(self) -> Sequence[float]:
        """Arrivals of its chunks so far."""

    def arrivals(self, per_chunk: float | None) -> Arrivals | None:
        """Return its curve so far; None: nothing came, or nothing says how many tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What a leg has measured so far.

    Attributes:
        window: from its opening to the end of its last whole batch; to the latest time up to which all
            tokens are known while there are fewer than three, or when the last is long over, or where equal
            batches are asked for.
        single: decode speed of the requests inside the window.
        aggregate: of all streams.
        batches: whole ones since the window opened.
        occupancy: mean share of the slots whose request was being answered inside the window.
        batch_throughputs: of all streams, in equal batches of the window; empty unless asked for.
    """

    window: Window
    single: Estimate | None
    aggregate: Estimate | None
    batches: int = 0
    occupancy: float | None = None
    batch_throughputs: tuple[float, ...] = ()


class LegReader:
    """Reads one leg again and again.

    Args:
        opened_s: when its window opened.
        concurrency: slots.
        size: completions of a batch.
        in_equal_batches: whether a reading has its ``batch_throughputs``.
    """

    def __init__(self, opened_s: float, concurrency: int, *, size: int, in_equal_batches: bool = False) -> None:
        self.opened_s = opened_s
        self._concurrency = concurrency
        self._size = size
        self._in_equal_batches = in_equal_batches
        self._read = 0  # how many of the records were looked at
        self._ends_s: list[float] = []  # of complete requests since the opening, ascending
        self._counted: list[Arrivals] = []  # curves of ended requests that settled edges do not hold yet
        self._uncounted: list[RequestRecord] = []  # those whose curve needs per_chunk
        self._past = 0.0  # tokens of the streams that ended before the last settled edge
        self._settled: list[float] = []  # tokens at the edges so far
        self._gap_sum_s, self._gaps = 0.0, 0
        self._decodes: list[tuple[float, float, float]] = []  # (last_s, tokens, seconds) of whole requests inside
        self._answered: list[tuple[float, float]] = []  # (first_s, end) of ended requests

    def take(self, records: Sequence[RequestRecord]) -> None:
        """Look at the records that are new."""
        for record in records[self._read :]:
            self._take(record)
        self._read = len(records)

    def batches_by(self, at_s: float) -> int:
        """Return how many batches were over by ``at_s``."""
        return bisect_right(self._ends_s, at_s) // self._size

    def requests_by(self, at_s: float) -> int:
        """Return how many whole requests with a decode speed lay between the opening and ``at_s``."""
        return sum(last_s <= at_s for last_s, _, _ in self._decodes)

    def read(
        self, now_s: float, records: Sequence[RequestRecord], live: Sequence[LiveRequest], *, share: float
    ) -> Reading:
        """Return what is known at ``now_s``.

        Args:
            now_s: the present.
            records: every request of the leg that ended, in the order of their ends.
            live: those in flight.
            share: of t, for the intervals that decide when to stop.
        """
        self.take(records)
        horizon = self._horizon_s(now_s, live)
        curves = self._curves(records, live)
        edges = [edge for edge in edges_s(self.opened_s, self._ends_s, self._size) if edge <= horizon]
        batches = len(edges) - 1
        if batches < FEWEST_REPORTED or self._in_equal_batches:
            window = Window(start_s=self.opened_s, end_s=horizon)
            aggregate = aggregate_throughput(curves, window, median_decode_s=median_decode_s(records))
        else:
            window, aggregate = self._in_batches(edges, horizon, curves, share)
            self._settle(edges, live)
        inside = [(tokens, seconds) for last_s, tokens, seconds in self._decodes if last_s <= window.end_s]
        return Reading(
            window=window,
            single=ratio_of_sums([tokens for tokens, _ in inside], [seconds for _, seconds in inside], share=share),
            aggregate=aggregate,
            batches=max(0, batches),
            occupancy=self._occupancy(window, live),
            batch_throughputs=batch_throughputs(curves, window, BATCHES) if self._in_equal_batches else (),
        )

    def _take(self, record: RequestRecord) -> None:
        stamps = record.chunk_s
        if len(stamps) > 1:
            self._gap_sum_s += stamps[-1] - stamps[0]
            self._gaps += len(stamps) - 1
        if record.status in COMPLETE and record.ended_s > self.opened_s:
            insort(self._ends_s, record.ended_s)
        if record.first_s is None or record.last_s is None or record.last_s < self.opened_s:
            return  # all its tokens came before the window
        self._answered.append((record.first_s, record.last_s))
        tokens, seconds = decode_tokens(record), decode_s(record)
        whole = Window(start_s=self.opened_s, end_s=math.inf)
        if is_in_window(record, whole) and tokens is not None and seconds is not None:
            self._decodes.append((record.last_s, tokens, seconds))
        curve = arrivals_of(record, None) if record.tokens is not None or record.chunk_tokens else None
        if curve is None:
            self._uncounted.append(record)
        else:
            self._counted.append(curve)

    def _horizon_s(self, now_s: float, live: Sequence[LiveRequest]) -> float:
        stamps_s = [request.stamps_s for request in live]
        seconds, gaps = self._gap_sum_s, self._gaps
        if not gaps:
            return horizon_s(stamps_s, now_s=now_s, gap_s=mean_gap_s(stamps_s))
        return horizon_s(stamps_s, now_s=now_s, gap_s=seconds / gaps)

    def _curves(self, records: Sequence[RequestRecord], live: Sequence[LiveRequest]) -> list[Arrivals]:
        known = [request.arrivals(None) for request in live]
        needs_share = bool(self._uncounted) or any(
            curve is None and len(request.stamps_s) > 0 for curve, request in zip(known, live, strict=True)
        )
        per_chunk = tokens_per_chunk(records) if needs_share else None
        curves = [arrivals_of(record, per_chunk) for record in self._uncounted]
        curves += [curve or request.arrivals(per_chunk) for curve, request in zip(known, live, strict=True)]
        return self._counted + [curve for curve in curves if curve is not None]

    def _in_batches(
        self, edges: list[float], horizon: float, curves: list[Arrivals], share: float
    ) -> tuple[Window, Estimate | None]:
        """Return the window of whole batches and its throughput; a rest that outlasts every batch is one too."""
        longest_s = max(after - before for before, after in pairwise(edges))
        if horizon - edges[-1] > longest_s:
            edges = [*edges, horizon]
        fresh = edges[len(self._settled) :]
        totals = self._settled + [self._past + tokens for tokens in tokens_at(curves, fresh)]
        window = Window(start_s=edges[0], end_s=edges[-1])
        if not curves and not self._settled:
            return window, None  # no stream whose tokens are known
        return window, batches_throughput(totals, edges, self._concurrency, share=share)

    def _settle(self, edges: list[float], live: Sequence[LiveRequest]) -> None:
        """Keep the tokens at the edges that no later word of the server can change, and fold what is past."""
        unsure = [request.stamps_s[0] for request in live if request.stamps_s and request.arrivals(None) is None]
        unsure += [record.chunk_s[0] for record in self._uncounted]
        known = [edge for edge in edges[len(self._settled) :] if not unsure or edge < min(unsure)]
        if not known:
            return
        curves = self._counted + [c for request in live if (c := request.arrivals(None)) is not None]
        self._settled += [self._past + tokens for tokens in tokens_at(curves, known)]
        over = [curve for curve in self._counted if curve.stamps_s[-1] <= known[-1]]
        self._past += sum(curve.totals[-1] for curve in over)
        self._counted = [curve for curve in self._counted if curve.stamps_s[-1] > known[-1]]

    def _occupancy(self, window: Window, live: Sequence[LiveRequest]) -> float | None:
        if window.length_s <= 0:
            return None
        spans = [*self._answered, *((request.stamps_s[0], window.end_s) for request in live if request.stamps_s)]
        start_s, end_s = window.start_s, window.end_s
        busy_s = sum(max(0.0, min(end, end_s) - max(first, start_s)) for first, end in spans)
        return busy_s / window.length_s / self._concurrency
