"""The order of prompts: the same in every trial, the classes evenly mixed, each request with a start of its own."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from tuner.load.queue import Order, PromptQueue, salted
from tuner.model.prompt import Prompt, Turn, plain_prompt

PROMPTS = [plain_prompt(f"text {i}", name=f"p{i}") for i in range(5)]
CLASSES = {"chat": 12, "code": 8, "json": 4}
MIXED = [
    Prompt(id=f"{name}-{i}", turns=(Turn(role="user", content=f"{name} {i}"),), prompt_class=name)
    for name, count in CLASSES.items()
    for i in range(count)
]


def orders(queue: PromptQueue, count: int) -> list[Order]:
    return [order for _ in range(count) if (order := queue.take()) is not None]


def ids(queue: PromptQueue, count: int) -> list[str]:
    return [order.prompt.id for order in orders(queue, count)]


@given(st.integers(0, 2**32), st.integers(1, 40))
def test_the_same_seed_and_salt_give_the_same_requests(seed: int, count: int) -> None:
    one, other = (orders(PromptQueue(PROMPTS, seed=seed, salt="a"), count) for _ in range(2))
    assert one == other
    assert [order.index for order in one] == list(range(count))


@given(st.integers(0, 2**32))
def test_every_leg_and_every_trial_asks_the_same_prompts_in_the_same_order(seed: int) -> None:
    one, other = (ids(PromptQueue(MIXED, seed=seed, salt=salt), 60) for salt in ("level-1", "level-64"))
    assert one == other


@given(st.integers(0, 2**32))
def test_each_round_sends_every_prompt_once(seed: int) -> None:
    queue = PromptQueue(MIXED, seed=seed, salt="a")
    for _ in range(3):
        assert sorted(ids(queue, len(MIXED))) == sorted(prompt.id for prompt in MIXED)


@given(st.integers(0, 2**32), st.integers(1, 72))
def test_however_early_a_leg_ends_its_classes_have_their_shares(seed: int, count: int) -> None:
    sent = orders(PromptQueue(MIXED, seed=seed, salt="a"), count)
    for name, members in CLASSES.items():
        share = count * members / len(MIXED)
        # One prompt of rounding in the round under way, and one where each other class was ahead.
        assert abs(sum(order.prompt.prompt_class == name for order in sent) - share) <= len(CLASSES)


def test_another_seed_gives_another_order() -> None:
    assert len({tuple(ids(PromptQueue(PROMPTS, seed=seed, salt="a"), 10)) for seed in range(10)}) == 10


def test_no_two_requests_of_a_trial_share_a_prefix() -> None:
    salts = ("level-1", "level-4", "soak")
    starts = {salted(PROMPTS[0], salt, index).text[:8] for salt, index in itertools.product(salts, range(200))}
    assert len(starts) == 600


def test_the_mark_stands_before_all_that_requests_share_and_changes_no_role() -> None:
    talk = Prompt(
        id="talk",
        turns=(
            Turn(role="system", content="Be brief."),
            Turn(role="user", content="one"),
            Turn(role="assistant", content="two"),
            Turn(role="user", content="three"),
        ),
        prompt_class="chat",
        output_tokens=7,
    )
    marked = salted(talk, "s", 0)
    assert [turn.role for turn in marked.turns] == ["system", "user", "assistant", "user"]
    assert marked.turns[0].content.endswith("] Be brief.")
    assert marked.turns[1:] == talk.turns[1:]
    assert (marked.id, marked.prompt_class, marked.output_tokens) == ("talk", "chat", 7)


def test_a_limited_queue_ends() -> None:
    queue = PromptQueue(PROMPTS, seed=1, salt="a", limit=7)
    assert len(orders(queue, 20)) == 7
    assert queue.take() is None
