"""Compares load clients with tuner's own, against a server that knows what it sent when.

All clients do the same work in turns, the server on one core and the client on another: the
ratios within a round hold on a busy machine too, the microseconds do not. Prints a table for each
load, then a line for each bar that tuner's client is held to. Exit status 1 when one is not met.

    scripts/bench_client [--quick] [--peers] [--cores A,B] [--rounds N] [--only LOAD] [--json FILE]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from bench_peers.bars import Rounds, bar_lines, ratio
from bench_peers.loads import QUICK, SCENARIOS, Scenario
from bench_peers.peers import LEFT_OUT, PEERS, Peer, install, write_files
from bench_peers.run import OURS, STOCK, Run, run_once

COLUMNS = (
    "client", "us/chunk", "ratio", "core", "chunks/s", "of", "late p50", "late p99", "merged",
    "TTFT err p50", "p99", "TTFT said - true", "rate err p99", "processes",
)  # fmt: skip


def number(value: float | None, form: str, scale: float = 1.0) -> str:
    """Return a cell; what was not measured is a dash."""
    return "-" if value is None else format(value * scale, form)


def row(run: Run, times: float | None, offered: float | None) -> tuple[str, ...]:
    """Return a run's cells; times are in milliseconds."""
    if run.why is not None:
        return (run.client, run.why)
    exact = run.exact

    def of(name: str, scale: float, form: str) -> str:
        return number(None if exact is None else getattr(exact, name), form, scale)

    return (
        run.client,
        number(run.cpu_s_per_chunk, ".1f", 1e6),
        number(times, ".2f"),
        number(run.cpu_share, ".0%"),
        number(run.chunks_per_s, ",.0f"),
        number(offered, ",.0f"),
        of("late_p50_s", 1e3, ".3f"),
        of("late_p99_s", 1e3, ".3f"),
        of("merged_share", 1.0, ".2%"),
        of("ttft_error_p50_s", 1e3, ".2f"),
        of("ttft_error_p99_s", 1e3, ".2f"),
        number(run.ttft_shift_s, "+.2f", 1e3),
        of("rate_error_p99", 1.0, ".2%"),
        str(run.processes),
    )


def table(scenario: Scenario, rounds: Rounds) -> list[str]:
    """Return the lines of one load's table: the rounds of a client one below the other."""
    clients = dict.fromkeys(client for found in rounds for title, client in found if title == scenario.title)
    rows = [
        row(run, ratio(found, scenario.title, client), scenario.offered)
        for client in clients
        for found in rounds
        if (run := found.get((scenario.title, client))) is not None
    ]
    whole = [cells for cells in (COLUMNS, *rows) if len(cells) == len(COLUMNS)]
    widths = [max(len(cells[k]) for cells in whole) for k in range(len(COLUMNS))]

    def line(cells: Sequence[str]) -> str:
        if len(cells) != len(COLUMNS):
            return f"{cells[0]:<{widths[0]}}  {cells[1]}"
        return "  ".join(
            (cells[0].ljust(widths[0]), *(f"{c:>{w}}" for c, w in zip(cells[1:], widths[1:], strict=True)))
        )

    title = (
        f"{scenario.title}: {scenario.streams * scenario.requests} requests of {scenario.chunks} chunks; times in ms"
    )
    return ["", title, line(COLUMNS), *(line(cells) for cells in rows)]


def clients_of(scenario: Scenario, peers: Sequence[Peer]) -> list[str | Peer]:
    """Return who runs under a load."""
    stock = STOCK if scenario.has_stock else ()
    return [*OURS, *stock, *(peers if scenario.has_peers else ())]


async def bench(
    scenarios: Sequence[Scenario],
    peers: Sequence[Peer],
    *,
    rounds: int,
    cores: tuple[int, int],
    say: Callable[[str], None],
) -> list[Mapping[tuple[str, str], Run]]:
    """Run all clients in turns, round by round."""
    every: list[Mapping[tuple[str, str], Run]] = []
    for turn in range(rounds):
        found: dict[tuple[str, str], Run] = {}
        for scenario in scenarios:
            for client in clients_of(scenario, peers):
                run = await run_once(client, scenario, cores)
                found[scenario.title, run.client] = run
                cost = run.why or f"{number(run.cpu_s_per_chunk, '.1f', 1e6)} us/chunk"
                say(f"round {turn + 1}, {scenario.title}, {run.client}: {cost}")
        every.append(found)
    return every


def cores_of(text: str) -> tuple[int, int]:
    """Read ``A,B``."""
    first, _, second = text.partition(",")
    usable = os.sched_getaffinity(0)
    if not (first.isdecimal() and second.isdecimal() and {int(first), int(second)} <= usable and first != second):
        known = ", ".join(map(str, sorted(usable)))
        raise argparse.ArgumentTypeError(f"{text!r} names no two of the cores {known}; write two of them, as 0,1")
    return int(first), int(second)


def main() -> int:
    """Run what the command line says."""
    parser = argparse.ArgumentParser(prog="scripts/bench_client", description="Compares load clients with tuner's.")
    parser.add_argument("--quick", action="store_true", help="one round of the most telling loads")
    parser.add_argument("--peers", action="store_true", help="install other programs' clients and run them too")
    parser.add_argument("--cores", type=cores_of, help="of the server and of the clients, as 0,1")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--only", action="append", choices=tuple(SCENARIOS), help="this load; may be repeated")
    parser.add_argument("--json", type=Path, help="write all figures there")
    options = parser.parse_args()
    if options.rounds < 1:
        parser.error(f"--rounds {options.rounds}: at least 1")
    if options.json is not None and not options.json.resolve().parent.is_dir():
        parser.error(f"--json {options.json}: there is no such folder; make it first")
    usable = sorted(os.sched_getaffinity(0))
    if options.cores is None and len(usable) < 2:
        print("bench_client: needs two cores, this machine lets it use one", file=sys.stderr)
        return 2
    cores = options.cores or (usable[0], usable[1])

    def say(line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    titles = options.only or (QUICK if options.quick else tuple(SCENARIOS))
    missing = [f"{name}: {why}" for name, why in LEFT_OUT.items()] if options.peers else []
    peers: list[Peer] = []
    for peer in PEERS if options.peers else ():
        say(f"installing {peer.name}")
        why = install(peer)
        if why is None:
            peers.append(peer)
        else:
            missing.append(f"{peer.name}: {why}")
    if peers:
        write_files()
    os.sched_setaffinity(0, {cores[0]})
    scenarios = [SCENARIOS[title] for title in titles]
    load = os.getloadavg()[0]
    rounds = asyncio.run(bench(scenarios, peers, rounds=1 if options.quick else options.rounds, cores=cores, say=say))
    print(f"load of the machine before and after: {load:.1f}, {os.getloadavg()[0]:.1f}; cores {cores[0]}, {cores[1]}")
    for scenario in scenarios:
        print("\n".join(table(scenario, rounds)))
    print("\n" + "\n".join([*(f"not run  {line}" for line in missing), *(lines := bar_lines(rounds))]))
    if options.json is not None:
        runs = [[asdict(run) for run in found.values()] for found in rounds]
        options.json.write_text(json.dumps({"load": load, "cores": cores, "rounds": runs, "bars": lines}, indent=1))
    return int(any(line.startswith("NOT MET") for line in lines))


if __name__ == "__main__":
    sys.exit(main())
