"""Counts one request while its stream arrives, and says in the end what became of it."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from tuner.load.sse import EventSplitter
from tuner.load.stream import Failure, StreamEnd
from tuner.model.http import StreamDelta
from tuner.model.record import RequestRecord, RequestStatus
from tuner.model.workload import Workload
from tuner.ports import EngineApi
from tuner.stats.window import Arrivals, even_arrivals

_FAILURES = {
    Failure.REFUSED: RequestStatus.REFUSED,
    Failure.CUT: RequestStatus.CUT,
    Failure.TIMED_OUT: RequestStatus.TIMED_OUT,
    Failure.REJECTED: RequestStatus.HTTP_ERROR,
}


class Tally:
    """One request's chunks, stamps and counts.

    Tokens are the server's own count. A chunk is an event with text or with a grown
    count: speculation can add tokens whose text is not yet printable. A first count after
    chunks that carried none is the final usage, not a chunk.
    """

    def __init__(
        self, engine: EngineApi, workload: Workload, *, concurrency: int, slot: int, prompt_id: str
    ) -> None:
        self._engine = engine
        self._workload = workload
        self._concurrency = concurrency
        self._slot = slot
        self._prompt_id = prompt_id
        self._splitter = EventSplitter()
        self._tokens: int | None = None
        self._prompt_tokens: int | None = None
        self._is_counted = True  # every chunk so far carried the running count
        self._is_ended = False
        self._error: str | None = None
        self._totals: list[int] = []
        self.stamps_s: list[float] = []
        self.sent_s: float | None = None

    def sent(self, at_s: float) -> None:
        """Take the moment of sending."""
        self.sent_s = at_s

    def feed(self, piece: bytes, at_s: float) -> None:
        """Take bytes of the reply's body."""
        for payload in self._splitter.feed(piece):
            try:
                delta = self._engine.read_event(payload)
            except ValueError:
                self._error = f"unreadable event: {payload[:80]!r}"
                continue
            self._take(delta, at_s)

    def _take(self, delta: StreamDelta, at_s: float) -> None:
        if delta.error is not None:
            self._error = delta.error
        if delta.prompt_tokens is not None:
            self._prompt_tokens = delta.prompt_tokens
        if delta.done or delta.finish_reason is not None:
            self._is_ended = True
        total = delta.tokens_total
        is_running = not self.stamps_s or self._is_counted
        has_grown = total is not None and total > (self._tokens or 0) and is_running
        if delta.has_content or has_grown:
            self._is_counted = self._is_counted and total is not None
            self.stamps_s.append(at_s)
            self._totals.append(max(total or 0, self._tokens or 0))
        if total is not None:
            self._tokens = max(total, self._tokens or 0)

    def arrivals(self, per_chunk: float | None) -> Arrivals | None:
        """Return the curve so far; it shares the growing lists, so use it at once."""
        if not self.stamps_s:
            return None
        if self._is_counted:
            return Arrivals(stamps_s=self.stamps_s, totals=self._totals)
        return even_arrivals(self.stamps_s, self._tokens, per_chunk)

    def record(self, end: StreamEnd) -> RequestRecord:
        """Return the finished request's record."""
        status, error = self._verdict(end)
        return self._record(status, end.ended_s, error)

    def cancelled(self, at_s: float) -> RequestRecord:
        """Return the record of a request that we cut."""
        return self._record(RequestStatus.CANCELLED, at_s, None)

    def _verdict(self, end: StreamEnd) -> tuple[RequestStatus, str | None]:
        if end.failure is not None:
            return _FAILURES[end.failure], end.detail
        if self._error is not None:
            return RequestStatus.HTTP_ERROR, self._error
        asked = self._workload.output_tokens
        if not self._is_ended:
            verdict = RequestStatus.CUT, "the stream ended without an end marker"
        elif not self.stamps_s and not self._tokens:
            verdict = RequestStatus.EMPTY, "200, but not one token"
        elif self._tokens is None:
            verdict = RequestStatus.UNCOUNTED, "the server did not say how many tokens"
        elif self._workload.ignore_eos and self._tokens < asked:
            verdict = RequestStatus.SHORT, f"{self._tokens} of {asked} tokens although ignore_eos was asked for"
        else:
            return RequestStatus.OK, end.detail
        return verdict

    def _record(self, status: RequestStatus, ended_s: float, error: str | None) -> RequestRecord:
        has_counts = self._is_counted and bool(self.stamps_s)
        return RequestRecord(
            concurrency=self._concurrency,
            slot=self._slot,
            prompt_id=self._prompt_id,
            sent_s=ended_s if self.sent_s is None else self.sent_s,
            first_s=self.stamps_s[0] if self.stamps_s else None,
            last_s=self.stamps_s[-1] if self.stamps_s else None,
            ended_s=ended_s,
            tokens=self._tokens,
            first_chunk_tokens=self._totals[0] if has_counts else None,
            prompt_tokens=self._prompt_tokens,
            chunk_s=tuple(self.stamps_s),
            chunk_tokens=_steps(self._totals) if has_counts else (),
            status=status,
            in_window=False,
            error=error,
        )


def _steps(totals: Sequence[int]) -> tuple[int, ...]:
    """Return the tokens of each chunk from the running count."""
    return (totals[0], *(after - before for before, after in pairwise(totals)))
