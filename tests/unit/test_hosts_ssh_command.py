"""Command lines for a host's login shell, and how their output is read back."""

from __future__ import annotations

import shlex

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tuner.errors import TransportFault
from tuner.hosts.ssh.command import LAUNCH, Reading, command_line, kill_arguments, parse_started, shown
from tuner.hosts.ssh.faults import Started

WORDS = st.text(st.characters(blacklist_characters="\0", blacklist_categories=("Cs",)))


@given(st.lists(WORDS, min_size=1))
def test_a_shell_reads_the_words_that_were_given(words: list[str]) -> None:
    line = command_line(words, "token").decode()
    assert shlex.split(line) == ["sh", "-c", LAUNCH, "tuner", "token", *words]


def test_words_that_no_host_takes_are_refused_in_one_line() -> None:
    for words in (("echo", "a\0b"), ("echo", "line\n" * 40_000)):
        with pytest.raises(TransportFault) as refused:
            command_line(words, "token")
        assert "\n" not in str(refused.value)
        assert len(str(refused.value)) < 250


def test_a_script_is_shown_in_one_short_line() -> None:
    assert shown(("sh", "-c", "a\n  b")) == "sh -c a b"
    assert len(shown(("x" * 500,))) == 80


@given(st.binary(max_size=300), st.binary(max_size=300), st.lists(st.integers(1, 40), min_size=1))
def test_output_is_found_between_its_marks_in_whatever_pieces_it_comes(
    before: bytes, content: bytes, sizes: list[int]
) -> None:
    arriving = before + b"0123456789abcdef started a b\n" + content + b"\n0123456789abcdef ended 7\nleft behind"
    reading = Reading("0123456789abcdef")
    while arriving:
        size = sizes[len(arriving) % len(sizes)]
        reading.feed(arriving[:size])
        arriving = arriving[size:]
    assert (reading.started, reading.ended, reading.content) == ("a b", "7", content)


def test_output_without_its_end_is_no_result() -> None:
    reading = Reading("token")
    reading.feed(b"token started\npart\ntoken ended")
    assert reading.started == ""
    assert reading.ended is None


STAT = "boot-id 4711 (a) b) S 1 42 43 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 98765 2 3 4"


def test_a_shell_says_which_process_it_is() -> None:
    assert parse_started(STAT) == Started(boot_id="boot-id", pid=4711, start_ticks=98765)
    assert kill_arguments(Started(boot_id="b", pid=1, start_ticks=2))[-3:] == ("1", "2", "b")


@pytest.mark.parametrize("line", [None, "", "boot-id", "boot-id 1 (sh) S 1", "boot-id x (sh) " + "1 " * 30])
def test_a_host_without_proc_says_nothing_of_its_processes(line: str | None) -> None:
    assert parse_started(line) is None
