"""A person's word on a trial, which stands above what was measured or diagnosed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum

from tuner.model.outcome import (
    Cause,
    Faulted,
    Infeasible,
    Interrupted,
    Measured,
    Outcome,
    TrialState,
    Verdict,
    violation,
)


class Word(Enum):
    """What a person says of a trial."""

    INFEASIBLE = "infeasible"  # the configuration's fault: it counts, and is never proposed again
    RETRY = "retry"  # it says nothing: it does not count, and the same configuration runs again
    MEASURED = "measured"  # an earlier word of a person was wrong: what was measured stands


@dataclass(frozen=True, slots=True, kw_only=True)
class Ruling:
    """A word with its reason.

    Attributes:
        order: id of the order it came with; the same order is never carried out twice.
        why: in the person's words, one line.
        who: ``user@machine``.
        at_s: Unix time.
    """

    order: str
    word: Word
    why: str
    who: str
    at_s: float

    def __str__(self) -> str:
        """Say it to a reader."""
        when = datetime.fromtimestamp(self.at_s, tz=UTC)
        return f"{self.word.value}, ruled by {self.who} at {when:%Y-%m-%d %H:%M:%S} UTC: {self.why}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Correction:
    """A ruling on a finished trial; ``before`` is how it had ended until then."""

    ruling: Ruling
    before: Outcome


def ended_by(
    ruling: Ruling, *, state: TrialState, level: int | None = None, ladder: Sequence[int] = (), stage: str = ""
) -> Infeasible | Interrupted:
    """Return the end of a trial that a person ended, or would have ended, in ``state``.

    An infeasible one is graded as a death there.

    Args:
        ruling: infeasible or retry.
        state: of the trial.
        level: the concurrency being measured; None: at none, or not known.
        ladder: all levels.
        stage: the last stage of loading that the log showed, in the engine's words.

    Raises:
        ValueError: the ruling does not end a trial.
    """
    if ruling.word is Word.RETRY:
        return Interrupted(state=state, why=f"{ruling.who}: {ruling.why}")
    if ruling.word is not Word.INFEASIBLE:
        raise ValueError(f"{ruling.word.value} ends no trial")
    index = ladder.index(level) if level in ladder else None
    return Infeasible(
        verdict=Verdict(cause=Cause.RULED, config_fault=True, stage=stage, evidence=(ruling.why, str(ruling))),
        state=state,
        level=level,
        violation=violation(state, level_index=index, levels=max(1, len(ladder)), stage=stage),
    )


def corrected(ruling: Ruling, outcome: Outcome, earlier: Sequence[Correction]) -> Outcome | str:
    """Return what a finished trial becomes by a person's word; a text says why it cannot.

    Args:
        ruling: the word.
        outcome: how it ended, as it stands.
        earlier: what people corrected before, oldest first.
    """
    if ruling.word is Word.MEASURED:
        measured = next((each.before for each in earlier if isinstance(each.before, Measured)), None)
        if isinstance(outcome, Measured) or measured is None:
            return "nobody has overruled what it measured; measured only takes back such a word"
        return measured
    if ruling.word is Word.INFEASIBLE:
        if isinstance(outcome, Infeasible):
            return f"it is infeasible already ({outcome.verdict.cause.value})"
    elif isinstance(outcome, Faulted | Interrupted):
        return "it does not count, and the same configuration was queued again"
    return ended_by(ruling, state=_state(outcome), level=_level(outcome), stage=_stage(outcome))


def _state(outcome: Outcome) -> TrialState:
    return TrialState.JUDGING if isinstance(outcome, Measured) else outcome.state


def _level(outcome: Outcome) -> int | None:
    return outcome.level if isinstance(outcome, Infeasible) else None


def _stage(outcome: Outcome) -> str:
    verdict = outcome.verdict if isinstance(outcome, Infeasible | Faulted) else None
    return "" if verdict is None else verdict.stage
