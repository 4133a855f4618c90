"""One short name a parameter, wherever it is shown."""

from __future__ import annotations

from pathlib import Path

from tuner.config.space_file import read_space
from tuner.model.names import short_names
from tuner.testing.fake_run import MTP

CHECKOUT = Path(__file__).parents[2]


def test_the_shipped_settings_of_sglang_become_one_telling_word_each() -> None:
    names = short_names([parameter.name for parameter in MTP.parameters])
    assert list(names.values()) == ["steps", "topk", "draft", "fraction"]
    assert list(names) == [parameter.name for parameter in MTP.parameters]


def test_the_shipped_settings_of_llamacpp_stay_as_they_are() -> None:
    names = [parameter.name for parameter in read_space(CHECKOUT, "llamacpp-cpu").parameters]
    assert short_names(names) == {name: name for name in names}


def test_a_name_keeps_its_first_word_when_one_word_would_be_left() -> None:
    names = ["draft_max", "draft_min", "batch_size"]
    assert short_names(names) == {name: name for name in names}


def test_only_names_that_would_become_alike_stay_long() -> None:
    assert short_names(["a_num_steps", "a_steps_num", "b_width"]) == {
        "a_num_steps": "a_num_steps",
        "a_steps_num": "a_steps_num",
        "b_width": "b_width",
    }
    assert short_names(["num_steps", "steps", "mem_fraction"])["mem_fraction"] == "fraction"


def test_a_name_of_words_that_say_little_stays() -> None:
    assert short_names(["num_tokens", "mem"]) == {"num_tokens": "num_tokens", "mem": "mem"}
