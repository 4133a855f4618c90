"""How far a client's records are from what the server really did, chunk by chunk."""

from __future__ import annotations

from collections.abc import Sequence

from tuner.load.paced import SentStream
from tuner.model.record import RequestRecord, RequestStatus
from tuner.model.selftest import Exactness
from tuner.stats.latency import percentile


def exactness(records: Sequence[RequestRecord], streams: Sequence[SentStream]) -> Exactness:
    """Compare the complete requests with the streams of the same name.

    Lateness is a chunk's stamp - its send; the error of TTFT is (first stamp - sent) - (first send -
    read), whose true value is the network's two ways; the error of a rate is relative and without sign.
    """
    sent = {stream.name.rpartition(" ")[2]: stream for stream in streams}
    late_s: list[float] = []
    ttft_s: list[float] = []
    rates: list[float] = []
    chunks = merged = unlike = 0
    for record in records:
        stream = sent.get(record.prompt_id)
        if record.status is not RequestStatus.OK or stream is None or record.first_s is None:
            unlike += 1
            continue
        chunks += len(record.chunk_s)
        merged += record.merged
        unlike += record.tokens != stream.tokens or len(record.chunk_s) != stream.chunks
        ttft_s.append((record.first_s - record.sent_s) - (stream.sent_s[0] - stream.read_s))
        if len(record.chunk_s) == len(stream.sent_s):
            late_s += [got - made for got, made in zip(record.chunk_s, stream.sent_s, strict=True)]
            rates += _rate_error(record, stream)
    return Exactness(
        requests=len(ttft_s),
        unlike=unlike,
        chunks=chunks,
        late_p50_s=percentile(late_s, 0.5),
        late_p99_s=percentile(late_s, 0.99),
        ttft_error_p50_s=percentile(ttft_s, 0.5),
        ttft_error_p99_s=percentile(ttft_s, 0.99),
        rate_error_p99=percentile(rates, 0.99),
        merged_share=merged / chunks if chunks else None,
    )


def _rate_error(record: RequestRecord, stream: SentStream) -> list[float]:
    """Return the error of 1 / (last - first): the tokens are the same."""
    true_s = stream.sent_s[-1] - stream.sent_s[0]
    got_s = record.chunk_s[-1] - record.chunk_s[0]
    return [abs(true_s / got_s - 1.0)] if true_s > 0 and got_s > 0 else []
