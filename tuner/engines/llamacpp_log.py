"""llama.cpp's log, as a grammar; its lines tell most by themselves."""

from __future__ import annotations

import re
import signal

from tuner.engines.logs.findings import Finding
from tuner.engines.logs.grammar import Grammar, Moment, Rule, Rules, Stage, Trait
from tuner.engines.logs.judging import CRASHES, Engine
from tuner.engines.logs.lines import Steady
from tuner.engines.secrets import scrub
from tuner.model.outcome import Cause

_CONTEXT = "context"
_CUDA_ERROR = re.compile(r"^(?:[\d.]+ [A-Z] )?(?:\w+: )?CUDA error: ")
_OUT_OF_MEMORY = {
    Cause.OOM_KV_POOL: "lower ctx_size: the context does not fit into memory",
    Cause.OOM_WEIGHTS: "the weights do not fit: offload fewer layers, or take a smaller quantisation",
}

# In order; the first line that any fits is the cause, and of one line the first rule. Where a rule is not
# fatal, llama.cpp says itself, a line later, whether it gives up.
_RULES = (
    Rule(
        tokens=("error: ", "argument"),
        shape=re.compile(
            r"error: (unrecognized arguments|argument |the following arguments)|"
            r"llama-server: error: --|the argument has been removed|"
            r"error: (?:invalid|unknown) argument|error while handling argument"
        ),
        cause=Cause.REJECTED_ARGUMENTS,
        config_fault=True,
        decisive=True,
        fatal=True,
        advice="the server refuses this command line",
    ),
    Rule(
        tokens=("allocate",),
        shape=re.compile(r"unable to allocate \w+ buffer|failed to allocate \w+ buffer of size"),
        cause=Cause.UNKNOWN,  # weights or context: what was announced last
        config_fault=True,
        decisive=True,
    ),
    Rule(
        tokens=("cuda error: out of memory",),
        shape=_CUDA_ERROR,
        cause=Cause.OOM_SERVING,
        config_fault=True,
        decisive=True,
        fatal=True,
        advice="lower ctx_size, parallel or ubatch_size: there was no room left under load",
    ),
    Rule(
        tokens=("cuda error: ",),
        shape=_CUDA_ERROR,
        cause=Cause.CUDA_FAULT,
        config_fault=None,
        decisive=True,
        fatal=True,
        advice="a GPU kernel failed; look at the driver's messages with `dmesg`",
    ),
    Rule(
        tokens=("failed to allocate", "bad_alloc"),
        shape=re.compile(r"failed to allocate buffer for kv cache|failed to allocate .* buffer of size|bad_alloc"),
        cause=Cause.OOM_KV_POOL,
        config_fault=True,
        decisive=True,
        advice="lower ctx_size: the context does not fit into memory",
    ),
    Rule(
        tokens=(
            "model not found:",
            "failed to open gguf file",
            "gguf_init_from_file: failed",
            "invalid magic",
            "model is corrupted or incomplete",
        ),
        cause=Cause.MODEL_MISSING,
        config_fault=False,
        decisive=True,
        fatal=True,
        advice="the model file is not on the host or is no GGUF file",
    ),
    Rule(
        tokens=("couldn't bind http server socket", "failed to bind ip address", "address already in use"),
        cause=Cause.PORT_IN_USE,
        config_fault=False,
        decisive=True,
        fatal=True,
        advice="another process holds the port; find it with `ss -ltnp`",
    ),
    Rule(
        tokens=("unknown model architecture",),
        cause=Cause.DEPENDENCY_MISMATCH,
        config_fault=False,
        decisive=True,
        fatal=True,
        advice="this llama.cpp is too old for the model",
    ),
    Rule(
        tokens=("no module named", "importerror", "undefined symbol"),
        cause=Cause.DEPENDENCY_MISMATCH,
        config_fault=False,
        decisive=True,
        fatal=True,
        advice="the xllamacpp package is missing or does not fit this machine",
    ),
    Rule(
        tokens=("ggml_assert(", "ggml_abort", "terminate called after throwing"),
        cause=Cause.ENGINE_BUG,
        config_fault=None,
        decisive=True,
        fatal=True,
        advice="llama.cpp stopped at one of its own checks",
    ),
    Rule(
        tokens=("out of memory: killed process",),
        cause=Cause.HOST_OOM,
        config_fault=None,
        decisive=True,
        fatal=True,
        advice="the kernel ended the server for want of memory",
    ),
)


def settle(rule: Rule, line: str, moment: Moment) -> Finding:
    """Add to a rule what was announced last."""
    cause, advice = rule.cause, rule.advice
    if cause is Cause.UNKNOWN:
        cause = Cause.OOM_KV_POOL if _CONTEXT in moment.traits else Cause.OOM_WEIGHTS
        advice = _OUT_OF_MEMORY[cause]
    return Finding(cause=cause, config_fault=rule.config_fault, line=line, fatal=rule.fatal, advice=advice)


GRAMMAR = Grammar(
    engine=Engine(
        processes=("llama", "python"),
        own_faults=CRASHES | {signal.SIGABRT},  # it aborts at its own checks
        scrub=scrub,
    ),
    stages=("args", "load_model", "slots", "ready"),
    early=frozenset({"args"}),
    settings="llama-server: args=",
    progress=(
        Stage(text="load_model: loading model", name="load_model"),
        Stage(text="load_model: initializing, n_slots", name="slots"),
        Stage(text="init: model loaded", name="ready", is_up=True),
    ),
    traits=(Trait(name=_CONTEXT, text="llama_context:"),),
    rules=Rules(_RULES),
    settle=settle,
    deaths=("exiting due to ", "llama-server: error: "),
    steady=Steady(),
)
