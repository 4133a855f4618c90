"""Continuous batching, decided step by step; whoever drives it keeps the time.

``plan_step`` says what the GPU does next and how long it takes; ``complete`` gives out the
tokens of that step. Waiting requests go first in the order they came, each prefill being a
step of its own in which nothing is decoded, as in SGLang.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from tuner.simulator import physics
from tuner.simulator.arguments import ServerArgs
from tuner.simulator.memory import MemoryPlan
from tuner.simulator.profile import Profile
from tuner.simulator.request import Request
from tuner.simulator.text import PrefixCache

# SGLang's estimate of how much of what it was asked for a request will really generate:
# starts at 0.7, falls to 0.14 of that within 600 steps, rises again at a retraction.
_RATIO_START = 0.7
_RATIO_MIN = 0.7 * 0.14
_RATIO_DECAY = (_RATIO_START - _RATIO_MIN) / 600
_CLIP_NEW_TOKENS = 4096

LAST_REQUEST_ABORTED = (
    "Out of memory even after retracting all other requests in the decode batch. Aborting the last request."
)


class OutOfWorkspace(Exception):
    """A step needs more GPU memory than there is; the scheduler process dies of it.

    Attributes:
        needed_bytes: of workspace, on each GPU.
        free_bytes: that the GPU had.
    """

    def __init__(self, needed_bytes: int, free_bytes: int) -> None:
        super().__init__(f"{needed_bytes} bytes needed, {free_bytes} free")
        self.needed_bytes = needed_bytes
        self.free_bytes = free_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Hooks:
    """Who hears of what the scheduler does.

    Attributes:
        log: called with each line it logs.
        finished: called with each request that ended by itself or was aborted.
    """

    log: Callable[[str], None]
    finished: Callable[[Request], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One forward pass."""

    kind: Literal["prefill", "decode"]
    seconds: float
    requests: tuple[Request, ...]


@dataclass(slots=True)
class Totals:
    """Running totals since the start or the last flush.

    Attributes:
        accepted_tokens: of decode steps, bonus tokens included.
        verify_steps: per request.
    """

    accepted_tokens: int = 0
    verify_steps: int = 0
    proposed_drafts: int = 0


@dataclass(slots=True)
class Readings:
    """What the server says of itself; refreshed with the decode log line, not with every step."""

    accept_length: float | None = None
    accept_rate: float | None = None
    throughput: float = 0.0
    throughput_at_s: float | None = None


@dataclass(slots=True)
class _Window:
    """Since the last decode log line."""

    began_s: float | None = None
    iterations: int = 0
    tokens: int = 0
    totals: Totals = field(default_factory=Totals)


class Scheduler:
    """The batch, the queue and the KV pool of one server.

    Args:
        rng: for the noise of step times.
        slow: every step takes this many times as long.
        hooks: who hears of it.
    """

    def __init__(
        self,
        *,
        profile: Profile,
        args: ServerArgs,
        plan: MemoryPlan,
        rng: random.Random,
        slow: float,
        hooks: Hooks,
    ) -> None:
        self._profile = profile
        self._args = args
        self._plan = plan
        self._rng = rng
        self._slow = slow
        self._log = hooks.log
        self._finished = hooks.finished
        self._acceptance = physics.acceptance(profile, args)
        chunk = args.chunked_prefill_size
        self._prefill_budget = chunk if chunk and chunk > 0 else args.max_prefill_tokens
        self._ratio = _RATIO_START
        self._window = _Window()
        self._drafts = args.draft_tokens - 1 if args.speculative else None
        # KV slots reserved ahead of each decode step; the overlap schedule doubles them.
        self._lookahead = 2 * max(args.steps * args.topk, args.draft_tokens) if args.speculative else 1
        self.cache = PrefixCache(plan.max_total_num_tokens)
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []
        self.totals = Totals()
        self.readings = Readings()
        self.retractions = 0
        self.decoded_tokens = 0
        self.peak_workspace_bytes = 0

    @property
    def pending(self) -> tuple[Request, ...]:
        """Every request that is being decoded or waits."""
        return (*self.running, *self.waiting)

    @property
    def used_tokens(self) -> int:
        """Tokens that hold KV slots for running requests; a prefix two of them share counts twice."""
        return sum(request.sequence_tokens for request in self.running)

    def submit(self, request: Request) -> None:
        """Queue a request."""
        self.waiting.append(request)

    def abort(self, request: Request, message: str, *, failed: bool = False) -> None:
        """End a request wherever it is; one that has ended already is left alone."""
        if request.finish is not None:
            return
        if request in self.running:
            self.running.remove(request)
        elif request in self.waiting:
            self.waiting.remove(request)
        request.abort(message, failed=failed)
        self._finished(request)

    def flush(self) -> None:
        """Empty the prefix cache and zero the acceptance counters."""
        self.cache.clear()
        self.reset_speculation()

    def reset_speculation(self) -> None:
        """Zero the acceptance counters."""
        self.totals = Totals()
        self._window.totals = Totals()
        self.readings.accept_length = self.readings.accept_rate = None

    def plan_step(self) -> Step | None:
        """Decide the next step; None: there is nothing to do.

        Raises:
            OutOfWorkspace: the step does not fit into the GPU's memory.
        """
        admitted = self._admit()
        if admitted:
            return self._plan_prefill(admitted)
        self._make_room()
        if not self.running:
            return None
        self._need_workspace(len(self.running))
        seconds = physics.draw_step_time_s(self._rng, self._profile, self._args, len(self.running))
        return Step(kind="decode", seconds=seconds * self._slow, requests=tuple(self.running))

    def complete(self, step: Step, now_s: float) -> None:
        """Give out the tokens of a step that ends now."""
        if step.kind == "prefill":
            for request in step.requests:
                if request.finish is None:
                    self.cache.insert(request.tokens)
                    self._deliver(request, 1, now_s)
            return
        self._decay_ratio()
        for request in step.requests:
            if request.finish is None:
                self._decode(request, now_s)
        self._count_iteration(now_s)

    # ------------------------------------------------------------------ admission

    def _admit(self) -> list[Request]:
        admitted: list[Request] = []
        new_tokens = 0
        promised = self.used_tokens + sum(self._promise(request) for request in self.running)
        while self.waiting and len(self.running) < self._plan.max_running_requests:
            request = self.waiting[0]
            cached = self.cache.match(request.tokens) if request.generated == 0 else 0
            fresh = request.sequence_tokens - cached
            needed = request.sequence_tokens + self._promise(request)
            alone = not self.running
            if not alone and promised + needed > self._plan.max_total_num_tokens:
                break
            if admitted and new_tokens + fresh > self._prefill_budget:
                break
            self.waiting.popleft()
            request.cached_tokens = cached
            promised += needed
            new_tokens += fresh
            admitted.append(request)
            self.running.append(request)
        return admitted

    def _promise(self, request: Request) -> int:
        left = min(request.sampling.max_new_tokens - request.generated, _CLIP_NEW_TOKENS)
        return int(left * self._ratio) + self._lookahead

    def _plan_prefill(self, admitted: list[Request]) -> Step:
        self._need_workspace(len(self.running))
        fresh = sum(request.sequence_tokens - request.cached_tokens for request in admitted)
        cached = sum(request.cached_tokens for request in admitted)
        self._log(
            f"Prefill batch, #new-seq: {len(admitted)}, #new-token: {fresh}, #cached-token: {cached}, "
            f"{self._usage()}, #running-req: {len(self.running) - len(admitted)}, #queue-req: {len(self.waiting)}"
        )
        seconds = physics.prefill_time_s(self._profile, self._args, fresh) * self._slow
        return Step(kind="prefill", seconds=seconds, requests=tuple(admitted))

    # ------------------------------------------------------------------ decoding

    def _decode(self, request: Request, now_s: float) -> None:
        if self._drafts is None:
            self._window.tokens += self._deliver(request, 1, now_s)
            return
        accepted = physics.draw_accepted(request.rng, self._acceptance, request.difficulty)
        request.verified(accepted, self._drafts)
        self._window.tokens += self._deliver(request, accepted + 1, now_s)
        totals = self._window.totals
        totals.accepted_tokens += accepted + 1
        totals.verify_steps += 1
        totals.proposed_drafts += self._drafts

    def _deliver(self, request: Request, drawn: int, now_s: float) -> int:
        added = request.append(drawn, now_s)
        self.decoded_tokens += added
        if request.finish is not None:
            self.running.remove(request)
            self._finished(request)
        request.changed()
        return added

    def _need_workspace(self, running: int) -> None:
        needed = physics.serving_workspace_bytes(self._profile, self._args, running)
        if needed > self._plan.available_after_bytes:
            raise OutOfWorkspace(needed, self._plan.available_after_bytes)
        self.peak_workspace_bytes = max(self.peak_workspace_bytes, needed)

    # ------------------------------------------------------------------ a full pool

    def _make_room(self) -> None:
        """Retract requests until the next step fits into the KV pool."""
        before, retracted, gained = self._ratio, 0, 0
        while self.running and self.used_tokens + len(self.running) * self._lookahead > self._plan.max_total_num_tokens:
            if len(self.running) == 1:
                self.abort(self.running[0], LAST_REQUEST_ABORTED, failed=True)
                break
            # Whoever has generated least loses least.
            victim = min(self.running, key=lambda request: (request.generated, -len(request.tokens)))
            self.running.remove(victim)
            self.waiting.appendleft(victim)
            retracted += 1
            gained += victim.sequence_tokens
        if retracted:
            self.retractions += retracted
            self._ratio = min(1.0, before + 0.1)
            self._log(
                f"KV cache pool is full. Retract requests. #retracted_reqs: {retracted}, "
                f"#new_tokens_gained: {gained}, #new_token_ratio: {before:.4f} -> {self._ratio:.4f}"
            )

    def _decay_ratio(self) -> None:
        self._ratio = max(_RATIO_MIN, self._ratio - _RATIO_DECAY)

    # ------------------------------------------------------------------ the decode log line

    def _count_iteration(self, now_s: float) -> None:
        window = self._window
        if window.began_s is None:
            window.began_s = now_s
        window.iterations += 1
        if window.iterations < self._args.decode_log_interval:
            return
        elapsed = now_s - window.began_s
        self.readings.throughput = window.tokens / elapsed if elapsed > 0 else 0.0
        self.readings.throughput_at_s = now_s
        recent, totals = window.totals, self.totals
        totals.accepted_tokens += recent.accepted_tokens
        totals.verify_steps += recent.verify_steps
        totals.proposed_drafts += recent.proposed_drafts
        speculation = ""
        if totals.verify_steps:
            self.readings.accept_length = totals.accepted_tokens / totals.verify_steps
        if recent.verify_steps:
            length = recent.accepted_tokens / recent.verify_steps
            correct = recent.accepted_tokens - recent.verify_steps
            rate = correct / recent.proposed_drafts if recent.proposed_drafts else 0.0
            self.readings.accept_rate = rate
            speculation = f"accept len: {length:.2f}, accept rate: {rate:.2f}, "
        self._log(
            f"Decode batch, #running-req: {len(self.running)}, {self._usage()}, {speculation}cuda graph: True, "
            f"gen throughput (token/s): {self.readings.throughput:.2f}, #queue-req: {len(self.waiting)}"
        )
        self._window = _Window(began_s=now_s)

    def _usage(self) -> str:
        used = self.used_tokens
        share = used / self._plan.max_total_num_tokens
        if not self._profile.hybrid:
            return f"#token: {used}, token usage: {share:.2f}"
        states = len(self.running)
        return (
            f"#full token: {used}, full token usage: {share:.2f}, "
            f"mamba num: {states}, mamba usage: {states / max(1, self._plan.max_running_requests):.2f}"
        )
