"""How a log comes to us: stamps, ranks, shippers, colours, cuts."""

# ruff: noqa: E501 - texts stand here as the engine prints them

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta, timezone

from writing.case import Line

START = datetime(2026, 10, 14, 2, 11, 1, tzinfo=timezone.utc)  # noqa: UP017 - one spelling with the zones below
_HOST = "gpu-07"


def stamped(lines: Sequence[Line], *, has_ms: bool = False, step_s: float = 1.7) -> list[str]:
    """Write records as SGLang's logger does, one physical line an item."""
    written = []
    for number, line in enumerate(lines):
        moment = START + timedelta(seconds=number * step_s)
        if line.rank is None:
            prefix = ""
        else:
            time = f"{moment:%Y-%m-%d %H:%M:%S}" + (f".{moment.microsecond // 1000:03}" if has_ms else "")
            prefix = f"[{time} {line.rank}] " if line.rank else f"[{time}] "
        written += (prefix + line.text).split("\n")
    return written


def plain(lines: list[str]) -> bytes:
    return _joined(lines)


def journald(lines: list[str]) -> bytes:
    """``journalctl -u``: each physical line with host and unit, and what systemd itself says between."""
    told = [f"Oct 14 04:11:{number % 60:02} {_HOST} sglang[4200]: {line}" for number, line in enumerate(lines)]
    return _joined([f"Oct 14 04:11:00 {_HOST} systemd[1]: Started sglang.service - SGLang server.", *told])


def docker(lines: list[str]) -> bytes:
    return _joined([f"2026-10-14T02:{_clock(number)}.104512345Z {line}" for number, line in enumerate(lines)])


def compose(lines: list[str]) -> bytes:
    return _joined([f"sglang-1  | {line}" for line in lines])


def kubernetes(lines: list[str]) -> bytes:
    """The container runtime's file, in another time zone than the server's."""
    return _joined(
        [f"2026-10-14T07:{_clock(number)}.104512345+05:30 stderr F {line}" for number, line in enumerate(lines)]
    )


def stern(lines: list[str]) -> bytes:
    return _joined(
        [f"sglang-0 server 2026-10-13T19:{_clock(number)}-07:00 {line}" for number, line in enumerate(lines)]
    )


def coloured(lines: list[str]) -> bytes:
    """Colours of a terminal, and those of a search for "memory" in it."""
    found = [line.replace("memory", "\x1b[01;31m\x1b[Kmemory\x1b[m\x1b[K") for line in lines]
    return _joined([f"\x1b[2m{line[:12]}\x1b[0m{line[12:]}" for line in found])


def crlf(lines: list[str]) -> bytes:
    return "".join(f"{line}\r\n" for line in lines).encode()


def repeated(lines: list[str]) -> bytes:
    """Every line twice, as a shipper sends what was not acknowledged."""
    return _joined([line for line in lines for _ in range(2)])


def resent(lines: list[str]) -> bytes:
    """The last lines once more, as a shipper sends after it was connected again."""
    return _joined([*lines, *lines[-4:]])


def foreign_bytes(lines: list[str]) -> bytes:
    """Bytes that are no UTF-8 between and inside the lines."""
    out = b""
    for number, line in enumerate(lines):
        if number % 5 == 3:
            out += b"\xff\xfe Receive: obj=GenerateReqInput(text='caf\xe9 \xc3')\n"
        out += line.encode().replace(b"Qwen/", b"Qw\xe9n/") + b"\n"
    return out


def beheaded(lines: list[str]) -> bytes:
    """A tail: the first lines are gone and the next is cut."""
    gone = min(len(lines) // 3, max(0, len(lines) - 25))
    rest = list(lines[gone:])
    if gone:
        rest[0] = rest[0][len(rest[0]) // 2 :]
    return _joined(rest)


def unfinished(lines: list[str]) -> bytes:
    """The last line has no end."""
    return _joined(lines)[:-1]


SHAPES: dict[str, Callable[[list[str]], bytes]] = {
    "plain": plain,
    "journald": journald,
    "docker": docker,
    "coloured": coloured,
    "crlf": crlf,
    "repeated": repeated,
    "compose": compose,
    "kubernetes": kubernetes,
    "foreign_bytes": foreign_bytes,
    "stern": stern,
    "resent": resent,
    "beheaded": beheaded,
    "unfinished": unfinished,
}

NOISE = (
    Line(
        "Scheduler hit an exception: Traceback (most recent call last):\n"
        '  File "/usr/local/lib/python3.12/dist-packages/torch/distributed/distributed_c10d.py", line 2900, in all_reduce\n'
        "torch.distributed.DistBackendError: NCCL error in: ../torch/csrc/distributed/c10d/NCCLUtils.hpp:77, remote "
        "process exited or there was a network error, NCCL version 2.27.3",
        "TP1",
    ),
    Line(
        "[rank2]:[W1014 02:12:40.501 TCPStore.cpp:125] [c10d] recvValue failed on SocketImpl(fd=78, "
        "addr=[localhost]:50734, remote=[localhost]:29500): Connection reset by peer",
        None,
    ),
    Line(
        "[rank3]:[E1014 02:12:41.113 ProcessGroupNCCL.cpp:1895] [PG ID 0 PG GUID 0 Rank 3] Process group watchdog thread "
        "terminated with exception: CUDA error: unspecified launch failure",
        None,
    ),
    Line(
        "/usr/lib/python3.12/multiprocessing/resource_tracker.py:254: UserWarning: resource_tracker: There appear to be 1 "
        "leaked shared_memory objects to clean up at shutdown",
        None,
    ),
)


def interleaved(lines: Sequence[Line], seed: int) -> list[Line]:
    """Mix what the ranks say at the same time; no rank's own order changes."""
    dice = random.Random(seed)
    mixed: list[Line] = []
    group: dict[str | None, list[Line]] = {}

    def flush() -> None:
        while group:
            rank = dice.choice(list(group))
            mixed.append(group[rank].pop(0))
            if not group[rank]:
                del group[rank]

    for line in lines:
        if not line.rank:  # what the parent says keeps its place
            flush()
            mixed.append(line)
        else:
            if sum(len(told) for told in group.values()) >= 6:
                flush()
            group.setdefault(line.rank, []).append(line)
    flush()
    return mixed


def _joined(lines: list[str]) -> bytes:
    return "".join(f"{line}\n" for line in lines).encode()


def _clock(number: int) -> str:
    return f"{11 + number // 60:02}:{number % 60:02}"
