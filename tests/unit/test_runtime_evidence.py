"""What a trial leaves behind."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tuner.errors import EvidenceError
from tuner.model.outcome import Faulted, TrialState
from tuner.model.space import Assignment
from tuner.model.trial import Command, LogText, Remark, StateEntered, TrialRequest
from tuner.model.workload import Workload
from tuner.runtime.evidence import FileEvidence
from tuner.testing.fake_engine import FakeEngine

REQUEST = TrialRequest(
    study="s",
    number=12,
    assignment=Assignment.of({"batch": 8, "draft": 3}),
    command=Command(argv=("serve", "--api-key", "s3cret", "--hf-token=t0ken"), env=(("OPENAI_API_KEY", "k3y"),)),
    engine="fake",
    workload=Workload(),
    seed=1,
)


def test_a_trial_has_a_folder_with_manifest_events_log_and_result(tmp_path: Path) -> None:
    store = FileEvidence(tmp_path, FakeEngine(), {"simulated": True})
    store.begin(REQUEST, "gpu01")
    store.add(12, StateEntered(at_s=1.0, state=TrialState.MEASURING, level=4))
    store.add(12, LogText(at_s=1.5, text="line one\n"))
    store.add(12, Remark(at_s=2.0, text="a retry"))
    store.finish(12, Faulted(error="gone", state=TrialState.MEASURING))
    folder = tmp_path / "trials" / "0012"
    manifest = json.loads((folder / "manifest.json").read_text())
    assert (manifest["simulated"], manifest["host"], manifest["assignment"]) == (
        True,
        "gpu01",
        {"batch": 8, "draft": 3},
    )
    events = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
    assert events[0] == {"event": "StateEntered", "at_s": 1.0, "state": "measuring", "level": 4, "detail": ""}
    assert (folder / "server.log").read_text() == "line one\n"
    assert json.loads((folder / "result.json").read_text())["outcome"]["error"] == "gone"


def test_no_secret_of_the_command_line_is_written(tmp_path: Path) -> None:
    store = FileEvidence(tmp_path, FakeEngine(), {})
    store.begin(REQUEST, "gpu01")
    store.finish(12, Faulted(error="gone", state=TrialState.LOADING))
    written = "".join(path.read_text() for path in tmp_path.rglob("*") if path.is_file())
    assert "***" in written
    for secret in ("s3cret", "t0ken", "k3y"):
        assert secret not in written


def test_evidence_is_on_disk_as_soon_as_it_is_added(tmp_path: Path) -> None:
    store = FileEvidence(tmp_path, FakeEngine(), {})
    store.begin(REQUEST, "gpu01")
    store.add(12, LogText(at_s=1.0, text="last words"))
    assert (tmp_path / "trials" / "0012" / "server.log").read_text() == "last words"
    store.finish(12, Faulted(error="gone", state=TrialState.LOADING))


def test_a_folder_that_cannot_be_written_is_named_with_the_remedy(tmp_path: Path) -> None:
    (tmp_path / "trials").write_text("a file is in the way")
    store = FileEvidence(tmp_path, FakeEngine(), {})
    with pytest.raises(EvidenceError, match=r"trials.*make it writable"):
        store.begin(REQUEST, "gpu01")


def test_the_evidence_of_an_earlier_study_is_moved_aside_and_not_mixed(tmp_path: Path) -> None:
    for word in ("first", "second", "third"):
        store = FileEvidence(tmp_path, FakeEngine(), {"word": word})
        store.begin(REQUEST, "gpu01")
        store.add(12, LogText(at_s=1.0, text=word))
        store.finish(12, Faulted(error=word, state=TrialState.LOADING))
    logs = {path.parent.name: path.read_text() for path in tmp_path.glob("trials/*/server.log")}
    assert logs == {"0012": "third", "0012.old1": "first", "0012.old2": "second"}
    assert json.loads((tmp_path / "trials" / "0012" / "manifest.json").read_text())["word"] == "third"
