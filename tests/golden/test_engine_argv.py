"""The exact command lines that engines are started with."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from tuner.engines import engine
from tuner.model.space import Assignment, Value
from tuner.model.trial import Command

Case = tuple[str, str, str, str]


def cases() -> list[Case]:
    found: list[Case] = []
    name = base = asked = ""
    for line in (Path(__file__).parent / "engine_argv.txt").read_text().splitlines():
        kind, _, text = line.partition(": ")
        match kind:
            case "# sglang" | "# llamacpp":
                name = line[2:]
            case "base":
                base = text
            case "set":
                asked = text
            case "argv":
                found.append((name, base, asked, text))
    return found


def value(text: str) -> Value:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def test_the_file_holds_cases_of_both_engines() -> None:
    assert {name for name, *_ in cases()} == {"sglang", "llamacpp"}


@pytest.mark.parametrize(("name", "base", "asked", "argv"), cases())
def test_a_command_line_is_what_it_was(name: str, base: str, asked: str, argv: str) -> None:
    adapter = engine(name)
    pairs = (pair.split("=") for pair in asked.split())
    wanted = Assignment.of({key: value(text) for key, text in pairs})
    assert adapter.canonical(wanted) == wanted
    found = adapter.command(Command(argv=tuple(shlex.split(base))), wanted)
    assert shlex.join(found.argv) == argv
