"""Reads a leg's throughput while it runs, each finished request looked at once."""

from __future__ import annotations

from dataclasses import dataclass

from tuner.load.loop import ClosedLoop
from tuner.model.metric import Estimate
from tuner.model.record import RequestRecord
from tuner.stats.latency import decode_throughput
from tuner.stats.steadiness import BATCHES
from tuner.stats.window import (
    Arrivals,
    Window,
    aggregate_throughput,
    arrivals_of,
    batch_throughputs,
    horizon_s,
    is_in_window,
    mean_gap_s,
    median_decode_s,
    tokens_per_chunk,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What a leg has measured so far.

    Attributes:
        window: from its opening to the latest time up to which all tokens are known.
        single: decode speed of the requests inside the window.
        aggregate: of all streams.
        batch_throughputs: of all streams, in equal batches of the window; empty unless asked for.
    """

    window: Window
    single: Estimate | None
    aggregate: Estimate | None
    batch_throughputs: tuple[float, ...] = ()


class LegReader:
    """Reads one leg again and again.

    Args:
        loop: the leg under way.
        opened_s: when its window opened.
        counts_batches: whether a reading has its ``batch_throughputs``.
    """

    def __init__(self, loop: ClosedLoop, opened_s: float, *, counts_batches: bool = False) -> None:
        self._loop = loop
        self._batches = BATCHES if counts_batches else 0
        self._read = 0  # how many of the loop's records were looked at
        self._counted: list[Arrivals] = []  # their curves, by the server's running count
        self._uncounted: list[RequestRecord] = []  # those without one: their curves need per_chunk
        self.opened_s = opened_s

    def read(self, now_s: float) -> Reading:
        """Return what is known at ``now_s``."""
        records, live = self._loop.records, self._loop.live
        for record in records[self._read :]:
            self._take(record)
        self._read = len(records)
        stamps_s = [tally.stamps_s for tally in live]
        gap_s = mean_gap_s([*stamps_s, *(record.chunk_s for record in records)])
        window = Window(start_s=self.opened_s, end_s=horizon_s(stamps_s, now_s=now_s, gap_s=gap_s))
        per_chunk = tokens_per_chunk(records)
        curves = [arrivals_of(record, per_chunk) for record in self._uncounted]
        curves += [tally.arrivals(per_chunk) for tally in live]
        arrivals = self._counted + [curve for curve in curves if curve is not None]
        return Reading(
            window=window,
            single=decode_throughput(record for record in records if is_in_window(record, window)),
            aggregate=aggregate_throughput(
                arrivals,
                window,
                median_decode_s=median_decode_s(records),
            ),
            batch_throughputs=batch_throughputs(arrivals, window, self._batches),
        )

    def _take(self, record: RequestRecord) -> None:
        if record.last_s is None or record.last_s < self.opened_s:
            return  # all its tokens came before the window
        curve = arrivals_of(record, None) if record.chunk_tokens else None
        if curve is None:
            self._uncounted.append(record)
        else:
            self._counted.append(curve)
