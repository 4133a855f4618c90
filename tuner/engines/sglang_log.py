"""Follows SGLang's start in its log and says why a server died.

The earliest cause wins: what other ranks print afterwards is its consequence. The
parent's death by signal 9 explains nothing, it kills itself after every crash.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from signal import SIGTERM as SIGTERM_NUMBER

from tuner.engines import sglang_causes as causes
from tuner.engines.log_lines import LastLines, LineCutter, shorten
from tuner.engines.secrets import scrub
from tuner.engines.sglang_causes import Rule
from tuner.model.outcome import Cause, Ending, MemoryDirection, Verdict

_PREFIX = re.compile(r"^(?:\[\d{4}-\d\d-\d\d[^\]]*\] ?|\[rank\d+\]:\s?)+")
_EXCEPTION = re.compile(r"^(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Failure|Exit)\b(?=:|$)|^Exception(?=:|$)")
_FRAME = re.compile(r'^\s+File "')
_ARGUMENT_FRAME = re.compile(r"arg_groups/|server_args\.py|prepare_server_args")
_CHECKS = ("ValueError", "AssertionError", "TypeError", "KeyError")
_ALLOCATION = re.compile(
    r"Tried to allocate ([\d.]+) ([KMGT]?i?B|bytes).*?of which ([\d.]+) ([KMGT]?i?B|bytes) is free", re.IGNORECASE
)
_VIABLE = re.compile(r"Raise --mem-fraction-static above ([\d.]*\d)")
_REST = re.compile(r"total_rest_memory=(-?[\d.]*\d)")
_SPECULATES = re.compile(r"speculative_algorithm['\"]?\s*[:=]\s*['\"]\w")
_UNITS = {"B": 1, "BYTES": 1, "KIB": 1 << 10, "KB": 1 << 10, "MIB": 1 << 20, "MB": 1 << 20}
_UNITS |= {"GIB": 1 << 30, "GB": 1 << 30, "TIB": 1 << 40, "TB": 1 << 40}

_STAGES = ("", "args", "load_weights", "load_draft", "pool", "capture", "ready")
# Text of a progress line and the stage it proves; weight lines are counted instead.
_SETTINGS = "server_args="
_PROGRESS = (
    (_SETTINGS, "args"),
    ("Mamba Cache is allocated.", "pool"),
    ("KV Cache is allocated.", "pool"),
    ("Memory pool end.", "pool"),
    ("CUDA graph begin", "capture"),
    ("cuda graph begin", "capture"),
    ("max_total_num_tokens=", "capture"),
    ("The server is fired up and ready to roll!", "ready"),
)
_WEIGHTS_BEGIN, _WEIGHTS_END = "Load weight begin", "Load weight end"
_PROGRESS_WORDS = (*(text for text, _ in _PROGRESS), _WEIGHTS_BEGIN, _WEIGHTS_END)
_RANK = re.compile(r"\b(?:DP\d+ )?(?:TP\d+)(?: (?:PP|EP)\d+)*\]")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Finding:
    """A rule that applied, with what the moment adds to it."""

    rule: Rule
    cause: Cause
    line: str
    direction: MemoryDirection | None


class SglangLogReader:
    """Reads one start, piece by piece, in constant memory."""

    def __init__(self) -> None:
        self._cutter = LineCutter()
        self._last = LastLines()
        self._stage = ""
        self._begins: dict[str, int] = {}
        self._loading = 0
        self._started = False
        self._speculates = False
        self._argument_frame = False
        self._sure: _Finding | None = None
        self._hint: _Finding | None = None
        self._exception = ""
        self._death = ""
        self._unbalanced = ""
        self._terminated = False
        self._lives = 0

    def feed(self, text: str) -> None:
        """Take the next piece."""
        self._read(self._cutter.cut(text))

    @property
    def stage(self) -> str:
        """``args``, ``load_weights``, ``load_draft``, ``pool``, ``capture`` or ``ready``; empty before."""
        return self._stage

    @property
    def fatal(self) -> bool:
        """A death was announced, or a cause was seen that ends the server by itself."""
        return bool(self._death) or (self._sure is not None and self._sure.rule.fatal)

    @property
    def is_configuration_fault(self) -> bool:
        """The cause seen so far names the configuration."""
        return self._sure is not None and self._sure.rule.config_fault is True and not self._unbalanced

    def diagnose(self, ending: Ending) -> Verdict:
        """Name the earliest cause; stops come before causes that a stop itself can bring about."""
        self._read(self._cutter.rest())
        finding = self._sure
        is_certain = finding is not None and finding.rule.config_fault is True
        if not is_certain and ending.signals_sent:
            return self._stopped(Cause.OWN_STOP, "we stopped it")
        if finding is None and (self._terminated or ending.exit_signal == SIGTERM_NUMBER):
            return self._stopped(Cause.OPERATOR_STOP, "someone else sent SIGTERM; nobody may touch a unit under trial")
        finding = finding or (self._hint if self.fatal or ending.exit_status or ending.exit_signal else None)
        if finding is None:
            return self._unknown(ending.exit_status, ending.exit_signal)
        return self._explain(finding)

    # ------------------------------------------------------------------ reading

    def _read(self, lines: list[str]) -> None:
        if not lines:
            return
        self._last.add(lines)
        # Most of a log is decode statistics: single lines are looked at only where a piece holds a trigger.
        piece = "\n".join(lines)
        lowered = piece.lower()
        if not any(trigger in lowered for trigger in causes.TRIGGERS) and not any(
            word in piece for word in _PROGRESS_WORDS
        ):
            return
        for line in lines:
            self._read_line(line)

    def _read_line(self, line: str) -> None:
        self._follow_progress(line)
        if _SETTINGS in line:
            return  # every flag's name stands in it, and none is a cause
        lowered = line.lower()
        if not any(trigger in lowered for trigger in causes.TRIGGERS):
            return
        message = _PREFIX.sub("", line)
        if causes.SIGTERM in lowered:
            self._terminated = True
        if causes.UNBALANCED in lowered and not self._unbalanced:
            self._unbalanced = line
        if "traceback (most recent call last)" in lowered:
            self._argument_frame = False
        if _FRAME.match(line):
            self._argument_frame = self._argument_frame or _ARGUMENT_FRAME.search(line) is not None
            return
        is_exception = _EXCEPTION.match(message) is not None
        self._weigh(line, lowered, message if is_exception else None)
        if is_exception:
            self._exception = self._exception or line
        if not self._death and any(death in lowered for death in causes.DEATHS):
            self._death = line

    def _follow_progress(self, line: str) -> None:
        if _WEIGHTS_BEGIN in line:
            found = _RANK.search(line)
            rank = found.group() if found else ""
            self._begins[rank] = self._begins.get(rank, 0) + 1
            self._loading += 1
            self._reach("load_weights" if self._begins[rank] == 1 else "load_draft")
        elif _WEIGHTS_END in line:
            self._loading -= 1
        for text, stage in _PROGRESS:
            if text not in line:
                continue
            if text == _SETTINGS:
                self._begin(line)
            self._reach(stage)
            self._started = self._started or text == "max_total_num_tokens="

    def _begin(self, line: str) -> None:
        """Start anew: a service manager may have started the server again into the same log."""
        self._lives += 1
        self._stage, self._begins, self._loading, self._started = "", {}, 0, False
        self._speculates = _SPECULATES.search(line) is not None

    def _reach(self, stage: str) -> None:
        if _STAGES.index(stage) > _STAGES.index(self._stage):
            self._stage = stage

    def _weigh(self, line: str, lowered: str, exception: str | None) -> None:
        """Keep the first cause there is; words outside an exception are only a hint, unless decisive."""
        if self._sure is not None or self._terminated:
            return
        rule = self._rule(line, lowered, exception)
        if rule is None:
            return
        finding = _Finding(
            rule=rule, cause=self._cause(rule), line=line, direction=hybrid_direction(rule, line, self._speculates)
        )
        if self._lives > 1 and rule.direction is not None:
            # The memory that a later life lacks may be what the killed one before it has not given back yet.
            finding = replace(finding, rule=replace(rule, config_fault=None), direction=None)
        if rule.decisive or exception is not None:
            self._sure = finding
        elif self._hint is None and causes.UNBALANCED not in lowered:
            self._hint = finding

    def _rule(self, line: str, lowered: str, exception: str | None) -> Rule | None:
        if causes.WATCHDOG.search(line):
            return None if "soft=true" in lowered else causes.WATCHDOG_RULE
        if causes.UNRESPONSIVE in lowered:
            return causes.UNRESPONSIVE_RULE
        if not self._stage and causes.ARGPARSE.search(line):
            return causes.ARGUMENTS_RULE
        for rule in causes.RULES:
            if any(token in lowered for token in rule.tokens):
                return rule
        is_early = self._stage in ("", "args")
        if exception is not None and is_early and exception.partition(":")[0].rpartition(".")[2] in _CHECKS:
            return causes.ARGUMENTS_RULE if self._argument_frame else causes.EARLY_CHECK_RULE
        return None

    def _cause(self, rule: Rule) -> Cause:
        """Turn a CUDA out-of-memory into the cause its moment makes it."""
        if rule.cause is not Cause.UNKNOWN:
            return rule.cause
        if self._started or self._stage == "ready":
            return Cause.OOM_SERVING
        if self._stage == "capture":
            return Cause.OOM_GRAPH_CAPTURE
        if self._stage == "pool" or (self._stage in ("load_weights", "load_draft") and self._loading <= 0):
            return Cause.OOM_KV_POOL
        return Cause.OOM_WEIGHTS

    # ------------------------------------------------------------------ verdicts

    def _explain(self, finding: _Finding) -> Verdict:
        allocation = _ALLOCATION.search(finding.line)
        viable = _VIABLE.search(finding.line)
        direction, advice = finding.direction, finding.rule.advice or _OOM_ADVICE.get(finding.cause, "")
        if finding.cause is Cause.OOM_WEIGHTS:
            direction = None  # weights do not ask for the fraction
        diagnosis = Verdict(
            cause=finding.cause,
            config_fault=finding.rule.config_fault,
            direction=direction,
            shortfall_bytes=_shortfall(allocation) if allocation else None,
            viable_fraction=float(viable.group(1)) if viable else None,
            evidence=self._evidence(finding.line),
            advice=advice,
        )
        if self._unbalanced and diagnosis.config_fault is True and diagnosis.direction is not None:
            return replace(
                diagnosis,
                config_fault=None,
                advice=f"{advice}; but the GPUs' free memory differed at the start, another process may have held some",
            )
        return diagnosis

    def _evidence(self, *lines: str) -> tuple[str, ...]:
        wanted = [*lines, self._unbalanced, self._death]
        return tuple(shorten(scrub(line)) for line in dict.fromkeys(wanted) if line)

    def _stopped(self, cause: Cause, advice: str) -> Verdict:
        return Verdict(cause=cause, config_fault=False, evidence=self._tail(3), advice=advice)

    def _unknown(self, exit_status: int | None, exit_signal: int | None) -> Verdict:
        ended = f"signal {exit_signal}" if exit_signal is not None else f"status {exit_status}"
        first = (shorten(scrub(self._exception)),) if self._exception else ()
        return Verdict(
            cause=Cause.UNKNOWN,
            config_fault=None,
            evidence=(*first, *(line for line in self._tail(9) if line not in first)),
            advice=f"it ended with {ended} at stage {self._stage or 'start'} and no known line says why",
        )

    def _tail(self, count: int) -> tuple[str, ...]:
        return tuple(shorten(scrub(line)) for line in self._last.get()[-count:])


_OOM_ADVICE = {
    Cause.OOM_WEIGHTS: "the weights alone do not fit; use more GPUs, a smaller type, or no draft model",
    Cause.OOM_KV_POOL: "lower mem_fraction_static: the caches were sized beyond what is free",
    Cause.OOM_GRAPH_CAPTURE: "lower mem_fraction_static or the number of draft tokens: CUDA graphs found no room",
    Cause.OOM_SERVING: "lower mem_fraction_static or the number of draft tokens: there was no room left under load",
}


def hybrid_direction(rule: Rule, line: str, speculates: bool) -> MemoryDirection | None:
    """Say which way a rule points; with memory left, a state pool that is too big means too many drafts.

    SGLang keeps one intermediate state per running request and draft token (facts 2.2).
    """
    rest = _REST.search(line)
    if rest is not None and float(rest.group(1)) > 0 and speculates:
        return MemoryDirection.TOO_MANY_DRAFT_TOKENS
    return rule.direction


def _shortfall(allocation: re.Match[str]) -> int | None:
    asked, asked_unit, free, free_unit = allocation.groups()
    missing = float(asked) * _UNITS[asked_unit.upper()] - float(free) * _UNITS[free_unit.upper()]
    # Fragmentation: enough was free, though not in one piece; then nothing is known to be missing.
    return round(missing) if missing > 0 else None
