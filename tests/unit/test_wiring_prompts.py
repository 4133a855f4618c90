"""How a study names its prompts and how they are sent, and when that makes it another study."""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from tuner.config.overrides import Overrides
from tuner.errors import UsageError
from tuner.model.prompt import Api
from tuner.model.study import StudySpec
from tuner.model.workload import Workload
from tuner.search.identity import difference, fingerprint, identity_of
from tuner.testing.project import Project
from tuner.wiring.load import load_study

CHECKOUT = Path(__file__).parents[2]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    place = tmp_path / "checkout"
    shutil.copytree(CHECKOUT / "search_spaces", place / "search_spaces")
    (place / "studies").mkdir()
    Project(place).write(port=30000)
    return place


def with_keys(root: Path, keys: str) -> Path:
    path = root / "studies" / "tiny.toml"
    path.write_text(path.read_text().replace("[workload]\n", f"[workload]\n{keys}\n", 1))
    return root


def refusal(root: Path, overrides: Overrides | None = None) -> str:
    with pytest.raises(UsageError) as caught:
        load_study(root, "tiny", overrides)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def stored(spec: StudySpec) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(json.dumps(identity_of(spec)))
    return content


def test_conversations_go_to_the_chat_endpoint_unless_the_study_says_otherwise(root: Path) -> None:
    assert load_study(root, "tiny").workload.api is Api.CHAT
    assert load_study(with_keys(root, 'api = "completions"'), "tiny").workload.api is Api.COMPLETIONS


def test_a_study_says_how_to_sample(root: Path) -> None:
    keys = "temperature = 0.7\ntop_p = 0.8\ntop_k = 20\nmin_p = 0.0\npresence_penalty = 1.5\nthinking = false"
    workload = load_study(with_keys(root, keys), "tiny").workload
    found = (workload.top_p, workload.top_k, workload.min_p, workload.presence_penalty, workload.thinking)
    assert found == (0.8, 20, 0.0, 1.5, False)


@pytest.mark.parametrize(
    ("keys", "complaint"),
    [
        ('api = "chats"', 'workload.api: is "chats", but must be one of "chat" or "completions"'),
        ("top_p = 0.9", "workload.top_p: has no effect at temperature 0"),
        ("top_k = 0", "workload.top_k: is 0, but must be at least 1"),
        ("min_p = 2.0", "workload.min_p: is 2.0, but must be at most 1"),
        ('api = "completions"\nthinking = true', "workload.thinking: is a wish to the chat template"),
        ('prompts = "builtin:cod"', "prompts builtin:cod: there is no such set; did you mean builtin:code?"),
        ('prompts = "cod.jsonl"', 'workload.prompts: is "cod.jsonl": there is no such file under '),
    ],
    ids=["api", "greedy", "top_k", "min_p", "thinking", "set", "file"],
)
def test_what_cannot_be_is_refused(root: Path, keys: str, complaint: str) -> None:
    assert complaint in refusal(with_keys(root, keys))


def test_the_command_line_can_name_other_prompts(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine.jsonl").write_text('{"prompt": "one"}\n')
    monkeypatch.chdir(tmp_path)
    spec = load_study(root, "tiny", Overrides(prompts="mine.jsonl"))
    assert spec.workload.prompts == str(tmp_path / "mine.jsonl")
    assert load_study(root, "tiny", Overrides(prompts="builtin:json")).workload.prompts == "builtin:json"
    assert refusal(root, Overrides(prompts="other.jsonl")).startswith('--prompts "other.jsonl": there is no such file')
    assert refusal(root, Overrides(prompts="builtin:jso")).startswith("prompts builtin:jso: there is no such set; did")


def test_another_set_another_class_or_another_length_is_another_study(root: Path) -> None:
    path = root / "mine.jsonl"
    path.write_text('{"prompt": "one"}\n')
    before = stored(load_study(with_keys(root, 'prompts = "mine.jsonl"'), "tiny"))
    for line in ({"prompt": "one", "class": "code"}, {"prompt": "one", "output_tokens": 9}, {"prompt": "two"}):
        path.write_text(json.dumps(line))
        assert difference(before, load_study(root, "tiny")) == "was begun with another set of prompts"
    path.write_text('{"text": "one", "id": "another name"}\n')
    assert difference(before, load_study(root, "tiny")) is None
    assert difference(before, load_study(root, "tiny", Overrides(prompts="builtin:code"))) is not None


def test_another_endpoint_and_another_sampling_are_another_study(root: Path) -> None:
    spec = load_study(root, "tiny")
    before = stored(spec)
    sampled = replace(spec, workload=replace(spec.workload, temperature=0.5, top_p=0.9))
    told = difference(before, sampled)
    assert told == "was begun with another workload (temperature 0.0, now 0.5; top_p None, now 0.9)"
    bare = replace(spec, workload=replace(spec.workload, api=Api.COMPLETIONS))
    assert difference(before, bare) == "was begun with another workload (api chat, now completions)"


def test_a_study_that_is_older_than_these_keys_stays_itself(root: Path) -> None:
    spec = load_study(root, "tiny")
    bare = replace(spec, workload=replace(spec.workload, api=Api.COMPLETIONS))
    later = {"api", "top_p", "top_k", "min_p", "presence_penalty", "thinking"}
    content = {key: value for key, value in asdict(bare.workload).items() if key not in later}
    older = stored(bare) | {"workload": fingerprint(content | {"prompts": None})}
    assert difference(older, bare) is None
    assert difference(older, spec) is not None
    assert later <= {*asdict(Workload())}
