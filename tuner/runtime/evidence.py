"""Keeps a trial's evidence as files, as it happens.

Every trial has a folder ``trials/NNNN`` of its own::

    manifest.json   what was asked: command, settings, workload, host, versions
    events.jsonl    every state and remark with its time
    server.log      the server's log, secrets scrubbed
    requests.jsonl  one line a request, with its kind: warmup, ladder, soak
    result.json     outcome, effective configuration, legs
"""

from __future__ import annotations

import errno
import itertools
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TextIO

from tuner.errors import EvidenceError
from tuner.model.outcome import Outcome
from tuner.model.plain import Json, plain, plain_fields
from tuner.model.trial import (
    LegFinished,
    LegProgress,
    LogText,
    TrialEvent,
    TrialFinished,
    TrialRequest,
    WarmedUp,
)
from tuner.ports import EngineAdapter
from tuner.runtime.secrets import Scrubber


@dataclass(slots=True)
class _Files:
    folder: Path
    open: dict[str, TextIO] = field(default_factory=dict)

    def append(self, name: str, text: str) -> None:
        """Append and flush: what was written survives a kill of this process."""
        if name not in self.open:
            self.open[name] = (self.folder / name).open("a", encoding="utf-8")
        self.open[name].write(text)
        self.open[name].flush()

    def write(self, name: str, content: Json) -> None:
        """Write a whole file: a reader sees all of it or none."""
        fresh = self.folder / f".{name}.new"
        fresh.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
        fresh.replace(self.folder / name)

    def close(self) -> None:
        for file in self.open.values():
            file.close()
        self.open.clear()


class FileEvidence:
    """An EvidenceStore in a study's folder."""

    def __init__(self, directory: Path, engine: EngineAdapter, facts: Mapping[str, Json]) -> None:
        """Keep evidence below ``directory``/trials; ``facts`` go into every manifest."""
        self._root = directory / "trials"
        self._engine = engine
        self._facts = dict(facts)
        self._trials: dict[int, _Files] = {}

    def begin(self, request: TrialRequest, host: str) -> None:
        """Open a trial's folder and write its manifest.

        Raises:
            EvidenceError: it cannot be written (disk full, rights).
        """
        files = _Files(self._root / f"{request.number:04d}")
        scrubbed = Scrubber(self._engine, request.command).command(request.command)
        manifest: dict[str, Json] = {
            **self._facts,
            "study": request.study,
            "trial": request.number,
            "host": host,
            "baseline": request.baseline,
            "repeat": plain(request.repeat),
            "engine": request.engine,
            "assignment": dict(request.assignment),
            "command": plain(scrubbed),
            "workload": plain(request.workload),
            "seed": request.seed,
        }
        try:
            _move_aside(files.folder)
            files.folder.mkdir(parents=True)
            files.write("manifest.json", manifest)
        except OSError as error:
            raise cannot_write(files.folder, error) from error
        self._trials[request.number] = files

    def add(self, number: int, event: TrialEvent) -> None:
        """Keep one event.

        Raises:
            EvidenceError: it cannot be written.
        """
        files = self._trials[number]
        try:
            self._write(files, event)
        except OSError as error:
            raise cannot_write(files.folder, error) from error

    def _write(self, files: _Files, event: TrialEvent) -> None:
        match event:
            case LogText():
                files.append("server.log", event.text)
            case LegProgress():
                pass  # for the screen; the requests say it all
            case WarmedUp():
                files.append("requests.jsonl", _request_lines("warmup", event))
            case LegFinished():
                files.append("requests.jsonl", _request_lines(event.kind, event))
                files.append("events.jsonl", _line(event, at_s=event.at_s, leg=plain(event.leg), kind=event.kind))
            case TrialFinished():
                files.write("result.json", plain(event.result))
            case _:
                files.append("events.jsonl", _line(event, **plain_fields(event)))

    def finish(self, number: int, outcome: Outcome) -> None:
        """Close the trial's files; an outcome that no event carried is written here."""
        files = self._trials.pop(number)
        try:
            if not (files.folder / "result.json").exists():
                files.write("result.json", {"outcome": plain(outcome)})
        except OSError as error:
            raise cannot_write(files.folder, error) from error
        finally:
            files.close()

    def note(self, number: int, event: TrialEvent) -> None:
        """Add an event to a trial that has ended; a trial without a folder here is passed over.

        Raises:
            EvidenceError: it cannot be written.
        """
        note(self._root.parent, number, event)


def note(directory: Path, number: int, event: TrialEvent) -> None:
    """Add an event to the evidence of a trial that has ended, in the study's ``directory``; see FileEvidence.

    Raises:
        EvidenceError: it cannot be written.
    """
    folder = directory / "trials" / f"{number:04d}"
    if not folder.is_dir():
        return
    try:
        _noted(folder, event)
    except OSError as error:
        raise cannot_write(folder, error) from error


def _noted(folder: Path, event: TrialEvent) -> None:
    files = _Files(folder)
    try:
        files.append("events.jsonl", _line(event, **plain_fields(event)))
    finally:
        files.close()


def cannot_write(folder: Path, error: OSError) -> EvidenceError:
    """Word an error of the file system for whoever can mend it."""
    remedy = "free space" if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG) else "make it writable"
    return EvidenceError(f"{folder}: cannot be written ({error.strerror}); {remedy}, then run the same command again")


def _move_aside(folder: Path) -> None:
    """Keep what an earlier study of the same name left for this trial number, under another name."""
    if not folder.exists():
        return
    free = next(
        name for count in itertools.count(1) if not (name := folder.with_name(f"{folder.name}.old{count}")).exists()
    )
    folder.rename(free)


def _request_lines(kind: str, event: WarmedUp | LegFinished) -> str:
    """Word requests a line each; ``sent_unix_s`` lays them beside the events and the server's log."""
    return "".join(
        json.dumps({"kind": kind, "sent_unix_s": record.sent_s + event.unix_offset_s, **plain_fields(record)}) + "\n"
        for record in event.requests
    )


def _line(event: TrialEvent, **content: Json) -> str:
    return json.dumps({"event": type(event).__name__, **content}) + "\n"
