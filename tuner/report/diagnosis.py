"""What one log tells of one death, ready to be told."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from tuner.model.outcome import Cause, Verdict
from tuner.model.plain import Json, plain
from tuner.report.cause_words import CAUSES, blame
from tuner.report.meaning import Asked, meaning


@dataclass(frozen=True, slots=True, kw_only=True)
class EvidenceLine:
    """A decisive line; ``line`` is its number in the log, from 1, None where it is not known."""

    line: int | None
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """A log's verdict in words.

    Attributes:
        engine: that wrote the log.
        is_guessed: nobody said so: its own words tell.
        stage: the last that the start reached; empty: none.
        what: happened.
        fault: whose it is, and why.
        evidence: the decisive lines.
        asked: the settings that the log names, as far as it does.
        means: for the settings.
        remarks: on how the log was read.
    """

    engine: str
    is_guessed: bool
    verdict: Verdict
    stage: str
    what: str
    fault: str
    evidence: tuple[EvidenceLine, ...]
    asked: Asked
    means: tuple[str, ...]
    remarks: tuple[str, ...] = ()

    @property
    def found(self) -> bool:
        """Whether there is an answer: a cause, or that nothing is wrong."""
        return self.verdict.cause is not Cause.UNKNOWN


def diagnosis_of(  # noqa: PLR0913  what is known of one death
    verdict: Verdict,
    *,
    engine: str,
    is_guessed: bool,
    stage: str,
    evidence: tuple[EvidenceLine, ...],
    asked: Asked,
    names: Collection[str],
    remarks: tuple[str, ...] = (),
) -> Diagnosis:
    """Put a verdict into words; ``names`` are those of all settings of the engine."""
    return Diagnosis(
        engine=engine,
        is_guessed=is_guessed,
        verdict=verdict,
        stage=stage,
        what=CAUSES[verdict.cause].what,
        fault=blame(verdict),
        evidence=evidence,
        asked=dict(asked),
        means=meaning(verdict, asked, names),
        remarks=remarks,
    )


def diagnosis_record(diagnosis: Diagnosis) -> dict[str, Json]:
    """Return it as JSON values, for a program; None is what is not known."""
    verdict = diagnosis.verdict
    return {
        "engine": diagnosis.engine,
        "engine_guessed": diagnosis.is_guessed,
        "cause": verdict.cause.value,
        "what": diagnosis.what,
        "stage": diagnosis.stage or None,
        "fault": diagnosis.fault,
        "config_fault": verdict.config_fault,
        "direction": plain(verdict.direction),
        "shortfall_bytes": verdict.shortfall_bytes,
        "viable_fraction": verdict.viable_fraction,
        "evidence": plain(diagnosis.evidence),
        "advice": verdict.advice or None,
        "asked": plain(diagnosis.asked),
        "means": list(diagnosis.means),
        "remarks": list(diagnosis.remarks),
    }
