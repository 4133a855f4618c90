"""The shipped prompts, and users' files with their errors."""

from __future__ import annotations

import importlib.util
import json
import re
import sys
from collections import Counter
from pathlib import Path

import pytest

from tuner.errors import StudyFileError
from tuner.load import prompts as module
from tuner.load.prompts import LONG_TOKENS, SHORT_TOKENS, estimated_tokens, load_prompts
from tuner.model.prompt import CLASSES, SHIPPED, Prompt, Turn

ALL = load_prompts("builtin:all")
LANGUAGES = ("de", "fr", "es", "pt", "zh", "ja", "ru", "ar", "hi")


def write(folder: Path, *lines: object, name: str = "mine.jsonl") -> str:
    path = folder / name
    path.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines))
    return str(path)


def sentences(text: str) -> list[str]:
    return [piece for piece in re.split(r"(?<=[.!?])\s+|\n", text) if len(piece) > 60]


def test_at_least_two_hundred_prompts_are_shipped_each_with_a_name_and_a_text_of_its_own() -> None:
    assert len(ALL) >= 200
    assert len({prompt.id for prompt in ALL}) == len({prompt.text for prompt in ALL}) == len(ALL)


def test_every_class_has_many_prompts_in_many_languages_and_lengths() -> None:
    for name in CLASSES:
        members = load_prompts(f"builtin:{name}")
        assert {prompt.prompt_class for prompt in members} == {name}
        assert len(members) >= 25
        lengths = [estimated_tokens(prompt) for prompt in members]
        assert min(lengths) < 150
        assert max(lengths) > 5000
        spoken = {word for prompt in members for word in prompt.id.split("-")} & set(LANGUAGES)
        assert len(spoken) >= 8


def test_lengths_reach_from_twenty_to_eight_thousand_tokens() -> None:
    lengths = sorted(estimated_tokens(prompt) for prompt in ALL)
    assert lengths[5] <= 30
    assert 7900 < lengths[-1] < 8300


def test_the_default_set_is_as_long_as_people_s_questions_are_and_has_every_class() -> None:
    prompts = load_prompts("builtin")
    lengths = sorted(estimated_tokens(prompt) for prompt in prompts)
    assert SHORT_TOKENS <= lengths[0] < lengths[-1] < LONG_TOKENS
    assert 100 <= lengths[len(lengths) // 2] <= 300
    counts = Counter(prompt.prompt_class for prompt in prompts)
    assert set(counts) == set(CLASSES)
    assert min(counts.values()) >= 20


def test_the_long_set_is_long_and_has_every_class() -> None:
    prompts = load_prompts("builtin:long")
    assert min(estimated_tokens(prompt) for prompt in prompts) >= LONG_TOKENS
    assert {prompt.prompt_class for prompt in prompts} == set(CLASSES)


def test_no_shipped_text_repeats_a_sentence_on_which_n_gram_drafts_would_feed() -> None:
    texts = {prompt.id: prompt.text for prompt in ALL if not prompt.id.startswith("code-warehouse")}
    assert not {name: twice for name, text in texts.items() if (twice := _twice(sentences(text)))}


def _twice(pieces: list[str]) -> list[str]:
    return [piece for piece, count in Counter(pieces).items() if count > 1]


def test_every_shipped_conversation_ends_with_a_question() -> None:
    assert {prompt.turns[-1].role for prompt in ALL} == {"user"}
    assert sum(len(prompt.turns) > 1 for prompt in ALL) >= 5


def test_the_script_that_wrote_the_long_prompts_writes_the_same_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = Path(__file__).parents[2] / "scripts" / "long_prompts"
    monkeypatch.syspath_prepend(str(folder))
    spec = importlib.util.spec_from_file_location("build", folder / "build.py")
    assert spec is not None
    assert spec.loader is not None
    build = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "build", build)
    spec.loader.exec_module(build)
    shipped = build.OUT.read_text()
    monkeypatch.setattr(build, "OUT", tmp_path / "long.jsonl")
    build.main()
    assert (tmp_path / "long.jsonl").read_text() == shipped


def test_a_set_that_does_not_exist_is_named_with_the_nearest_one() -> None:
    with pytest.raises(StudyFileError, match=r"builtin:cod: there is no such set; did you mean builtin:code\?"):
        load_prompts("builtin:cod")
    assert {load_prompts(name) != () for name in SHIPPED} == {True}


def user(text: str) -> Turn:
    return Turn(role="user", content=text)


def test_the_shapes_of_a_user_s_file_are_read(tmp_path: Path) -> None:
    source = write(
        tmp_path,
        {"prompt": "one", "note": "ignored"},
        "",
        {
            "messages": [
                {"role": "system", "content": "Be brief."},
                {"role": "user", "content": [{"type": "text", "text": "two"}]},
                {"role": "assistant", "content": "left out"},
            ],
            "class": "chat",
        },
        {"id": "share-7", "conversations": [{"from": "gpt", "value": "no"}, {"from": "human", "value": "three"}]},
        {"text": "four", "id": 4, "output_tokens": 12},
    )
    assert load_prompts(source) == (
        Prompt(id="mine:1", turns=(user("one"),)),
        Prompt(id="mine:3", turns=(Turn(role="system", content="Be brief."), user("two")), prompt_class="chat"),
        Prompt(id="share-7", turns=(user("three"),)),
        Prompt(id="4", turns=(user("four"),), output_tokens=12),
    )


def test_a_conversation_is_sent_up_to_its_last_question(tmp_path: Path) -> None:
    talk = [("human", "a"), ("gpt", "b"), ("human", "c"), ("gpt", "d")]
    source = write(tmp_path, {"conversations": [{"from": who, "value": said} for who, said in talk]})
    (prompt,) = load_prompts(source)
    assert [(turn.role, turn.content) for turn in prompt.turns] == [("user", "a"), ("assistant", "b"), ("user", "c")]
    assert prompt.text == "a\n\nb\n\nc"


def test_the_share_gpt_data_set_is_one_array_of_which_nobody_s_conversations_are_left_out(tmp_path: Path) -> None:
    asked = {"id": "QWJhYvA_0", "conversations": [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Ho"}]}
    unasked = {"id": "i6IyJda_0", "conversations": [{"from": "gpt", "value": "Ho"}]}
    empty: dict[str, object] = {"id": "x", "conversations": []}
    path = tmp_path / "sharegpt.json"
    path.write_text(json.dumps([unasked, asked, empty], indent=2))
    assert load_prompts(str(path)) == (Prompt(id="QWJhYvA_0", turns=(user("Hi"),)),)


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("{nonsense", "not JSON"),
        ('"text"', "str found; write a JSON object with"),
        ({}, "has nothing; write"),
        ({"words": "x"}, 'has words; write "prompt"'),
        ({"prompt": 3}, '"prompt" is int, not text'),
        ({"text": None}, '"text" is NoneType, not text'),
        ({"prompt": " \n"}, "the prompt is empty; write what"),
        ({"messages": "x"}, '"messages" is str, not a list'),
        ({"messages": ["x"]}, '"messages"[0] is str, not a turn'),
        ({"messages": [{"role": "user"}]}, '"messages"[0] has "content" of NoneType; write the text'),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
            '"messages"[0] has "content" of parts that are not text',
        ),
        ({"messages": [{"role": "boss", "content": "x"}]}, '"messages"[0] has "role" \'boss\'; write one of'),
        ({"messages": [{"role": "assistant", "content": "x"}]}, 'no turn of role "user"'),
        ({"conversations": [{"from": "gpt", "value": "x"}]}, 'no turn of role "user" ("human")'),
        ({"conversations": [3]}, '"conversations"[0] is int'),
        ({"conversations": [{"from": "x", "value": "x"}]}, '"conversations"[0] has "from" \'x\'; write one of'),
        ({"conversations": [{"from": "human"}]}, '"conversations"[0] needs "from" and "value", both text'),
        ({"prompt": "x", "output_tokens": 1}, '"output_tokens" is 1; write a whole number from 2'),
        ({"prompt": "x", "output_tokens": True}, '"output_tokens" is True; write a whole number'),
        ({"prompt": "x", "class": ["a"]}, '"class" is list, not text'),
        ({"prompt": "x", "id": 1.5}, '"id" is float, not text'),
    ],
    ids=lambda value: str(value).replace("\n", " ")[:60] if isinstance(value, str) else "",
)
def test_a_wrong_line_is_named_with_file_line_and_remedy(tmp_path: Path, line: object, complaint: str) -> None:
    source = write(tmp_path, {"prompt": "fine"}, line)
    with pytest.raises(StudyFileError) as caught:
        load_prompts(source)
    assert str(caught.value).startswith(f"prompts file {source}, line 2: ")
    assert complaint in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_data_set_that_uses_a_name_twice_gets_names_of_its_own(tmp_path: Path) -> None:
    path = write(tmp_path, json.dumps([{"id": "a", "prompt": "x"}, {"id": "a", "prompt": "y"}]))
    assert [prompt.id for prompt in load_prompts(path)] == ["a", "a:2"]


def test_a_wrong_item_of_an_array_is_counted(tmp_path: Path) -> None:
    path = write(tmp_path, json.dumps([{"prompt": "fine"}, {"prompt": 1}]))
    with pytest.raises(StudyFileError, match=r'mine\.jsonl, item 2: "prompt" is int'):
        load_prompts(path)
    with pytest.raises(StudyFileError, match=r"begins with \[ but is no JSON array"):
        load_prompts(write(tmp_path, '[{"prompt": "fine"},'))


def test_bytes_that_are_not_utf_8_are_named(tmp_path: Path) -> None:
    path = tmp_path / "latin.jsonl"
    path.write_bytes(b'{"prompt": "gr\xfc\xdfe"}\n')
    with pytest.raises(StudyFileError, match="line 1: not JSON"):
        load_prompts(str(path))


def test_a_byte_order_mark_is_none_of_the_text(tmp_path: Path) -> None:
    path = tmp_path / "windows.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"prompt": "one"}\r\n{"prompt": "two"}\r\n')
    assert [prompt.text for prompt in load_prompts(str(path))] == ["one", "two"]


def test_a_file_that_is_missing_or_empty_is_named(tmp_path: Path) -> None:
    with pytest.raises(StudyFileError, match=r"nowhere\.jsonl: No such file.*name a file, or a shipped set: builtin"):
        load_prompts(str(tmp_path / "nowhere.jsonl"))
    for lines in (("", "  "), ("[]",)):
        with pytest.raises(StudyFileError, match="no prompt in it"):
            load_prompts(write(tmp_path, *lines))


def test_two_prompts_of_one_name_are_refused_because_results_are_paired_by_it(tmp_path: Path) -> None:
    with pytest.raises(StudyFileError, match="two prompts have the id 'a'; give each its own"):
        load_prompts(write(tmp_path, {"id": "a", "prompt": "x"}, {"id": "a", "prompt": "y"}))


def test_files_beyond_any_use_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_PROMPTS", 2)
    with pytest.raises(StudyFileError, match=r"more than 2 prompts; .* take a sample"):
        load_prompts(write(tmp_path, *({"prompt": str(n)} for n in range(3))))
    monkeypatch.setattr(module, "LONGEST_CHARACTERS", 10)
    with pytest.raises(StudyFileError, match="line 1: the prompt has 11 characters, more than any model reads"):
        load_prompts(write(tmp_path, {"prompt": "x" * 11}))
