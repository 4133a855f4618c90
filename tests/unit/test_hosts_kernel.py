"""What the kernel says of killed processes: read from either log, bounded, or said to be hidden."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence

import pytest

from tuner.hosts.checks.kernel import kernel_row
from tuner.hosts.kernel import LONGEST_LINE, MOST_LINES, HostKernelLog, KernelLook, bounded, parse_look
from tuner.hosts.listening import listening_on
from tuner.model.finding import RowVerdict
from tuner.model.host import CommandResult
from tuner.testing.fake_clock import FakeClock

OOM = "Out of memory: Killed process 4711 (python3) total-vm:1000kB"
XID = "NVRM: Xid (PCI:0000:41:00): 79, pid=4711, GPU has fallen off the bus."


def entry(message: object) -> str:
    return json.dumps({"__CURSOR": "s=1", "MESSAGE": message}) + "\n"


class Said:
    """A transport on which every command prints the same."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.asked: list[tuple[str, ...]] = []

    async def run(
        self, argv: Sequence[str], *, stdin: bytes = b"", timeout_s: float = 30.0, repeat: bool = True
    ) -> CommandResult:
        assert (stdin, repeat) == (b"", True)
        assert timeout_s > 0
        self.asked.append(tuple(argv))
        return CommandResult(status=0, stdout=self.text, stderr="")

    async def read_file(self, path: str) -> bytes:
        raise AssertionError(path)

    async def write_file(self, path: str, content: bytes, *, mode: int = 0o600) -> None:
        raise AssertionError((path, content, mode))

    async def close(self) -> None:
        """Nothing is open."""


def test_messages_are_taken_out_of_the_journals_json() -> None:
    look = parse_look("ops\njournal\n" + entry(OOM) + entry(XID), age_s=10)
    assert (look.user, look.source, look.lines) == ("ops", "journal", (OOM, XID))


def test_a_message_in_bytes_is_read_and_one_that_was_cut_is_left_out() -> None:
    text = "ops\njournal\n" + entry(list(b"oom-kill: \xff")) + entry(OOM)[:30]
    assert parse_look(text, age_s=10).lines == ("oom-kill: \ufffd",)


def test_lines_of_dmesg_count_by_the_uptime_and_older_ones_do_not() -> None:
    text = (
        f"ops\ndmesg 1000.50\n[  900.000000] old {OOM}\n[  995.100000] {OOM}\n<4>[  996.000000] {XID}\nno time {OOM}\n"
    )
    assert parse_look(text, age_s=10).lines == (OOM, XID)


def test_a_healthy_kernel_says_nothing() -> None:
    assert parse_look("ops\njournal\n", age_s=10) == KernelLook(user="ops", source="journal")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("ops\nhidden dmesg: read kernel buffer failed: Operation not permitted\n", "Operation not permitted"),
        ("ops\nhidden \n", "there is no dmesg"),
        ("", "the host said"),
        ("ops\ndmesg no-number\n[1.0] x", "the host said"),
    ],
)
def test_a_log_that_may_not_be_read_is_said_to_be_hidden(text: str, said: str) -> None:
    look = parse_look(text, age_s=10)
    assert (look.source, look.lines) == ("", ())
    assert said in look.said
    row = kernel_row(look)
    assert row.verdict is RowVerdict.WARNING
    assert "cannot be told from another" in row.detail
    assert "usermod -a -G systemd-journal" in row.remedy


def test_a_log_that_is_read_is_fine_for_the_doctor() -> None:
    assert kernel_row(KernelLook(user="ops", source="dmesg")).verdict is RowVerdict.OK


def test_what_a_flood_leaves_is_its_beginning_and_its_end() -> None:
    kept = bounded(tuple(f"{number} " + "x" * 1000 for number in range(1000)))
    assert len(kept) == MOST_LINES
    assert (kept[0][:2], kept[-1][:4]) == ("0 ", "999 ")
    assert {len(line) for line in kept} == {LONGEST_LINE}


def test_the_age_is_asked_for_and_not_the_time_which_the_host_may_not_share() -> None:
    clock, transport = FakeClock(), Said("ops\njournal\n" + entry(OOM))
    log = HostKernelLog(transport, clock, "gpu01")
    assert asyncio.run(log.since(clock.now_s() - 30.0)) == (OOM,)
    assert transport.asked[0][4] == "31"
    assert log.remark() is None


def test_a_hidden_log_is_remarked_once() -> None:
    log = HostKernelLog(Said("ops\nhidden not permitted\n"), FakeClock(), "gpu01")

    async def ask() -> list[str | None]:
        remarks: list[str | None] = []
        for _ in range(3):
            assert await log.since(0.0) == ()
            remarks.append(log.remark())
        return remarks

    first, *others = asyncio.run(ask())
    assert first is not None
    assert first.startswith("host gpu01: ops may not read the kernel's log (not permitted)")
    assert others == [None, None]


def test_every_address_that_is_listened_on_is_told_once() -> None:
    line = 'LISTEN 0 128 {}:30000 0.0.0.0:* users:(("python3",pid=7,fd=3)) ino:5\n'
    text = "ss\n" + line.format("127.0.0.1") + line.format("127.0.0.1") + line.format("[::]")
    assert asyncio.run(listening_on(Said(text), 30000)) == ("127.0.0.1", "::")
    assert asyncio.run(listening_on(Said("proc\n"), 30000)) == ()
