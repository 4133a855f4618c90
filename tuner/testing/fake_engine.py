"""A made-up engine with OpenAI's completions protocol: for tests of everything that drives an engine.

Its servers take ``--port``, ``--batch`` (1 to 64) and ``--draft`` (0 to 8); the golden
server answers its calls.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import orjson

from tuner.engines import openai_request
from tuner.errors import AssignmentRejected, HostFault, UsageError
from tuner.model.http import HttpCall, HttpReply, StreamDelta
from tuner.model.outcome import Cause, Ending, Verdict
from tuner.model.prompt import Prompt
from tuner.model.record import Counters
from tuner.model.space import Assignment, Value
from tuner.model.trial import Capacity, Command, Effective
from tuner.model.workload import Workload

_LIMITS = {"batch": (1, 64, 8), "draft": (0, 8, 0)}  # low, high, default
_FATAL = "fake: fatal"
_CONFIGURATION = "fake: fatal: configuration"


class FakeLogReader:
    """Reads ``fake: stage NAME`` and ``fake: fatal[: configuration]`` lines."""

    def __init__(self) -> None:
        self._rest = ""
        self._stage = ""
        self._evidence: list[str] = []

    def feed(self, text: str) -> None:
        """Take the next piece of log."""
        *lines, self._rest = (self._rest + text).split("\n")
        for line in lines:
            if line.startswith("fake: stage "):
                self._stage = line.removeprefix("fake: stage ")
            elif line.startswith(_FATAL):
                self._evidence.append(line)

    @property
    def stage(self) -> str:
        """The last stage seen; empty before any."""
        return self._stage

    @property
    def fatal(self) -> bool:
        """Whether a fatal line was seen."""
        return bool(self._evidence)

    @property
    def is_configuration_fault(self) -> bool:
        """Whether a fatal line names the configuration."""
        return any(line.startswith(_CONFIGURATION) for line in self._evidence)

    def diagnose(self, ending: Ending) -> Verdict:
        """Say why the server died: our signal, its arguments, its memory, or unknown."""
        exit_status, state = ending.exit_status, ending.state
        if ending.exit_signal is not None and ending.exit_signal in ending.signals_sent:
            return Verdict(cause=Cause.OWN_STOP, config_fault=False)
        if exit_status == 2 or self.is_configuration_fault:
            advice = f"change the settings; it died {'' if state is None else state.value}"
            cause = Cause.REJECTED_ARGUMENTS if exit_status == 2 else Cause.OOM_SERVING
            return Verdict(cause=cause, config_fault=True, evidence=tuple(self._evidence[:10]), advice=advice)
        return Verdict(cause=Cause.UNKNOWN, config_fault=None, evidence=tuple(self._evidence[:10]))


class FakeEngine:
    """``EngineAdapter`` of the made-up engine.

    Args:
        running_usage: ask the server for its count in every chunk.
    """

    name = "fake"
    parameters = frozenset(_LIMITS)

    def __init__(self, *, running_usage: bool = True) -> None:
        self._running_usage = running_usage

    def canonical(self, assignment: Assignment) -> Assignment:
        """Set what is missing to its default.

        Raises:
            AssignmentRejected: a value is out of its limits.
        """
        values: dict[str, Value] = {}
        for name, (low, high, default) in _LIMITS.items():
            value = assignment.get(name, default)
            if not isinstance(value, int) or not low <= value <= high:
                raise AssignmentRejected(f"{name}={value} is not a whole number from {low} to {high}")
            values[name] = value
        return Assignment.of(values)

    def settings_of(self, command: Command) -> Assignment:
        """Read ``--batch`` and ``--draft``.

        Raises:
            UsageError: one of them is no number.
        """
        return self.canonical(
            Assignment.of({name: _flag(command, name, default) for name, (_, _, default) in _LIMITS.items()})
        )

    def command(self, base: Command, assignment: Assignment) -> Command:
        """Replace the tuned flags of ``base``."""
        kept: list[str] = []
        words = iter(base.argv)
        for word in words:
            if word.removeprefix("--") in self.parameters:
                next(words, None)
            else:
                kept.append(word)
        for name, value in assignment.items():
            kept += [f"--{name}", str(value)]
        return Command(argv=tuple(kept), env=base.env)

    def port(self, command: Command) -> int:
        """Return ``--port``, 8000 without."""
        return _flag(command, "port", 8000)

    def api_key(self, command: Command) -> str | None:
        """Read ``--api-key``."""
        words = command.argv
        return words[words.index("--api-key") + 1] if "--api-key" in words[:-1] else None

    def log_reader(self) -> FakeLogReader:
        """Return a reader for one start."""
        return FakeLogReader()

    def health_call(self) -> HttpCall:
        """Return ``GET /health``."""
        return HttpCall(path="/health", timeout_s=5.0)

    def info_calls(self) -> tuple[HttpCall, ...]:
        """Return ``GET /info``."""
        return (HttpCall(path="/info"),)

    def effective(self, replies: Sequence[HttpReply]) -> Effective:
        """Read ``{"batch": …, "draft": …}``.

        Raises:
            HostFault: the reply is no such object.
        """
        info = _object(replies[0].body) if replies and replies[0].status == 200 else None
        if info is None:
            raise HostFault("fake engine: /info gave no JSON object; look at the server's log")
        settings = tuple((name, info.get(name)) for name in sorted(self.parameters))
        return Effective(settings=settings, capacity=Capacity(max_running_requests=info.get("batch")), version="1")

    def generation_call(
        self, prompt: Prompt, *, max_tokens: int, workload: Workload, stream: bool, seed: int
    ) -> HttpCall:
        """Return a request of the workload's endpoint."""
        body: dict[str, Any] = {
            **openai_request.asked(prompt, workload),
            "max_tokens": max_tokens,
            "ignore_eos": workload.ignore_eos,
            "seed": seed,
            "stream": stream,
        }
        if stream:
            body["stream_options"] = {"include_usage": True, "continuous_usage_stats": self._running_usage}
        return HttpCall(path=openai_request.PATHS[workload.api], body=body, timeout_s=workload.request_timeout_s)

    def generated_tokens(self, reply: HttpReply) -> int | None:
        """Count ``usage.completion_tokens``."""
        value = _object(reply.body) if reply.status == 200 else None
        usage = value.get("usage") if value is not None else None
        return usage.get("completion_tokens") if isinstance(usage, dict) else None

    def quick_count(self, event: bytes) -> int | None:  # noqa: ARG002 - a fake is read whole
        """Never."""
        return None

    def read_event(self, event: bytes) -> StreamDelta:
        """Read one event of a completions stream."""
        if event == b"[DONE]":
            return StreamDelta(done=True)
        value = _object(event)
        if value is None:
            return StreamDelta(error=f"not a JSON object: {event[:80]!r}")
        if "error" in value:
            return StreamDelta(error=str(value["error"].get("message", value["error"])))
        usage = value.get("usage") or {}
        choice = (value.get("choices") or [{}])[0]
        return StreamDelta(
            has_content=bool(choice.get("text")),
            tokens_total=_count(usage.get("completion_tokens")),
            prompt_tokens=usage.get("prompt_tokens"),
            finish_reason=choice.get("finish_reason"),
            reply_id=value.get("id"),
        )

    def flush_call(self) -> HttpCall | None:
        """It has no prefix cache."""
        return None

    def abort_call(self) -> HttpCall | None:
        """Return ``POST /abort``."""
        return HttpCall(path="/abort", body={})

    def counters_call(self) -> HttpCall | None:
        """Return ``GET /counters``."""
        return HttpCall(path="/counters")

    def counters(self, reply: HttpReply) -> Counters:
        """Read what its server counts with each token."""
        value = (_object(reply.body) if reply.status == 200 else None) or {}
        return Counters(
            generated_tokens=value.get("generated_tokens"),
            verify_steps=value.get("verify_steps"),
            running=value.get("running"),
            queued=value.get("queued"),
            is_live=bool(value),
        )

    def scrub(self, text: str) -> str:
        """It prints no secrets."""
        return text


def _count(value: object) -> int | None:
    return value if isinstance(value, int) else None


def _flag(command: Command, name: str, default: int) -> int:
    flag = f"--{name}"
    if flag not in command.argv:
        return default
    words = command.argv[command.argv.index(flag) + 1 :]
    if not words or not words[0].isdigit():
        raise UsageError(f"fake engine: {flag} needs a whole number, not {words[0] if words else 'nothing'}")
    return int(words[0])


def _object(body: bytes) -> dict[str, Any] | None:
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError:
        return None
    return value if isinstance(value, dict) else None
