"""What a machine's client can do, measured against a server whose every send is known."""

from __future__ import annotations

from dataclasses import dataclass

from tuner.model.account import Stamps

SPEED = 1 / 0.0036
"""Chunks a second of a stream at the fixed speed: the fastest decoding this project set out from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Exactness:
    """How far a client's numbers are from the server's; None where nothing could be compared.

    Attributes:
        requests: complete ones that were compared.
        unlike: requests that failed, or whose tokens or chunks are not those that were sent.
        chunks: of the complete ones.
        late_p50_s, late_p99_s: stamp of a chunk - its send.
        ttft_error_p50_s, ttft_error_p99_s: measured TTFT - the server's own.
        rate_error_p99: of a request's decode speed, relative, without sign.
        merged_share: chunks read together with a later one of their stream / chunks.
    """

    requests: int
    unlike: int
    chunks: int
    late_p50_s: float | None
    late_p99_s: float | None
    ttft_error_p50_s: float | None
    ttft_error_p99_s: float | None
    rate_error_p99: float | None
    merged_share: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SelfTestStep:
    """One load of the self-test.

    Attributes:
        streams: at the same time.
        offered: chunks a second that the server would send.
        got: chunks a second that arrived.
        cpu_s_per_chunk: of this process, user and system; None: no chunk came.
        cpu_share: CPU seconds / wall seconds.
        exact: how far its numbers are from the server's.
        stamps: where its stamps come from.
        bound: why the client was the bottleneck; None: it was not.
    """

    streams: int
    offered: float
    got: float
    cpu_s_per_chunk: float | None
    cpu_share: float
    exact: Exactness
    stamps: Stamps
    bound: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SelfTest:
    """What this machine's client can do.

    Attributes:
        steps: loads at a fixed speed of a stream, with ever more streams.
        stress: 64 streams at ever higher speeds, up to the first that is too much.
        cores: this process may use.
    """

    steps: tuple[SelfTestStep, ...]
    stress: tuple[SelfTestStep, ...]
    cores: int

    @property
    def most_chunks_per_s(self) -> float | None:
        """The highest speed that arrived while the client was not the bottleneck; None: there was none."""
        return max((step.got for step in (*self.steps, *self.stress) if step.bound is None), default=None)

    @property
    def is_client_limit(self) -> bool:
        """Whether a step found the client's limit; else it may do still more."""
        return any(step.bound is not None for step in self.stress)
