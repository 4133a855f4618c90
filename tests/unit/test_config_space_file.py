"""Search-space files: what is read, and what is refused and how."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from tuner.config.space_file import parse_space, read_space, space_names
from tuner.errors import StudyFileError
from tuner.model.space import ChoiceParameter, FloatParameter, IntParameter

GOOD = """
engine = "sglang"

[parameters.speculative_num_steps]
type = "int"
low = 0
high = 16
help = "drafts per verification"

[parameters.speculative_eagle_topk]
type = "choice"
choices = [1, 2, 4, 8]
ordered = true

[parameters.mem_fraction_static]
type = "float"
low = 0.60
high = 0.95
step = 0.01
"""


def refusal(text: str) -> str:
    with pytest.raises(StudyFileError) as caught:
        parse_space(tomllib.loads(text), name="s", shown="search_spaces/s.toml")
    message = str(caught.value)
    assert "\n" not in message
    assert message.startswith("search_spaces/s.toml: ")
    return message.removeprefix("search_spaces/s.toml: ")


def one(table: str) -> str:
    return f'engine = "e"\n[parameters.p]\n{table}'


def test_a_space_file_becomes_parameters_in_the_order_of_the_file() -> None:
    space = parse_space(tomllib.loads(GOOD), name="sglang-mtp", shown="x")
    assert (space.name, space.engine) == ("sglang-mtp", "sglang")
    assert space.parameters == (
        IntParameter(name="speculative_num_steps", low=0, high=16),
        ChoiceParameter(name="speculative_eagle_topk", choices=(1, 2, 4, 8), ordered=True),
        FloatParameter(name="mem_fraction_static", low=0.6, high=0.95, step=0.01),
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            GOOD.replace("engine", "engin"),
            "engin: unknown key; did you mean engine? (allowed here: engine, parameters); engine: is missing",
        ),
        ("parameters = {}\n", "engine: is missing; parameters: must not be empty"),
        ('engine = "e"\n[parameters]\n', "parameters: must not be empty"),
        ('engine = 3\n[parameters.p]\ntype="int"\nlow=1\nhigh=2', "engine: is 3, but must be a text in quotes"),
        ('engine = "e"\nparameters.p = 3\n', "parameters.p: is 3, but must be a table"),
        (one('type = "integer"'), 'parameters.p: type is "integer", but must be one of "int", "float", "choice"'),
        (one("low = 1"), 'parameters.p: type is missing, but must be one of "int", "float", "choice"'),
        (one('type="int"\nlow=9\nhigh=2'), "parameters.p: the range is inverted: low 9 is above high 2"),
        (
            one('type="float"\nlow=0.9\nhigh=0.2\nstep=0.1'),
            "parameters.p: the range is inverted: low 0.9 is above high 0.2",
        ),
        (
            one('type="int"\nlow=2\nhigh=2'),
            "parameters.p: the range is empty: low and high are both 2; fix it in the command instead",
        ),
        (
            one('type="int"\nlow=2\nhigh=4\nstep=5'),
            "parameters.p: the range is empty: step 5 leads from low 2 past high 4",
        ),
        (one('type="choice"\nchoices=[]'), "parameters.p.choices: must not be empty"),
        (
            one('type="choice"\nchoices=[4]'),
            "parameters.p: choices has only 4: nothing to search; fix it in the command",
        ),
        (one('type="choice"\nchoices=[4, 4, 5]'), "parameters.p: choices [4, 4, 5] repeat themselves"),
        (
            one('type="choice"\nchoices=[4, "a"]'),
            'parameters.p: choices is [4, "a"], but must be all whole numbers, all numbers or all texts',
        ),
        (
            one('type="choice"\nchoices=[true, false]'),
            "parameters.p: choices is [true, false], but must be all whole numbers, all numbers or all texts",
        ),
        (one('type="int"\nlow="2"\nhigh=4'), 'parameters.p.low: is "2", but must be a whole number'),
        (one('type="int"\nlow=2.5\nhigh=4'), "parameters.p.low: is 2.5, but must be a whole number"),
        (one('type="int"\nlow=true\nhigh=4'), "parameters.p.low: is true, but must be a whole number"),
        (one('type="int"\nlow=2\nhigh=4\nstep=-1'), "parameters.p.step: is -1, but must be at least 1"),
        (one('type="float"\nlow=0.1\nhigh=0.2\nstep=0.0'), "parameters.p.step: is 0.0, but must be above 0"),
        (one('type="float"\nlow=0.1\nhigh=0.2'), "parameters.p.step: is missing"),
        (
            one('type="float"\nlow=0.1\nhigh=inf\nstep=0.1'),
            "parameters.p.high: is inf, but must be a finite number",
        ),
        (
            one('type="float"\nlow=0.1\nhigh=0.25\nstep=0.1'),
            "parameters.p: high 0.25 is not reached from low 0.1 in steps of 0.1",
        ),
        (
            one('type="int"\nlow=2\nhihg=4'),
            (
                "parameters.p.hihg: unknown key; did you mean high? "
                "(allowed here: type, low, high, step, help); parameters.p.high: is missing"
            ),
        ),
        (
            'engine="e"\n[parameters.a]\ntype="int"\nlow=2\nhigh=1\n[parameters.b]\ntype="int"\nlow=2\nhigh=1',
            "; ".join(f"parameters.{name}: the range is inverted: low 2 is above high 1" for name in "ab"),
        ),
        (
            'engine="e"\n[parameters."Bad Name"]\ntype="int"\nlow=1\nhigh=2',
            "parameters.Bad Name: a parameter's name is a-z, 0-9 and _",
        ),
    ],
)
def test_a_wrong_space_file_is_refused_in_one_line(text: str, message: str) -> None:
    assert refusal(text) == message


def test_a_missing_space_is_named_with_the_spaces_there_are(tmp_path: Path) -> None:
    folder = tmp_path / "search_spaces"
    folder.mkdir()
    (folder / "sglang-mtp.toml").write_text(GOOD)
    assert space_names(tmp_path) == ("sglang-mtp",)
    with pytest.raises(
        StudyFileError, match=r'unknown space "sglang-mpt"; did you mean "sglang-mtp"\? \(known: sglang'
    ):
        read_space(tmp_path, "sglang-mpt")


@pytest.mark.parametrize("name", ["../secrets", "a/b", "..", ".hidden", "A", "", "a..b"])
def test_a_space_name_cannot_leave_its_folder(tmp_path: Path, name: str) -> None:
    with pytest.raises(StudyFileError, match=r"the space name .* is not allowed"):
        read_space(tmp_path, name)


def test_a_syntax_error_names_its_line(tmp_path: Path) -> None:
    folder = tmp_path / "search_spaces"
    folder.mkdir()
    (folder / "s.toml").write_text('engine = "e"\n[parameters\n')
    with pytest.raises(StudyFileError, match=r"^search_spaces/s.toml: is not valid TOML: .* \(at line 2, column 12\)$"):
        read_space(tmp_path, "s")


def test_a_file_that_is_not_text_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "search_spaces"
    folder.mkdir()
    (folder / "s.toml").write_bytes(b"engine = \xff\xfe")
    with pytest.raises(StudyFileError, match=r"^search_spaces/s\.toml: is not UTF-8 text"):
        read_space(tmp_path, "s")
