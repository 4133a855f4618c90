"""NAME=VALUE as a person types it."""

from __future__ import annotations

import pytest

from tuner.errors import UsageError
from tuner.model.space import ChoiceParameter, FloatParameter, SearchSpace
from tuner.steer.settings import read_settings
from tuner.testing.fake_run import MTP

MIXED = SearchSpace(
    name="mixed",
    engine="fake",
    parameters=(
        ChoiceParameter(name="cache_type_k", choices=("f16", "q8_0")),
        ChoiceParameter(name="cache_type_v", choices=("f16", "q8_0")),
        ChoiceParameter(name="slots", choices=(1, 2, 4), ordered=True),
        FloatParameter(name="share", low=0.5, high=1.0, step=0.25),
    ),
)


@pytest.mark.parametrize("name", ["speculative_num_steps", "num_steps", "steps"])
def test_a_setting_has_its_full_name_and_any_short_one_that_is_its_alone(name: str) -> None:
    assert dict(read_settings([f"{name}=10"], MTP)) == {"speculative_num_steps": 10}


def test_values_have_the_types_of_their_parameters() -> None:
    values = read_settings(["topk=4", "fraction=0.85", "draft=9"], MTP)
    assert dict(values) == {
        "speculative_eagle_topk": 4,
        "mem_fraction_static": 0.85,
        "speculative_num_draft_tokens": 9,
    }
    assert dict(read_settings(["cache_type_k=q8_0", "slots=2", "share=1"], MIXED)) == {
        "cache_type_k": "q8_0",
        "slots": 2,
        "share": 1.0,
    }


@pytest.mark.parametrize(
    ("pairs", "words"),
    [
        ((), "name a setting to try, NAME=VALUE"),
        (("steps",), "steps: write NAME=VALUE, as speculative_num_steps=0"),
        (("stps=3",), "stps: is no parameter of space sglang-mtp; did you mean steps?"),
        (("=3",), ": is no parameter of space sglang-mtp"),
        (("warp=3",), "warp: is no parameter of space sglang-mtp (it has speculative_num_steps, "),
        (("num=3",), "num: may be speculative_num_draft_tokens or speculative_num_steps; write more of the name"),
        (("steps=99",), "steps=99: speculative_num_steps must be 0 to 16"),
        (("steps=3.5",), "steps=3.5: speculative_num_steps must be 0 to 16"),
        (("steps=",), "steps=: speculative_num_steps must be 0 to 16"),
        (("fraction=0.855",), "fraction=0.855: mem_fraction_static must be 0.6 to 0.95 in steps of 0.01"),
        (("fraction=nan",), "mem_fraction_static must be 0.6 to 0.95"),
        (("topk=3",), "topk=3: speculative_eagle_topk must be one of 1, 2, 4, 8"),
        (("steps=3", "num_steps=4"), "num_steps=4: speculative_num_steps is given twice"),
    ],
)
def test_a_mistake_is_named_in_one_line_with_what_is_allowed(pairs: tuple[str, ...], words: str) -> None:
    with pytest.raises(UsageError) as refused:
        read_settings(pairs, MTP)
    assert words in str(refused.value)
    assert "\n" not in str(refused.value)
