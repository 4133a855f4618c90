"""The simulated server refuses and rewrites its arguments as SGLang 0.5.23 does."""

from __future__ import annotations

import pytest

from tuner.simulator.arguments import ArgumentFailure, ServerArgs, as_dict, parse
from tuner.simulator.profile import load

HYBRID = load("qwen3.5-122b-a10b-4gpu")
DENSE = load("qwen3-32b-1gpu")
EAGLE = ("--speculative-algorithm", "EAGLE")


def triple(steps: int, topk: int, tokens: int) -> tuple[str, ...]:
    return (
        *("--speculative-num-steps", str(steps)),
        *("--speculative-eagle-topk", str(topk)),
        *("--speculative-num-draft-tokens", str(tokens)),
    )


def refusal(*argv: str, profile: object = None) -> ArgumentFailure:
    with pytest.raises(ArgumentFailure) as caught:
        parse(argv, HYBRID if profile is None else DENSE)
    return caught.value


def accepted(*argv: str) -> ServerArgs:
    return parse(("a/model", *argv), HYBRID)


@pytest.mark.parametrize("argv", [("a/model",), ("--model-path", "a/model"), ("--model", "a/model")])
def test_the_model_is_positional_or_a_flag(argv: tuple[str, ...]) -> None:
    args = parse(argv)
    assert (args.model_path, args.served_model_name) == ("a/model", "a/model")


def test_a_command_line_without_a_model_ends_as_argparse_ends() -> None:
    failure = refusal("--port", "1")
    assert failure.exit_status == 2
    assert failure.stderr.startswith("usage: sglang serve ")
    assert failure.stderr.endswith("sglang serve: error: the following arguments are required: --model-path/--model\n")


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (("--mamba-scheduler-strategy", "extra_buffer"), "unrecognized arguments: --mamba-scheduler-strategy"),
        (
            ("--cuda-graph-max-bs", "16"),
            "ambiguous option: --cuda-graph-max-bs could match --cuda-graph-max-bs-decode, --cuda-graph-max-bs-prefill",
        ),
        (("--speculative-num-steps", "three"), "argument --speculative-num-steps: invalid int value: 'three'"),
        (("--mamba-radix-cache-strategy", "best"), "argument --mamba-radix-cache-strategy: invalid choice: 'best'"),
        (("--port",), "argument --port: expected one argument"),
    ],
)
def test_what_argparse_refuses_exits_with_2_and_its_own_words(argv: tuple[str, ...], message: str) -> None:
    failure = refusal("a/model", *argv)
    assert failure.exit_status == 2
    assert f"sglang serve: error: {message}" in failure.stderr


def test_unique_prefixes_and_aliases_work() -> None:
    args = accepted("--speculative-algo", "NEXTN", *triple(3, 1, 4), "--tp", "2", "--ep", "2")
    assert (args.speculative_algorithm, args.tp_size, args.ep_size) == ("EAGLE", 2, 2)


def test_nextn_is_eagle_in_any_case() -> None:
    assert accepted("--speculative-algorithm", "nextn").speculative_algorithm == "EAGLE"


@pytest.mark.parametrize(
    ("argv", "error"),
    [
        (("--speculative-algorithm", "MTP"), "ValueError: Unknown speculative algorithm name: MTP"),
        ((*EAGLE, "--speculative-eagle-topk", "1"), "AssertionError"),
        ((*EAGLE, "--speculative-num-draft-tokens", "4"), "AssertionError"),
        (
            (*EAGLE, "--speculative-num-steps", "3"),
            "TypeError: '>' not supported between instances of 'NoneType' and 'int'",
        ),
        (
            (*EAGLE, *triple(3, 4, 8), "--attention-backend", "trtllm_mha"),
            "ValueError: trtllm_mha backend only supports topk = 1 for speculative decoding.",
        ),
        (
            (*EAGLE, *triple(3, 4, 8), "--attention-backend", "trtllm_mla", "--page-size", "64"),
            (
                "ValueError: speculative_eagle_topk > 1 with page_size > 1 is only supported on "
                "('flashinfer', 'fa3', 'triton'); got attention_backend='trtllm_mla'. "
                "Use page_size == 1 or one of those backends."
            ),
        ),
        (
            (*EAGLE, *triple(3, 1, 4), "--attention-backend", "torch_native"),
            "ValueError: EAGLE is not supported in attention backend torch_native",
        ),
        (
            (*EAGLE, *triple(3, 2, 6), "--speculative-use-rejection-sampling"),
            "ValueError: --speculative-use-rejection-sampling requires --speculative-eagle-topk=1.",
        ),
        (
            (*EAGLE, *triple(3, 2, 6), "--enable-multi-layer-eagle"),
            "ValueError: multi-layer EAGLE requires speculative_num_draft_tokens == speculative_num_steps + 1, got 6",
        ),
        (
            ("--chunked-prefill-size", "1000", "--page-size", "64"),
            "AssertionError: chunked_prefill_size must be divisible by page_size",
        ),
        ((*EAGLE, *triple(300, 1, 301)), "AssertionError"),
        (
            ("--mamba-radix-cache-strategy", "no_buffer", "--page-size", "64"),
            "ValueError: no_buffer only supports page_size=1.",
        ),
    ],
)
def test_a_combination_sglang_refuses_exits_with_1_and_a_traceback(argv: tuple[str, ...], error: str) -> None:
    failure = refusal("a/model", *argv)
    assert failure.exit_status == 1
    lines = failure.stderr.splitlines()
    assert lines[0] == "Traceback (most recent call last):"
    assert "/sglang/srt/arg_groups/" in failure.stderr
    assert lines[-1] == error


def test_draft_tokens_follow_the_steps_when_topk_is_1_and_a_warning_says_so() -> None:
    args = accepted(*EAGLE, *triple(5, 1, 4))
    assert args.speculative_num_draft_tokens == 6
    assert any("adjusted to speculative_num_steps + 1" in warning for warning in args.warnings)
    assert not any("adjusted" in warning for warning in accepted(*EAGLE, *triple(5, 1, 6)).warnings)


def test_a_tree_keeps_its_draft_tokens_even_too_many_of_them() -> None:
    assert accepted(*EAGLE, *triple(2, 2, 64)).speculative_num_draft_tokens == 64


def test_none_of_the_three_means_the_models_own_triple() -> None:
    args = accepted(*EAGLE)
    assert (args.steps, args.topk, args.draft_tokens) == (3, 1, 4)


def test_speculation_limits_running_requests_to_48_unless_the_flag_is_given() -> None:
    limited = accepted(*EAGLE, *triple(3, 1, 4))
    assert limited.max_running_requests == 48
    assert any("Max running requests is reset to 48" in warning for warning in limited.warnings)
    assert accepted().max_running_requests is None
    pinned = accepted(*EAGLE, *triple(3, 1, 4), "--max-running-requests", "16")
    assert (pinned.max_running_requests, pinned.warnings) == (16, ())


def test_the_implied_48_does_not_lower_the_graph_limit_but_an_explicit_limit_does() -> None:
    implied = accepted(*EAGLE, *triple(3, 1, 4), "--tp-size", "4")
    explicit = accepted(*EAGLE, *triple(3, 1, 4), "--tp-size", "4", "--max-running-requests", "48")
    assert implied.graph_limit > explicit.graph_limit == 48
    assert accepted("--disable-cuda-graph").graph_limit == 0
    assert accepted("--cuda-graph-backend-decode", "disabled").graph_limit == 0


def test_speculation_off_verifies_one_token_in_no_draft_steps() -> None:
    args = accepted()
    assert (args.speculative, args.steps, args.topk, args.draft_tokens) == (False, 0, 1, 1)


def test_the_default_fraction_is_sglangs_formula() -> None:
    # H200: 512 + 1.5 * 8192 + 128 + 2 * 256 MiB = 13440 of 143770 MiB.
    assert parse(("a/model",), DENSE).mem_fraction_static == round(1 - 13440 / (150_754_820_096 / 2**20), 3)
    # An unknown GPU, and a multimodal model's cut.
    assert parse(("a/model",)).mem_fraction_static == 0.95
    whole = accepted("--language-only").fraction
    assert accepted().fraction == round(whole * 0.95, 3) < whole


def test_topk_flips_the_default_attention_backend_on_hopper() -> None:
    chain = parse(("a/model", *EAGLE, *triple(3, 1, 4)), DENSE)
    tree = parse(("a/model", *EAGLE, *triple(3, 4, 8)), DENSE)
    assert (chain.attention_backend, tree.attention_backend) == ("fa3", "flashinfer")


def test_server_info_shows_every_argument_and_the_api_key_in_clear() -> None:
    values = as_dict(accepted("--api-key", "top-secret", *EAGLE, *triple(3, 1, 4)))
    assert values["api_key"] == "top-secret"
    assert values["speculative_algorithm"] == "EAGLE"
    assert values["context_length"] == 262_144
    assert "warnings" not in values
