"""SGLang's log, as a grammar: how its start-up, its tracebacks and its ends look.

What its lines mean is in :mod:`tuner.engines.sglang_causes`. The parent's death by signal 9
explains nothing, it kills itself after every crash.
"""

from __future__ import annotations

import re

from tuner.engines import sglang_causes as causes
from tuner.engines.logs.findings import Finding
from tuner.engines.logs.grammar import Frame, Grammar, Loading, Moment, Rule, Rules, Stage, Trait
from tuner.engines.logs.judging import CRASHES, Engine
from tuner.engines.logs.lines import Steady
from tuner.engines.secrets import scrub
from tuner.engines.sglang_memory import is_left, other_holder, shortfall_bytes, state_shortfall_bytes, viable_fraction
from tuner.model.outcome import Cause, MemoryDirection

_SPECULATES = "speculates"
_ARGUMENTS, _SPECULATION = "arguments", "speculation"
_WEIGHTS, _POOL, _CAPTURE, _SERVING = "weights", "pool", "capture", "serving"
_WRAPPED = re.compile(r"Capture cuda graph failed:|Fail when using backend:")
_CHECKS = ("ValueError", "AssertionError", "TypeError", "KeyError")
_MISTAKES = (
    "AssertionError", "AttributeError", "IndexError", "KeyError", "NameError", "TypeError", "UnboundLocalError",
    "ZeroDivisionError",
)  # fmt: skip
"""What Python raises where a program is wrong, whatever it was asked."""


def explain(kind: str, lowered: str, moment: Moment) -> Rule | None:
    """Judge an exception that no rule knows by where it was raised."""
    if "cuda error: " in lowered:
        return causes.CUDA_RULE
    if kind == "MemoryError":
        return causes.HOST_MEMORY_RULE
    if moment.is_early and kind in _CHECKS and not moment.rank:
        return causes.ARGUMENTS_RULE if _ARGUMENTS in moment.marks else causes.EARLY_CHECK_RULE
    if _SERVING in moment.marks and kind in _MISTAKES:
        return causes.MISTAKE_RULE
    is_up = moment.is_up or _SERVING in moment.marks
    if is_up and _SPECULATION in moment.marks and kind != "ConnectionError":
        return causes.SPECULATION_BUG_RULE
    return None


def settle(rule: Rule, line: str, moment: Moment) -> Finding:
    """Add to a rule what its line and its moment say."""
    cause, direction, advice = rule.cause, rule.direction, rule.advice
    missing = None
    if cause is Cause.UNKNOWN:
        cause = Cause.OOM_GRAPH_CAPTURE if _WRAPPED.search(line) else memory_cause(moment)
        direction, advice = causes.OUT_OF_MEMORY[cause]
        missing = shortfall_bytes(line)
    elif cause is Cause.OOM_STATE_POOL:
        direction, missing = _state_direction(line, moment), state_shortfall_bytes(line)
    # The memory that a later life lacks may be what the killed one before it has not given back yet.
    is_later_life = moment.lives > 1 and rule.direction is not None
    return Finding(
        cause=cause,
        config_fault=None if is_later_life else rule.config_fault,
        line=line,
        direction=None if is_later_life else direction,
        shortfall_bytes=None if is_later_life else missing,
        viable_fraction=None if is_later_life else viable_fraction(line),
        fatal=rule.fatal,
        other_holder=other_holder(line, missing),
        advice=advice,
    )


def memory_cause(moment: Moment) -> Cause:
    """Turn a CUDA out-of-memory into the cause that its place makes it, or its moment, where no traceback tells."""
    marks = moment.marks
    if _CAPTURE in marks:
        return Cause.OOM_GRAPH_CAPTURE
    if _SERVING not in marks:
        if _WEIGHTS in marks or moment.is_loading:
            return Cause.OOM_WEIGHTS
        if _POOL in marks:
            return Cause.OOM_KV_POOL
        if not moment.is_up:
            if moment.stage == "capture":
                return Cause.OOM_GRAPH_CAPTURE
            return Cause.OOM_KV_POOL if moment.loads or moment.stage == "pool" else Cause.OOM_WEIGHTS
    return Cause.OOM_VERIFY_WORKSPACE if _SPECULATION in marks else Cause.OOM_SERVING


def _state_direction(line: str, moment: Moment) -> MemoryDirection:
    """Say which way a state pool that does not fit points.

    SGLang keeps one intermediate state per running request and draft token (facts 2.2): with memory
    left, it is the draft tokens that are too many.
    """
    speculates = _SPECULATES in moment.traits or moment.loads > 1
    return causes.DRAFTS if is_left(line) and speculates else causes.LOW


GRAMMAR = Grammar(
    engine=Engine(processes=("sglang", "python", "launch_server"), own_faults=CRASHES, scrub=scrub),
    stages=("args", "load_weights", "load_draft", "pool", "capture", "ready"),
    early=frozenset({"args"}),
    settings="server_args=",
    identity=re.compile(
        r"['\"]?\b(?:model_path|mem_fraction_static|speculative_num_\w+|speculative_eagle_topk)\b[^,)}]*"
    ),
    progress=(
        Stage(text="mamba cache is allocated.", name="pool"),
        Stage(text="kv cache is allocated.", name="pool"),
        Stage(text="memory pool end.", name="pool"),
        Stage(text="cuda graph begin", name="capture"),
        Stage(text="max_total_num_tokens=", name="capture", is_up=True),
        Stage(text="the server is fired up and ready to roll!", name="ready", is_up=True),
    ),
    loading=Loading(begin="load weight begin", end="load weight end", stages=("load_weights", "load_draft")),
    traits=(
        Trait(
            name=_SPECULATES,
            text="speculative_algorithm",
            shape=re.compile(r"speculative_algorithm['\"]?\s*[:=]\s*['\"]\w"),
        ),
    ),
    stamp=re.compile(r"(?:\[\d{4}-\d\d-\d\d[ T][^\]]*\] ?|\[rank\d+\]:\s?)+"),
    rank=re.compile(r"\b(?:DP\d+ )?TP\d+(?: (?:PP|EP)\d+)*(?=\])"),
    exception=re.compile(
        r"(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Failure|Exit|Timeout|Enabled|Interrupt)\b(?=:|$)"
        r"|Exception(?=:|$)|(?:[a-z_]\w*\.)+[A-Z]\w*(?=:|$)"
    ),
    traceback="traceback (most recent call last)",
    frames=(
        Frame(mark=_ARGUMENTS, shape=re.compile(r"arg_groups/|server_args\.py|prepare_server_args")),
        Frame(mark=_SPECULATION, shape=re.compile(r"/speculative/|, in \w*(?:verify|draft)\w*$")),
        Frame(
            mark=_WEIGHTS,
            shape=re.compile(
                r", in (?:load_model|get_model|load_weights\w*|_initialize_model|process_weights_after_loading)$"
            ),
            stage="load_weights",
        ),
        Frame(
            mark=_POOL,
            shape=re.compile(r", in (?:init_memory_pool|alloc_memory_pool|_create_buffers|configure\w*)$"),
            stage="pool",
        ),
        Frame(
            mark=_CAPTURE,
            shape=re.compile(r", in (?:_?capture\w*|init_\w*graphs?)$"),
            stage="capture",
        ),
        Frame(
            mark=_SERVING,
            shape=re.compile(r", in (?:event_loop\w*|run_event_loop|run_batch|process_batch_result\w*)$"),
            stage="ready",
        ),
    ),
    minor=("exception in asgi application", "exception ignored in"),
    rules=Rules(causes.RULES),
    explain=explain,
    settle=settle,
    deaths=(
        "scheduler hit an exception",
        "received sigquit from a child proces",
        "sigquit received. signum=",
        "crashed with exit code",
        "scheduler died during initialization",
        "initialization failed.",
        "scheduler is dead. please check",
    ),
    stops=("sigterm received. signum=", "signal sigterm received"),
    doubt=("the memory capacity is unbalanced",),
    peers=("remote process exited", "/gloo/transport/", "recvvalue failed"),
    harmless=(
        "setup custom allreduce failed",
        "skipping tactic",
        "skipping a tactic",
        "retrying",
        "falling back",
        "server socket has failed to bind",
    ),
    requests=("Receive: ", "Finish: "),
    steady=Steady(within=("] Decode batch", "] Prefill batch"), ends=('" 200 OK',)),
)
