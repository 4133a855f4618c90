"""Puts the result of a leg together from its requests, its last reading and the server's account."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from tuner.load.account import ServerAccount
from tuner.load.reading import Reading
from tuner.model.account import ClientHealth, Spread
from tuner.model.record import LegResult, RequestRecord, RequestStatus
from tuner.ports import Leg
from tuner.stats.classes import class_results
from tuner.stats.latency import e2e_s, gaps_s, spread, tpot_s, ttft_s
from tuner.stats.pairs import speeds_by_prompt
from tuner.stats.wall import requests_per_s, wall_throughput
from tuner.stats.window import Window, is_in_window


def assemble(
    leg: Leg,
    records: Sequence[RequestRecord],
    *,
    reading: Reading | None,
    is_converged: bool,
    client: ClientHealth,
    account: ServerAccount,
) -> tuple[LegResult, tuple[RequestRecord, ...]]:
    """Return a leg's result, and its records marked by whether they lie in the window.

    Args:
        leg: what was asked for.
        records: every request of the leg.
        reading: the last one; None: the window never opened.
        is_converged: the wanted interval was reached.
        client: how the client fared.
        account: of the server.
    """
    window = Window(start_s=0.0, end_s=0.0) if reading is None else reading.window
    marked = tuple(replace(r, in_window=reading is not None and is_in_window(r, window)) for r in records)
    ended = [r for r in marked if r.status is not RequestStatus.CANCELLED]
    completed = sum(r.status is RequestStatus.OK for r in ended)
    inside = [r for r in marked if r.in_window]
    single = None if reading is None else reading.single
    result = LegResult(
        concurrency=leg.concurrency,
        single_request_throughput=single,
        aggregate_throughput=None if reading is None else reading.aggregate,
        window_s=window.length_s,
        offered=len(ended),
        completed=completed,
        failed=len(ended) - completed,
        converged=is_converged,
        client=client,
        ttft_s=_spread_of(ttft_s, inside),
        tpot_s=_spread_of(tpot_s, inside),
        e2e_s=_spread_of(e2e_s, inside),
        icl_s=spread([gap for r in inside for gap in gaps_s(r)]),
        requests_per_s=requests_per_s(ended, window),
        wall_throughput=wall_throughput(ended),
        occupancy=None if reading is None else reading.occupancy,
        tokens=account.tokens,
        speculation=account.speculation(inside, single),
        server=account.server([r for r in ended if r.status is RequestStatus.OK], window),
        classes=class_results(inside),
        by_prompt=speeds_by_prompt(r for r in marked if r.in_window) if leg.concurrency == 1 else (),
    )
    return result, marked


def _spread_of(measure: Callable[[RequestRecord], float | None], records: Sequence[RequestRecord]) -> Spread | None:
    return spread([value for record in records if (value := measure(record)) is not None])
