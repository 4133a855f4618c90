"""The shipped prompts, and users' files with their errors."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tuner.errors import StudyFileError
from tuner.load.prompts import load_prompts


def write(folder: Path, *lines: object) -> str:
    path = folder / "mine.jsonl"
    path.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines))
    return str(path)


def length_words(text: str) -> float:
    """Count words; scripts without spaces at the usual two and a half characters a word."""
    return max(len(text.split()), len(text) / 2.5 if text.count(" ") < len(text) / 50 else 0)


def test_the_shipped_set_is_large_varied_and_of_realistic_lengths() -> None:
    prompts = load_prompts("builtin")
    assert len(prompts) >= 48
    assert len({prompt.id for prompt in prompts}) == len(prompts)
    assert len({prompt.text[:40] for prompt in prompts}) == len(prompts)
    assert {"code", "write", "reason", "multi", "mixed", "long"} == {p.id.split("-")[0] for p in prompts}
    lengths = [length_words(prompt.text) for prompt in prompts]
    assert all(50 <= length <= 600 for length in lengths)
    assert max(lengths) > 2 * sorted(lengths)[len(lengths) // 2]


def test_the_three_shapes_of_a_user_s_file_are_read(tmp_path: Path) -> None:
    source = write(
        tmp_path,
        {"prompt": "one", "note": "ignored"},
        "",
        {
            "messages": [
                {"role": "system", "content": "Be brief."},
                {"role": "user", "content": "two"},
                {"role": "assistant", "content": "left out"},
            ]
        },
        {"id": "share-7", "conversations": [{"from": "gpt", "value": "no"}, {"from": "human", "value": "three"}]},
    )
    prompts = load_prompts(source)
    assert [prompt.text for prompt in prompts] == ["one", "Be brief.\n\ntwo", "three"]
    assert [prompt.id for prompt in prompts] == ["mine:1", "mine:3", "share-7"]


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("{nonsense", "not JSON"),
        ("[1]", "list found"),
        ({}, "has nothing"),
        ({"text": "x"}, 'has text; write "prompt"'),
        ({"prompt": 3}, '"prompt" is int, not text'),
        ({"prompt": " \n"}, "the prompt is empty"),
        ({"messages": "x"}, '"messages" is str, not a list'),
        ({"messages": [{"role": "user"}]}, '"messages"[0] needs "role" and "content"'),
        ({"messages": [{"role": "assistant", "content": "x"}]}, 'no turn of role "user"'),
        ({"conversations": [{"from": "gpt", "value": "x"}]}, "no turn from"),
        ({"conversations": [3]}, '"conversations"[0] needs'),
    ],
)
def test_a_wrong_line_is_named_with_file_line_and_remedy(tmp_path: Path, line: object, complaint: str) -> None:
    source = write(tmp_path, {"prompt": "fine"}, line)
    with pytest.raises(StudyFileError) as caught:
        load_prompts(source)
    assert str(caught.value).startswith(f"prompts file {source}, line 2: ")
    assert complaint in str(caught.value)
    assert "\n" not in str(caught.value)


def test_bytes_that_are_not_utf_8_are_named(tmp_path: Path) -> None:
    path = tmp_path / "latin.jsonl"
    path.write_bytes(b'{"prompt": "gr\xfc\xdfe"}\n')
    with pytest.raises(StudyFileError, match="line 1: not JSON"):
        load_prompts(str(path))


def test_a_file_that_is_missing_or_empty_is_named(tmp_path: Path) -> None:
    with pytest.raises(StudyFileError, match=r"nowhere\.jsonl: No such file"):
        load_prompts(str(tmp_path / "nowhere.jsonl"))
    with pytest.raises(StudyFileError, match="no prompt in it"):
        load_prompts(write(tmp_path, "", "  "))
