"""Flags are found and replaced as the program's own parser would read them."""

from __future__ import annotations

import argparse

import pytest

from tuner.engines.flags import Flag, FlagSet
from tuner.errors import UsageError

STEPS = Flag(("--num-steps", "--steps", "-s"))
TOKENS = Flag(("--num-draft-tokens",))
PORT = Flag(("--port",))
FLAGS = FlagSet(known=(STEPS, TOKENS, PORT), prefixes=True)
EXACT = FlagSet(known=(STEPS, TOKENS, PORT), prefixes=False)


@pytest.mark.parametrize(
    "argv",
    [
        ("run", "--num-steps", "3"),
        ("run", "--num-steps=3"),
        ("run", "--steps", "3"),
        ("run", "-s", "3"),
        ("run", "--num-s", "3"),
        ("run", "--num-steps", "7", "--num-steps=3"),
    ],
)
def test_every_spelling_of_a_flag_is_read_as_argparse_reads_it(argv: tuple[str, ...]) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("command")
    parser.add_argument(*STEPS.names, dest="steps", type=int)
    parser.add_argument(*TOKENS.names, type=int)
    assert FLAGS.integer(argv, STEPS) == parser.parse_args(list(argv)).steps == 3


@pytest.mark.parametrize(
    ("argv", "after"),
    [
        (("run", "--num-steps", "3", "x"), ("run", "--num-steps", "5", "x")),
        (("run", "--num-steps=3", "x"), ("run", "--num-steps=5", "x")),
        (("run", "-s", "3", "x"), ("run", "-s", "5", "x")),
        (("--steps", "1", "--num-s=3", "x"), ("--steps", "1", "--num-s=5", "x")),
        (("run", "x"), ("run", "x", "--num-steps", "5")),
    ],
)
def test_a_value_is_replaced_where_it_stands_or_appended(argv: tuple[str, ...], after: tuple[str, ...]) -> None:
    assert FLAGS.put(argv, STEPS, "5") == after


def test_a_value_that_means_the_same_stays_as_it_is_written() -> None:
    argv = ("--num-steps", "5.0")
    assert FLAGS.put(argv, STEPS, "5") is argv


def test_dropping_removes_every_occurrence_with_its_value() -> None:
    argv = ("run", "--steps", "1", "--port=1", "--num-steps=3", "x", "-s", "4")
    assert FLAGS.drop(argv, STEPS) == ("run", "--port=1", "x")


def test_a_value_that_looks_like_a_word_of_another_flag_is_not_touched() -> None:
    argv = ("run", "--note", "steps", "--num-steps", "3")
    assert FLAGS.drop(argv, STEPS) == ("run", "--note", "steps")


def test_a_prefix_of_several_flags_is_refused_and_names_them() -> None:
    with pytest.raises(UsageError, match="--num is ambiguous, it could be --num-steps, --num-draft-tokens"):
        FLAGS.value(("run", "--num", "3"), STEPS)


def test_a_program_without_abbreviations_does_not_see_them() -> None:
    assert EXACT.value(("run", "--num-s", "3"), STEPS) is None


@pytest.mark.parametrize("argv", [("run", "--num-steps"), ("run", "--num-steps", "--port", "1")])
def test_a_flag_without_a_value_is_refused(argv: tuple[str, ...]) -> None:
    with pytest.raises(UsageError, match="--num-steps needs a value"):
        FLAGS.value(argv, STEPS)


def test_a_malformed_number_is_refused_with_flag_and_value() -> None:
    with pytest.raises(UsageError, match="--num-steps needs a whole number, not 'many'"):
        FLAGS.integer(("--num-steps", "many"), STEPS)
    with pytest.raises(UsageError, match="--num-steps needs a number, not 'many'"):
        FLAGS.number(("--num-steps", "many"), STEPS)


def test_an_absent_flag_is_none_and_not_zero() -> None:
    assert FLAGS.integer(("run",), STEPS) is None
    assert FLAGS.number(("run",), STEPS) is None
    assert not FLAGS.has(("run",), STEPS)
    assert FLAGS.has(("run", "--steps"), STEPS)


def test_a_negative_number_is_a_value() -> None:
    assert FLAGS.integer(("--num-steps", "-1"), STEPS) == -1
