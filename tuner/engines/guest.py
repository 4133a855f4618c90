"""Another engine's protocol on a server that is somebody else's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tuner.model.http import HttpCall, HttpReply, StreamDelta
from tuner.model.prompt import Prompt
from tuner.model.record import Counters
from tuner.model.trial import Effective
from tuner.model.workload import Workload
from tuner.ports import EngineApi


class Guest:
    """``EngineApi`` that leaves everything alone which is not ours, and names the model.

    ``abort_call`` would end the requests of everybody: there is none. Ours end when their
    connections are closed.

    Args:
        inner: of the engine.
        model: that requests name; servers with several, and strict ones with one, want it.
        may_flush: the prefix cache, which is everybody's, may be emptied.
    """

    def __init__(self, inner: EngineApi, *, model: str, may_flush: bool = False) -> None:
        self._inner = inner
        self._model = model
        self._may_flush = may_flush
        self.name = inner.name

    def health_call(self) -> HttpCall:
        """As the engine."""
        return self._inner.health_call()

    def info_calls(self) -> tuple[HttpCall, ...]:
        """As the engine."""
        return self._inner.info_calls()

    def effective(self, replies: Sequence[HttpReply]) -> Effective:
        """As the engine."""
        return self._inner.effective(replies)

    def generation_call(
        self, prompt: Prompt, *, max_tokens: int, workload: Workload, stream: bool, seed: int
    ) -> HttpCall:
        """As the engine, with the model's name."""
        call = self._inner.generation_call(prompt, max_tokens=max_tokens, workload=workload, stream=stream, seed=seed)
        return replace(call, body={"model": self._model, **(call.body or {})})

    def generated_tokens(self, reply: HttpReply) -> int | None:
        """As the engine."""
        return self._inner.generated_tokens(reply)

    def quick_count(self, event: bytes) -> int | None:
        """As the engine."""
        return self._inner.quick_count(event)

    def read_event(self, event: bytes) -> StreamDelta:
        """As the engine."""
        return self._inner.read_event(event)

    def flush_call(self) -> HttpCall | None:
        """As the engine where it may; else None."""
        return self._inner.flush_call() if self._may_flush else None

    def abort_call(self) -> HttpCall | None:
        """Return None: it would end other people's requests."""
        return None

    def counters_call(self) -> HttpCall | None:
        """As the engine: reading them changes nothing."""
        return self._inner.counters_call()

    def counters(self, reply: HttpReply) -> Counters:
        """As the engine."""
        return self._inner.counters(reply)

    def scrub(self, text: str) -> str:
        """As the engine."""
        return self._inner.scrub(text)
