"""Both engines keep the contract of an adapter."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path

import pytest

from tuner.config.space_file import read_space
from tuner.engines import ENGINES, engine
from tuner.errors import UsageError
from tuner.model.space import SearchSpace
from tuner.model.trial import Command
from tuner.ports import EngineAdapter
from tuner.testing.engine_suite import EngineSuite

ROOT = Path(__file__).parents[2]
LOGS = ROOT / "tests" / "golden"
SGLANG = ("sglang", "serve", "--model-path", "Qwen/Qwen3.5-122B-A10B-FP8", "--port", "30000", "--page-size", "1")
LLAMACPP = ("python", "-m", "tuner.servers.llamacpp", "--model", "smollm2-135m", "--metrics", "--port", "8080")


@cache
def logs(name: str) -> tuple[str, ...]:
    return tuple(path.read_text() for path in sorted((LOGS / f"{name}_logs").glob("*.log")))


@cache
def space(name: str) -> SearchSpace:
    return read_space(ROOT, name)


class TestSglang(EngineSuite):
    def engine(self) -> EngineAdapter:
        return engine("sglang")

    def space(self) -> SearchSpace:
        return space("sglang-mtp")

    def bases(self) -> Sequence[Command]:
        triple = ("--speculative-num-steps", "3", "--speculative-eagle-topk", "1")
        return (
            Command(
                argv=(
                    *SGLANG,
                    *("--speculative-algorithm", "NEXTN", *triple, "--speculative-num-draft-tokens", "4"),
                    *("--mem-fraction-static", "0.80", "--enable-metrics"),
                ),
                env=(("SGL_FORCE_SHUTDOWN", "1"),),
            ),
            Command(
                argv=(
                    *SGLANG,
                    *("--speculative-algo=EAGLE", "--speculative-num-steps=1", "--speculative-num-steps=5"),
                    *("--speculative-eagle-topk=4", "--speculative-num-dr=16", "--mem-frac=0.7", "--tp", "4"),
                )
            ),
            Command(argv=(*SGLANG, "--mem-fraction-static=.85", "--json-model-override-args", '{"a": [1, 2]}')),
        )

    def logs(self) -> Sequence[str]:
        return logs("sglang")

    def foreign_words(self) -> Sequence[str]:
        return (
            "sglang",
            "serve",
            "--model-path",
            SGLANG[3],
            "--page-size",
            "--enable-metrics",
            "--tp",
            '{"a": [1, 2]}',
        )


class TestLlamaCpp(EngineSuite):
    def engine(self) -> EngineAdapter:
        return engine("llamacpp")

    def space(self) -> SearchSpace:
        return space("llamacpp-cpu")

    def bases(self) -> Sequence[Command]:
        sizes = (
            "--parallel",
            "4",
            "--threads",
            "1",
            "--batch-size",
            "256",
            "--ubatch-size",
            "64",
            "--ctx-size",
            "2048",
        )
        ngram = ("--spec-ngram-simple-size-m", "8", "--spec-ngram-simple-size-n", "3")
        return (
            Command(argv=(*LLAMACPP, *sizes, "--spec-type", "none"), env=(("OMP_NUM_THREADS", "1"),)),
            Command(argv=(*LLAMACPP, *sizes, "--spec-type", "ngram-simple", *ngram)),
            Command(argv=(*LLAMACPP, "-np", "2", "-t", "1", "-b", "64", "-ub", "32", "-c", "1024", "--spec-type=none")),
        )

    def logs(self) -> Sequence[str]:
        return logs("llamacpp")

    def foreign_words(self) -> Sequence[str]:
        return LLAMACPP[:-2]


def test_the_registry_names_each_engine_as_it_names_itself() -> None:
    assert {name: adapter.name for name, adapter in ENGINES.items()} == {"sglang": "sglang", "llamacpp": "llamacpp"}


@pytest.mark.parametrize(("name", "near"), [("sglan", "sglang"), ("llama.cpp", "llamacpp"), ("SGLang", "sglang")])
def test_an_unknown_engine_is_answered_with_the_known_ones_and_the_nearest(name: str, near: str) -> None:
    with pytest.raises(UsageError, match=rf"llamacpp, sglang; did you mean '{near}'"):
        engine(name)


def test_a_name_like_none_gets_no_suggestion() -> None:
    with pytest.raises(UsageError) as caught:
        engine("zzzz")
    assert "did you mean" not in str(caught.value)
