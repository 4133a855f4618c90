"""The steady window of a leg, and the tokens that were delivered inside it.

A stream's tokens are a curve over time: nothing before the first chunk, its tokens at
once when it arrives (the prefill made them), and from then on straight lines between
chunks, because the tokens of a chunk were made during the gap before it. The tokens of a
window are the curve's growth between its edges, so a chunk at an edge counts in part.
Times are seconds on one monotonic clock.
"""

from __future__ import annotations

import statistics
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate

from tuner.model.metric import Estimate
from tuner.model.record import RequestRecord, RequestStatus
from tuner.stats.intervals import batch_means
from tuner.stats.latency import decode_s, decode_tokens, ttft_s

MAX_BATCHES = 30  # more make each one shorter and more alike its neighbour, not the interval better
MIN_REPORTED_BATCHES = 3  # with fewer the t-interval is wider than the value
STALLED_GAPS = 4.0  # a stream silent for this many mean gaps no longer holds the horizon back
COMPLETE = frozenset({RequestStatus.OK, RequestStatus.SHORT, RequestStatus.UNCOUNTED})  # a whole reply came


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """A span of time; tokens that arrive at its start belong to what was before."""

    start_s: float
    end_s: float

    @property
    def length_s(self) -> float:
        """Its length; never negative."""
        return max(0.0, self.end_s - self.start_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrivals:
    """One stream's curve.

    Attributes:
        stamps_s: when each chunk arrived, ascending; shape (m,), m >= 1.
        totals: tokens delivered up to and with that chunk; shape (m,).
    """

    stamps_s: Sequence[float]
    totals: Sequence[float]

    def tokens_by(self, at_s: float) -> float:
        """Return the tokens delivered until ``at_s``."""
        after = bisect_right(self.stamps_s, at_s)
        if after == 0:
            return 0.0
        if after == len(self.stamps_s):
            return self.totals[-1]
        left, right = self.stamps_s[after - 1], self.stamps_s[after]
        done, next_done = self.totals[after - 1], self.totals[after]
        return done + (next_done - done) * (at_s - left) / (right - left)


def tokens_per_chunk(records: Sequence[RequestRecord]) -> float | None:
    """Return the mean tokens of a chunk over complete requests, by the server's count."""
    counted = [r for r in records if r.tokens is not None and r.chunk_s and r.status in COMPLETE]
    chunks = sum(len(record.chunk_s) for record in counted)
    return sum(record.tokens or 0 for record in counted) / chunks if chunks else None


def arrivals_of(record: RequestRecord, per_chunk: float | None) -> Arrivals | None:
    """Return a request's curve; None when no chunk came or nothing says how many tokens.

    Args:
        record: of any status: tokens delivered by a request that failed later were delivered.
        per_chunk: for a request that ended before the server counted it, where the server
            counts only at the end: mean tokens a chunk of the complete requests.
    """
    if not record.chunk_s:
        return None
    if record.chunk_tokens:
        total = 0
        totals = [total := total + tokens for tokens in record.chunk_tokens]
        return Arrivals(stamps_s=record.chunk_s, totals=totals)
    return even_arrivals(record.chunk_s, record.tokens, per_chunk)


def even_arrivals(stamps_s: Sequence[float], tokens: int | None, per_chunk: float | None) -> Arrivals | None:
    """Return the curve of a stream without running count: each chunk an even share."""
    share = per_chunk if tokens is None else tokens / len(stamps_s)
    if share is None:
        return None
    return Arrivals(stamps_s=stamps_s, totals=[share * (i + 1) for i in range(len(stamps_s))])


def opening_s(
    started_s: Sequence[float],
    finished: Sequence[RequestRecord],
    waiting_since_s: Sequence[float],
    *,
    concurrency: int,
    now_s: float,
) -> float | None:
    """Return when the steady window opens; None while it has not.

    It opens when every slot has sent a request and the first ``concurrency`` complete
    requests have ended. A server that runs fewer at once than are sent is in its steady
    state earlier: one service time (longest decode + shortest TTFT) after the first end.

    Args:
        started_s: when each slot sent its first request.
        finished: requests that ended, any status.
        waiting_since_s: when the requests that wait for their first chunk were sent.
        concurrency: slots.
        now_s: the present.
    """
    complete = sorted((r for r in finished if r.status in COMPLETE), key=lambda record: record.ended_s)
    if len(started_s) < concurrency or not complete:
        return None
    opens = [complete[concurrency - 1].ended_s] if len(complete) >= concurrency else []
    decode = max((lasted for r in complete if (lasted := decode_s(r)) is not None), default=0.0)
    waits = [wait for r in complete if (wait := ttft_s(r)) is not None]
    service = decode + min(waits, default=0.0)
    # Waiting half a service time for a first token is a queue; a prefill alone is far shorter.
    is_queueing = any(now_s - sent > service / 2 for sent in waiting_since_s) or any(w > service / 2 for w in waits)
    if is_queueing:
        opens.append(complete[0].ended_s + service)
    moment = max(*started_s, min(opens)) if opens else None
    return moment if moment is not None and moment <= now_s else None


def most_at_once(spans_s: Iterable[tuple[float, float]]) -> int:
    """Return how many of the spans (begin, end) overlap at most; those that only touch do not."""
    moves = sorted(move for begin, end in spans_s for move in ((begin, 1), (end, -1)))
    return max(accumulate(step for _, step in moves), default=0)


def mean_gap_s(streams_stamps_s: Iterable[Sequence[float]]) -> float | None:
    """Return the mean gap between chunks of the same stream; None when no stream has two."""
    seconds, gaps = 0.0, 0
    for stamps in streams_stamps_s:
        if len(stamps) > 1:
            seconds += stamps[-1] - stamps[0]
            gaps += len(stamps) - 1
    return seconds / gaps if gaps else None


def horizon_s(live_stamps_s: Sequence[Sequence[float]], *, now_s: float, gap_s: float | None) -> float:
    """Return the latest time up to which the tokens of all streams are known.

    The tokens of the chunk under way are unknown until it arrives, so the horizon is the
    oldest last chunk of the streams that are decoding. One that is silent for long counts
    as stalled and does not hold it back: its tokens really stopped.

    Args:
        live_stamps_s: chunk arrivals of each stream in flight.
        now_s: the present.
        gap_s: mean gap between chunks in the leg; None: every stream is a single chunk,
            whose tokens belong to its own moment.
    """
    if gap_s is None:
        return now_s
    oldest = now_s - STALLED_GAPS * gap_s
    return min((stamps[-1] for stamps in live_stamps_s if stamps and stamps[-1] >= oldest), default=now_s)


def tokens_at(arrivals: Sequence[Arrivals], edges_s: Sequence[float]) -> list[float]:
    """Return the tokens of all streams delivered by each of ``edges_s`` (ascending)."""
    complete_by = [0.0] * (len(edges_s) + 1)
    totals = [0.0] * len(edges_s)
    for stream in arrivals:
        begun = bisect_left(edges_s, stream.stamps_s[0])
        ended = bisect_left(edges_s, stream.stamps_s[-1], lo=begun)
        for index in range(begun, ended):
            totals[index] += stream.tokens_by(edges_s[index])
        complete_by[ended] += stream.totals[-1]
    running = 0.0
    for index in range(len(edges_s)):
        running += complete_by[index]
        totals[index] += running
    return totals


def aggregate_throughput(
    arrivals: Sequence[Arrivals], window: Window, *, median_decode_s: float | None
) -> Estimate | None:
    """Return the tokens of all streams in ``window`` / its length, with a batch-means interval.

    The window is cut into equal batches, each at least one median decode long, so that
    neighbours share few requests. With fewer than three there is no interval.

    Args:
        arrivals: every stream whose tokens are known; none at all means not measured.
        window: the steady window.
        median_decode_s: of the complete requests; None: no batches.
    """
    if not arrivals or window.length_s <= 0:
        return None
    batches = 1
    if median_decode_s is not None and median_decode_s > 0:
        batches = max(1, min(MAX_BATCHES, int(window.length_s / median_decode_s)))
    estimate = batch_means(_batch_tokens(arrivals, window, batches), window.length_s / batches)
    if estimate is None or batches >= MIN_REPORTED_BATCHES:
        return estimate
    return Estimate(value=estimate.value, low=None, high=None, samples=batches)


def batch_throughputs(arrivals: Sequence[Arrivals], window: Window, batches: int) -> tuple[float, ...]:
    """Return the throughput of each of ``batches`` equal parts of ``window``, tok/s; none without arrivals."""
    if not arrivals or window.length_s <= 0 or batches < 1:
        return ()
    batch_s = window.length_s / batches
    return tuple(tokens / batch_s for tokens in _batch_tokens(arrivals, window, batches))


def _batch_tokens(arrivals: Sequence[Arrivals], window: Window, batches: int) -> list[float]:
    batch_s = window.length_s / batches
    by_edge = tokens_at(arrivals, [window.start_s + i * batch_s for i in range(batches)] + [window.end_s])
    return [by_edge[i + 1] - by_edge[i] for i in range(batches)]


def decode_speeds(records: Iterable[RequestRecord]) -> list[float]:
    """Return the decode speed of each request that is OK, tok/s, in their order; those without one are left out."""
    speeds = []
    for record in records:
        tokens, lasted = decode_tokens(record), decode_s(record)
        if record.status is RequestStatus.OK and tokens is not None and lasted is not None:
            speeds.append(tokens / lasted)
    return speeds


def median_decode_s(records: Sequence[RequestRecord]) -> float | None:
    """Return the median decode time of complete requests; None when there is none."""
    times = [lasted for r in records if r.status in COMPLETE and (lasted := decode_s(r)) is not None]
    return statistics.median(times) if times else None


def is_in_window(record: RequestRecord, window: Window) -> bool:
    """Whether a request that is OK did all its decoding inside ``window``."""
    if record.status is not RequestStatus.OK or record.first_s is None or record.last_s is None:
        return False
    return window.start_s <= record.first_s and record.last_s <= window.end_s
