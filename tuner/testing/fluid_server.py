"""A server under a closed loop as a simulation of events: no HTTP, no wall time, a known truth.

It drives the very code that decides when a leg is over, thousands of legs a minute, so that the
coverage of intervals can be counted.

Notation::

    b        requests that decode at once, at most ``cap``
    v        decode speed of a request of average luck: 1 / (step_s + step_per_request_s * b), tok/s
    f        luck of a request (its acceptance): normal around 1 with deviation ``noise``
    V        tokens a request of average luck has decoded since the beginning: the integral of v

A request with luck f that began at V0 has decoded f * (V - V0) tokens, so all streams are lines in V,
and V is a line between events. A prefill stalls every stream.
"""

from __future__ import annotations

import heapq
import math
import random
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from tuner.load.schedule import start_delay_s
from tuner.load.stopping import Decision, LegWatch
from tuner.model.record import RequestRecord, RequestStatus
from tuner.ports import Leg
from tuner.stats.window import Arrivals

_MEAN_TOKENS = 512
_CHUNKS = 8  # a request's curve is kept at about so many of its events; it is a line between them
_WORST_LUCK = 0.3


@dataclass(frozen=True, slots=True, kw_only=True)
class Fluid:
    """A server and its load.

    Attributes:
        concurrency: slots of the closed loop.
        cap: requests that run at once; None: all.
        noise: relative deviation of the speed of requests.
        varies: lengths are spread evenly from a quarter to seven quarters of their mean; else all equal.
        step_s, step_per_request_s: time of a step, and what one request more adds.
        prefill_s: for which a new request stalls all others.
    """

    concurrency: int
    cap: int | None = None
    noise: float = 0.03
    varies: bool = False
    step_s: float = 0.0036
    step_per_request_s: float = 0.00015
    prefill_s: float = 0.012

    @property
    def running(self) -> int:
        """Requests that run at once."""
        return self.concurrency if self.cap is None else min(self.cap, self.concurrency)

    @property
    def request_s(self) -> float:
        """How long an average request decodes, with its share of everyone's prefills."""
        step_s = self.step_s + self.step_per_request_s * self.running
        return _MEAN_TOKENS * step_s + self.running * self.prefill_s


@dataclass(slots=True)
class Stream:
    """A request in flight; ``load.reading.LiveRequest`` once :meth:`Run.live` has given it its curve."""

    sent_s: float
    slot: int
    prompt: int
    luck: float = 1.0
    tokens: int = 0
    begun_v: float = 0.0
    first: int = 0  # index of its first knot
    stamps_s: Sequence[float] = field(default_factory=tuple)
    totals: Sequence[float] = field(default_factory=tuple)

    def arrivals(self, per_chunk: float | None) -> Arrivals | None:  # noqa: ARG002 - its tokens are known
        """Return its curve."""
        return Arrivals(stamps_s=self.stamps_s, totals=self.totals) if self.stamps_s else None


class Run:
    """One run of the closed loop, event by event.

    Args:
        fluid: what runs.
        seed: of its luck.
        spread_s: the slots start spread over so long; 0: all at once.
        prompts: how many requests there are; None: no end.

    Attributes:
        started_s: when each slot sent its first request.
        records: of the requests that ended.
    """

    def __init__(self, fluid: Fluid, seed: int, *, spread_s: float = 0.0, prompts: int | None = None) -> None:
        self._fluid = fluid
        self._random = random.Random(seed)  # noqa: S311 - a simulation
        self._left = math.inf if prompts is None else prompts
        slots = fluid.concurrency
        self._starts = deque((start_delay_s(slot, slots, spread_s), slot) for slot in range(slots))
        self._heap: list[tuple[float, int, Stream]] = []  # V at which it ends, number, stream
        self._queue: deque[Stream] = deque()
        self._v = 0.0
        self._number = 0
        self._knots_s: list[float] = [0.0]
        self._knots_v: list[float] = [0.0]
        self.now_s = 0.0
        self.tokens = 0
        self.started_s: list[float] = []
        self.records: list[RequestRecord] = []

    def step(self) -> bool:
        """Go on to the end of the next request; False when there is none."""
        while self._heap or (self._starts and self._left > 0):
            speed = self._speed()
            end_s = self.now_s + (self._heap[0][0] - self._v) / speed if self._heap else math.inf
            if self._starts and self._left > 0 and self._starts[0][0] <= end_s:
                at_s, slot = self._starts.popleft()
                self._advance(max(at_s, self.now_s), speed)
                self.started_s.append(self.now_s)
                self._send(slot)
                continue
            _, _, stream = heapq.heappop(self._heap)
            self._v += (end_s - self.now_s) * speed
            self.now_s = end_s
            self._knot()
            self.tokens += stream.tokens
            self.records.append(self._record(stream))
            if self._queue:
                self._admit(self._queue.popleft())
            if self._left > 0:
                self._send(stream.slot)
            return True
        return False

    def live(self) -> list[Stream]:
        """Return the requests in flight with their curves until now."""
        for _, _, stream in self._heap:
            stream.stamps_s, stream.totals = self._curve(stream)
        return [stream for _, _, stream in self._heap] + list(self._queue)

    def delivered(self) -> float:
        """Return the tokens that all requests have got until now."""
        return self.tokens + sum(1 + stream.luck * (self._v - stream.begun_v) for _, _, stream in self._heap)

    def _speed(self) -> float:
        return 1 / (self._fluid.step_s + self._fluid.step_per_request_s * len(self._heap))

    def _advance(self, to_s: float, speed: float) -> None:
        if to_s > self.now_s and self._heap:
            self._v += (to_s - self.now_s) * speed
        self.now_s = to_s
        self._knot()

    def _knot(self) -> None:
        self._knots_s.append(self.now_s)
        self._knots_v.append(self._v)

    def _send(self, slot: int) -> None:
        self._left -= 1
        self._number += 1
        stream = Stream(sent_s=self.now_s, slot=slot, prompt=self._number)
        if len(self._heap) < self._fluid.running:
            self._admit(stream)
        else:
            self._queue.append(stream)

    def _admit(self, stream: Stream) -> None:
        self.now_s += self._fluid.prefill_s
        self._knot()
        stream.luck = max(_WORST_LUCK, self._random.gauss(1.0, self._fluid.noise))
        quarter = _MEAN_TOKENS // 4
        stream.tokens = self._random.randint(quarter, 7 * quarter) if self._fluid.varies else _MEAN_TOKENS
        stream.begun_v = self._v
        stream.first = len(self._knots_s) - 1
        heapq.heappush(self._heap, (self._v + (stream.tokens - 1) / stream.luck, stream.prompt, stream))

    def _curve(self, stream: Stream) -> tuple[Sequence[float], Sequence[float]]:
        count = len(self._knots_s) - stream.first
        stride = max(1, count // _CHUNKS)
        stamps, vs = self._knots_s[stream.first :: stride], self._knots_v[stream.first :: stride]
        if (count - 1) % stride:
            stamps.append(self._knots_s[-1])
            vs.append(self._knots_v[-1])
        return stamps, [1 + stream.luck * (v - stream.begun_v) for v in vs]

    def _record(self, stream: Stream) -> RequestRecord:
        stamps, totals = self._curve(stream)
        counts = [round(total) for total in totals]
        return RequestRecord(
            concurrency=self._fluid.concurrency,
            slot=stream.slot,
            prompt_id=f"p{stream.prompt}",
            sent_s=stream.sent_s,
            first_s=stamps[0],
            last_s=stamps[-1],
            ended_s=stamps[-1],
            tokens=stream.tokens,
            first_chunk_tokens=1,
            prompt_tokens=None,
            chunk_s=tuple(stamps),
            chunk_tokens=(counts[0], *(after - before for before, after in pairwise(counts))),
            status=RequestStatus.OK,
            in_window=False,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Stopped:
    """A leg that ended: when, and what was decided."""

    after_s: float
    requests: int
    decision: Decision


def stop(fluid: Fluid, leg: Leg, seed: int) -> Stopped:
    """Run one leg until the product's own rule ends it.

    The slots start spread over an average request, as they do after the legs before. The leg is
    looked at after the end of every (c/2)-th request.
    """
    run = Run(fluid, seed, spread_s=fluid.request_s)
    watch = LegWatch(leg, request_timeout_s=leg.max_s, began_s=0.0, refresh_s=math.inf)
    while True:
        for _ in range(max(1, fluid.concurrency // 2)):
            run.step()
        decision = watch.look(run.now_s, run.started_s, run.records, run.live())
        if decision.is_over:
            return Stopped(after_s=run.now_s, requests=len(run.records), decision=decision)


def truth(fluid: Fluid, seed: int, requests: int) -> float:
    """Return the throughput over many requests, tok/s: of all, or of a lone one while it decodes."""
    run = Run(fluid, seed, spread_s=fluid.request_s)
    for _ in range(requests // 10):
        run.step()
    begun_s, begun, first = run.now_s, run.delivered(), len(run.records)
    for _ in range(requests):
        run.step()
    if fluid.concurrency > 1:
        return (run.delivered() - begun) / (run.now_s - begun_s)
    alone = run.records[first:]
    return sum((r.tokens or 0) - 1 for r in alone) / sum((r.last_s or 0.0) - (r.first_s or 0.0) for r in alone)


def fixed(fluid: Fluid, seed: int, prompts: int) -> tuple[float, float]:
    """Return how long a fixed number of prompts takes, sent as known tools send them, and tokens / that time.

    All slots start at once, and the time lasts to the very last token.
    """
    run = Run(fluid, seed, prompts=prompts)
    while run.step():
        pass
    return run.now_s, run.tokens / run.now_s
