"""Follows llama.cpp's start in its log and says why it died."""

from __future__ import annotations

import re
import signal
from dataclasses import dataclass, replace

from tuner.engines.logs.findings import Finding
from tuner.engines.logs.judging import Engine
from tuner.engines.logs.lines import Steady
from tuner.engines.logs.reader import LogFollower
from tuner.engines.secrets import scrub
from tuner.model.outcome import Cause

_STAGES = (
    ("args=", "args"),
    ("load_model: loading model", "load_model"),
    ("load_model: initializing, n_slots", "slots"),
    ("init: model loaded", "ready"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rule:
    """One kind of line and what it means; ``fatal``: the server does not live after it."""

    pattern: re.Pattern[str]
    cause: Cause
    config_fault: bool | None
    advice: str
    fatal: bool = True


# In order; the first line that matches any is the cause, and of one line the first rule.
_RULES = (
    _Rule(
        pattern=re.compile(
            r"error: (unrecognized arguments|argument |the following arguments)|"
            r"llama-server: error: --|the argument has been removed|"
            r"error: invalid argument|error while handling argument"
        ),
        cause=Cause.REJECTED_ARGUMENTS,
        config_fault=True,
        advice="the server refuses this command line",
    ),
    _Rule(
        pattern=re.compile(r"unable to allocate \w+ buffer|failed to allocate \w+ buffer of size"),
        cause=Cause.UNKNOWN,  # weights or context: what was announced last
        config_fault=True,
        advice="",
        fatal=False,  # llama.cpp says itself, a line later, whether it gives up
    ),
    _Rule(
        pattern=re.compile(r"CUDA error: out of memory"),
        cause=Cause.OOM_SERVING,
        config_fault=True,
        advice="lower ctx_size, parallel or ubatch_size: there was no room left under load",
    ),
    _Rule(
        pattern=re.compile(r"CUDA error: "),
        cause=Cause.CUDA_FAULT,
        config_fault=None,
        advice="a GPU kernel failed; look at the driver's messages with `dmesg`",
    ),
    _Rule(
        pattern=re.compile(r"failed to allocate buffer for kv cache|failed to allocate .* buffer of size|bad_alloc"),
        cause=Cause.OOM_KV_POOL,
        config_fault=True,
        advice="lower ctx_size: the context does not fit into memory",
        fatal=False,  # llama.cpp says itself, a line later, whether it gives up
    ),
    _Rule(
        pattern=re.compile(r"model not found:|failed to open GGUF file|gguf_init_from_file: failed|invalid magic"),
        cause=Cause.MODEL_MISSING,
        config_fault=False,
        advice="the model file is not on the host or is no GGUF file",
    ),
    _Rule(
        pattern=re.compile(
            r"couldn't bind HTTP server socket|Failed to bind IP address|address already in use", re.IGNORECASE
        ),
        cause=Cause.PORT_IN_USE,
        config_fault=False,
        advice="another process holds the port; find it with `ss -ltnp`",
    ),
    _Rule(
        pattern=re.compile(r"No module named|ImportError|undefined symbol"),
        cause=Cause.DEPENDENCY_MISMATCH,
        config_fault=False,
        advice="the xllamacpp package is missing or does not fit this machine",
    ),
    _Rule(
        pattern=re.compile(r"GGML_ASSERT\(|GGML_ABORT|ggml_abort|terminate called after throwing"),
        cause=Cause.ENGINE_BUG,
        config_fault=None,
        advice="llama.cpp stopped at one of its own checks",
    ),
    _Rule(
        pattern=re.compile(r"Out of memory: Killed process"),
        cause=Cause.HOST_OOM,
        config_fault=None,
        advice="the kernel ended the server for want of memory",
    ),
)
_OUT_OF_MEMORY = {
    Cause.OOM_KV_POOL: "lower ctx_size: the context does not fit into memory",
    Cause.OOM_WEIGHTS: "the weights do not fit: offload fewer layers, or take a smaller quantisation",
}
# Texts of which a piece of log must hold one, lower case, for its lines to be looked at: requests log none.
_TRIGGERS = (
    "args=", "load_model", "model ", "llama_context:", "unable to allocate", "error", "argument", "failed",
    "bad_alloc", "magic", "couldn't bind", "in use", "no module", "undefined symbol", "ggml_a", "terminate",
    "out of memory", "exiting",
)  # fmt: skip
_GIVEN_UP = re.compile(r"exiting due to |llama-server: error: ")
_OWN_FAULTS = frozenset({signal.SIGABRT, signal.SIGSEGV, signal.SIGILL, signal.SIGFPE, signal.SIGBUS})

_ENGINE = Engine(processes=("llama", "python"), own_faults=_OWN_FAULTS, scrub=scrub)


class LlamaCppLogReader(LogFollower):
    """Reads one start, piece by piece, in constant memory.

    Its stages are ``args``, ``load_model``, ``slots`` and ``ready``.
    """

    def __init__(self) -> None:
        super().__init__(_ENGINE, Steady(), _TRIGGERS)
        self._has_context = False

    def read(self, line: str, message: str, lowered: str) -> None:  # noqa: ARG002 - its texts keep their case
        """Take from one line what it says."""
        for text, stage in _STAGES:
            if text in message:
                self.seen = replace(self.seen, stage=stage, is_serving=stage == "ready")
        self._has_context |= "llama_context:" in message
        rule = next((rule for rule in _RULES if rule.pattern.search(message)), None)
        if rule is not None:
            cause, advice = rule.cause, rule.advice
            if cause is Cause.UNKNOWN:
                cause = Cause.OOM_KV_POOL if self._has_context else Cause.OOM_WEIGHTS
                advice = _OUT_OF_MEMORY[cause]
            finding = Finding(cause=cause, config_fault=rule.config_fault, line=line, fatal=rule.fatal, advice=advice)
            self.find(finding, is_sure=True)
        if not self.seen.death and _GIVEN_UP.search(message):
            self.seen = replace(self.seen, death=line)
