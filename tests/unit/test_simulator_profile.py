"""Profiles are data: every shipped one loads, and a wrong file says what is wrong."""

from __future__ import annotations

import pytest

from tuner.simulator import profile
from tuner.simulator.profile import FOLDER, ProfileError, load, names, parse

CALIBRATED = "qwen3.5-122b-a10b-4gpu"


@pytest.mark.parametrize("name", names())
def test_every_shipped_profile_loads_and_says_where_its_numbers_come_from(name: str) -> None:
    loaded = load(name)
    assert loaded.name == name
    assert len(loaded.source.split()) > 20
    assert 0 < loaded.acceptance.first < 1
    assert loaded.memory.weights_bytes < loaded.gpu.memory_bytes


def test_three_profiles_are_shipped_and_differ_in_model_and_in_memory() -> None:
    loaded = [load(name) for name in names()]
    assert len(loaded) >= 3
    assert len({item.model.name for item in loaded}) >= 2
    assert len({item.gpu.memory_bytes for item in loaded}) >= 3
    assert {item.hybrid for item in loaded} == {True, False}


def test_an_unknown_profile_is_answered_with_the_names_that_exist() -> None:
    with pytest.raises(ProfileError, match=r"no simulator profile 'gpt'; available: .*qwen3\.5-122b-a10b-4gpu"):
        profile.load("gpt")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("floor_s = ", "flor_s = ", r"speed: missing keys \['floor_s'\], unknown keys \['flor_s'\]"),
        ("noise = 0.01", "noise = true", "speed: noise must be float, not True"),
        ("layers = 48", 'layers = "48"', "model: layers must be int, not '48'"),
        ("default_triple = [3, 1, 4]", "default_triple = [3, 1.5]", "default_triple must be a list of integers"),
        ("[gpu]", "[gpu", "profile mine: "),
        ('source = """', 'gpu = 3\nsource = """', "profile mine: "),
    ],
)
def test_a_wrong_file_names_the_key(old: str, new: str, message: str) -> None:
    text = (FOLDER / f"{CALIBRATED}.toml").read_text(encoding="utf-8")
    assert old in text
    with pytest.raises(ProfileError, match=message):
        parse(text.replace(old, new, 1), "mine")
