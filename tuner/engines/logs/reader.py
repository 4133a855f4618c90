"""Follows one server's log by its engine's grammar.

It cuts the log, holds what was seen first, and asks :func:`tuner.engines.logs.judging.judge` in the end.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field, replace

from tuner.engines.logs.findings import Finding, Seen
from tuner.engines.logs.grammar import Grammar, Moment, Rule
from tuner.engines.logs.judging import judge
from tuner.engines.logs.lines import SERVED, LineCutter
from tuner.engines.logs.services import said
from tuner.engines.logs.shippers import bare
from tuner.model.outcome import Cause, Ending, Verdict

_ONLY_RAISED = frozenset(
    {Cause.REJECTED_ARGUMENTS, Cause.MODEL_MISSING, Cause.DEPENDENCY_MISMATCH, Cause.ENGINE_BUG, Cause.HOST_OOM}
)
"""Causes whose words, where nothing was raised, are warnings; of the others they may be the last that was said."""
_OUTSIDE = {
    Cause.HOST_OOM: "the host ran out of main memory; look at `dmesg` and at what else runs there",
    Cause.HANG: "systemd's watchdog ended it",
    Cause.CUDA_FAULT: "the driver reports a GPU fault (Xid); look its number up in NVIDIA's list",
}


@dataclass(slots=True)
class _Life:
    """What is known of one start of the server; each rank counts for itself."""

    identity: tuple[str, ...] = ()
    is_up: bool = False
    begun: dict[str, int] = field(default_factory=dict)
    loading: dict[str, int] = field(default_factory=dict)
    traits: set[str] = field(default_factory=set)


class GrammarReader:
    """``ports.LogReader`` for an engine that has a grammar; constant memory, pieces may end anywhere."""

    def __init__(self, grammar: Grammar) -> None:
        self._grammar = grammar
        self._cutter = LineCutter(grammar.steady, grammar.triggers, has_exceptions=grammar.exception is not None)
        self._order = {name: place for place, name in enumerate(("", *grammar.stages))}
        self._seen = Seen()
        self._life = _Life()
        self._lives = 0
        self._is_past = False
        self._progress = deque[str](maxlen=8)
        self._rank = ""
        self._marks: set[str] = set()
        self._is_minor = False
        self._is_same_record = False

    # ------------------------------------------------------------------ the port

    def feed(self, text: str) -> None:
        """Take the next piece."""
        self._take(self._cutter.cut(text))

    @property
    def stage(self) -> str:
        """The last start-up stage seen; empty before any."""
        return self._seen.stage

    @property
    def fatal(self) -> bool:
        """The log says that the server cannot live."""
        return self._seen.is_lost

    @property
    def is_configuration_fault(self) -> bool:
        """The cause seen so far names the configuration."""
        sure = self._seen.sure
        return sure is not None and sure.config_fault is True and not sure.other_holder and not self._seen.doubt

    def diagnose(self, ending: Ending) -> Verdict:
        """Say why the server died."""
        self._take(self._cutter.rest())
        return judge(replace(self._seen, last=self._cutter.last()), ending, self._grammar.engine)

    # ------------------------------------------------------------------ lines

    def _take(self, lines: list[str]) -> None:
        for line in lines:
            if line == SERVED:
                self._serve_on()
            else:
                self._read(line)

    def _read(self, line: str) -> None:
        grammar = self._grammar
        message = bare(line)
        if len(message) < len(line) and self._is_outside(line, message):
            return
        stamp = grammar.stamp.match(message) if grammar.stamp is not None else None
        text = message if stamp is None else message[stamp.end() :]
        if text.startswith(grammar.requests):
            return  # a prompt may quote anything
        lowered = text.lower()
        if grammar.settings and text.startswith(grammar.settings):
            self._begin(line, text, lowered)
            return  # every flag's name stands in it, and none is a cause
        prefix = "" if stamp is None else stamp.group()
        self._is_same_record &= not prefix or prefix.startswith("[rank")
        if self._is_known and not self._is_same_record:
            return  # what comes now are last words, of which there may be megabytes
        if self._is_frame(text):
            return
        self._note_traits(text, lowered)
        self._follow(line, prefix, lowered)
        self._weigh(line, prefix, text, lowered)

    @property
    def _is_known(self) -> bool:
        return self._seen.sure is not None and bool(self._seen.death)

    def _is_outside(self, line: str, message: str) -> bool:
        """Take what a service manager or the kernel says; whether the line is one of theirs."""
        found = said(line[: len(line) - len(message)], message, self._grammar.engine.processes)
        if found is None:
            return False
        seen = self._seen
        if seen.stop or self._is_known:
            return True
        if found.cause is not None:
            if seen.sure is None or seen.has_recovered:
                advice = _OUTSIDE[found.cause]
                finding = Finding(cause=found.cause, config_fault=None, line=line, stage=seen.stage, advice=advice)
                is_sure = found.cause is not Cause.CUDA_FAULT
                seen = self._troubled(exception=seen.exception)
                self._seen = replace(seen, sure=finding) if is_sure else replace(seen, hint=seen.hint or finding)
        elif found.is_stop:
            self._seen = replace(seen, stop=line)
        elif found.is_death and not seen.death:
            self._die(line)
        return True

    def _die(self, line: str) -> None:
        """Note that the server is lost, and not by what it survived."""
        seen = self._seen
        if seen.has_recovered:
            is_kept = seen.hint is not None and seen.hint.cause is Cause.HANG  # schedulers decode on for nobody
            seen = replace(seen, sure=None, hint=seen.hint if is_kept else None, exception="", has_recovered=False)
        self._seen = replace(seen, death=line)

    # ------------------------------------------------------------------ progress

    def _begin(self, line: str, text: str, lowered: str) -> None:
        """Begin anew: a service manager may have started the server again into the same log."""
        if line in self._progress:
            return
        self._progress.clear()
        self._progress.append(line)
        found = () if self._grammar.identity is None else tuple(self._grammar.identity.findall(text))
        seen, before = self._seen, self._life
        is_another = self._lives > 0 and found != before.identity
        if is_another or seen.has_recovered or (seen.stop and not seen.is_troubled):
            # Another configuration, or one that was ended in good health: nothing before concerns this start.
            seen, self._lives, self._is_past = Seen(), 0, False
        else:
            self._is_past = self._is_past or seen.is_troubled
        self._lives += 1
        self._life = _Life(identity=found)
        self._note_traits(text, lowered)
        self._marks.clear()
        self._is_minor = False
        self._seen = replace(seen, stage=self._grammar.stages[0], is_serving=False)

    def _note_traits(self, text: str, lowered: str) -> None:
        for trait in self._grammar.traits:
            if trait.text in lowered and (trait.shape is None or trait.shape.search(text)):
                self._life.traits.add(trait.name)

    def _follow(self, line: str, prefix: str, lowered: str) -> None:
        loading = self._grammar.loading
        is_loading = loading is not None and (loading.begin in lowered or loading.end in lowered)
        proven = [stage for stage in self._grammar.progress if stage.text in lowered]
        if not proven and not is_loading:
            return
        if line in self._progress:
            return  # a shipper sends twice what was not acknowledged
        self._progress.append(line)
        if loading is not None and is_loading:
            self._count(self._rank_in(prefix), loading.stages, is_begin=loading.end not in lowered)
        for stage in proven:
            self._reach(stage.name)
            self._life.is_up |= stage.is_up

    def _count(self, rank: str, stages: tuple[str, ...], *, is_begin: bool) -> None:
        life = self._life
        if not is_begin:
            life.loading[rank] = max(0, life.loading.get(rank, 0) - 1)
            return
        life.loading[rank] = life.loading.get(rank, 0) + 1
        life.begun[rank] = life.begun.get(rank, 0) + 1
        self._reach(stages[min(life.begun[rank], len(stages)) - 1])

    def _reach(self, stage: str) -> None:
        if self._order[stage] <= self._order[self._seen.stage]:
            return
        is_over = self._seen.hint is not None and self._seen.sure is None and not self._is_past
        hint = None if is_over and not self._seen.is_lost else self._seen.hint  # the start went on after it
        self._seen = replace(self._seen, stage=stage, is_serving=stage == self._grammar.stages[-1], hint=hint)

    def _serve_on(self) -> None:
        """Note that the server served, and survived what was seen if it is something that a server may survive."""
        if not self._seen.stage and not self._is_known:
            self._reach(self._grammar.stages[-1])  # the head of this log is gone
            self._life.is_up = True
        seen = self._seen
        if seen.is_troubled and not self._is_past and seen.is_serving and not seen.is_lost and not seen.has_recovered:
            self._seen = replace(seen, has_recovered=True)

    # ------------------------------------------------------------------ causes

    def _is_frame(self, text: str) -> bool:
        """Take what a line of a traceback says of where it was."""
        if not self._grammar.frames or not text.lstrip().startswith('File "'):
            return False
        self._marks |= {frame.mark for frame in self._grammar.frames if frame.shape.search(text)}
        return True

    def _weigh(self, line: str, prefix: str, text: str, lowered: str) -> None:
        """Keep the first cause there is; words outside an exception are only a hint, unless decisive."""
        grammar, seen = self._grammar, self._seen
        if prefix:
            self._is_minor = False
        if not seen.stop and (prefix or grammar.stamp is None) and _holds(lowered, grammar.stops):
            self._seen = replace(self._seen, stop=line)
            return
        is_doubt = _holds(lowered, grammar.doubt)
        if is_doubt and not seen.doubt:
            self._seen = replace(self._seen, doubt=line)
        if _holds(lowered, grammar.minor):
            self._is_minor = True
        if grammar.traceback and grammar.traceback in lowered:
            self._marks.clear()
            if prefix:
                self._rank = self._rank_in(prefix)
        if self._seen.stop or self._is_minor:
            return
        found = grammar.exception.match(text) if grammar.exception is not None else None
        kind = "" if found is None else found.group()
        self._judge(line, text, lowered, kind, is_doubt=is_doubt)
        if kind and (not self._seen.exception or self._seen.has_recovered):
            self._seen = self._troubled(exception=line)
        if not self._seen.death and _holds(lowered, grammar.deaths):
            self._die(line)

    def _judge(self, line: str, text: str, lowered: str, kind: str, *, is_doubt: bool) -> None:
        """Keep what a line explains, unless an earlier one that it did not survive explained it."""
        seen = self._seen
        if seen.sure is not None and not seen.has_recovered and not self._is_same_record:
            return
        if kind:
            self._infer_stage()
        rule = self._rule(text, lowered, kind)
        if rule is None:
            return
        if seen.sure is not None and not seen.has_recovered and rule.refines is not seen.sure.cause:
            return
        finding = replace(self._grammar.settle(rule, line, self._moment()), stage=self._seen.stage)
        if rule.decisive or (kind and not rule.is_weak) or (rule.refines is not None and seen.sure is not None):
            self._seen = replace(self._troubled(exception=self._seen.exception), sure=finding)
            self._is_same_record = True
            return
        is_told = (bool(kind) or rule.cause not in _ONLY_RAISED) and not is_doubt
        if is_told and (self._seen.hint is None or self._seen.has_recovered):
            self._seen = replace(self._troubled(exception=self._seen.exception), hint=finding)

    def _rule(self, text: str, lowered: str, kind: str) -> Rule | None:
        grammar = self._grammar
        if _holds(lowered, grammar.peers) or (not kind and _holds(lowered, grammar.harmless)):
            return None
        found = grammar.rules.find(text, lowered, is_early=self._is_early)
        if found is not None or not kind:
            return found
        return grammar.explain(kind.rpartition(".")[2], lowered, self._moment())

    @property
    def _is_early(self) -> bool:
        return not self._seen.stage or self._seen.stage in self._grammar.early

    def _troubled(self, *, exception: str) -> Seen:
        """Return what was seen, without what the server has survived, once there is new trouble."""
        if not self._seen.has_recovered:
            return replace(self._seen, exception=exception)
        is_new = exception != self._seen.exception
        return replace(self._seen, sure=None, hint=None, exception=exception if is_new else "", has_recovered=False)

    def _infer_stage(self) -> None:
        """Learn from a traceback how far the start had come, where the head of the log is gone."""
        if not self._seen.stage:
            proven = (frame.stage for frame in self._grammar.frames if frame.mark in self._marks and frame.stage)
            self._reach(max(proven, key=self._order.__getitem__, default=""))

    def _moment(self) -> Moment:
        life, seen = self._life, self._seen
        ranks = (self._rank,) if self._rank in life.loading else tuple(life.loading)
        return Moment(
            stage=seen.stage,
            is_early=self._is_early,
            is_up=life.is_up or seen.is_serving,
            is_loading=any(life.loading[rank] for rank in ranks),
            loads=max(life.begun.values(), default=0),
            lives=self._lives,
            rank=self._rank,
            marks=frozenset(self._marks),
            traits=frozenset(life.traits),
        )

    def _rank_in(self, prefix: str) -> str:
        found = self._grammar.rank.search(prefix) if self._grammar.rank is not None else None
        return found.group() if found else ""


def _holds(line: str, texts: tuple[str, ...]) -> bool:
    for text in texts:  # noqa: SIM110 - twice as fast here as any() with a generator
        if text in line:
            return True
    return False
