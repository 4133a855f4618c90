"""Which prompt is sent next: in one order for every trial of a study, each made unique at its start; pure."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

from tuner.model.prompt import Prompt


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """One request to send.

    Attributes:
        index: of the request in its leg, from 0.
        prompt: made unique at its start.
    """

    index: int
    prompt: Prompt


class PromptQueue:
    """The prompts of one leg in the order they are sent: rounds of the whole set, the classes evenly mixed.

    The order depends on the set and the seed alone: the request of an index is the same prompt in every leg
    of every trial, so that two settings can be compared request by request. However early a leg ends, its
    classes have their shares.

    Args:
        prompts: at least one.
        seed: of the order.
        salt: of the leg; the same seed and salt give the same requests to the letter.
        limit: how many requests there are; None: no end.
    """

    def __init__(self, prompts: Sequence[Prompt], *, seed: int, salt: str, limit: int | None = None) -> None:
        self._classes = _by_class(prompts)
        self._random = random.Random(seed)  # noqa: S311 - an order, not a secret
        self._salt = salt
        self._limit = limit
        self._round: list[Prompt] = []
        self._taken = 0

    def take(self) -> Order | None:
        """Return the next request; None after the last."""
        if self._limit is not None and self._taken >= self._limit:
            return None
        if not self._round:
            self._round = _mixed(self._classes, self._random)[::-1]
        order = Order(index=self._taken, prompt=salted(self._round.pop(), self._salt, self._taken))
        self._taken += 1
        return order


def _by_class(prompts: Sequence[Prompt]) -> tuple[tuple[Prompt, ...], ...]:
    names = sorted({prompt.prompt_class for prompt in prompts})
    return tuple(tuple(prompt for prompt in prompts if prompt.prompt_class == name) for name in names)


def _mixed(classes: Sequence[Sequence[Prompt]], source: random.Random) -> list[Prompt]:
    """Shuffle each class and lay it out at even distances over the round, from a random beginning."""
    placed: list[tuple[float, Prompt]] = []
    for members in classes:
        shuffled = source.sample(members, len(members))
        begin = source.random()
        placed += [((begin + position) / len(members), prompt) for position, prompt in enumerate(shuffled)]
    return [prompt for _, prompt in sorted(placed, key=lambda pair: pair[0])]


def salted(prompt: Prompt, salt: str, index: int) -> Prompt:
    """Return a prompt whose first turn is unique at its start, where a prefix cache looks first.

    That turn is the system's where there is one: the mark must come before all that requests share. Roles
    and their order stay, so that chat templates see the conversation that was meant.
    """
    mark = hashlib.blake2b(f"{salt}/{index}".encode(), digest_size=6).hexdigest()
    first, *rest = prompt.turns
    return replace(prompt, turns=(replace(first, content=f"[{mark}] {first.content}"), *rest))
