"""The loads under which clients are compared."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """One load.

    Attributes:
        title: as the table says it.
        streams: at the same time.
        requests: of each stream, one after the other.
        tokens: of each request.
        interval_s: between chunks; 0: flood.
        tokens_per_chunk: of all chunks but the first.
        has_peers: other programs are run in it too.
        has_stock: the stock clients too; else only tuner.
    """

    title: str
    streams: int
    requests: int
    tokens: int
    interval_s: float = 0.0036
    tokens_per_chunk: int = 1
    has_peers: bool = False
    has_stock: bool = True

    @property
    def options(self) -> tuple[str, ...]:
        """Of the paced server."""
        if self.interval_s == 0:
            return ("--flood",)
        return (f"--interval-ms={self.interval_s * 1e3:g}", f"--tokens-per-chunk={self.tokens_per_chunk}")

    @property
    def chunks(self) -> int:
        """Of one request."""
        return 1 + -(-(self.tokens - 1) // self.tokens_per_chunk)

    @property
    def offered(self) -> float | None:
        """Chunks a second that the server sends while all streams run; None: as many as are taken."""
        return self.streams / self.interval_s if self.interval_s else None


IN_STEP = "64 x 277/s"
SPECULATIVE = "64 x 4 tokens/14 ms"
KNEE = "160 x 277/s"
FLOOD = "flood, 64"

SCENARIOS = {
    scenario.title: scenario
    for scenario in (
        Scenario(title=IN_STEP, streams=64, requests=2, tokens=400, has_peers=True),
        Scenario(
            title=SPECULATIVE, streams=64, requests=2, tokens=601, interval_s=0.014, tokens_per_chunk=4, has_peers=True
        ),
        Scenario(title="1 x 277/s", streams=1, requests=2, tokens=400, has_peers=True),
        Scenario(title="16 x 277/s", streams=16, requests=2, tokens=400, has_peers=True),
        Scenario(
            title="256 x 4 tokens/14 ms", streams=256, requests=2, tokens=601, interval_s=0.014, tokens_per_chunk=4
        ),
        Scenario(title=KNEE, streams=160, requests=2, tokens=400, has_stock=False),
        Scenario(title=FLOOD, streams=64, requests=12, tokens=400, interval_s=0.0, has_peers=True),
    )
}
QUICK = (IN_STEP, SPECULATIVE, FLOOD)
