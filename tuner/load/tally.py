"""Counts one request while its stream arrives, and says in the end what became of it."""

from __future__ import annotations

from array import array
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


_MOST_TOKENS = 1 << 40  # no reply has so many: a count beyond is no count


class Tally:
    """One request's chunks, stamps and counts.

    Tokens are the server's own count. A chunk is an event with text or with a grown
    count: speculation can add tokens whose text is not yet printable. A first count after
    chunks that carried none is the final usage, not a chunk. Chunks that came in one read have only
    the last one's stamp; the others' are put evenly between it and the chunk before.

    Args:
        engine: reads the events.
        workload: what was asked for.
        concurrency, slot, prompt_id, prompt_class: as in :class:`RequestRecord`.
        output_tokens: asked of this request; None: the workload's.

    Attributes:
        stamps_s: of each chunk so far.
        sent_s: when the request was sent; None: it was not.
        reply_id: the server's own name for the reply; None: it has not said.
    """

    __slots__ = (
        "_asked",
        "_concurrency",
        "_engine",
        "_error",
        "_has_fallen",
        "_is_counted",
        "_is_ended",
        "_last",
        "_merged",
        "_prompt_class",
        "_prompt_id",
        "_quick",
        "_read_from",
        "_read_s",
        "_slot",
        "_splitter",
        "_tokens",
        "_totals",
        "_workload",
        "reply_id",
        "sent_s",
        "stamps_s",
    )

    def __init__(  # noqa: PLR0913 - what a record is made of
        self,
        engine: EngineApi,
        workload: Workload,
        *,
        concurrency: int,
        slot: int,
        prompt_id: str,
        prompt_class: str = "",
        output_tokens: int | None = None,
    ) -> None:
        self._engine = engine
        self._quick = engine.quick_count
        self._workload = workload
        self._asked = output_tokens or workload.output_tokens
        self._concurrency = concurrency
        self._slot = slot
        self._prompt_id = prompt_id
        self._prompt_class = prompt_class
        self._splitter = EventSplitter()
        self._tokens: int | None = None
        self._last = StreamDelta()  # of what a request says once: each of its fields as last said
        self._is_counted = True  # every chunk so far carried the running count
        self._is_ended = False
        self._has_fallen = False
        self._error: str | None = None
        self._totals = array("q")
        self._read_s: float | None = None
        self._read_from = 0  # how many chunks there were before the last read
        self._merged = 0  # of the reads before it
        self.stamps_s = array("d")
        self.sent_s: float | None = None
        self.reply_id: str | None = None

    def sent(self, at_s: float) -> None:
        """Take the moment of sending."""
        self.sent_s = at_s

    def feed(self, piece: bytes, at_s: float) -> None:
        """Take bytes of the reply's body."""
        stamps_s = self.stamps_s
        if at_s != self._read_s:
            before = len(stamps_s)
            if before - self._read_from > 1:
                self._merged += before - self._read_from - 1
            self._read_s = at_s
            self._read_from = before
        for payload in self._splitter.feed(piece):
            # The first chunk is read whole: what a reply says once may be in it.
            if stamps_s and self._is_counted:
                total = self._quick(payload)
                if total is not None and (self._tokens or 0) < total < _MOST_TOKENS:
                    self._tokens = total
                    stamps_s.append(at_s)
                    self._totals.append(total)
                    continue
            self._read(payload, at_s)
        if len(stamps_s) - self._read_from > 1:
            self._spread(at_s)

    def _read(self, payload: bytes, at_s: float) -> None:
        try:
            delta = self._engine.read_event(payload)
        except ValueError:
            self._error = f"unreadable event: {payload[:80]!r}"
            return
        self._take(delta, at_s)

    def _take(self, delta: StreamDelta, at_s: float) -> None:
        if delta.error is not None:
            self._error = delta.error
        if delta.reply_id is not None and self.reply_id is None:
            self.reply_id = delta.reply_id
        if delta.done or delta.finish_reason is not None:
            self._is_ended = True
        last = self._last
        self._last = StreamDelta(
            prompt_tokens=last.prompt_tokens if delta.prompt_tokens is None else delta.prompt_tokens,
            cached_tokens=last.cached_tokens if delta.cached_tokens is None else delta.cached_tokens,
            verify_steps=last.verify_steps if delta.verify_steps is None else delta.verify_steps,
            accepted=delta.accepted or last.accepted,
        )
        total = delta.tokens_total
        if total is not None and not (self._tokens or 0) <= total < _MOST_TOKENS:
            self._has_fallen = True
            total = self._tokens or 0
        is_running = not self.stamps_s or self._is_counted
        has_grown = total is not None and total > (self._tokens or 0) and is_running
        if delta.has_content or has_grown:
            self._is_counted = self._is_counted and total is not None
            self.stamps_s.append(at_s)
            self._totals.append(max(total or 0, self._tokens or 0))
        if total is not None:
            self._tokens = total

    def _spread(self, at_s: float) -> None:
        """Put the stamps of the chunks of one read between the chunk before them and the read."""
        first, stamps_s = self._read_from, self.stamps_s
        if first == 0:
            return  # nothing says when the first of them came
        before_s = stamps_s[first - 1]
        step_s = (at_s - before_s) / (len(stamps_s) - first)
        for index in range(first, len(stamps_s) - 1):
            stamps_s[index] = before_s + step_s * (index - first + 1)

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
        if not self._is_ended:
            return RequestStatus.CUT, "the stream ended without an end marker"
        return self._count_verdict() or (RequestStatus.OK, end.detail)

    def _count_verdict(self) -> tuple[RequestStatus, str] | None:
        """Say what is wrong with the count of a whole reply; None: nothing."""
        tokens, asked = self._tokens, self._asked
        if self._has_fallen:
            return RequestStatus.MISCOUNTED, "the server's running count of tokens fell, or was no count"
        if not self.stamps_s and not tokens:
            return RequestStatus.EMPTY, "200, but not one token"
        if tokens is None:
            return RequestStatus.UNCOUNTED, "the server did not say how many tokens"
        if tokens > asked:
            return RequestStatus.MISCOUNTED, f"the server counted {tokens} tokens, but {asked} were asked for"
        if self._workload.ignore_eos and tokens < asked:
            return RequestStatus.SHORT, f"{tokens} of {asked} tokens although ignore_eos was asked for"
        return None

    def _record(self, status: RequestStatus, ended_s: float, error: str | None) -> RequestRecord:
        stamps_s, last = self.stamps_s, self._last
        has_counts = self._is_counted and bool(stamps_s)
        return RequestRecord(
            concurrency=self._concurrency,
            slot=self._slot,
            prompt_id=self._prompt_id,
            sent_s=ended_s if self.sent_s is None else self.sent_s,
            first_s=stamps_s[0] if stamps_s else None,
            last_s=stamps_s[-1] if stamps_s else None,
            ended_s=ended_s,
            tokens=self._tokens,
            first_chunk_tokens=self._totals[0] if has_counts else None,
            prompt_tokens=last.prompt_tokens,
            chunk_s=tuple(stamps_s),
            chunk_tokens=_steps(self._totals) if has_counts else (),
            status=status,
            in_window=False,
            error=error,
            prompt_class=self._prompt_class,
            cached_tokens=last.cached_tokens,
            verify_steps=last.verify_steps,
            accepted=last.accepted,
            merged=self._merged + max(0, len(stamps_s) - self._read_from - 1),
        )


def _steps(totals: Sequence[int]) -> tuple[int, ...]:
    """Return the tokens of each chunk from the running count."""
    return (totals[0], *(after - before for before, after in pairwise(totals)))
