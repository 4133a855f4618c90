"""What one request and one leg of load did, as numbers and not as opinions."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from tuner.model.metric import Estimate


class RequestStatus(Enum):
    """What became of one request; everything but OK and CANCELLED is a failure."""

    OK = "ok"  # all tokens asked for arrived, the server counted them
    SHORT = "short"  # ended early although ignore_eos was asked for
    EMPTY = "empty"  # 200, but not one token
    CUT = "cut"  # the connection closed in mid-stream
    HTTP_ERROR = "http_error"  # a status other than 200, or an error event in the stream
    REFUSED = "refused"  # no connection
    TIMED_OUT = "timed_out"  # longer than request_timeout_s
    UNCOUNTED = "uncounted"  # complete, but the server did not say how many tokens
    CANCELLED = "cancelled"  # we ended it when the leg was over; not a failure


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestRecord:
    """One request. Times are seconds on the client's monotonic clock.

    Attributes:
        concurrency: the level it belonged to.
        slot: which of the level's closed-loop slots sent it.
        prompt_id: which prompt of the workload.
        sent_s: just before the request was written.
        first_s: first chunk with content; None when there was none.
        last_s: last chunk with content; None when there was none.
        ended_s: end of the response, or when it failed.
        tokens: completion tokens by the server's own count; None when not given.
        first_chunk_tokens: tokens of the first chunk (they are not decode); None when unknown.
        prompt_tokens: by the server's own count; None when not given.
        chunk_s: arrival of each chunk with content.
        chunk_tokens: tokens of each chunk by the server's running count; empty when it gives none.
        status: what became of it.
        in_window: sent and ended so that its decode lies in the measuring window.
        error: one line; None when there is nothing to say.
    """

    concurrency: int
    slot: int
    prompt_id: str
    sent_s: float
    first_s: float | None
    last_s: float | None
    ended_s: float
    tokens: int | None
    first_chunk_tokens: int | None
    prompt_tokens: int | None
    chunk_s: tuple[float, ...]
    chunk_tokens: tuple[int, ...]
    status: RequestStatus
    in_window: bool
    error: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LegResult:
    """What one leg (one concurrency on one server start) measured.

    Attributes:
        concurrency: requests kept in flight.
        single_request_throughput: 1 / TPOT over the leg's requests, tok/s.
        aggregate_throughput: completion tokens in the steady window / its length, tok/s.
        ttft_median_s: over complete requests of the window.
        ttft_p99_s: likewise.
        acceptance_length: tokens per verification step over this leg; None when not reported.
        step_time_s: acceptance_length / single_request_throughput.
        window_s: length of the steady window.
        offered: requests sent in the whole leg, the cancelled ones at its end excluded.
        completed: of these, with status OK.
        failed: of these, with any failing status.
        converged: the wanted interval was reached before level_max_s.
        client_cpu_share: CPU seconds of this process / wall seconds; 1.0 is one core.
        client_lag_p99_s: how late the event loop ran its callbacks.
    """

    concurrency: int
    single_request_throughput: Estimate | None
    aggregate_throughput: Estimate | None
    ttft_median_s: float | None
    ttft_p99_s: float | None
    acceptance_length: float | None
    step_time_s: float | None
    window_s: float
    offered: int
    completed: int
    failed: int
    converged: bool
    client_cpu_share: float | None
    client_lag_p99_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LegTrust:
    """How far one leg of the ladder is to be trusted; fields as in :class:`LegResult`."""

    concurrency: int
    converged: bool
    client_lag_p99_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Counters:
    """The server's own running totals; a leg's share is the difference of two of these.

    Attributes:
        generated_tokens: completion tokens since start.
        verify_steps: verification forwards, per request, since start.
        running: requests being decoded now.
        queued: requests waiting now.
    """

    generated_tokens: float | None = None
    verify_steps: float | None = None
    running: float | None = None
    queued: float | None = None
