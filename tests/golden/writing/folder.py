"""Reads a folder of logs that were not written here: ``*.log`` and ``verdicts.toml``."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from tuner.model.outcome import Cause, Ending, MemoryDirection, TrialState
from writing.case import Case, Expected

KEYS = {
    "cause": str,
    "config_fault": bool,
    "stage": str,
    "direction": str,
    "shortfall_bytes": int,
    "viable_fraction": float,
    "evidence": str,
    "fatal": bool,
    "status": int,
    "signal": int,
    "sent": list,
    "state": str,
    "service_result": str,
    "restarts": int,
    "stopped_by_others": bool,
    "kernel": list,
    "foreign": list,
    "ended": bool,
}


class FolderError(Exception):
    """A folder of cases cannot be used; the message names the place and the remedy."""


def folder(path: Path, engine: str) -> list[Case]:
    """Return the cases of a folder.

    Raises:
        FolderError: ``verdicts.toml`` or a log is missing, unreadable, or says something unknown.
    """
    file = path / "verdicts.toml"
    try:
        table = tomllib.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise FolderError(f"{file}: not found; write it as tests/golden/README.md says") from None
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise FolderError(f"{file}: {error}; mend it as tests/golden/README.md says") from None
    logs = {log.stem: log for log in sorted(path.glob("*.log"))}
    for name in table.keys() ^ logs.keys():
        lacks, has = ("a [section] in verdicts.toml", "log") if name in logs else (f"{name}.log", "verdict")
        raise FolderError(f"{path}: {name} has a {has} but lacks {lacks}; add it")
    return [_case(file, engine, name, verdict, logs[name]) for name, verdict in table.items()]


def _case(file: Path, engine: str, name: str, verdict: object, log: Path) -> Case:
    place = f"{file} [{name}]"
    if not isinstance(verdict, dict):
        raise FolderError(f"{place}: is no section; write [{name}] and its keys below")
    for key, value in verdict.items():
        kind = KEYS.get(key)
        if kind is None:
            raise FolderError(f"{place}: unknown key {key}; known are {', '.join(KEYS)}")
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            raise FolderError(f"{place}: {key} = {value!r} is no {kind.__name__}; write one")
    if "cause" not in verdict:
        raise FolderError(f"{place}: no cause; name one of {', '.join(cause.value for cause in Cause)}")
    return Case(
        name=f"{engine}-{name}",
        engine=engine,
        family="folder",
        shape="as it is",
        log=log.read_bytes(),
        ending=Ending(
            exit_status=verdict.get("status"),
            exit_signal=verdict.get("signal"),
            state=_one(TrialState, verdict.get("state"), f"{place}: state"),
            signals_sent=_several(int, verdict.get("sent", []), f"{place}: sent"),
            service_result=verdict.get("service_result"),
            restarts=verdict.get("restarts", 0),
            stopped_by_others=verdict.get("stopped_by_others", False),
            kernel=_several(str, verdict.get("kernel", []), f"{place}: kernel"),
            foreign=_several(str, verdict.get("foreign", []), f"{place}: foreign"),
            has_ended=verdict.get("ended", True),
        ),
        expected=Expected(
            cause=_one(Cause, verdict["cause"], f"{place}: cause") or Cause.UNKNOWN,
            config_fault=verdict.get("config_fault"),
            stage=verdict.get("stage"),
            direction=_one(MemoryDirection, verdict.get("direction"), f"{place}: direction"),
            shortfall_bytes=verdict.get("shortfall_bytes"),
            viable_fraction=verdict.get("viable_fraction"),
            evidence=verdict.get("evidence", ""),
        ),
        fatal=verdict.get("fatal"),
    )


def _one(kind: Any, value: str | None, place: str) -> Any:  # noqa: ANN401 - a member of the enum that is given
    try:
        return None if value is None else kind(value)
    except ValueError:
        raise FolderError(
            f"{place} = {value!r} is unknown; name one of {', '.join(one.value for one in kind)}"
        ) from None


def _several(kind: type, values: list[Any], place: str) -> tuple[Any, ...]:
    for value in values:
        if not isinstance(value, kind) or isinstance(value, bool):
            raise FolderError(f"{place} holds {value!r}, which is no {kind.__name__}; write one")
    return tuple(values)
