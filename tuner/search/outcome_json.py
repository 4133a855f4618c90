"""The end of a trial as JSON, in one attribute, so that it is written in one transaction."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from tuner.model.account import ClientHealth
from tuner.model.metric import Estimate
from tuner.model.outcome import (
    Cause,
    Faulted,
    Infeasible,
    Interrupted,
    Measured,
    MemoryDirection,
    Outcome,
    TrialState,
    Verdict,
)
from tuner.model.plain import plain
from tuner.model.record import LegTrust
from tuner.model.ruling import Correction, Ruling, Word
from tuner.model.trial import Capacity, TrialResult


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredResult:
    """What the rows need of a trial's end; the database keeps the whole legs."""

    outcome: Outcome
    host: str | None
    capacity: Capacity | None
    duration_s: float | None
    trust: tuple[LegTrust, ...]
    by_prompt: tuple[tuple[str, float], ...] = ()
    finished_s: float | None = None


def encode_result(result: TrialResult) -> dict[str, Any]:
    """Return a trial's end as JSON values."""
    effective = result.effective
    return {
        "outcome": encode_outcome(result.outcome),
        "host": result.host,
        "capacity": None if effective is None else asdict(effective.capacity),
        "duration_s": result.duration_s,
        "started_s": result.started_s,
        "finished_s": result.finished_s,
        "attempts": result.attempts,
        "engine_version": None if effective is None else effective.version,
        "model": None if effective is None else effective.model,
        "legs": [plain(leg) for leg in result.legs],
    }


def _client(leg: dict[str, Any]) -> ClientHealth | None:
    client = leg.get("client")
    if client is None:
        return None
    return ClientHealth(cpu_share=client["cpu_share"], lag_p99_s=client.get("lag_p99_s"))


def _by_prompt(legs: Iterable[dict[str, Any]]) -> tuple[tuple[str, float], ...]:
    """Return the decode speeds of the leg of single requests; none in a study of 0.1."""
    speeds = next((leg["by_prompt"] for leg in legs if leg.get("by_prompt")), ())
    return tuple((str(prompt_id), float(speed)) for prompt_id, speed in speeds)


def encode_unfinished(outcome: Outcome, host: str | None) -> dict[str, Any]:
    """Return the end of a trial that no host reported: its driver died, or it was never run."""
    return {"outcome": encode_outcome(outcome), "host": host, "capacity": None, "duration_s": None}


def decode_result(entry: dict[str, Any]) -> StoredResult:
    """Read what :func:`encode_result` and :func:`encode_unfinished` wrote.

    Raises:
        KeyError, ValueError, TypeError: something else wrote it.
    """
    capacity = entry["capacity"]
    return StoredResult(
        outcome=decode_outcome(entry["outcome"]),
        host=entry["host"],
        capacity=None if capacity is None else Capacity(**capacity),
        duration_s=entry["duration_s"],
        trust=tuple(
            LegTrust(concurrency=leg["concurrency"], converged=leg["converged"], client=_client(leg))
            for leg in entry.get("legs", ())  # a trial that no host reported has none
        ),
        finished_s=entry.get("finished_s"),  # likewise
        by_prompt=_by_prompt(entry.get("legs", ())),
    )


def encode_outcome(outcome: Outcome) -> dict[str, Any]:
    """Return an outcome as JSON values; ``kind`` says which."""
    match outcome:
        case Measured():
            return {"kind": "measured"} | _encode_measured(outcome)
        case Infeasible():
            return {
                "kind": "infeasible",
                "diagnosis": _encode_verdict(outcome.verdict),
                "state": outcome.state.value,
                "level": outcome.level,
                "violation": outcome.violation,
            } | ({} if outcome.measured is None else {"measured": _encode_measured(outcome.measured)})
        case Faulted():
            verdict = None if outcome.verdict is None else _encode_verdict(outcome.verdict)
            return {"kind": "faulted", "error": outcome.error, "state": outcome.state.value, "diagnosis": verdict}
        case Interrupted():
            return {"kind": "interrupted", "state": outcome.state.value, "why": outcome.why}


def decode_outcome(entry: dict[str, Any]) -> Outcome:
    """Read what :func:`encode_outcome` wrote.

    Raises:
        KeyError, ValueError, TypeError: something else wrote it.
    """
    match entry["kind"]:
        case "measured":
            return _decode_measured(entry)
        case "infeasible":
            return Infeasible(
                verdict=_decode_verdict(entry["diagnosis"]),
                state=TrialState(entry["state"]),
                level=entry["level"],
                violation=entry["violation"],
                measured=_decode_measured(entry["measured"]) if "measured" in entry else None,
            )
        case "faulted":
            verdict = entry["diagnosis"]
            return Faulted(
                error=entry["error"],
                state=TrialState(entry["state"]),
                verdict=None if verdict is None else _decode_verdict(verdict),
            )
        case "interrupted":
            return Interrupted(state=TrialState(entry["state"]), why=entry.get("why", ""))  # not kept by 0.1
        case other:
            raise ValueError(f"unknown outcome {other!r}")


def encode_correction(correction: Correction) -> dict[str, Any]:
    """Return a person's correction as JSON values."""
    ruling = asdict(correction.ruling) | {"word": correction.ruling.word.value}
    return {"ruling": ruling, "before": encode_outcome(correction.before)}


def decode_correction(entry: dict[str, Any]) -> Correction:
    """Read what :func:`encode_correction` wrote.

    Raises:
        KeyError, ValueError, TypeError: something else wrote it.
    """
    ruling = Ruling(**(entry["ruling"] | {"word": Word(entry["ruling"]["word"])}))
    return Correction(ruling=ruling, before=decode_outcome(entry["before"]))


def _encode_measured(measured: Measured) -> dict[str, Any]:
    content = asdict(measured)
    others = {name: asdict(estimate) for name, estimate in measured.others}
    return {key: value for key, value in content.items() if key != "others"} | ({"others": others} if others else {})


def _decode_measured(entry: dict[str, Any]) -> Measured:
    return Measured(
        single_request_throughput=Estimate(**entry["single_request_throughput"]),
        aggregate_throughput=Estimate(**entry["aggregate_throughput"]),
        peak_concurrency=entry["peak_concurrency"],
        others=tuple((name, Estimate(**each)) for name, each in entry.get("others", {}).items()),
    )


def _encode_verdict(verdict: Verdict) -> dict[str, Any]:
    return asdict(verdict) | {
        "cause": verdict.cause.value,
        "direction": None if verdict.direction is None else verdict.direction.value,
    }


def _decode_verdict(entry: dict[str, Any]) -> Verdict:
    direction = entry["direction"]
    return Verdict(
        cause=Cause(entry["cause"]),
        config_fault=entry["config_fault"],
        stage=entry.get("stage", ""),  # not kept by 0.1
        direction=None if direction is None else MemoryDirection(direction),
        shortfall_bytes=entry["shortfall_bytes"],
        viable_fraction=entry["viable_fraction"],
        evidence=tuple(entry["evidence"]),
        advice=entry["advice"],
    )
