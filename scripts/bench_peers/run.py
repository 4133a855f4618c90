"""One run of one client under one load, and what it came to."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bench_peers.loads import Scenario
from bench_peers.peers import HERE, Peer, cache_folder
from bench_peers.watch import CpuWatch

from tuner.load.exactness import exactness
from tuner.load.paced import SentStream, paced_server
from tuner.model.record import RequestRecord, RequestStatus
from tuner.model.selftest import Exactness

RUN_S = 180.0
OURS = ("tuner", "tuner-user-stamps")
STOCK = ("httpx-lines", "httpx-raw", "aiohttp")
ENV = {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "OPENBLAS_NUM_THREADS": "1"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What one run came to; ``why`` says why it came to nothing.

    Attributes:
        cpu_s_per_chunk: of all its processes, between the first request and the end of the last.
        cpu_share: of one core, in that time.
        chunks_per_s: taken in that time.
        exact: how far its own stamps are from the server's; None: it keeps them to itself.
        ttft_shift_s: mean TTFT as it reports it - as it was; None: it is not read.
        processes: that it had.
    """

    client: str
    scenario: str
    cpu_s_per_chunk: float | None = None
    cpu_share: float | None = None
    chunks_per_s: float | None = None
    exact: Exactness | None = None
    ttft_shift_s: float | None = None
    processes: int = 0
    why: str | None = None


def _argv(client: str | Peer, base_url: str, scenario: Scenario, report: Path) -> Sequence[str]:
    if isinstance(client, Peer):
        return client.argv(client.python, base_url, scenario, cache_folder() / "files", report)
    script = "ours.py" if client in OURS else "stock.py"
    numbers = (scenario.streams, scenario.requests, scenario.tokens)
    return (sys.executable, str(HERE / script), client, base_url, *map(str, numbers))


async def run_once(client: str | Peer, scenario: Scenario, cores: tuple[int, int]) -> Run:
    """Start a server on the first core and the client on the second, and compare what they say."""
    name = client.name if isinstance(client, Peer) else client
    is_report = isinstance(client, Peer) and not client.has_stamps
    with tempfile.TemporaryDirectory() as folder:
        report, output = Path(folder) / "report.json", Path(folder) / "output"
        async with paced_server(*scenario.options, "--core", str(cores[0])) as server:
            argv = _argv(client, server.base_url, scenario, report)
            with output.open("wb") as out:
                process = await asyncio.create_subprocess_exec(
                    *argv,
                    stdout=out,
                    stderr=asyncio.subprocess.STDOUT if is_report else None,
                    env={**os.environ, **ENV},
                    preexec_fn=lambda: os.sched_setaffinity(0, {cores[1]}),
                )
            watch = CpuWatch(process.pid)
            watch.start()
            try:
                status = await asyncio.wait_for(process.wait(), RUN_S)
            except TimeoutError:
                process.kill()
                await process.wait()
                return Run(client=name, scenario=scenario.title, why=f"not done within {RUN_S:g} s")
            finally:
                watch.end()
            # The load is what came last: the connections and the tools' own trials came before.
            truth = (await server.truth())[-scenario.streams * scenario.requests :]
        text = output.read_text(errors="replace")
        whole = [stream for stream in truth if stream.tokens == scenario.tokens and stream.chunks == scenario.chunks]
        if status or len(whole) < scenario.streams * scenario.requests:
            last = (text.strip().splitlines() or ["no output"])[-1][:200]
            why = f"exit status {status}, {len(whole)} whole requests: {last}"
            return Run(client=name, scenario=scenario.title, why=why)
        if isinstance(client, Peer) and is_report:
            return _of_peer(client, scenario, truth, watch, report)
        return _of_own(name, scenario, truth, watch, json.loads(text))


def _of_peer(peer: Peer, scenario: Scenario, truth: Sequence[SentStream], watch: CpuWatch, report: Path) -> Run:
    start_s = min(stream.read_s for stream in truth)
    end_s = max(stream.sent_s[-1] for stream in truth)
    shift_s = None
    if peer.ttft_s is not None and report.exists():
        true_s = sum(stream.sent_s[0] - stream.read_s for stream in truth) / len(truth)
        shift_s = peer.ttft_s(report) - true_s
    return replace(_run(peer.name, scenario, truth, watch, (start_s, end_s)), ttft_shift_s=shift_s)


def _of_own(client: str, scenario: Scenario, truth: Sequence[SentStream], watch: CpuWatch, seen: dict[str, Any]) -> Run:
    records = [_record(scenario, one) for one in seen["requests"]]
    firsts = [record.first_s - record.sent_s for record in records if record.first_s is not None]
    trues = [stream.sent_s[0] - stream.read_s for stream in truth]
    shift_s = sum(firsts) / len(firsts) - sum(trues) / len(trues) if firsts else None
    span = (seen["started_s"], seen["ended_s"])
    run = _run(client, scenario, truth, watch, span)
    return replace(run, exact=exactness(records, truth), ttft_shift_s=shift_s)


def _run(
    client: str, scenario: Scenario, truth: Sequence[SentStream], watch: CpuWatch, span: tuple[float, float]
) -> Run:
    cpu_s, wall_s = watch.between(*span), span[1] - span[0]
    chunks = sum(stream.chunks for stream in truth)
    return Run(
        client=client,
        scenario=scenario.title,
        cpu_s_per_chunk=cpu_s / chunks,
        cpu_share=cpu_s / wall_s,
        chunks_per_s=chunks / wall_s,
        processes=watch.processes,
    )


def _record(scenario: Scenario, seen: dict[str, Any]) -> RequestRecord:
    stamps_s = tuple(seen["stamps_s"])
    return RequestRecord(
        concurrency=scenario.streams,
        slot=0,
        prompt_id=seen["name"],
        sent_s=seen["sent_s"],
        first_s=stamps_s[0] if stamps_s else None,
        last_s=stamps_s[-1] if stamps_s else None,
        ended_s=stamps_s[-1] if stamps_s else seen["sent_s"],
        tokens=seen["tokens"],
        first_chunk_tokens=None,
        prompt_tokens=None,
        chunk_s=stamps_s,
        chunk_tokens=(),
        status=RequestStatus.OK if seen["is_whole"] else RequestStatus.CUT,
        in_window=False,
        merged=seen["merged"],
    )
