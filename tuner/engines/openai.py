"""Any server that speaks OpenAI's completions protocol: what is known of one that nothing else is known of.

It can be measured and not tuned: how such a server is started, what it logs and what its
flags mean is not known. Beyond the protocol three things are asked for where the server
takes them: a token count with every chunk, a fixed length, and a seed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tuner.engines import openai_request, openai_stream
from tuner.engines.secrets import scrub
from tuner.model.http import HttpCall, HttpReply, StreamDelta
from tuner.model.prompt import Prompt
from tuner.model.record import Counters
from tuner.model.trial import Capacity, Effective
from tuner.model.workload import Workload

NAME = "openai"


@dataclass(frozen=True, slots=True, kw_only=True)
class Extras:
    """What a server takes beyond the plain protocol.

    Attributes:
        running_count: ``stream_options.continuous_usage_stats``: a token count with every chunk.
        ignore_eos: decode as many tokens as were asked for.
        seed: of sampling.
        final_count: ``stream_options.include_usage``: a token count at the end of a stream.
    """

    running_count: bool = True
    ignore_eos: bool = True
    seed: bool = True
    final_count: bool = True

    def without(self, refusal: str) -> Extras | None:
        """Return what is left after a server refused a request; None: nothing was left to take back.

        Args:
            refusal: what it said. A field that it names is taken back, else the one least often known.
        """
        asked = [name for name in _FIELDS if getattr(self, name)]
        if not asked:
            return None
        named = [name for name in asked if _FIELDS[name] in refusal]
        return replace(self, **{named[0] if named else asked[0]: False})


_FIELDS: Mapping[str, str] = {
    "running_count": "continuous_usage_stats",
    "ignore_eos": "ignore_eos",
    "seed": "seed",
    "final_count": "stream_options",
}
"""As the protocol calls them; the ones least often known come first."""


class OpenAiApi:
    """``EngineApi`` of a server of which only the protocol is known.

    Args:
        extras: what it takes beyond the protocol.
    """

    name = NAME

    def __init__(self, extras: Extras = Extras()) -> None:
        self._extras = extras

    def health_call(self) -> HttpCall:
        """Return ``/v1/models``: the one call that every such server answers without working."""
        return HttpCall(path="/v1/models", timeout_s=10.0)

    def info_calls(self) -> tuple[HttpCall, ...]:
        """Return nothing: there is no call for its configuration."""
        return ()

    def effective(self, replies: Sequence[HttpReply]) -> Effective:  # noqa: ARG002 - the port's
        """Return that nothing is known."""
        return Effective(settings=(), capacity=Capacity())

    def generation_call(
        self, prompt: Prompt, *, max_tokens: int, workload: Workload, stream: bool, seed: int
    ) -> HttpCall:
        """Return a request with the extras that the server takes."""
        extras = self._extras
        body: dict[str, Any] = {
            **openai_request.asked(prompt, workload),
            "max_tokens": max_tokens,
            "stream": stream,
        }
        if extras.ignore_eos and workload.ignore_eos:
            body["ignore_eos"] = True
        if extras.seed:
            body["seed"] = seed
        if stream and extras.final_count:
            body["stream_options"] = {"include_usage": True}
            if extras.running_count:
                body["stream_options"]["continuous_usage_stats"] = True
        return HttpCall(path=openai_request.PATHS[workload.api], body=body, timeout_s=workload.request_timeout_s)

    def generated_tokens(self, reply: HttpReply) -> int | None:
        """Return ``usage.completion_tokens``; None unless the reply is a generation."""
        return openai_stream.completion_tokens(reply)

    def quick_count(self, event: bytes) -> int | None:
        """Read only the count of an event in mid-stream."""
        return openai_stream.quick_count(event)

    def read_event(self, event: bytes) -> StreamDelta:
        """Read one event."""
        return openai_stream.read_event(event)

    def flush_call(self) -> HttpCall | None:
        """There is none in the protocol."""
        return None

    def abort_call(self) -> HttpCall | None:
        """There is none: a closed connection ends its request."""
        return None

    def counters_call(self) -> HttpCall | None:
        """There is none in the protocol."""
        return None

    def counters(self, reply: HttpReply) -> Counters:  # noqa: ARG002 - the port's
        """Return that nothing is known."""
        return Counters()

    def scrub(self, text: str) -> str:
        """Mask API keys."""
        return scrub(text)
