"""Reads back what a trial left: its manifest, its events, its result."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, TypeAlias

from pydantic import TypeAdapter

from tuner.model.outcome import TrialState
from tuner.model.record import LegResult
from tuner.model.space import Assignment
from tuner.model.trial import Capacity, Effective, Remark, StateEntered

_LEG = TypeAdapter(LegResult)
_BROKEN = (KeyError, TypeError, ValueError, AttributeError)
"""What reading a file comes to that another version of tuner wrote, or that was cut off."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LegDone:
    """A leg of load was finished; ``kind`` is ``ladder`` or ``soak``."""

    at_s: float
    kind: str
    leg: LegResult


Happening: TypeAlias = StateEntered | Remark | LegDone


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """A trial's folder, as far as it is written.

    Attributes:
        assignment: of the trial whose folder it is; None: the manifest cannot be read.
        happenings: in the order of time.
        effective: the configuration read back; None: the trial runs, or its server never came so far.
        gaps: what could not be read, a line each.
    """

    assignment: Assignment | None = None
    happenings: tuple[Happening, ...] = ()
    effective: Effective | None = None
    gaps: tuple[str, ...] = ()


def read_evidence(*, manifest: str | None, events: str | None, result: str | None) -> Evidence:
    """Read the texts of a trial's files; None: there is no such file (yet).

    An unfinished last line is being written, and no gap.
    """
    gaps: list[str] = []
    return Evidence(
        assignment=_assignment(manifest, gaps),
        happenings=_events(events, gaps),
        effective=_effective(result, gaps),
        gaps=tuple(gaps),
    )


def _assignment(text: str | None, gaps: list[str]) -> Assignment | None:
    if text is None:
        gaps.append("there is no manifest.json")
        return None
    try:
        return Assignment.of(json.loads(text)["assignment"])
    except _BROKEN:
        gaps.append("manifest.json cannot be read")
        return None


def _events(text: str | None, gaps: list[str]) -> tuple[Happening, ...]:
    if text is None:
        gaps.append("there is no events.jsonl")
        return ()
    lines = text.split("\n")[:-1]
    found: list[Happening] = []
    broken = 0
    for line in lines:
        try:
            found += _happenings(json.loads(line))
        except _BROKEN:
            broken += 1
    if broken:
        gaps.append(f"{broken} of {len(lines)} lines of events.jsonl cannot be read")
    return tuple(found)


def _happenings(entry: dict[str, Any]) -> list[Happening]:
    """Read a line; one of a kind that is not told is none."""
    match entry["event"]:
        case "StateEntered":
            return [
                StateEntered(
                    at_s=entry["at_s"],
                    state=TrialState(entry["state"]),
                    level=entry["level"],
                    detail=entry["detail"],
                )
            ]
        case "Remark":
            return [Remark(at_s=entry["at_s"], text=entry["text"])]
        case "LegFinished":
            return [LegDone(at_s=entry["at_s"], kind=entry["kind"], leg=_LEG.validate_python(entry["leg"]))]
        case _:
            return []


def _effective(text: str | None, gaps: list[str]) -> Effective | None:
    if text is None:
        return None
    try:
        entry = json.loads(text).get("effective")
        if entry is None:
            return None
        return Effective(
            settings=tuple((str(name), value) for name, value in entry["settings"]),
            capacity=Capacity(**entry["capacity"]),
            version=entry["version"],
            model=entry["model"],
        )
    except _BROKEN:
        gaps.append("result.json cannot be read")
        return None
