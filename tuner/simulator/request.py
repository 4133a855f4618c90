"""One generation request inside the simulated server."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from tuner.simulator import physics, text
from tuner.simulator.profile import Profile

NATURAL_TOKENS = (5.5, 0.6)
"""Mean and deviation of the logarithm of a reply's natural length: 245 tokens, most between 75 and 800."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """What the client asked for."""

    max_new_tokens: int
    ignore_eos: bool = False
    temperature: float = 1.0
    seed: int | None = None
    stop: tuple[str, ...] = ()


@dataclass(slots=True, kw_only=True, eq=False)
class Request:
    """A request and how far it got. Times are seconds on the event loop's clock.

    Attributes:
        tokens: of the prompt.
        natural_tokens: where the model would stop by itself.
        difficulty: factor on the rejection of drafts; 1 is usual.
        streamed: whether the client reads a stream (a label of the metrics).
        changed: called whenever tokens arrived or the request ended.
        parts: generated text, one item a step.
        histogram: verify steps by number of accepted drafts.
        proposed_drafts: drafts offered for verification.
        started_s: when its first prefill began; None: it waits.
        finish: why it ended; None while it lives.
        message: what the server says of an abort.
        failed: the abort is the server's fault, status 500.
    """

    rid: str
    tokens: tuple[str | int, ...]
    sampling: Sampling
    natural_tokens: int
    difficulty: float
    rng: random.Random
    streamed: bool
    changed: Callable[[], None]
    arrived_s: float
    cached_tokens: int = 0
    generated: int = 0
    output_ids: list[int] = field(default_factory=list)
    parts: list[str] = field(default_factory=list)
    verify_steps: int = 0
    proposed_drafts: int = 0
    histogram: list[int] = field(default_factory=list)
    started_s: float | None = None
    first_s: float | None = None
    last_s: float | None = None
    finish: Literal["length", "stop", "abort"] | None = None
    message: str = ""
    failed: bool = False

    @property
    def sequence_tokens(self) -> int:
        """Tokens whose keys and values it holds."""
        return len(self.tokens) + self.generated

    @property
    def correct_drafts(self) -> int:
        """Drafts accepted so far."""
        return sum(accepted * steps for accepted, steps in enumerate(self.histogram))

    def verified(self, accepted: int, proposed: int) -> None:
        """Count one verify step."""
        self.histogram.extend([0] * (accepted + 1 - len(self.histogram)))
        self.histogram[accepted] += 1
        self.verify_steps += 1
        self.proposed_drafts += proposed

    def append(self, drawn: int, now_s: float) -> int:
        """Add the tokens of one step, cut where the reply ends; return how many were added."""
        limit, reason = self.sampling.max_new_tokens, "length"
        if not self.sampling.ignore_eos and self.natural_tokens < limit:
            limit, reason = self.natural_tokens, "stop"
        added = min(drawn, limit - self.generated)
        ids = text.draw(self.rng, added)
        self.output_ids.extend(ids)
        self.parts.append(text.decode(ids))
        self.generated += added
        if self.first_s is None:
            self.first_s = now_s
        self.last_s = now_s
        if self.generated >= limit:
            self.finish = "stop" if reason == "stop" else "length"
        if self.sampling.stop:
            self._stop_at_strings()
        return added

    def abort(self, message: str, *, failed: bool = False) -> None:
        """End it before its time and wake whoever waits for it."""
        self.finish, self.message, self.failed = "abort", message, failed
        self.changed()

    def _stop_at_strings(self) -> None:
        """End the text before the first stop string; the tokens stay counted, as SGLang counts them."""
        written = "".join(self.parts)
        hits = [at for at in map(written.find, self.sampling.stop) if at >= 0]
        if hits:
            before = len(written) - len(self.parts[-1])
            self.parts[-1] = written[before : max(before, min(hits))]
            self.finish = "stop"


@dataclass(frozen=True, slots=True, kw_only=True)
class Persona:
    """What about a reply depends on the prompt alone: greedy decoding repeats itself."""

    natural_tokens: int
    difficulty: float
    rng: random.Random


def persona(tokens: tuple[str | int, ...], sampling: Sampling, *, seed: int, profile: Profile) -> Persona:
    """Derive a reply's length, difficulty and random numbers from its prompt.

    Args:
        tokens: of the prompt.
        sampling: the request's own seed counts where it samples.
        seed: of the server.
        profile: its spread of difficulty.
    """
    own = sampling.seed or 0 if sampling.temperature > 0 else 0
    rng = random.Random(text.fingerprint(tokens) ^ (seed << 20) ^ (own << 40))  # noqa: S311 - not a secret
    return Persona(
        natural_tokens=max(1, round(math.exp(rng.gauss(*NATURAL_TOKENS)))),
        difficulty=physics.draw_difficulty(rng, profile),
        rng=rng,
    )
