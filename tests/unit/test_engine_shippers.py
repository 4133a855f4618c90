"""How a log comes to us: whatever wrote it down, the same verdict."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from tuner.engines import engine
from tuner.engines.logs.shippers import bare, unwrapped
from tuner.model.outcome import Cause, Ending

LOG = (
    "[2026-10-14 02:11:03 TP0] Load weight begin. avail mem=138.20 GB",
    "[2026-10-14 02:12:03 TP0] Load weight end. elapsed=12.91 s, type=Qwen3_5, avail mem=106.90 GB",
    "[2026-10-14 02:12:15 TP0] max_total_num_tokens=120312, chunked_prefill_size=8192",
    "[2026-10-14 02:12:20] The server is fired up and ready to roll!",
    "[2026-10-14 02:13:00 TP0] Decode batch, #running-req: 4, #token: 1000, token usage: 0.01, #queue-req: 0",
    "[2026-10-14 02:14:00 TP0] Scheduler hit an exception: Traceback (most recent call last):",
    '  File "/x/sglang/srt/managers/scheduler.py", line 7, in event_loop_overlap',
    '  File "/x/sglang/srt/speculative/eagle_worker.py", line 7, in verify',
    (
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.10 "
        "GiB of which 1.00 GiB is free."
    ),
    "[2026-10-14 02:14:01] SIGQUIT received. signum=3, frame=<f>. It usually means one child failed.",
)
PREFIXES = (
    "Oct 14 04:11:00 gpu sglang[4200]: ",
    "Dez 14 04:11:00 gpu sglang[4200]: ",
    "10月 14 04:11:00 gpu sglang[4200]: ",
    "Oct 14 04:11:00 ",
    "2026-10-14T04:11:00+0200 gpu sglang[4200]: ",
    "2026-10-14T04:11:00.123456+02:00 gpu python3[4200]: ",
    "Wed 2026-10-14 04:11:00 CEST gpu sglang[4200]: ",
    "[12345.678901] gpu sglang[4200]: ",
    "1791943860.123456 gpu sglang[4200]: ",
    "2026-10-14T02:11:00.1Z ",
    "2026-10-14T02:11:00.104512345Z stdout F ",
    "sglang-1  | ",
    "[pod/sglang-0/server] 2026-10-14T02:11:00.1Z ",
    "(SGLangActor pid=38869, ip=10.1.2.3) ",
    "\x1b[36m(Worker pid=38869)\x1b[0m ",
    "0: ",
)
WAYS: dict[str, Callable[[str], str]] = {
    "docker's JSON": lambda line: json.dumps({"log": f"{line}\n", "stream": "stderr", "time": "2026-10-14T02:11:00Z"}),
    "journalctl -o json": lambda line: json.dumps({"PRIORITY": "6", "MESSAGE": line}),
    "journald's bytes": lambda line: json.dumps({"MESSAGE": list(f"\x1b[31m{line}".encode())}),
    "a carriage return": lambda line: f"{line}\r",
    "a byte order mark": lambda line: f"\ufeff{line}",
    "two bytes a letter": lambda line: "".join(f"{letter}\0" for letter in line),
}
WAYS |= {prefix: prefix.__add__ for prefix in PREFIXES}


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_whatever_shipped_a_log_the_verdict_is_the_same(way: Callable[[str], str]) -> None:
    reader = engine("sglang").log_reader()
    for line in LOG:
        reader.feed(f"{way(line)}\n")
    found = reader.diagnose(Ending(exit_signal=9))
    assert (reader.fatal, reader.stage, found.cause) == (True, "ready", Cause.OOM_VERIFY_WORKSPACE)
    assert found.shortfall_bytes == 2**30


def test_a_traceback_in_one_json_object_is_read_line_by_line() -> None:
    reader = engine("sglang").log_reader()
    reader.feed(json.dumps({"level": "error", "msg": "\n".join(LOG)}) + "\n")
    assert reader.diagnose(Ending(exit_signal=9)).cause is Cause.OOM_VERIFY_WORKSPACE


@pytest.mark.parametrize(
    "line",
    [
        "RuntimeError: not a prefix: this",
        "1. set --mem-fraction-static to a smaller value (e.g., 0.8 or 0.7)",
        "[2026-10-14 02:13:00 TP0] Decode batch",
        '  File "/x/y.py", line 7, in z',
        "Fatal Python error: Segmentation fault",
    ],
)
def test_what_an_engine_wrote_itself_is_no_prefix(line: str) -> None:
    assert bare(line) == line


@pytest.mark.parametrize("line", ["{", "{}", "{'python': 1}", '{"answer": 42}', '{"log": 3}', '{"MESSAGE": [300]}'])
def test_a_line_in_braces_that_no_shipper_wrote_stays_as_it_is(line: str) -> None:
    assert unwrapped(line) == [line]
