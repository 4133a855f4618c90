"""What one request and one leg of load did, as numbers and not as opinions."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from tuner.model.account import ClassResult, ClientHealth, GpuUse, Limit, ServerLoad, Speculation, Spread, TokenCheck
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
    MISCOUNTED = "miscounted"  # its own count fell, or is more than was asked for
    DUPLICATED = "duplicated"  # another request's reply came again
    CANCELLED = "cancelled"  # we ended it when the leg was over; not a failure


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestRecord:
    """One request. Times are seconds on the client's monotonic clock.

    Attributes:
        concurrency: the level it belonged to.
        slot: which of the level's closed-loop slots sent it.
        prompt_id: which prompt of the workload.
        prompt_class: of that prompt (chat, code, …); empty: it has none.
        sent_s: just before the request was written.
        first_s: first chunk with content; None when there was none.
        last_s: last chunk with content; None when there was none.
        ended_s: end of the response, or when it failed.
        tokens: completion tokens by the server's own count; None when not given.
        first_chunk_tokens: tokens of the first chunk (they are not decode); None when unknown.
        prompt_tokens: by the server's own count; None when not given.
        cached_tokens: of these, found in the server's prefix cache; None when not given.
        verify_steps: verification steps it took; None when not given.
        accepted: how many verification steps accepted i draft tokens, i = 0, 1, …; empty when not given.
        chunk_s: arrival of each chunk with content.
        chunk_tokens: tokens of each chunk by the server's running count; empty when it gives none.
        merged: chunks that were read together with a later one of this request, so that their stamps
            are interpolated.
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
    prompt_class: str = ""
    cached_tokens: int | None = None
    verify_steps: int | None = None
    accepted: tuple[int, ...] = ()
    merged: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class LegResult:
    """What one leg (one concurrency on one server start) measured.

    Attributes:
        concurrency: requests kept in flight.
        single_request_throughput: 1 / TPOT over the leg's requests, tok/s.
        aggregate_throughput: completion tokens in the steady window / its length, tok/s.
        window_s: length of the steady window.
        offered: requests sent in the whole leg, the cancelled ones at its end excluded.
        completed: of these, with status OK.
        failed: of these, with any failing status.
        converged: the wanted interval was reached before level_max_s.
        client: whether the client was fast enough; None: not watched.
        ttft_s, tpot_s, e2e_s: of the complete requests of the window; None: there were none.
        icl_s: gaps between chunks of these requests.
        requests_per_s: complete requests a second of the window.
        wall_throughput: all tokens / the whole leg with its ramp and tail, as many tools report it: only
            for comparison, it is too low.
        occupancy: mean share of the slots whose request was being answered inside the window.
        tokens: the server's two accounts; None: it has only one.
        speculation, server, gpu: see there; None: not known.
        classes: per class of prompts; empty where prompts have none.
        limit: what kept the aggregate from being higher; None: not known.
        by_prompt: prompt and decode speed (tok/s) of each request of the window, in the order of their
            ends, so that two settings can be compared prompt by prompt; empty but at concurrency 1.
    """

    concurrency: int
    single_request_throughput: Estimate | None
    aggregate_throughput: Estimate | None
    window_s: float
    offered: int
    completed: int
    failed: int
    converged: bool
    client: ClientHealth | None = None
    ttft_s: Spread | None = None
    tpot_s: Spread | None = None
    e2e_s: Spread | None = None
    icl_s: Spread | None = None
    requests_per_s: Estimate | None = None
    wall_throughput: float | None = None
    occupancy: float | None = None
    tokens: TokenCheck | None = None
    speculation: Speculation | None = None
    server: ServerLoad | None = None
    gpu: GpuUse | None = None
    classes: tuple[ClassResult, ...] = ()
    limit: Limit | None = None
    by_prompt: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class LegTrust:
    """How far one leg of the ladder is to be trusted; fields as in :class:`LegResult`."""

    concurrency: int
    converged: bool
    client: ClientHealth | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Counters:
    """The server's own running totals; a leg's share is the difference of two of these.

    Attributes:
        generated_tokens: completion tokens since start.
        verify_steps: verification forwards, per request, since start.
        prompt_tokens: since start.
        cached_tokens: of these, found in the prefix cache.
        retractions: requests thrown out of the cache since start.
        queue_time_s: sum of the waits before prefill since start.
        queue_waits: how many waits that sum is of.
        running: requests being decoded now.
        queued: requests waiting now.
        kv_usage: share of the cache in use now, of the fullest where there are several.
        drafts_a_step: draft tokens proposed in one verification step.
        is_live: the totals grow with each token; otherwise when a request ends.
    """

    generated_tokens: float | None = None
    verify_steps: float | None = None
    prompt_tokens: float | None = None
    cached_tokens: float | None = None
    retractions: float | None = None
    queue_time_s: float | None = None
    queue_waits: float | None = None
    running: float | None = None
    queued: float | None = None
    kv_usage: float | None = None
    drafts_a_step: float | None = None
    is_live: bool = False
