"""What an engine's log looks like and what it means: tables and two small functions, no reading.

Another engine is one :class:`Grammar`; :class:`tuner.engines.logs.reader.GrammarReader` does the rest.
All texts are lower case unless something else is said.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tuner.engines.logs import services
from tuner.engines.logs.findings import Finding
from tuner.engines.logs.judging import Engine
from tuner.engines.logs.lines import Steady
from tuner.model.outcome import Cause, MemoryDirection


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One kind of line and what it means.

    Attributes:
        tokens: texts of which one must be in the line.
        also: a text that must be in the line besides.
        unless: a text with which the line explains nothing, whatever other rules say.
        shape: what must be found in the line besides, as it was written; None: nothing more.
        is_early: it means this only as long as nothing was loaded.
        cause: UNKNOWN for what the moment turns into a cause (out of GPU memory).
        config_fault: as in :class:`tuner.model.outcome.Verdict`.
        direction: for memory causes.
        decisive: true wherever the line stands, also outside an exception.
        fatal: the server cannot live after it.
        is_weak: it is only a hint, although it was raised: what was raised besides may tell more.
        refines: a cause that it takes the place of, where it belongs to the same record of the log.
        advice: one sentence for the engineer.
    """

    tokens: tuple[str, ...] = ()
    also: str = ""
    unless: str = ""
    shape: re.Pattern[str] | None = None
    is_early: bool = False
    cause: Cause
    config_fault: bool | None
    direction: MemoryDirection | None = None
    decisive: bool = False
    fatal: bool = False
    is_weak: bool = False
    refines: Cause | None = None
    advice: str = ""


class Rules:
    """Looks a line up in a table of rules; the first rule that fits wins."""

    def __init__(self, rules: Sequence[Rule]) -> None:
        self._tokens = tuple((token, rule) for rule in rules for token in rule.tokens)

    @property
    def tokens(self) -> tuple[str, ...]:
        """The texts of which every line with a rule holds one."""
        return tuple(token for token, _ in self._tokens)

    def find(self, line: str, lowered: str, *, is_early: bool) -> Rule | None:
        """Return the rule for a line; None: there is none."""
        for token, rule in self._tokens:
            if token not in lowered or rule.also not in lowered or (rule.is_early and not is_early):
                continue
            if rule.unless and rule.unless in lowered:
                return None
            if rule.shape is None or rule.shape.search(line):
                return rule
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """A line that proves how far a start has come.

    Attributes:
        text: of the line.
        name: of the stage.
        is_up: from here on the engine answers requests, be they its own first ones.
    """

    text: str
    name: str
    is_up: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Loading:
    """Lines between which a rank loads weights.

    Attributes:
        begin: text of the line before.
        end: text of the line after.
        stages: of the first time that a rank loads, of the second, …; the last serves all that follow.
    """

    begin: str
    end: str
    stages: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """What a line of a traceback says of the place where an exception was raised.

    Attributes:
        mark: a word for it, for the grammar's own functions.
        shape: found in such a line.
        stage: that a start must have reached to get there; empty: it tells nothing.
    """

    mark: str
    shape: re.Pattern[str]
    stage: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trait:
    """Something that a line says of this server's settings.

    Attributes:
        name: a word for it, for the grammar's own functions.
        text: of the line.
        shape: what must be found in the line besides; None: nothing more.
    """

    name: str
    text: str
    shape: re.Pattern[str] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """When and where a line was written.

    Attributes:
        stage: the last that was reached; empty before any.
        is_early: nothing was loaded so far.
        is_up: requests are answered, be they the engine's own first ones.
        is_loading: the rank that writes is loading weights; any rank, where it does not say who it is.
        loads: how often the rank that did so most often has begun to load weights.
        lives: how often the server was started in this log.
        rank: that writes; empty: the parent, or nobody says.
        marks: of the lines of the traceback so far; empty outside any.
        traits: of this server's settings.
    """

    stage: str
    is_early: bool
    is_up: bool
    is_loading: bool
    loads: int
    lives: int
    rank: str
    marks: frozenset[str]
    traits: frozenset[str]


def no_rule(kind: str, lowered: str, moment: Moment) -> Rule | None:  # noqa: ARG001 - the form of a hook
    """Explain no exception that the table does not."""
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Grammar:
    """All that reading one engine's log needs to know.

    Attributes:
        engine: what judging needs to know.
        stages: names, in order; the last one is the one in which it serves.
        early: stages before anything is loaded, besides none at all.
        settings: how a message begins, as it is written, that tells the settings of a new start; the
            rest of it is read for traits only. Empty: starts are not told apart.
        identity: finds, in such a message, what makes two starts the same server; None: they all are.
        progress: lines that prove a stage.
        loading: lines around loading; None: the engine has none.
        traits: to look for.
        stamp: what the engine writes before a message.
        rank: who writes, inside that.
        exception: how the last line of a traceback begins; None: the engine prints none.
        traceback: how a traceback begins.
        frames: what its lines say.
        minor: lines before a traceback that costs one request only.
        rules: what lines mean.
        explain: returns the rule of an exception that the table does not know. It gets the kind's
            name without modules, the line in lower case, and the moment.
        settle: returns the finding of a rule that applies to a line at a moment.
        deaths: lines after which the server is lost; what killed it stands before them.
        stops: lines in which it says that it was told to end.
        doubt: lines that say that other processes may hold GPU memory.
        peers: lines of ranks that lost another one: never a cause.
        harmless: lines about something that the engine does without.
        requests: how messages begin, as they are written, in which prompts or answers stand.
        steady: lines that a healthy server writes for ever.
    """

    engine: Engine
    stages: tuple[str, ...]
    early: frozenset[str]
    settings: str = ""
    identity: re.Pattern[str] | None = None
    progress: tuple[Stage, ...] = ()
    loading: Loading | None = None
    traits: tuple[Trait, ...] = ()
    stamp: re.Pattern[str] | None = None
    rank: re.Pattern[str] | None = None
    exception: re.Pattern[str] | None = None
    traceback: str = ""
    frames: tuple[Frame, ...] = ()
    minor: tuple[str, ...] = ()
    rules: Rules
    explain: Callable[[str, str, Moment], Rule | None] = no_rule
    settle: Callable[[Rule, str, Moment], Finding]
    deaths: tuple[str, ...] = ()
    stops: tuple[str, ...] = ()
    doubt: tuple[str, ...] = ()
    peers: tuple[str, ...] = ()
    harmless: tuple[str, ...] = ()
    requests: tuple[str, ...] = ()
    steady: Steady

    @property
    def triggers(self) -> tuple[str, ...]:
        """Texts of which a line must hold one to be looked at; endings of exceptions besides."""
        loading = () if self.loading is None else (self.loading.begin, self.loading.end)
        frames = ('file "',) if self.frames else ()
        return tuple(
            text
            for text in (
                *self.rules.tokens,
                *(stage.text for stage in self.progress),
                *(trait.text for trait in self.traits),
                *loading,
                *frames,
                *self.minor,
                *services.TRIGGERS,
                *self.deaths,
                *self.stops,
                *self.doubt,
                self.settings.lower(),
                self.traceback,
            )
            if text
        )
