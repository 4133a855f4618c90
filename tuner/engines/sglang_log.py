"""Follows SGLang's start in its log and knows what its lines say of a death.

The earliest cause wins: what other ranks print afterwards is its consequence. The
parent's death by signal 9 explains nothing, it kills itself after every crash.
"""

from __future__ import annotations

import re
from collections import deque
from dataclasses import replace

from tuner.engines import sglang_causes as causes
from tuner.engines.logs.findings import Finding, Rule, Rules
from tuner.engines.logs.judging import Engine
from tuner.engines.logs.reader import LogFollower
from tuner.engines.secrets import scrub
from tuner.engines.sglang_memory import other_holder, shortfall_bytes, viable_fraction
from tuner.model.outcome import Cause, MemoryDirection

_STAMP = re.compile(r"^(?:\[\d{4}-\d\d-\d\d[ T][^\]]*\] ?|\[rank\d+\]:\s?)+")
_RANK = re.compile(r"\b(?:DP\d+ )?TP\d+(?: (?:PP|EP)\d+)*(?=\])")
_EXCEPTION = re.compile(
    r"^(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Failure|Exit|Timeout|Enabled)\b(?=:|$)|^Exception(?=:|$)"
)
_FRAME = re.compile(r'^\s*File "')
_ARGUMENT_FRAME = re.compile(r"arg_groups/|server_args\.py|prepare_server_args")
_SPECULATION_FRAME = re.compile(r"/speculative/|, in \w*(?:verify|draft)\w*$")
_CHECKS = ("ValueError", "AssertionError", "TypeError", "KeyError")
_SPECULATES = re.compile(r"speculative_algorithm['\"]?\s*[:=]\s*['\"]\w")
_REST = re.compile(r"total_rest_memory=(-?[\d.]*\d)")

_STAGES = ("", "args", "load_weights", "load_draft", "pool", "capture", "ready")
# Text of a progress line and the stage it proves; weight lines are counted instead.
_PROGRESS = (
    ("mamba cache is allocated.", "pool"),
    ("kv cache is allocated.", "pool"),
    ("memory pool end.", "pool"),
    ("cuda graph begin", "capture"),
    ("max_total_num_tokens=", "capture"),
    ("the server is fired up and ready to roll!", "ready"),
)
_SETTINGS = "server_args="
_WEIGHTS_BEGIN, _WEIGHTS_END = "load weight begin", "load weight end"
_TRACEBACK = "traceback (most recent call last)"
_TRIGGERS = (
    *causes.TRIGGERS, *(text for text, _ in _PROGRESS), _SETTINGS, _WEIGHTS_BEGIN, _WEIGHTS_END, _TRACEBACK, 'file "'
)  # fmt: skip
_RULES = Rules(causes.RULES)
_ENGINE = Engine(processes=("sglang", "python", "launch_server"), own_faults=frozenset(), scrub=scrub)


class SglangLogReader(LogFollower):
    """Reads one start, piece by piece, in constant memory.

    Its stages are ``args``, ``load_weights``, ``load_draft``, ``pool``, ``capture`` and ``ready``.
    """

    def __init__(self) -> None:
        super().__init__(_ENGINE, causes.STEADY, _TRIGGERS)
        self._begins: dict[str, int] = {}
        self._loading: dict[str, int] = {}
        self._progress = deque[str](maxlen=8)
        self._is_up = False
        self._speculates = False
        self._lives = 0
        self._rank = ""
        self._argument_frame = False
        self._speculation_frame = False

    def read(self, line: str, message: str, lowered: str) -> None:
        """Take from one line what it says."""
        stamp = _STAMP.match(message)
        text = message if stamp is None else message[stamp.end() :]
        if text.startswith(causes.REQUESTS):
            return  # a prompt may quote anything
        if text.startswith(_SETTINGS):
            self._begin(line, text)
            return  # every flag's name stands in it, and none is a cause
        self._follow(line, lowered)
        if _FRAME.match(text):
            self._argument_frame |= _ARGUMENT_FRAME.search(text) is not None
            self._speculation_frame |= _SPECULATION_FRAME.search(text) is not None
            return
        if not self.seen.stop and stamp is not None and any(stop in lowered for stop in causes.STOPS):
            self.seen = replace(self.seen, stop=line)
        if causes.UNBALANCED in lowered and not self.seen.doubt:
            self.seen = replace(self.seen, doubt=line)
        if _TRACEBACK in lowered:
            self._begin_traceback(stamp)
        exception = _EXCEPTION.match(text)
        self._weigh(line, lowered, "" if exception is None else exception.group())
        if exception is not None and not self.seen.exception:
            self.seen = replace(self.seen, exception=line)
        if not self.seen.death and not self.seen.stop and any(death in lowered for death in causes.DEATHS):
            self.seen = replace(self.seen, death=line)

    # ------------------------------------------------------------------ progress

    def _begin(self, line: str, text: str) -> None:
        """Start anew: a service manager may have started the server again into the same log."""
        if line in self._progress:
            return
        self._progress.clear()
        self._progress.append(line)
        self._lives += 1
        self.live_again()
        self._begins, self._loading, self._is_up = {}, {}, False
        self._speculates = _SPECULATES.search(text) is not None
        self.seen = replace(self.seen, stage="args", is_serving=False)

    def _follow(self, line: str, lowered: str) -> None:
        is_weights = _WEIGHTS_BEGIN in lowered or _WEIGHTS_END in lowered
        stages = [stage for text, stage in _PROGRESS if text in lowered]
        if not stages and not is_weights:
            return
        if line in self._progress:
            return  # a shipper sends twice what was not acknowledged
        self._progress.append(line)
        if is_weights:
            self._count_weights(line, lowered)
        for stage in stages:
            self._reach(stage)
        self._is_up = self._is_up or "max_total_num_tokens=" in lowered or "ready" in stages

    def _count_weights(self, line: str, lowered: str) -> None:
        rank = _rank(line)
        if _WEIGHTS_END in lowered:
            self._loading[rank] = max(0, self._loading.get(rank, 0) - 1)
            return
        self._loading[rank] = self._loading.get(rank, 0) + 1
        self._begins[rank] = self._begins.get(rank, 0) + 1
        self._speculates |= self._begins[rank] > 1
        self._reach("load_weights" if self._begins[rank] == 1 else "load_draft")

    def _reach(self, stage: str) -> None:
        if _STAGES.index(stage) > _STAGES.index(self.seen.stage):
            self.seen = replace(self.seen, stage=stage, is_serving=stage == "ready")

    # ------------------------------------------------------------------ causes

    def _begin_traceback(self, stamp: re.Match[str] | None) -> None:
        self._argument_frame = self._speculation_frame = False
        if stamp is not None:
            self._rank = _rank(stamp.group())

    def _weigh(self, line: str, lowered: str, exception: str) -> None:
        """Keep the first cause there is; words outside an exception are only a hint, unless decisive."""
        if self.seen.sure is not None or self.seen.stop:
            return
        rule = self._rule(line, lowered, exception)
        if rule is None:
            return
        finding = self._finding(rule, line)
        if rule.decisive or exception:
            self.find(finding, is_sure=True)
        elif causes.UNBALANCED not in lowered:
            self.find(finding, is_sure=False)

    def _rule(self, line: str, lowered: str, exception: str) -> Rule | None:
        is_early = self.seen.stage in ("", "args")
        if causes.WATCHDOG in lowered:
            return None if "soft=true" in lowered else causes.WATCHDOG_RULE
        if is_early and "error: " in lowered and causes.ARGPARSE.search(line):
            return causes.ARGUMENTS_RULE
        if causes.PEER_GONE in lowered:
            return None
        return _RULES.find(lowered) or self._rule_of_exception(exception.rpartition(".")[2], lowered, is_early=is_early)

    def _rule_of_exception(self, kind: str, lowered: str, *, is_early: bool) -> Rule | None:
        """Judge an exception that no rule knows by where it was raised."""
        if kind and causes.CUDA_ERROR in lowered:
            return causes.CUDA_RULE
        if kind == "MemoryError":
            return causes.HOST_MEMORY_RULE
        if is_early and kind in _CHECKS and not self._rank:
            return causes.ARGUMENTS_RULE if self._argument_frame else causes.EARLY_CHECK_RULE
        if kind and self._speculation_frame and self._is_up and kind != "ConnectionError":
            return causes.SPECULATION_BUG_RULE
        return None

    def _finding(self, rule: Rule, line: str) -> Finding:
        cause, direction, advice = rule.cause, rule.direction, rule.advice
        missing = None
        if cause is Cause.UNKNOWN:
            cause = self._memory_cause()
            direction, advice = causes.OUT_OF_MEMORY[cause]
            missing = shortfall_bytes(line)
        elif cause is Cause.OOM_STATE_POOL:
            direction = self._state_direction(line)
        # The memory that a later life lacks may be what the killed one before it has not given back yet.
        is_later_life = self._lives > 1 and rule.direction is not None
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

    def _memory_cause(self) -> Cause:
        """Turn a CUDA out-of-memory into the cause its moment makes it."""
        ranks = (self._rank,) if self._rank in self._loading else tuple(self._loading)
        if any(self._loading[rank] for rank in ranks):
            return Cause.OOM_WEIGHTS
        if self._is_up:
            return Cause.OOM_VERIFY_WORKSPACE if self._speculation_frame else Cause.OOM_SERVING
        if self.seen.stage == "capture":
            return Cause.OOM_GRAPH_CAPTURE
        return Cause.OOM_KV_POOL if self._begins else Cause.OOM_WEIGHTS

    def _state_direction(self, line: str) -> MemoryDirection:
        """Say which way a state pool that does not fit points.

        SGLang keeps one intermediate state per running request and draft token (facts 2.2): with memory
        left, it is the draft tokens that are too many.
        """
        rest = _REST.search(line)
        is_left = rest is None or float(rest.group(1)) > 0
        return causes.DRAFTS if is_left and self._speculates else causes.LOW


def _rank(line: str) -> str:
    found = _RANK.search(line)
    return found.group() if found else ""
