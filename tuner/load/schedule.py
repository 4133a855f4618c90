"""Decides who sends which prompt when, and when a leg is over; pure."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tuner.load.prompts import Prompt
from tuner.model.metric import Estimate
from tuner.ports import Leg
from tuner.stats.batches import required_batches


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """One request to send.

    Attributes:
        index: of the request in its leg, from 0.
        prompt_id: of the prompt.
        text: the prompt, made unique at its start.
    """

    index: int
    prompt_id: str
    text: str


class PromptQueue:
    """The prompts of one leg in the order they are sent: whole shuffled rounds of the set.

    Args:
        prompts: at least one.
        seed: of the order; the same seed and salt give the same requests.
        salt: of the leg.
        limit: how many requests there are; None: no end.
    """

    def __init__(self, prompts: Sequence[Prompt], *, seed: int, salt: str, limit: int | None = None) -> None:
        self._prompts = tuple(prompts)
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
            self._round = list(self._prompts)
            self._random.shuffle(self._round)
        prompt = self._round.pop()
        order = Order(index=self._taken, prompt_id=prompt.id, text=salted(prompt.text, self._salt, self._taken))
        self._taken += 1
        return order


def salted(text: str, salt: str, index: int) -> str:
    """Return ``text`` made unique at its start, where a prefix cache looks first."""
    mark = hashlib.blake2b(f"{salt}/{index}".encode(), digest_size=6).hexdigest()
    return f"[{mark}] {text}"


def start_delay_s(slot: int, concurrency: int, request_s: float) -> float:
    """Return how long after the first slot this one starts: spread over one request time.

    Slots that start together stay in step, and the leg then measures their waves.
    """
    return request_s * slot / concurrency


def request_s(lasted_s: Mapping[int, float], concurrency: int) -> float | None:
    """Return how long a request will take at ``concurrency``: on a line through the two closest legs below.

    A request takes longer the more run beside it, until the server runs no more at once. Slots that are
    spread over a shorter time begin in a bunch and stay in one, and the leg is then measured in waves.

    Args:
        lasted_s: concurrency -> median decode time of the legs so far.
        concurrency: of the leg to come.

    Returns:
        None when nothing was measured.
    """
    if not lasted_s:
        return None
    below = sorted(level for level in lasted_s if level < concurrency)
    if concurrency in lasted_s or not below:
        return lasted_s[min(lasted_s, key=lambda level: abs(level - concurrency))]
    last = below[-1]
    if len(below) == 1:
        return lasted_s[last]
    before = below[-2]
    slope = max(0.0, (lasted_s[last] - lasted_s[before]) / (last - before))
    return lasted_s[last] + slope * (concurrency - last)


def evaluation_period_s(leg: Leg) -> float:
    """Return how often a leg's interval is looked at: often in a short leg, cheaply in a long one."""
    return min(0.5, max(0.05, leg.min_s / 20))


def is_narrow(leg: Leg, single: Estimate | None, aggregate: Estimate | None) -> bool:
    """Whether the leg's own interval is as narrow as wanted, on enough samples.

    A lone request is judged by its decode speed, several by their aggregate.
    """
    estimate = single if leg.concurrency == 1 else aggregate
    if estimate is None or estimate.half_width is None or estimate.samples < required_batches(leg.concurrency):
        return False
    return estimate.half_width <= leg.interval


def is_over(leg: Leg, *, window_s: float, is_narrow: bool, single: Estimate | None, request_timeout_s: float) -> bool:
    """Whether to close the window: wide enough and narrow enough, or its time is up.

    At concurrency 1 the first whole request is waited for: a request longer than the leg
    would else leave nothing measured, and one that hangs would not be seen to fail.
    """
    is_waiting = leg.concurrency == 1 and single is None
    longest_s = leg.max_s + request_timeout_s if is_waiting else leg.max_s
    return window_s >= longest_s or (window_s >= leg.min_s and is_narrow)


def is_hopeless(leg: Leg, *, elapsed_s: float, complete: int, failed: int, request_timeout_s: float) -> bool:
    """Whether a leg whose window has not opened never will: only failures, or nothing for very long."""
    if complete == 0 and failed > 0:
        return elapsed_s >= leg.max_s
    return elapsed_s >= leg.max_s + 2 * request_timeout_s
