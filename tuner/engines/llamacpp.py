"""llama.cpp's server: its rules, command line and HTTP protocol.

The server is ``python -m tuner.servers.llamacpp`` with llama-server's own flags. Its
context is divided among the slots, in steps of 256 tokens: ``--ctx-size 512 --parallel 4``
runs 4 slots of 256 tokens, which is 1024. Facts checked against xllamacpp 2026.10.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tuner.engines import openai_request, openai_stream
from tuner.engines.flags import Argv, Flag, FlagSet
from tuner.engines.llamacpp_log import GRAMMAR
from tuner.engines.logs.reader import GrammarReader
from tuner.engines.metrics_text import totals
from tuner.engines.secrets import scrub
from tuner.errors import AssignmentRejected, HostFault, UsageError
from tuner.model.http import HttpCall, HttpReply, StreamDelta
from tuner.model.prompt import Prompt
from tuner.model.record import Counters
from tuner.model.space import Assignment, Value
from tuner.model.trial import Capacity, Command, Effective
from tuner.model.workload import Workload
from tuner.ports import LogReader

SPEC_TYPE = "spec_type"
DRAFT_MAX = "draft_max"
NGRAM_SIZE = "ngram_size"
PARALLEL = "parallel"
THREADS = "threads"
BATCH = "batch_size"
UBATCH = "ubatch_size"
CTX = "ctx_size"

OFF = "none"
CONTEXT_STEP = 256
_DEFAULT_PORT = 8080


@dataclass(frozen=True, slots=True, kw_only=True)
class _Speculation:
    """The flags of one way to draft, with llama.cpp's defaults; no ``ngram``: it uses none."""

    draft: Flag
    draft_default: int
    ngram: Flag | None
    ngram_default: int = 0


_SPECULATION: Mapping[str, _Speculation] = {
    **{
        f"ngram-{kind}": _Speculation(
            draft=Flag((f"--spec-ngram-{kind}-size-m",)),
            draft_default=48,
            ngram=Flag((f"--spec-ngram-{kind}-size-n",)),
            ngram_default=12,
        )
        for kind in ("simple", "map-k", "map-k4v")
    },
    "ngram-mod": _Speculation(
        draft=Flag(("--spec-ngram-mod-n-max",)),
        draft_default=64,
        ngram=Flag(("--spec-ngram-mod-n-match",)),
        ngram_default=24,
    ),
    "draft-simple": _Speculation(draft=Flag(("--spec-draft-n-max",)), draft_default=3, ngram=None),
}
_SPEC_FLAG = Flag(("--spec-type",))
_SIZES: Mapping[str, Flag] = {
    PARALLEL: Flag(("--parallel", "-np")),
    THREADS: Flag(("--threads", "-t")),
    BATCH: Flag(("--batch-size", "-b")),
    UBATCH: Flag(("--ubatch-size", "-ub")),
    CTX: Flag(("--ctx-size", "-c")),
}
_SIZE_DEFAULTS = {PARALLEL: 1, BATCH: 2048, UBATCH: 512}
_PORT = Flag(("--port",))
_API_KEY = Flag(("--api-key",))
_DRAFT_MODEL = Flag(("--spec-draft-model", "--model-draft", "-md"))
FLAGS = FlagSet(
    known=(
        *_SIZES.values(),
        _SPEC_FLAG,
        *(flag for kind in _SPECULATION.values() for flag in (kind.draft, kind.ngram) if flag is not None),
        _PORT,
        _API_KEY,
        _DRAFT_MODEL,
    ),
    prefixes=False,  # llama-server takes no abbreviations
)
_METRICS = {
    "generated": "llamacpp:tokens_predicted_total",
    "accepted": "llamacpp:spec_decode_num_accepted_tokens_total",
    "running": "llamacpp:requests_processing",
    "queued": "llamacpp:requests_deferred",
}


class LlamaCppAdapter:
    """llama.cpp as the ports see it; holds no state."""

    name = "llamacpp"
    parameters = frozenset({SPEC_TYPE, DRAFT_MAX, NGRAM_SIZE, PARALLEL, THREADS, BATCH, UBATCH, CTX})

    def canonical(self, assignment: Assignment) -> Assignment:
        """Apply llama.cpp's rules.

        * No speculation: draft length and n-gram size do not apply; a draft model has no n-grams.
        * The context is the slots' sum: each slot's share is rounded up to 256 tokens.
        * ``batch_size`` is at most the context, ``ubatch_size`` at most ``batch_size``:
          llama.cpp lowers them without a word.

        Raises:
            AssignmentRejected: the message is the rule.
        """
        for name in assignment:
            if name not in self.parameters:
                known = ", ".join(sorted(self.parameters))
                raise AssignmentRejected(f"llamacpp has no parameter {name!r}; it has {known}")
        sizes = {name: _positive(assignment, name) for name in _SIZES if name in assignment}
        if CTX in sizes and PARALLEL in sizes:
            share = -(-sizes[CTX] // sizes[PARALLEL])
            sizes[CTX] = -(-share // CONTEXT_STEP) * CONTEXT_STEP * sizes[PARALLEL]
        if BATCH in sizes and CTX in sizes:
            sizes[BATCH] = min(sizes[BATCH], sizes[CTX])
        if UBATCH in sizes and BATCH in sizes:
            sizes[UBATCH] = min(sizes[UBATCH], sizes[BATCH])
        return Assignment.of({**sizes, **_canonical_speculation(assignment)})

    def settings_of(self, command: Command) -> Assignment:
        """Read the settings, llama.cpp's defaults where a flag is absent.

        Raises:
            UsageError: malformed; or threads or context are not pinned, which depend on host and model.
        """
        argv = command.argv
        values: dict[str, Value] = {}
        for name, flag in _SIZES.items():
            size = FLAGS.integer(argv, flag)
            size = _SIZE_DEFAULTS.get(name) if size is None else size
            if size is None or size < 1:
                raise UsageError(f"base command: pin {flag.name} to 1 or more; its default depends on host and model")
            values[name] = size
        kind = FLAGS.value(argv, _SPEC_FLAG) or OFF
        values[SPEC_TYPE] = kind
        speculation = _SPECULATION.get(kind)
        if speculation is not None:
            draft = FLAGS.integer(argv, speculation.draft)
            values[DRAFT_MAX] = speculation.draft_default if draft is None else draft
            if speculation.ngram is not None:
                size = FLAGS.integer(argv, speculation.ngram)
                values[NGRAM_SIZE] = speculation.ngram_default if size is None else size
        return self.canonical(Assignment.of(values))

    def command(self, base: Command, assignment: Assignment) -> Command:
        """Replace the tuned flags where they stand; the flags of other ways to draft are removed.

        Raises:
            UsageError: a draft model is asked for and the base command names none.
        """
        argv = base.argv
        for name, flag in _SIZES.items():
            if name in assignment:
                argv = FLAGS.put(argv, flag, str(assignment[name]))
        if SPEC_TYPE in assignment:
            argv = _put_speculation(argv, assignment)
        return replace(base, argv=argv)

    def port(self, command: Command) -> int:
        """Return the value of ``--port``, 8080 without it."""
        port = FLAGS.integer(command.argv, _PORT)
        return _DEFAULT_PORT if port is None else port

    def api_key(self, command: Command) -> str | None:
        """Return ``--api-key``."""
        return FLAGS.value(command.argv, _API_KEY)

    def log_reader(self) -> LogReader:
        """Return a reader for one start."""
        return GrammarReader(GRAMMAR)

    def health_call(self) -> HttpCall:
        """``/health`` answers 503 while the model loads: the port is open from the start."""
        return HttpCall(path="/health", timeout_s=5.0)

    def info_calls(self) -> tuple[HttpCall, ...]:
        """``/props`` for slots, context and model, ``/slots`` for the kind of speculation."""
        return (HttpCall(path="/props"), HttpCall(path="/slots"))

    def effective(self, replies: Sequence[HttpReply]) -> Effective:
        """Read slots, context and speculation; the server reports neither threads nor batch sizes.

        The kind of speculation shows only in a slot that has served a request.

        Raises:
            HostFault: no readable ``/props``.
        """
        props = openai_stream.parse(replies[0].body) if replies and replies[0].status == 200 else None
        if props is None:
            state = (replies[0].status or replies[0].error) if replies else "no reply"
            raise HostFault(f"/props cannot be read ({state}): is this llama.cpp's port, and its API key right?")
        slots = _integer(props.get("total_slots"))
        generation = props.get("default_generation_settings")
        share = _integer(generation.get("n_ctx")) if isinstance(generation, dict) else None
        context = slots * share if slots is not None and share is not None else None
        settings: dict[str, Value | None] = dict.fromkeys(self.parameters)
        settings |= {PARALLEL: slots, CTX: context, SPEC_TYPE: _running_speculation(replies[1:])}
        model, version = props.get("model_alias") or props.get("model_path"), props.get("build_info")
        return Effective(
            settings=tuple(sorted(settings.items())),
            capacity=Capacity(max_total_num_tokens=context, max_running_requests=slots),
            # A wheel is built outside llama.cpp's repository and does not know its build number.
            version=version if isinstance(version, str) and version != "b0-unknown" else None,
            model=model if isinstance(model, str) else None,
        )

    def generation_call(
        self, prompt: Prompt, *, max_tokens: int, workload: Workload, stream: bool, seed: int
    ) -> HttpCall:
        """Return a request of the workload's endpoint; a stream has ``timings`` with the token count on every chunk."""
        body: dict[str, Any] = {
            **openai_request.asked(prompt, workload),
            "max_tokens": max_tokens,
            "ignore_eos": workload.ignore_eos,
            "seed": seed,
            "cache_prompt": False,  # there is no call that empties the cache
            "stream": stream,
        }
        if stream:
            body["timings_per_token"] = True
            body["stream_options"] = {"include_usage": True}
        return HttpCall(path=openai_request.PATHS[workload.api], body=body, timeout_s=workload.request_timeout_s)

    def generated_tokens(self, reply: HttpReply) -> int | None:
        """Return ``usage.completion_tokens``; None unless the reply is a generation."""
        return openai_stream.completion_tokens(reply)

    def quick_count(self, event: bytes) -> int | None:  # noqa: ARG002 - see there
        """Never: the count stands in ``timings``, and its streams are too slow for reading them to matter."""
        return None

    def read_event(self, event: bytes) -> StreamDelta:
        """Read one event; ``timings.predicted_n`` counts up, ``usage`` comes with the last one."""
        message = openai_stream.parse(event.strip())
        if message is None:
            return openai_stream.read_event(event)
        delta = openai_stream.delta_of(message)
        timings = message.get("timings")
        if not isinstance(timings, dict):
            return delta
        made, accepted = _integer(timings.get("predicted_n")), _integer(timings.get("draft_n_accepted"))
        return replace(
            delta,
            tokens_total=made if delta.tokens_total is None else delta.tokens_total,
            cached_tokens=_integer(timings.get("cache_n")) if delta.cached_tokens is None else delta.cached_tokens,
            verify_steps=made - accepted if made is not None and accepted is not None else None,
        )

    def flush_call(self) -> HttpCall | None:
        """There is none: requests ask for no prompt cache instead."""
        return None

    def abort_call(self) -> HttpCall | None:
        """There is none: a closed connection ends its request."""
        return None

    def counters_call(self) -> HttpCall | None:
        """Prometheus; 501 unless the server runs with ``--metrics``."""
        return HttpCall(path="/metrics")

    def counters(self, reply: HttpReply) -> Counters:
        """Read the totals, which move when a request finishes.

        A forward pass of a slot yields one token and the drafts it accepted with it, hence
        passes = tokens - accepted; without speculation that is one token a pass.
        """
        if reply.status != 200:
            return Counters()
        found = totals(reply.body, _METRICS.values())
        generated, accepted = found.get(_METRICS["generated"]), found.get(_METRICS["accepted"])
        return Counters(
            generated_tokens=generated,
            verify_steps=generated - accepted if generated is not None and accepted is not None else None,
            running=found.get(_METRICS["running"]),
            queued=found.get(_METRICS["queued"]),
        )

    def scrub(self, text: str) -> str:
        """Mask API keys."""
        return scrub(text)


def _positive(assignment: Assignment, name: str) -> int:
    value = assignment[name]
    if type(value) is not int or value < 1:
        raise AssignmentRejected(f"{name} is {value!r}; it must be a whole number of 1 or more")
    return value


def _canonical_speculation(assignment: Assignment) -> dict[str, Value]:
    if SPEC_TYPE not in assignment:
        if DRAFT_MAX in assignment or NGRAM_SIZE in assignment:
            raise AssignmentRejected(f"{SPEC_TYPE} is missing; {DRAFT_MAX} and {NGRAM_SIZE} mean nothing without it")
        return {}
    kind = assignment[SPEC_TYPE]
    if kind == OFF:
        return {SPEC_TYPE: OFF}
    speculation = _SPECULATION.get(str(kind))
    if speculation is None:
        raise AssignmentRejected(f"{SPEC_TYPE} is {kind!r}; llama.cpp has {OFF}, {', '.join(_SPECULATION)}")
    wanted = (DRAFT_MAX,) if speculation.ngram is None else (DRAFT_MAX, NGRAM_SIZE)
    missing = [name for name in wanted if name not in assignment]
    if missing:
        raise AssignmentRejected(f"{missing[0]} is missing; {SPEC_TYPE} {kind} needs it")
    return {SPEC_TYPE: kind, **{name: _positive(assignment, name) for name in wanted}}


def _put_speculation(argv: Argv, assignment: Assignment) -> Argv:
    kind = str(assignment[SPEC_TYPE])
    for other, speculation in _SPECULATION.items():
        if other != kind:
            argv = FLAGS.drop(argv, speculation.draft)
            argv = argv if speculation.ngram is None else FLAGS.drop(argv, speculation.ngram)
    argv = FLAGS.put(argv, _SPEC_FLAG, kind)
    chosen = _SPECULATION.get(kind)
    if chosen is None:
        return argv
    argv = FLAGS.put(argv, chosen.draft, str(assignment[DRAFT_MAX]))
    if chosen.ngram is not None:
        return FLAGS.put(argv, chosen.ngram, str(assignment[NGRAM_SIZE]))
    if FLAGS.value(argv, _DRAFT_MODEL) is None:
        raise UsageError(f"{SPEC_TYPE} {kind}: the base command names no draft model; add {_DRAFT_MODEL.name}")
    return argv


def _running_speculation(replies: Sequence[HttpReply]) -> str | None:
    """Read the kind of speculation out of ``/slots``; None where it does not show."""
    slots = openai_stream.parse_any(replies[0].body) if replies and replies[0].status == 200 else None
    for slot in slots if isinstance(slots, list) else ():
        if not isinstance(slot, dict):
            continue
        if slot.get("speculative") is False:
            return OFF
        parameters = slot.get("params")
        kind = parameters.get("speculative.types") if isinstance(parameters, dict) else None
        if isinstance(kind, str):
            return kind
    return None


def _integer(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None
