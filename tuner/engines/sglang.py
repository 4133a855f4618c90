"""SGLang: its rules, command line and HTTP protocol. Facts checked against the 0.5.23 wheel."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from tuner.engines import openai_request, openai_stream
from tuner.engines.flags import Argv, Flag, FlagSet
from tuner.engines.logs.reader import GrammarReader
from tuner.engines.metrics_text import totals, values
from tuner.engines.secrets import scrub
from tuner.engines.sglang_log import GRAMMAR
from tuner.errors import AssignmentRejected, HostFault, UsageError
from tuner.model.http import HttpCall, HttpReply, StreamDelta
from tuner.model.prompt import Prompt
from tuner.model.record import Counters
from tuner.model.space import Assignment, Value
from tuner.model.trial import Capacity, Command, Effective
from tuner.model.workload import Workload
from tuner.ports import LogReader

STEPS = "speculative_num_steps"
TOPK = "speculative_eagle_topk"
DRAFT = "speculative_num_draft_tokens"
FRACTION = "mem_fraction_static"

_TRIPLE = (STEPS, TOPK, DRAFT)
_ALGORITHM = Flag(("--speculative-algorithm",))
_DRAFT_MODEL = Flag(("--speculative-draft-model-path", "--speculative-draft-model"))
_DRAFT_REVISION = Flag(("--speculative-draft-model-revision",))
_MODEL = Flag(("--model-path", "--model"))
_PORT = Flag(("--port",))
_CONFIG = Flag(("--config",))
_API_KEY = Flag(("--api-key",))
_TUNED: Mapping[str, Flag] = {
    STEPS: Flag(("--speculative-num-steps",)),
    TOPK: Flag(("--speculative-eagle-topk",)),
    DRAFT: Flag(("--speculative-num-draft-tokens",)),
    FRACTION: Flag(("--mem-fraction-static",)),
}
# Flags we never touch; without them a prefix would seem unique when SGLang finds it ambiguous.
_NEIGHBOURS = tuple(
    Flag((name,))
    for name in (
        "--speculative-accept-threshold-single",
        "--speculative-accept-threshold-acc",
        "--speculative-adaptive",
        "--speculative-adaptive-config",
        "--speculative-attention-mode",
        "--speculative-draft-attention-backend",
        "--speculative-draft-model-quantization",
        "--speculative-draft-window-size",
        "--speculative-token-map",
        "--constrained-json-whitespace-pattern",
        "--context-length",
        "--model-impl",
        "--model-loader-extra-config",
    )
)
FLAGS = FlagSet(
    known=(*_TUNED.values(), _ALGORITHM, _DRAFT_MODEL, _DRAFT_REVISION, _MODEL, _PORT, _CONFIG, _API_KEY, *_NEIGHBOURS),
    prefixes=True,
)

# NEXTN and EAGLE are one algorithm to SGLang; these are the ones that read the three numbers.
_EAGLE_FAMILY = frozenset({"EAGLE", "EAGLE3", "NEXTN", "STANDALONE"})
# What SGLang chooses when an algorithm is given without numbers (_auto_choose_speculative_params).
_AUTO_TRIPLE = (3, 1, 4)
_AUTO_TRIPLE_LLAMA_GROK = (5, 4, 8)
_DEFAULT_PORT = 30000
_GIB = 1 << 30
_FLUSH_WAIT_S = 10


class SglangAdapter:
    """SGLang as the ports see it; holds no state."""

    name = "sglang"
    parameters = frozenset({STEPS, TOPK, DRAFT, FRACTION})

    def canonical(self, assignment: Assignment) -> Assignment:
        """Apply SGLang's rules (see :func:`_canonical_triple`); other settings pass through.

        Raises:
            AssignmentRejected: the message is the rule.
        """
        for name in assignment:
            if name not in self.parameters:
                known = ", ".join(sorted(self.parameters))
                raise AssignmentRejected(f"sglang has no parameter {name!r}; it has {known}")
        values: dict[str, Value] = {}
        if any(name in assignment for name in _TRIPLE):
            values.update(_canonical_triple(assignment))
        if FRACTION in assignment:
            values[FRACTION] = _canonical_fraction(assignment[FRACTION])
        return Assignment.of(values)

    def settings_of(self, command: Command) -> Assignment:
        """Read the four settings; SGLang's own default triple where an algorithm stands alone.

        Raises:
            UsageError: malformed, half a triple, or not knowable from the command line.
        """
        argv = command.argv
        if FLAGS.has(argv, _CONFIG):
            raise UsageError("base command: --config hides settings in a file; write its options into the command line")
        fraction = FLAGS.number(argv, _TUNED[FRACTION])
        if fraction is None:
            raise UsageError("base command: pin --mem-fraction-static; its default depends on the host's GPUs")
        values: dict[str, Value] = {FRACTION: fraction}
        values.update(_triple_of(argv))
        return self.canonical(Assignment.of(values))

    def command(self, base: Command, assignment: Assignment) -> Command:
        """Replace the tuned flags where they stand; turn speculation off or on as asked.

        Off removes the algorithm, the three numbers and the draft model. On without an
        algorithm in the base means NEXTN. The three numbers always go together.
        """
        argv = base.argv
        if assignment.get(STEPS) == 0:
            for flag in (_ALGORITHM, *(_TUNED[name] for name in _TRIPLE), _DRAFT_MODEL, _DRAFT_REVISION):
                argv = FLAGS.drop(argv, flag)
        elif STEPS in assignment:
            if FLAGS.value(argv, _ALGORITHM) is None:
                argv = FLAGS.put(argv, _ALGORITHM, "NEXTN")
            for name in _TRIPLE:
                argv = FLAGS.put(argv, _TUNED[name], str(assignment[name]))
        if FRACTION in assignment:
            argv = FLAGS.put(argv, _TUNED[FRACTION], str(assignment[FRACTION]))
        return Command(argv=argv, env=base.env)

    def port(self, command: Command) -> int:
        """Return the value of ``--port``, 30000 without it."""
        port = FLAGS.integer(command.argv, _PORT)
        return _DEFAULT_PORT if port is None else port

    def api_key(self, command: Command) -> str | None:
        """Return ``--api-key``; it guards everything but ``/health`` and ``/metrics``."""
        return FLAGS.value(command.argv, _API_KEY)

    def log_reader(self) -> LogReader:
        """Return a reader for one start."""
        return GrammarReader(GRAMMAR)

    def health_call(self) -> HttpCall:
        """``/health`` generates a token; the server itself gives up on that after 20 s."""
        return HttpCall(path="/health", timeout_s=25.0)

    def info_calls(self) -> tuple[HttpCall, ...]:
        """``/server_info`` carries the resolved arguments, the version and the capacity."""
        return (HttpCall(path="/server_info"),)

    def effective(self, replies: Sequence[HttpReply]) -> Effective:
        """Read the resolved arguments; None for a setting the server does not report.

        Capacity is that of one data-parallel rank, the smallest where they differ.

        Raises:
            HostFault: no readable ``/server_info``.
        """
        info = _server_info(replies)
        states = [state for state in info.get("internal_states") or () if isinstance(state, dict)]
        settings: dict[str, Value | None] = {name: _number(info.get(name)) for name in (*_TRIPLE, FRACTION)}
        if "speculative_algorithm" in info and info["speculative_algorithm"] is None:
            settings.update({STEPS: 0, TOPK: None, DRAFT: None})
        running = [_integer(state.get("effective_max_running_requests_per_dp")) for state in states]
        known_running = [value for value in running if value is not None]
        memory = states[0].get("memory_usage") if states else None
        available = _number(memory.get("startup_available")) if isinstance(memory, dict) else None
        version, model = info.get("version"), info.get("model_path")
        return Effective(
            settings=tuple(sorted(settings.items())),
            capacity=Capacity(
                max_total_num_tokens=_integer(info.get("max_total_num_tokens")),
                max_running_requests=min(known_running)
                if known_running
                else _integer(info.get("max_running_requests")),
                available_gpu_mem_bytes=None if available is None else round(available * _GIB),
            ),
            version=version if isinstance(version, str) else None,
            model=model if isinstance(model, str) else None,
        )

    def generation_call(
        self, prompt: Prompt, *, max_tokens: int, workload: Workload, stream: bool, seed: int
    ) -> HttpCall:
        """Return a request of the workload's endpoint; a stream repeats the token count on every chunk."""
        body: dict[str, Any] = {
            **openai_request.asked(prompt, workload),
            "max_tokens": max_tokens,
            "ignore_eos": workload.ignore_eos,
            "seed": seed,
            "stream": stream,
        }
        if stream:
            body["stream_options"] = {"include_usage": True, "continuous_usage_stats": True}
            # What one request got out of speculation and the prefix cache; releases before 0.5.23 ignore it.
            body["return_spec_tokens_details"] = True
            body["return_cached_tokens_details"] = True
        return HttpCall(path=openai_request.PATHS[workload.api], body=body, timeout_s=workload.request_timeout_s)

    def generated_tokens(self, reply: HttpReply) -> int | None:
        """Return ``usage.completion_tokens``; None unless the reply is a generation."""
        return openai_stream.completion_tokens(reply)

    def quick_count(self, event: bytes) -> int | None:
        """Read only the count of an event in mid-stream."""
        return openai_stream.quick_count(event)

    def read_event(self, event: bytes) -> StreamDelta:
        """Read one event; ``usage`` is cumulative."""
        return openai_stream.read_event(event)

    def flush_call(self) -> HttpCall | None:
        """Empty the prefix cache; SGLang waits for pending requests to end, then answers 400."""
        return HttpCall(path=f"/flush_cache?timeout={_FLUSH_WAIT_S}", body={}, timeout_s=_FLUSH_WAIT_S + 10.0)

    def abort_call(self) -> HttpCall | None:
        """Abort everything: a graceful stop waits for running requests without limit."""
        return HttpCall(path="/abort_request", body={"abort_all": True})

    def counters_call(self) -> HttpCall | None:
        """Prometheus; 404 unless the server runs with ``--enable-metrics``."""
        return HttpCall(path="/metrics")

    def counters(self, reply: HttpReply) -> Counters:
        """Sum over labels; the totals move when a request finishes, not while it runs.

        A server without a prefix hit, or without a retraction, does not print that total at all: it is 0.
        """
        if reply.status != 200:
            return Counters()
        found = totals(reply.body, _METRICS.values())
        read: dict[str, Any] = {field: found.get(name) for field, name in _METRICS.items()}
        if read["prompt_tokens"] is not None and read["cached_tokens"] is None:
            read["cached_tokens"] = 0.0
        if read["running"] is not None and read["retractions"] is None:
            read["retractions"] = 0.0
        drafts = max(values(reply.body, _DRAFT_TOKENS), default=0.0)
        return Counters(
            **read,
            kv_usage=max(values(reply.body, _KV_USAGE), default=None),  # the fullest rank's
            drafts_a_step=drafts - 1 if drafts > 1 else None,  # the first of the verified tokens is the model's own
        )

    def scrub(self, text: str) -> str:
        """Mask the keys SGLang prints in its log, ``/server_info`` and process titles."""
        return scrub(text)


_METRICS = {
    "generated_tokens": "sglang:generation_tokens_total",
    "verify_steps": "sglang:spec_verify_calls_total",
    "prompt_tokens": "sglang:prompt_tokens_total",
    "cached_tokens": "sglang:cached_tokens_total",
    "retractions": "sglang:num_retracted_requests_total",
    "queue_time_s": "sglang:queue_time_seconds_sum",
    "queue_waits": "sglang:queue_time_seconds_count",
    "running": "sglang:num_running_reqs",
    "queued": "sglang:num_queue_reqs",
}
_KV_USAGE = "sglang:token_usage"
_DRAFT_TOKENS = "sglang:spec_num_draft_tokens"


def _canonical_triple(assignment: Assignment) -> dict[str, Value]:
    """Bring steps, topk and draft tokens into the one form that launches this server.

    * steps 0 is speculation off: the other two do not apply.
    * topk 1 drafts a chain; SGLang itself sets draft tokens to steps + 1.
    * topk > 1 drafts a tree of ``topk + (steps - 1) * topk^2`` scored nodes, of which
      draft tokens - 1 are kept; a chain of the full depth must fit, hence draft tokens > steps.
    """
    if STEPS not in assignment:
        raise AssignmentRejected(f"{STEPS} is missing; SGLang takes all three speculative numbers or none")
    steps = _whole(assignment, STEPS)
    if steps < 0:
        raise AssignmentRejected(f"{STEPS} is {steps}; it must be 0 (speculation off) or more")
    if steps == 0:
        return {STEPS: 0}
    if TOPK not in assignment:
        raise AssignmentRejected(f"{TOPK} is missing; SGLang takes all three speculative numbers or none")
    topk = _whole(assignment, TOPK)
    if topk < 1:
        raise AssignmentRejected(f"{TOPK} is {topk}; it must be 1 or more")
    if topk == 1:
        return {STEPS: steps, TOPK: 1, DRAFT: steps + 1}
    if DRAFT not in assignment:
        raise AssignmentRejected(f"{DRAFT} is missing; with {TOPK} {topk} SGLang does not choose it")
    draft = _whole(assignment, DRAFT)
    nodes = topk + (steps - 1) * topk * topk
    if draft - 1 > nodes:
        raise AssignmentRejected(
            f"{DRAFT} {draft} needs {draft - 1} drafted nodes, but {steps} steps of topk {topk} draft only {nodes}"
        )
    if draft <= steps:
        raise AssignmentRejected(
            f"{DRAFT} {draft} cannot hold a chain of {steps} drafts and its root; it must be at least {steps + 1}"
        )
    return {STEPS: steps, TOPK: topk, DRAFT: draft}


def _whole(assignment: Assignment, name: str) -> int:
    value = assignment[name]
    if type(value) is not int:
        raise AssignmentRejected(f"{name} is {value!r}; it must be a whole number")
    return value


def _canonical_fraction(value: Value) -> float:
    # Rounded to a millionth so that 0.1 + 0.2 and 0.3 are one server.
    if isinstance(value, (str, bool)) or not 0 < value < 1:
        raise AssignmentRejected(f"{FRACTION} is {value!r}; it must lie between 0 and 1")
    return round(float(value), 6)


def _triple_of(argv: Argv) -> dict[str, Value]:
    """Read the three numbers of a base command; ``{steps: 0}`` when no algorithm is given."""
    algorithm = FLAGS.value(argv, _ALGORITHM)
    if algorithm is None:
        return {STEPS: 0}
    if algorithm.upper() not in _EAGLE_FAMILY:
        names = ", ".join(sorted(_EAGLE_FAMILY))
        raise UsageError(f"base command: --speculative-algorithm {algorithm} does not use these settings; use {names}")
    given = {name: FLAGS.integer(argv, _TUNED[name]) for name in _TRIPLE}
    values: dict[str, Value] = {name: number for name, number in given.items() if number is not None}
    if not values:
        return dict(zip(_TRIPLE, _automatic(argv, algorithm), strict=True))
    if STEPS not in values or TOPK not in values:
        raise UsageError(
            "base command: give all of --speculative-num-steps, --speculative-eagle-topk and "
            "--speculative-num-draft-tokens, or none; SGLang fails on a part of them"
        )
    if values[STEPS] == 0:
        raise UsageError(
            "base command: --speculative-num-steps 0 with an algorithm; remove the --speculative flags to turn it off"
        )
    return values


def _automatic(argv: Argv, algorithm: str) -> tuple[int, int, int]:
    """SGLang decides by architecture; the model path is all a command line tells of it."""
    path = FLAGS.value(argv, _MODEL) or ""
    if not path and "serve" in argv and argv.index("serve") + 1 < len(argv):
        path = argv[argv.index("serve") + 1]  # `sglang serve MODEL`
    is_llama_or_grok = re.search(r"llama|grok", path, re.IGNORECASE) is not None
    return _AUTO_TRIPLE_LLAMA_GROK if is_llama_or_grok and algorithm.upper() != "STANDALONE" else _AUTO_TRIPLE


def _server_info(replies: Sequence[HttpReply]) -> Mapping[str, Any]:
    for reply in replies:
        if reply.status != 200:
            continue
        try:
            info = orjson.loads(reply.body)
        except orjson.JSONDecodeError as error:
            raise HostFault(f"/server_info is not JSON ({error}): is this SGLang's port?") from error
        if isinstance(info, dict):
            return info
    states = ", ".join(str(reply.status or reply.error) for reply in replies) or "no reply"
    raise HostFault(f"/server_info cannot be read ({states}): is this SGLang's port, and its API key right?")


def _number(value: object) -> int | float | None:
    return value if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def _integer(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None
