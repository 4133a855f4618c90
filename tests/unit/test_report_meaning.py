"""What verdicts mean for the settings: every cause has words, and memory causes have numbers."""

from __future__ import annotations

import itertools

import pytest

from tuner.engines import ENGINES
from tuner.model.outcome import MEMORY_CAUSES, NEVER_THE_CONFIGURATION, Cause, MemoryDirection, Verdict
from tuner.report.cause_words import CAUSES, blame
from tuner.report.meaning import gpu_bytes, meaning

SGLANG = ENGINES["sglang"].parameters
LLAMACPP = ENGINES["llamacpp"].parameters
GIB = 1 << 30
ASKED = {
    "mem_fraction_static": 0.85,
    "speculative_eagle_topk": 1,
    "speculative_num_draft_tokens": 11,
    "speculative_num_steps": 10,
}
OOM = "torch.OutOfMemoryError: CUDA out of memory. GPU 0 has a total capacity of 80.00 GiB of which 0.30 GiB is free."
ITSELF = "(the server itself asks for more than"
TOO_HIGH = MemoryDirection.FRACTION_TOO_HIGH
TOO_LOW = MemoryDirection.FRACTION_TOO_LOW
TOO_MANY = MemoryDirection.TOO_MANY_DRAFT_TOKENS


def verdict(
    cause: Cause,
    direction: MemoryDirection | None = None,
    *,
    config_fault: bool | None = True,
    shortfall_gib: float | None = None,
    viable: float | None = None,
    evidence: str = OOM,
) -> Verdict:
    return Verdict(
        cause=cause,
        config_fault=config_fault,
        direction=direction,
        shortfall_bytes=None if shortfall_gib is None else round(shortfall_gib * GIB),
        viable_fraction=viable,
        evidence=(evidence,),
    )


def test_every_cause_has_words_and_no_two_are_alike() -> None:
    assert set(CAUSES) == set(Cause)
    assert len({words.what for words in CAUSES.values()}) == len(Cause)


@pytest.mark.parametrize("cause", Cause)
def test_every_verdict_means_something_in_whole_lines(cause: Cause) -> None:
    asked_of = [(ASKED, SGLANG), ({}, SGLANG), ({}, LLAMACPP), ({"ctx_size": 4096}, LLAMACPP)]
    for direction, fault, (asked, names) in itertools.product([None, *MemoryDirection], [True, False, None], asked_of):
        judged = verdict(cause, direction, config_fault=fault, shortfall_gib=1.2, viable=0.9)
        meant = meaning(judged, asked, names)
        assert meant
        for line in [*meant, blame(judged), CAUSES[cause].what]:
            assert line.strip() == line
            assert line
            assert "\n" not in line
            assert "None" not in line
            assert not line.endswith((".", ":", ","))


@pytest.mark.parametrize(
    ("judged", "first"),
    [
        (
            verdict(Cause.OOM_SERVING, TOO_HIGH, shortfall_gib=1.2),
            "mem_fraction_static 0.85 was too high by about 1.2 GiB of 80: at most ~0.83",
        ),
        (
            verdict(Cause.OOM_KV_POOL, TOO_HIGH, shortfall_gib=4),
            "mem_fraction_static 0.85 was too high by about 4 GiB of 80: at most ~0.8",
        ),
        (
            verdict(Cause.OOM_KV_POOL, TOO_HIGH, shortfall_gib=72),
            "mem_fraction_static 0.85 was too high by about 72 GiB of 80: no fraction makes up for that",
        ),
        (
            verdict(Cause.OOM_KV_POOL, TOO_HIGH, shortfall_gib=0.02),
            "mem_fraction_static 0.85 was too high by about 0.02 GiB of 80: at most ~0.84",
        ),
        (
            verdict(Cause.OOM_SERVING, TOO_HIGH, shortfall_gib=1.2, evidence="no size of the GPU"),
            "mem_fraction_static 0.85 was too high by about 1.2 GiB: a lower one",
        ),
        (verdict(Cause.OOM_GRAPH_CAPTURE, TOO_HIGH), "mem_fraction_static 0.85 was too high: a lower one"),
        (
            verdict(Cause.KV_POOL_TOO_SMALL, TOO_LOW, viable=0.873),
            "mem_fraction_static 0.85 was too low: at least ~0.88 (the server itself asks for more than 0.873)",
        ),
        (
            verdict(Cause.KV_POOL_TOO_SMALL, TOO_LOW, viable=0.87),
            "mem_fraction_static 0.85 was too low: at least ~0.88 (the server itself asks for more than 0.87)",
        ),
        (
            verdict(Cause.KV_POOL_TOO_SMALL, TOO_LOW, viable=0.998),
            f"mem_fraction_static 0.85 was too low: no fraction below 1 is enough {ITSELF} 0.998)",
        ),
        (
            verdict(Cause.KV_POOL_TOO_SMALL, TOO_LOW, shortfall_gib=1.2),
            "mem_fraction_static 0.85 was too low by about 1.2 GiB of 80: at least ~0.87",
        ),
        (verdict(Cause.KV_POOL_TOO_SMALL, TOO_LOW), "mem_fraction_static 0.85 was too low: a higher one"),
        (
            verdict(Cause.OOM_STATE_POOL, TOO_MANY, shortfall_gib=2.5),
            "fewer draft tokens (speculative_num_draft_tokens was 11): they lacked about 2.5 GiB of 80",
        ),
        (
            verdict(Cause.KV_POOL_TOO_SMALL, TOO_LOW, viable=0.673),
            "mem_fraction_static 0.85 was too low: a higher one",
        ),
        (
            verdict(Cause.KV_SLOTS_EXHAUSTED, TOO_LOW),
            "lowering mem_fraction_static will not help: slots ran out, not memory; a higher one makes room for more",
        ),
        (
            verdict(Cause.OOM_KV_POOL, TOO_HIGH, config_fault=None),
            "if nobody else held memory: mem_fraction_static 0.85 was too high: a lower one",
        ),
        (verdict(Cause.KV_SLOTS_EXHAUSTED), "raising mem_fraction_static will not help: slots, not memory"),
    ],
)
def test_a_memory_cause_says_which_way_and_how_far(judged: Verdict, first: str) -> None:
    assert meaning(judged, ASKED, SGLANG)[0] == first


def test_what_ran_out_beside_the_static_share_can_be_cured_by_fewer_draft_tokens_too() -> None:
    other = "or fewer draft tokens (speculative_num_draft_tokens was 11): what they need lies beside the static share"
    assert other in meaning(verdict(Cause.OOM_VERIFY_WORKSPACE, TOO_HIGH), ASKED, SGLANG)
    assert other not in meaning(verdict(Cause.OOM_KV_POOL, TOO_HIGH), ASKED, SGLANG)


def test_what_drafting_lacked_can_be_left_to_it_by_a_lower_fraction_too() -> None:
    judged = verdict(Cause.OOM_VERIFY_WORKSPACE, TOO_MANY, shortfall_gib=1.2)
    assert meaning(judged, ASKED, SGLANG)[1] == "or a lower mem_fraction_static: at most ~0.83"
    assert meaning(judged, {}, SGLANG)[1] == "or a lower mem_fraction_static"


def test_without_speculation_nobody_is_told_to_draft_less() -> None:
    for cause in (Cause.OOM_SERVING, Cause.KV_SLOTS_EXHAUSTED):
        lines = meaning(verdict(cause, TOO_HIGH), {"mem_fraction_static": 0.85}, SGLANG)
        assert not any("draft" in line for line in lines)


def test_a_log_that_names_no_settings_still_says_which_way() -> None:
    lines = meaning(verdict(Cause.OOM_SERVING, TOO_HIGH, shortfall_gib=1.2), {}, SGLANG)
    assert lines[0] == "mem_fraction_static was too high by about 1.2 GiB of 80: a lower one"
    assert lines[1].startswith("or fewer draft tokens:")


def test_weights_that_do_not_fit_ask_for_no_fraction() -> None:
    (line,) = meaning(verdict(Cause.OOM_WEIGHTS, shortfall_gib=1), ASKED, SGLANG)
    assert line.startswith("no memory fraction")


@pytest.mark.parametrize("cause", sorted(MEMORY_CAUSES - {Cause.KV_SLOTS_EXHAUSTED, Cause.OOM_WEIGHTS}, key=str))
def test_where_somebody_else_may_have_held_memory_no_setting_is_ruled_out(cause: Cause) -> None:
    (line,) = meaning(verdict(cause, config_fault=None), ASKED, SGLANG)
    assert line.startswith("nothing for sure")


@pytest.mark.parametrize("cause", sorted(NEVER_THE_CONFIGURATION - {Cause.HEALTHY}, key=str))
def test_a_cause_that_no_setting_avoids_says_so_and_blames_no_configuration(cause: Cause) -> None:
    (line,) = meaning(verdict(cause, config_fault=False), ASKED, SGLANG)
    assert line.startswith("nothing")
    assert not blame(verdict(cause, config_fault=None)).startswith("the configuration's")


def test_an_engine_without_a_memory_fraction_is_told_its_own_setting() -> None:
    judged = verdict(Cause.OOM_KV_POOL, shortfall_gib=None)
    (line,) = meaning(judged, {"ctx_size": 16777216}, LLAMACPP)
    assert line == "ctx_size 16777216 asks for more memory than there is: a smaller one"


@pytest.mark.parametrize(("text", "size"), [("80.00 GiB", 80 * GIB), ("512.00 MiB", 512 << 20)])
def test_the_size_of_a_gpu_is_read_from_the_allocators_words(text: str, size: int) -> None:
    judged = verdict(Cause.OOM_SERVING, evidence=f"GPU 1 has a total capacity of {text} of which 1 is free")
    assert gpu_bytes(judged) == size
    assert gpu_bytes(verdict(Cause.OOM_SERVING, evidence="nothing")) is None
