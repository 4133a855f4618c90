"""What stands beside a leg's throughput: who made it, what it cost, and what held it back."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from tuner.model.metric import Estimate


class Stamps(Enum):
    """Where the time of a chunk comes from."""

    KERNEL = "kernel"  # when the kernel received its last byte
    USER = "user"  # when our process began to read it


class Limit(Enum):
    """What keeps the aggregate throughput of a leg from being higher."""

    CLIENT = "client"  # the load client had no time left
    REQUEST_CAP = "request_cap"  # more requests wait than may run at once
    KV_POOL = "kv_pool"  # the cache is full: requests wait or are retracted
    COMPUTE = "compute"  # all requests ran at once: the GPUs give no more
    LOAD = "load"  # one request more would have been served beside the others


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientHealth:
    """Whether the client was fast enough for a leg.

    Attributes:
        cpu_share: CPU seconds / wall seconds of its busiest process; 1.0 is one core.
        lag_p99_s: 99th percentile of how late the event loop runs; None: the leg was too short.
        late_share: chunks that were read more than a millisecond after the kernel had them / chunks;
            None: the kernel does not say when.
        merged_share: chunks that one read returned together with a later one of the same stream /
            chunks; None: not counted.
        stamps: of the chunks.
        processes: that made the load.
    """

    cpu_share: float
    lag_p99_s: float | None = None
    late_share: float | None = None
    merged_share: float | None = None
    stamps: Stamps = Stamps.USER
    processes: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenCheck:
    """The server's two accounts of the tokens it made during a leg.

    Attributes:
        replies: sum over the replies.
        counters: growth of its running total.
    """

    replies: int
    counters: int

    @property
    def difference(self) -> float:
        """What the replies miss or have too much, relative to the counters; 0 when neither has any."""
        if self.counters == 0:
            return 0.0 if self.replies == 0 else 1.0
        return (self.replies - self.counters) / self.counters


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """How a quantity is spread over requests, in its own unit."""

    mean: float
    p50: float
    p90: float
    p95: float
    p99: float
    samples: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Speculation:
    """What speculation did over a leg, from differences and never from a lifetime average.

    Attributes:
        acceptance_length: tokens per verification step of a request, the bonus token included.
        accepted_at: share of verification steps in which the draft token at position i (from 0) and all
            before it were accepted; empty: not known.
        verify_steps: of all requests.
        draft_share: accepted draft tokens / proposed ones; None: not known.
        step_time_s: acceptance length / decode speed of a request; None: not known.
    """

    acceptance_length: float | None = None
    accepted_at: tuple[float, ...] = ()
    verify_steps: int | None = None
    draft_share: float | None = None
    step_time_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerLoad:
    """How full the server was during a leg; None: it does not say.

    Attributes:
        running: mean number of requests that were decoded at once.
        queued: mean number that waited.
        queue_time_s: mean wait of a request before its prefill.
        kv_usage: highest share of the cache in use.
        retractions: requests that were thrown out of the cache and begun anew.
        cached_share: prompt tokens found in the prefix cache / prompt tokens.
    """

    running: float | None = None
    queued: float | None = None
    queue_time_s: float | None = None
    kv_usage: float | None = None
    retractions: float | None = None
    cached_share: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuUse:
    """What the server's GPUs did during a leg, summed over them unless something else is said.

    Attributes:
        power_w: mean power; None: not known.
        sm_clock_hz: mean clock of one GPU; None: not known.
        joules_per_token: power / aggregate throughput; None: not known.
    """

    power_w: float | None = None
    sm_clock_hz: float | None = None
    joules_per_token: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassResult:
    """What one class of prompts (chat, code, …) got within a leg.

    Attributes:
        name: of the class.
        requests: complete ones inside the window.
        single_request_throughput: decode speed of its requests, tok/s.
        speculation: over its requests; None: not known.
    """

    name: str
    requests: int
    single_request_throughput: Estimate | None
    speculation: Speculation | None = None
