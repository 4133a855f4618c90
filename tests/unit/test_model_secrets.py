"""What counts as a secret, and that none passes."""

from __future__ import annotations

import pytest

from tuner.model.secrets import MASK, is_secret_flag, is_secret_variable, masked, secret_values
from tuner.model.trial import Command
from tuner.runtime.secrets import Scrubber
from tuner.testing.fake_engine import FakeEngine


@pytest.mark.parametrize(
    "name",
    [
        "HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "GITHUB_TOKEN", "MY_KEY", "KEY", "TOKEN_2", "OPENAI_API_KEY", "APIKEY",
        "SGLANG_API_KEYS", "PGPASSWORD", "DB_PASSWD", "CLIENT_SECRET", "GOOGLE_CREDENTIALS", "AWS_ACCESS_KEY_ID",
        "my-key", "github_token",
    ],
)  # fmt: skip
def test_variables_that_hold_secrets(name: str) -> None:
    assert is_secret_variable(name)


@pytest.mark.parametrize(
    "name",
    ["PATH", "TOKENIZERS_PARALLELISM", "MAX_TOKENS", "MONKEY", "KEYBOARD", "SGLANG_LOG_MS", "NCCL_DEBUG", "COMPASS"],
)
def test_variables_that_hold_none(name: str) -> None:
    assert not is_secret_variable(name)


@pytest.mark.parametrize(
    "flag",
    [
        "--api-key", "--admin-api-key", "--hf-token", "--ssl-keyfile-password", "--api_key", "--auth-token", "--token",
        "--client-secret", "--db-passwd", "--api-k", "--admin-a", "--hf-to", "--ssl-keyfile-pass",
    ],
)  # fmt: skip
def test_flags_that_take_secrets(flag: str) -> None:
    assert is_secret_flag(flag)


@pytest.mark.parametrize(
    "flag",
    [
        "--speculative-num-draft-tokens", "--max-total-tokens", "--tokenizer-path", "--tokenizer-worker-num",
        "--speculative-token-map", "--use-server-token-count", "--ssl-keyfile", "--page-size", "--keyword", "-k",
        "--ssl-certfile", "--prefill-max-tokens", "--passthrough",
    ],
)  # fmt: skip
def test_flags_that_take_none(flag: str) -> None:
    assert not is_secret_flag(flag)


COMMAND = Command(
    argv=(
        "env", "GITHUB_TOKEN=in-front", "serve", "--api-key", "first1,second2", "--hf-token=equals-form",
        "--admin-api-key", "--port", "30000", "--max-total-tokens", "4096",
    ),
    env=(("HUGGING_FACE_HUB_TOKEN", "hub-s3cret"), ("MY_KEY", "true"), ("HOME", "/h")),
)  # fmt: skip


def test_every_secret_of_a_command_is_masked_and_nothing_else() -> None:
    assert masked(COMMAND) == Command(
        argv=(
            "env", f"GITHUB_TOKEN={MASK}", "serve", "--api-key", MASK, f"--hf-token={MASK}",
            "--admin-api-key", "--port", "30000", "--max-total-tokens", "4096",
        ),
        env=(("HUGGING_FACE_HUB_TOKEN", MASK), ("MY_KEY", MASK), ("HOME", "/h")),
    )  # fmt: skip


def test_text_about_a_command_loses_each_of_its_secrets_and_no_common_word() -> None:
    text = Scrubber(FakeEngine(), COMMAND).text(
        "in-front first1 second2 first1,second2 equals-form hub-s3cret | true --port 30000 4096 /h"
    )
    assert text == "*** *** *** *** *** *** | true --port 30000 4096 /h"


def test_the_longest_secret_is_replaced_first() -> None:
    command = Command(argv=("serve", "--api-key", "abcd", "--hf-token", "abcdefgh"))
    assert secret_values(command) == ("abcdefgh", "abcd")


def test_a_secret_repeated_elsewhere_in_the_command_is_masked_there_too() -> None:
    command = Command(argv=("serve", "--api-key", "s3cret", "--note", "key is s3cret"), env=(("NOTE", "s3cret"),))
    scrubbed = Scrubber(FakeEngine(), command).command(command)
    assert scrubbed == Command(argv=("serve", "--api-key", MASK, "--note", f"key is {MASK}"), env=(("NOTE", MASK),))
