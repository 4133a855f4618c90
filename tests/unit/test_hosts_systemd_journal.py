"""The journal's JSON lines, whole and cut."""

from __future__ import annotations

import asyncio
import json

import pytest

from tuner.errors import HostFault
from tuner.hosts.systemd.journal import cursor_now, parse_entries, read_journal
from tuner.model.host import CommandResult
from tuner.testing.scripted_transport import ScriptedTransport, in_turn


def entry(cursor: str, message: object, **fields: str) -> str:
    return json.dumps({"__CURSOR": cursor, "MESSAGE": message, **fields}) + "\n"


def answers(*results: CommandResult) -> ScriptedTransport:
    return ScriptedTransport(in_turn(*results))


def said(stdout: str = "", stderr: str = "journalctl: 0\n", status: int = 0) -> CommandResult:
    return CommandResult(status=status, stdout=stdout, stderr=stderr)


def test_messages_are_lines_and_the_last_cursor_is_kept() -> None:
    piece = parse_entries(entry("a", "one") + entry("b", "two é"), "")
    assert (piece.text, piece.cursor, piece.is_cut) == ("one\ntwo é\n", "b", False)


def test_the_entry_of_the_cursor_itself_is_not_told_again() -> None:
    assert parse_entries(entry("a", "one") + entry("b", "two"), "a").text == "two\n"
    nothing = parse_entries(entry("a", "one"), "a")
    assert (nothing.text, nothing.cursor) == ("", "a")


def test_no_entries_leave_the_cursor_where_it_is() -> None:
    assert parse_entries("", "a").cursor == "a"


def test_bytes_that_are_no_text_are_replaced_and_missing_messages_are_empty_lines() -> None:
    piece = parse_entries(entry("a", list(b"\x1b[1mbold \xff")) + entry("b", None) + entry("c", ["x", list(b"y")]), "")
    assert piece.text == "\x1b[1mbold �\n\nx\ny\n"


def test_a_long_line_that_journald_cut_is_one_line_again() -> None:
    assert parse_entries(entry("a", "long ", _LINE_BREAK="line-max") + entry("b", "line"), "").text == "long line\n"


def test_a_cut_last_line_is_left_for_the_next_time() -> None:
    piece = parse_entries(entry("a", "one") + entry("b", "two")[:20], "")
    assert (piece.text, piece.cursor, piece.is_cut) == ("one\n", "a", True)


def test_a_line_that_is_no_entry_is_a_fault_and_shown() -> None:
    for line in ("nonsense\n", "[1]\n", '{"MESSAGE": "x"}\n'):
        with pytest.raises(HostFault, match="no journal entry"):
            parse_entries(line, "")


CUT = '{"MESSAGE":"xxxxx'


def test_an_entry_too_long_to_be_read_is_passed_over_and_said_so() -> None:
    transport = answers(
        said(entry("a", "old") + CUT), said(entry("a", "") + entry("b", "") + entry("c", "")), said(CUT)
    )
    piece = asyncio.run(read_journal(transport, "u.service", "a"))
    assert piece.cursor == "b"
    assert "left out" in piece.text
    assert transport.calls[1][-3] == "_BOOT_ID"
    assert transport.inputs == [b""] * 3


def test_what_follows_an_entry_too_long_to_be_read_is_not_lost() -> None:
    transport = answers(said(CUT), said(entry("a", "") + entry("b", "")), said(entry("b", "next")))
    piece = asyncio.run(read_journal(transport, "u.service", "a"))
    assert (piece.text, piece.cursor) == ("next\n", "b")
    assert transport.calls[2][-1] == "--after-cursor="


def test_nothing_after_an_entry_too_long_to_be_read_is_nothing() -> None:
    piece = asyncio.run(read_journal(answers(said(CUT), said(entry("a", ""))), "u.service", "a"))
    assert (piece.text, piece.cursor) == ("", "a")


def test_a_journal_that_is_empty_has_no_cursor_yet_and_is_read_from_now_on() -> None:
    assert asyncio.run(cursor_now(answers(said("1796000000\n-- No entries --\n", "")))) == "@1796000000"
    assert asyncio.run(cursor_now(answers(said("1796000000\n", "", 1)))) == "@1796000000"
    assert asyncio.run(cursor_now(answers(said("1796000000\n-- No entries --\n-- cursor: s=1;i=2\n")))) == "s=1;i=2"
    transport = answers(said(entry("a", "one")))
    assert asyncio.run(read_journal(transport, "u.service", "@1796000000")).cursor == "a"
    assert (transport.calls[0][-4], transport.calls[0][-1]) == ("@1796000000", "--since=")


def test_a_damaged_journal_is_a_fault_and_not_the_units_whole_history() -> None:
    damaged = said("1796000000\n-- No entries --\n", "Failed to get cursor: Bad message\n", 1)
    with pytest.raises(HostFault, match="Bad message"):
        asyncio.run(cursor_now(answers(damaged)))


@pytest.mark.parametrize(
    "hint",
    [
        "Hint: You are currently not seeing messages from other users and the system.\n  Users in …",
        "No journal files were opened due to insufficient permissions.",
        "No journal files were found.",
    ],
)
def test_a_journal_the_login_may_not_read_is_a_fault_with_its_remedy(hint: str) -> None:
    with pytest.raises(HostFault, match="systemd-journal"):
        asyncio.run(cursor_now(answers(said("-- cursor: s=1\n", hint))))
    with pytest.raises(HostFault, match="cannot be read"):
        asyncio.run(
            read_journal(
                answers(said("", "Failed to seek to cursor: Invalid argument\njournalctl: 1\n")), "u.service", "x"
            )
        )


def test_warnings_and_the_end_by_a_full_pipe_are_no_faults() -> None:
    warned = said(entry("a", "one"), "Journal file x.journal is truncated, ignoring file.\njournalctl: 141\n")
    assert asyncio.run(read_journal(answers(warned), "u.service", "")).text == "one\n"
    assert asyncio.run(read_journal(answers(said("", "journalctl: 1\n")), "u.service", "")).text == ""
