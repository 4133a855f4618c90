"""How fast the simulated server is: acceptance of drafts and the time of a step.

| symbol | meaning |
|---|---|
| D | tokens verified per request and step: steps + 1 for a chain, the tree's size for a tree; 1 without speculation |
| n | running requests |
| A, G, tau | floor of a pass: weights streamed once, more experts touched as n grows |
| B | verification of one token |
| c, D0, q | part of B that a further request costs again: c with short drafts, all of it with long ones |
| p | sharpness of the soft maximum: floor and verification overlap |
| d | one draft pass |

    F(n)   = A + G (1 - exp(-(n - 1) / tau))
    s(D)   = c + (1 - c) (D / D0)^q / (1 + (D / D0)^q)
    V(n,D) = B D (1 + (n - 1) s(D))
    t(n,D) = (F^p + V^p)^(1/p) + d steps

s(D) is fitted, not derived: the measurements show that many requests with short drafts
share a pass almost for free, and that from about five tokens on they no longer do.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

from tuner.simulator.arguments import ServerArgs
from tuner.simulator.profile import Profile


def acceptance(profile: Profile, args: ServerArgs) -> tuple[float, ...]:
    """Return the probability that depth k is accepted if depth k - 1 was, k = 1..steps.

    A tree verifies on average ``(D - 1) / steps`` branches per depth, at most topk. More
    branches lower the rejection by that width to the power of ``branch_gain``: each
    further branch is the draft's next-best guess, and gains less than the one before.
    A tree of D tokens cannot be deeper than D - 1.
    """
    if args.steps < 1:
        return ()
    constants = profile.acceptance
    width = max(min(args.topk, (args.draft_tokens - 1) / args.steps), 1.0)
    depths = min(args.steps, args.draft_tokens - 1)
    chances = [
        1.0 - (1.0 - constants.first * constants.decay**depth) * width**-constants.branch_gain
        for depth in range(depths)
    ]
    return (*chances, *(0.0 for _ in range(args.steps - depths)))


def acceptance_length(profile: Profile, args: ServerArgs) -> float:
    """Return the expected tokens per step, bonus token included."""
    length, chance = 1.0, 1.0
    for conditional in acceptance(profile, args):
        chance *= conditional
        length += chance
    return length


def draw_difficulty(rng: random.Random, profile: Profile) -> float:
    """Return one prompt's factor on rejection: log-normal with mean 1."""
    sigma = profile.acceptance.difficulty_spread
    return math.exp(rng.gauss(-sigma * sigma / 2, sigma))


def draw_accepted(rng: random.Random, acceptance: Sequence[float], difficulty: float) -> int:
    """Return how many drafts one step of one request accepts, 0..steps."""
    accepted = 0
    for conditional in acceptance:
        if rng.random() < (1.0 - conditional) * difficulty:
            break
        accepted += 1
    return accepted


def step_time_s(profile: Profile, args: ServerArgs, running: int) -> float:
    """Return the time of one decode or verify step with ``running`` requests (at least 1)."""
    speed = profile.speed
    scale = profile.gpu.count / args.tp_size
    others = max(running, 1) - 1
    tokens = args.draft_tokens
    floor = speed.floor_s + speed.batch_floor_s * -math.expm1(-others / speed.batch_scale)
    depth = math.pow(tokens / speed.depth_knee, speed.depth_power)
    share = speed.batch_share + (1.0 - speed.batch_share) * depth / (1.0 + depth)
    verify = speed.verify_s * tokens * (1.0 + others * share)
    soft = _soft_maximum(floor, verify, speed.sharpness)
    eager = speed.eager_s if running > args.graph_limit else 0.0
    return scale * (soft + speed.draft_pass_s * args.steps) + eager


def draw_step_time_s(rng: random.Random, profile: Profile, args: ServerArgs, running: int) -> float:
    """Return one step's time with the host's natural noise, never below half the expected."""
    factor = max(rng.gauss(1.0, profile.speed.noise), 0.5)
    return step_time_s(profile, args, running) * factor


def prefill_time_s(profile: Profile, args: ServerArgs, tokens: int) -> float:
    """Return the time to prefill ``tokens`` prompt tokens, in chunks as configured."""
    chunk = args.chunked_prefill_size
    passes = math.ceil(tokens / chunk) if chunk and chunk > 0 else 1
    scale = profile.gpu.count / args.tp_size
    return scale * (max(passes, 1) * profile.speed.prefill_base_s + tokens / profile.speed.prefill_tokens_per_s)


def serving_workspace_bytes(profile: Profile, args: ServerArgs, running: int) -> int:
    """Return the memory per GPU that serving needs beyond what is static.

    Compare with ``MemoryPlan.available_after_bytes``: above it, the step dies with a CUDA
    out-of-memory error. The largest prefill chunk has its activations; verification keeps
    logits per token (D) and a mask and scores between the tokens of a request (D squared).
    """
    memory = profile.memory
    scale = profile.gpu.count / args.tp_size
    tokens = args.draft_tokens
    request = memory.verify_bytes_per_token * tokens
    if args.speculative:
        request += memory.verify_bytes_per_token_squared * tokens * tokens
    chunk = args.chunked_prefill_size
    prefill = chunk if chunk and chunk > 0 else args.max_prefill_tokens
    return int(scale * (memory.activation_bytes_per_prefill_token * prefill + running * request))


def _soft_maximum(first: float, second: float, sharpness: float) -> float:
    largest = max(first, second)
    return largest * math.pow(
        math.pow(first / largest, sharpness) + math.pow(second / largest, sharpness), 1 / sharpness
    )
