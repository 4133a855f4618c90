"""Measures this machine's client against a server whose every send is known, in some seconds."""

from __future__ import annotations

import os

from tuner.load.drive import Driven, Load, drive
from tuner.load.exactness import exactness
from tuner.load.http import HttpSlot
from tuner.load.paced import paced_server
from tuner.model.account import Stamps
from tuner.model.selftest import SPEED, Exactness, SelfTest, SelfTestStep
from tuner.ports import EngineApi

_STREAMS = (1, 16, 64)
_STRESS_STREAMS = 64
_STRESS_SPEEDS = (500.0, 750.0, 1000.0)  # chunks/s of a stream
_REQUESTS = 4  # of each stream: the first tokens are measured too
_TTFT_S = 0.02
_LEAST_CHUNKS = 8

# The client's limits, as in a leg; lateness is known here, and an event that waits this long is late.
_MOST_CPU_SHARE = 0.6
_MOST_MERGED = 0.01
_MOST_LATE_S = 0.005
_LEAST_GOT = 0.9


async def selftest(engine: EngineApi, *, seconds: float = 15.0) -> SelfTest:
    """Run 1, 16 and 64 streams, then 64 at ever higher speeds until the client has enough.

    Args:
        engine: whose events are read; one that reads OpenAI's streams.
        seconds: all loads together; starting the servers comes on top.

    Raises:
        MeasurementFault: the server does not start or answer.
    """
    step_s = seconds / (len(_STREAMS) + len(_STRESS_SPEEDS))
    steps = [await _step(engine, streams, SPEED, step_s) for streams in _STREAMS]
    stress: list[SelfTestStep] = []
    for speed in _STRESS_SPEEDS:
        step = await _step(engine, _STRESS_STREAMS, speed, step_s)
        stress.append(step)
        if step.bound is not None or step.got < _LEAST_GOT * step.offered:
            break
    return SelfTest(steps=tuple(steps), stress=tuple(stress), cores=len(os.sched_getaffinity(0)))


async def _step(engine: EngineApi, streams: int, speed: float, seconds: float) -> SelfTestStep:
    interval_s = 1.0 / speed
    tokens = max(_LEAST_CHUNKS, round((seconds / _REQUESTS - _TTFT_S) * speed))
    options = (f"--interval-ms={interval_s * 1e3:.6f}", f"--ttft-ms={_TTFT_S * 1e3:g}")
    async with paced_server(*options) as server:
        load = Load(streams=streams, requests=_REQUESTS, tokens=tokens)
        driven = await drive(server.base_url, engine, HttpSlot, load)
        sent = (await server.truth())[streams:]  # before them came the requests that opened the connections
    exact = exactness(driven.records, sent)
    wall_s = driven.ended_s - driven.started_s
    ideal_s = _REQUESTS * (_TTFT_S + (tokens - 1) * interval_s)
    offered = streams * _REQUESTS * tokens / ideal_s
    got = exact.chunks / wall_s
    sending_s = sum(stream.sent_s[-1] - stream.sent_s[0] for stream in sent)
    is_server_late = sending_s > streams * _REQUESTS * (tokens - 1) * interval_s / _LEAST_GOT
    return SelfTestStep(
        streams=streams,
        offered=offered,
        got=got,
        cpu_s_per_chunk=driven.cpu_s / exact.chunks if exact.chunks else None,
        cpu_share=driven.cpu_s / wall_s,
        exact=exact,
        stamps=Stamps.KERNEL if driven.has_kernel_stamps else Stamps.USER,
        bound=_why_bound(driven, exact, None if is_server_late else got / offered),
    )


def _why_bound(driven: Driven, exact: Exactness, got: float | None) -> str | None:
    """Say why the client was the bottleneck; ``got`` is of what was sent, None: the server itself was late."""
    share = driven.cpu_s / (driven.ended_s - driven.started_s)
    also = "; the server sent late too, so other work takes this machine's time" if got is None else ""
    if exact.unlike:
        return f"{exact.unlike} requests did not arrive as they were sent"
    if share > _MOST_CPU_SHARE:
        return f"it needed {share:.0%} of a core"
    if exact.merged_share is not None and exact.merged_share > _MOST_MERGED:
        return f"{exact.merged_share:.1%} of the chunks were read together with a later one{also}"
    if exact.late_p99_s is not None and exact.late_p99_s > _MOST_LATE_S:
        return f"chunks were stamped {exact.late_p99_s * 1e3:.1f} ms late (p99){also}"
    if got is not None and got < _LEAST_GOT:
        return f"it took {got:.0%} of what was sent"
    return None
