"""Words for a unit file; what real systemd makes of them is held in the integration tests."""

from __future__ import annotations

import pytest

from tuner.errors import UsageError
from tuner.hosts.systemd.quoting import LINE_MAX_BYTES, assignment, checked_line, literal, program, quoted


@pytest.mark.parametrize(
    ("word", "written"),
    [
        ("--port", "--port"),
        ("", '""'),
        ("two words", '"two words"'),
        (";", '";"'),
        ("100%", '"100%%"'),
        ("$HOME", '"$$HOME"'),
        ('{"a": 1}', '"{\\"a\\": 1}"'),
        ("back\\slash", '"back\\\\slash"'),
        ("line\nline\ttab\r", '"line\\nline\\ttab\\r"'),
        ("\x01\x7f", '"\\x01\\x7f"'),
        ("é😀", '"é😀"'),
    ],
)
def test_a_literal_word_is_written_so_that_nothing_in_it_means_anything(word: str, written: str) -> None:
    assert literal(word) == written


def test_a_quoted_word_keeps_its_variables_and_loses_its_specifiers() -> None:
    assert quoted("${KEY} 5%") == '"${KEY} 5%%"'


@pytest.mark.parametrize("word", ["a\0b", "\udcff", "x" * 131072])
def test_what_no_command_line_can_hold_is_refused(word: str) -> None:
    with pytest.raises(UsageError, match=r"NUL|UTF-8|131071"):
        literal(word)


def test_a_program_is_written_behind_its_prefixes() -> None:
    assert program("/usr/bin/python3", "+@") == "+@/usr/bin/python3"
    assert program("/opt/my models/run", "!!") == '"!!/opt/my models/run"'
    assert program("/opt/100%/run") == '"/opt/100%%/run"'


@pytest.mark.parametrize("path", ["", "bin/run", "/opt/a'b", '/opt/a"b', "/opt/a\\b", "/opt/a\nb", "/opt/", "-run"])
def test_a_program_that_systemd_would_refuse_is_refused_before(path: str) -> None:
    with pytest.raises(UsageError, match="program"):
        program(path)


def test_an_assignment_keeps_its_dollars_and_refuses_what_systemd_does() -> None:
    assert assignment("KEY", "a$b 5%") == '"KEY=a$b 5%%"'
    with pytest.raises(UsageError, match="a name is made of"):
        assignment("1KEY", "x")
    with pytest.raises(UsageError, match="no control characters"):
        assignment("KEY", "a\x01")


def test_a_line_longer_than_systemd_reads_is_refused_and_named() -> None:
    assert checked_line("ExecStart=/bin/true") == "ExecStart=/bin/true"
    with pytest.raises(UsageError, match="ExecStart= would be"):
        checked_line("ExecStart=" + "x" * LINE_MAX_BYTES)
