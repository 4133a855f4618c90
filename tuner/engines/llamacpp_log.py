"""Follows llama.cpp's start in its log and says why it died."""

from __future__ import annotations

import re
import signal
from dataclasses import dataclass

from tuner.engines.log_lines import LastLines, LineCutter, shorten
from tuner.engines.secrets import scrub
from tuner.model.outcome import Cause, Ending, Verdict

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
            r"llama-server: error: --|the argument has been removed"
        ),
        cause=Cause.REJECTED_ARGUMENTS,
        config_fault=True,
        advice="the server refuses this command line",
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
# Texts of which a piece of log must hold one, lower case, for its lines to be looked at: requests log none.
_TRIGGERS = (
    "args=", "load_model", "model ", "error", "argument", "failed", "bad_alloc", "magic", "couldn't bind", "in use",
    "no module", "undefined symbol", "ggml_a", "terminate", "out of memory", "exiting",
)  # fmt: skip
_GIVEN_UP = re.compile(r"exiting due to |llama-server: error: ")
_OWN_FAULTS = frozenset({signal.SIGABRT, signal.SIGSEGV, signal.SIGILL, signal.SIGFPE, signal.SIGBUS})


class LlamaCppLogReader:
    """Reads one start, piece by piece, in constant memory."""

    def __init__(self) -> None:
        self._cutter = LineCutter()
        self._last = LastLines()
        self._stage = ""
        self._cause: tuple[_Rule, str] | None = None
        self._given_up = ""

    def feed(self, text: str) -> None:
        """Take the next piece."""
        self._read(self._cutter.cut(text))

    @property
    def stage(self) -> str:
        """``args``, ``load_model``, ``slots`` or ``ready``; empty before."""
        return self._stage

    @property
    def fatal(self) -> bool:
        """The server said that it gives up, or a cause was seen that ends it by itself."""
        return bool(self._given_up) or (self._cause is not None and self._cause[0].fatal)

    @property
    def is_configuration_fault(self) -> bool:
        """The cause seen so far names the configuration."""
        return self._cause is not None and self._cause[0].config_fault is True

    def diagnose(self, ending: Ending) -> Verdict:
        """Name the first cause in the log; a signal that nobody here sent comes last."""
        self._read(self._cutter.rest())
        if ending.signals_sent and not self.is_configuration_fault:
            return self._verdict(Cause.OWN_STOP, False, "we stopped it")
        if self._cause is not None:
            rule, line = self._cause
            lines = tuple(dict.fromkeys(shorten(scrub(text)) for text in (line, self._given_up) if text))
            return Verdict(cause=rule.cause, config_fault=rule.config_fault, evidence=lines, advice=rule.advice)
        if ending.exit_signal == signal.SIGTERM:
            return self._verdict(Cause.OPERATOR_STOP, False, "someone else sent SIGTERM")
        if ending.exit_signal in _OWN_FAULTS:
            return self._verdict(Cause.ENGINE_BUG, None, f"llama.cpp crashed with signal {ending.exit_signal}")
        ended = f"signal {ending.exit_signal}" if ending.exit_signal is not None else f"status {ending.exit_status}"
        advice = f"it ended with {ended} at stage {self._stage or 'start'} and no known line says why"
        return self._verdict(Cause.UNKNOWN, None, advice)

    def _read(self, lines: list[str]) -> None:
        self._last.add(lines)
        piece = "\n".join(lines).lower()
        if not any(trigger in piece for trigger in _TRIGGERS):
            return
        for line in lines:
            for text, stage in _STAGES:
                if text in line:
                    self._stage = stage
            if self._cause is None:
                self._cause = next(((rule, line) for rule in _RULES if rule.pattern.search(line)), None)
            if not self._given_up and _GIVEN_UP.search(line):
                self._given_up = line

    def _verdict(self, cause: Cause, config_fault: bool | None, advice: str) -> Verdict:
        evidence = tuple(shorten(scrub(line)) for line in self._last.get())
        return Verdict(cause=cause, config_fault=config_fault, evidence=evidence, advice=advice)
