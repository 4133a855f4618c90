"""Prints how fast a log is read for its verdict, on one core, and what that keeps in memory.

Four logs: what a healthy server writes for ever (decode, prefill and access lines), the same with
other languages in it, start-ups, and one whose every line may matter. Beside them, in the same
run and in turns, the least that anything can do: decode the bytes and split the lines.
"""

from __future__ import annotations

import argparse
import codecs
import statistics
import sys
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path

from tuner.engines import engine

MIB = 2**20
PIECE = MIB
GOLDEN = Path(__file__).parents[1] / "tests" / "golden" / "sglang_logs"


def steady(number: int, language: str = "") -> str:
    """Return a second of a busy server's log."""
    stamp = f"[2026-10-14 02:{number // 60 % 60:02}:{number % 60:02} TP0]"
    decode = (
        f"{stamp} Decode batch, #running-req: 16, #full token: {90000 + number}, full token usage: 0.66, "
        f"mamba num: 16, mamba usage: 0.19, accept len: 2.{number % 90 + 10}, accept rate: 0.62, cuda graph: True, "
        "gen throughput (token/s): 1611.20, #queue-req: 16\n"
    )
    prefill = (
        f"{stamp} Prefill batch, #new-seq: 1, #new-token: {300 + number % 700}, #cached-token: 0, full token usage: "
        "0.65, mamba usage: 0.18, #running-req: 15, #queue-req: 15\n"
    )
    access = f'INFO:     127.0.0.1:{40000 + number % 20000} - "POST /v1/chat/completions HTTP/1.1" 200 OK\n'
    return decode + (prefill + access) * 2 + language


def logs(size: int) -> dict[str, bytes]:
    """Return the logs, each of about ``size`` bytes."""
    startup = (GOLDEN / "killed_without_a_word.log").read_text()
    texts: dict[str, Callable[[int], str]] = {
        "steady state": steady,
        "steady state, one line in 60 in Chinese": lambda number: steady(
            number, "" if number % 12 else "用户的请求已完成\n"
        ),
        "start-ups": lambda _number: startup,
        "every line may matter": lambda number: f"[2026-10-14 02:11:07 TP0] retrying after NCCL error {number}\n",
    }
    made: dict[str, bytes] = {}
    for name, text in texts.items():
        parts: list[bytes] = []
        length = number = 0
        while length < size:
            parts.append(text(number).encode())
            length += len(parts[-1])
            number += 1
        made[name] = b"".join(parts)
    return made


def read(name: str, log: bytes) -> None:
    """Read a log as ``tuner diagnose`` does."""
    reader = engine(name).log_reader()
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    for start in range(0, len(log), PIECE):
        reader.feed(decoder.decode(log[start : start + PIECE]))


def split(_name: str, log: bytes) -> None:
    """Decode and split a log, and nothing else."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    for start in range(0, len(log), PIECE):
        decoder.decode(log[start : start + PIECE]).split("\n")


def seconds(work: Callable[[str, bytes], None], name: str, log: bytes) -> float:
    """Return the processor time that ``work`` took."""
    before = time.process_time()
    work(name, log)
    return time.process_time() - before


def kept_bytes(name: str, log: bytes) -> int:
    """Return the most memory that reading takes at any time."""
    tracemalloc.start()
    read(name, log)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return most


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--mib", type=int, default=32, help="size of each log")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--engine", default="sglang")
    given = parser.parse_args()
    print(f"{'log':<42}{'MB/s':>8}{'splitting only, MB/s':>24}{'ratio':>8}{'memory MiB':>12}")
    for name, log in logs(given.mib * MIB).items():
        ours: list[float] = []
        least: list[float] = []
        for _ in range(given.rounds):
            ours.append(seconds(read, given.engine, log))
            least.append(seconds(split, given.engine, log))
        mine, theirs = statistics.median(ours), statistics.median(least)
        speed, limit = len(log) / mine / 1e6, len(log) / theirs / 1e6
        most = kept_bytes(given.engine, log[: 8 * MIB]) / MIB
        print(f"{name:<42}{speed:>8.0f}{limit:>24.0f}{theirs / mine:>8.2f}{most:>12.1f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
