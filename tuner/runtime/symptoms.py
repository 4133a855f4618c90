"""Verdicts on a server that lives and yet cannot be used, as far as its clients see it: pure.

Its log may know why: that is asked first (:mod:`tuner.runtime.autopsy`), and these are what is left.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from tuner.model.http import HttpReply
from tuner.model.outcome import Cause, Verdict
from tuner.model.record import RequestRecord, RequestStatus
from tuner.ports import LoadProgress
from tuner.runtime.readiness import NoGeneration

_KINDS = 5
_NO_CONNECTION = ("refused", "cut")
"""What a call ends with that reached nobody; through a tunnel the connection is made, and cut."""


def hang(progress: LoadProgress, *, limit_s: float, where: str, health: str) -> Verdict:
    """Say that nothing came back of any request for too long.

    Args:
        progress: of the load, when it was broken off.
        limit_s: of silence.
        where: what was done then, for the reader.
        health: what the health check said; see :func:`said`.
    """
    since_s = max(0.0, progress.elapsed_s - progress.silent_s)
    return Verdict(
        cause=Cause.HANG,
        config_fault=None,
        evidence=(
            f"{where}: nothing came back for {progress.silent_s:.0f} s, since {since_s:.0f} s after its begin",
            f"{progress.in_flight} requests waited",
            health,
        ),
        advice=f"the server stopped generating (silence_s: {limit_s:g} s here), whatever its health says",
    )


def no_generation(problem: NoGeneration, *, limit_s: float, health: str) -> Verdict:
    """Say that the one generation that was asked for did not come as it should."""
    if problem.is_silent:
        return Verdict(
            cause=Cause.HANG,
            config_fault=None,
            evidence=(f"nothing came back of a lone short generation for {limit_s:g} s", "1 request waited", health),
            advice="the server answers its health check but does not generate",
        )
    return Verdict(
        cause=Cause.FAILED_REQUESTS,
        config_fault=None,
        evidence=(problem.text, health),
        advice="the server answers but does not generate",
    )


def failed_requests(records: Sequence[RequestRecord], where: str) -> Verdict:
    """Say how many requests failed, of each kind, and where."""
    failed = [record for record in records if record.status not in (RequestStatus.OK, RequestStatus.CANCELLED)]
    kinds = Counter(f"{record.status.value}: {record.error or 'no more is known'}" for record in failed)
    return Verdict(
        cause=Cause.FAILED_REQUESTS,
        config_fault=None,
        evidence=tuple(f"{count} x {kind}" for kind, count in kinds.most_common(_KINDS))
        or (f"{where}: no request was completed",),
        advice=f"{len(failed)} of {len(records)} requests failed ({where}), and the server stayed up",
    )


def start_timeout(
    *, load_timeout_s: float, stage: str, health: HttpReply, listening: Sequence[str] | None, port: int
) -> Verdict:
    """Say how far a server came that was not ready in time.

    Args:
        load_timeout_s: its time.
        stage: the last that its log shows; empty: none.
        health: the last answer to the health check.
        listening: addresses that somebody listens on at its port, on the host itself; None: not known.
        port: of the server.
    """
    if listening is None:
        ears = "whether anything listens on the host is not known"
    else:
        ears = f"port {port} on the host: " + (f"open on {', '.join(listening)}" if listening else "nobody listens")
    return Verdict(
        cause=Cause.START_TIMEOUT,
        config_fault=None,
        evidence=(f"last stage: {stage or 'nothing logged'}", ears, said(health)),
        advice=f"not ready after load_timeout_s = {load_timeout_s:g} s",
    )


def is_out_of_reach(health: HttpReply, listening: Sequence[str] | None) -> bool:
    """Whether the server listens on its host and yet none of our calls reaches it: not its fault."""
    return bool(listening) and health.status is None and health.error in _NO_CONNECTION


def said(health: HttpReply) -> str:
    """Say what a health check came to."""
    return f"its health check: {health.status or health.error}"
