"""What load a trial's server is put under."""

from __future__ import annotations

from dataclasses import dataclass

from tuner.model.prompt import Api

_LONGEST_SOAK = 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """The load of one trial; identical for every trial of a study.

    Attributes:
        prompts: a shipped set (``"builtin"``, ``"builtin:code"``, …) or the path of a file.
        api: the endpoint that requests go to.
        output_tokens: tokens each request asks for (``max_tokens``) whose prompt does not say its own number.
        ignore_eos: the server must not stop before that many.
        temperature: sampling temperature; 0 is greedy.
        top_p: nucleus sampling; None, here and below: not sent, the server's default holds.
        top_k: only the k likeliest tokens.
        min_p: only tokens at least this likely, relative to the likeliest.
        presence_penalty: on tokens that were there before.
        thinking: whether the chat template asks the model to reason first (``enable_thinking``).
        ladder: concurrencies measured, ascending; the first is 1, the single-request leg.
        level_min_s: shortest measuring window of a level.
        level_max_s: a level ends after this long even if its interval is still wide.
        interval: wanted half width of the 95 % interval, relative (0.02 = ±2 %).
        soak_s: how long the highest level is held after the ladder, at least; longer while it drifts.
        warmup_requests: requests sent and thrown away before the first leg.
        request_timeout_s: a request without its last token after this long has failed.
        silence_s: a server that sends nothing to any waiting request for this long hangs, whatever its
            health says; longer than the longest prefill of a prompt takes.
        load_timeout_s: a server that is not ready after this long has failed to start.
    """

    prompts: str = "builtin"
    api: Api = Api.CHAT
    output_tokens: int = 512
    ignore_eos: bool = True
    temperature: float = 0.0
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    presence_penalty: float | None = None
    thinking: bool | None = None
    ladder: tuple[int, ...] = (1, 4, 16, 32, 64)
    level_min_s: float = 10.0
    level_max_s: float = 60.0
    interval: float = 0.02
    soak_s: float = 20.0
    warmup_requests: int = 4
    request_timeout_s: float = 300.0
    silence_s: float = 30.0
    load_timeout_s: float = 1800.0

    @property
    def soak_max_s(self) -> float:
        """How long the highest level is held at most, if its throughput goes on drifting."""
        return _LONGEST_SOAK * self.soak_s
