"""``tuner explain`` on a study with its database and evidence as a run writes them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tuner.cli import main
from tuner.engines import engine
from tuner.model.outcome import Cause, Infeasible, Interrupted, Outcome, TrialState, Verdict
from tuner.model.trial import LogText, StateEntered, TrialFinished, TrialRequest
from tuner.ports import Proposal
from tuner.runtime.evidence import FileEvidence
from tuner.search.ledger import OptunaLedger, open_ledger
from tuner.testing.draft_trees import canonical
from tuner.testing.results import measured, result_of
from tuner.testing.specs import small_spec

Capture = pytest.CaptureFixture[str]
DECISIVE = "torch.OutOfMemoryError: CUDA out of memory."
DIED = Infeasible(
    verdict=Verdict(cause=Cause.OOM_SERVING, config_fault=True, evidence=(DECISIVE,), advice="lower it"),
    state=TrialState.MEASURING,
    level=16,
    violation=1.5,
)


class Night:
    """A study while it runs: its database and its evidence."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.begun: set[int] = set()
        self.spec = replace(small_spec(root, sampler="random"), directory=str(root / "studies" / "small"))
        self.ledger: OptunaLedger = open_ledger(self.spec, canonical)
        self.evidence = FileEvidence(Path(self.spec.directory), engine("sglang"), {})

    def begin(self) -> Proposal:
        proposal = self.ledger.propose("gpu01")
        assert proposal is not None
        request = TrialRequest(
            study="small",
            number=proposal.number,
            assignment=proposal.assignment,
            command=self.spec.base,
            engine="sglang",
            workload=self.spec.workload,
            seed=1,
        )
        self.evidence.begin(request, "gpu01")
        self.begun.add(proposal.number)
        self.evidence.add(proposal.number, StateEntered(at_s=1000.0, state=TrialState.CLEANING))
        self.evidence.add(proposal.number, StateEntered(at_s=1001.5, state=TrialState.DEPLOYING))
        self.evidence.add(proposal.number, LogText(at_s=1002.0, text=f"loading\n{DECISIVE}\n"))
        return proposal

    def end(self, proposal: Proposal, outcome: Outcome) -> None:
        result = result_of(proposal, outcome, study="small")
        self.evidence.add(proposal.number, TrialFinished(at_s=1060.0, result=result))
        self.ledger.tell(result)
        self.evidence.finish(proposal.number, outcome)
        self.begun.remove(proposal.number)

    def close(self) -> None:
        self.ledger.close()
        for number in self.begun:
            self.evidence.finish(number, Interrupted(state=TrialState.DEPLOYING))
        self.begun.clear()

    def explain(self, *words: str) -> int:
        return main(["explain", "--root", str(self.root), *words])


@pytest.fixture
def night(tmp_path: Path) -> Iterator[Night]:
    study = Night(tmp_path)
    yield study
    study.close()


def test_a_death_is_told_with_the_line_of_the_log_and_what_came_next(night: Night, capsys: Capture) -> None:
    night.end(night.begin(), measured(234, 1979))
    night.end(night.begin(), DIED)
    night.begin()
    assert night.explain("1", "--study", "small") == 0
    out = capsys.readouterr().out.splitlines()
    assert out[0] == "small (SIMULATED), trial 1 on gpu01: infeasible after 1 min"
    assert f"      2  {DECISIVE}" in out
    assert any("1.5 s  cleaning" in line for line in out)
    assert any(line.startswith("next      then on gpu01: trial 2, ") and line.endswith(": running") for line in out)
    assert out[-1] == f"log       {night.spec.directory}/trials/0001/server.log"


def test_a_trial_is_told_while_it_runs(night: Night, capsys: Capture) -> None:
    night.begin()
    assert night.explain("0", "small") == 0
    out = capsys.readouterr().out.splitlines()
    assert out[0].startswith("small (SIMULATED), trial 0 on gpu01, the base command as it stands: running for")
    assert "what runs is not read back yet" in out


def test_a_trial_of_a_killed_run_is_told_as_cut_off(night: Night, capsys: Capture) -> None:
    night.begin()
    night.ledger.close()
    assert night.explain("0", "small") == 0
    assert capsys.readouterr().out.splitlines()[0].endswith("the base command as it stands: cut off")


def test_a_program_gets_one_object(night: Night, capsys: Capture) -> None:
    night.end(night.begin(), DIED)
    assert night.explain("#0", "small", "--format", "json") == 0
    told = json.loads(capsys.readouterr().out)
    assert told["outcome"]["kind"] == "infeasible"
    assert told["evidence"] == [{"line": 2, "text": DECISIVE}]


def test_a_trial_that_there_is_not_is_one_line_with_those_there_are(night: Night, capsys: Capture) -> None:
    night.begin()
    for trial in ("1", "-1", "x", "0.5", "²", ""):
        assert night.explain("--study", "small", "--", trial) == 2
        out, err = capsys.readouterr()
        assert out == ""
        assert err == f"tuner: error: study small has no trial {trial!r}: there is 0\n"


def test_many_trials_are_named_as_a_range(night: Night, capsys: Capture) -> None:
    for _ in range(9):
        night.end(night.begin(), DIED)
    assert night.explain("99", "small") == 2
    assert capsys.readouterr().err.endswith("no trial '99': there is 0 to 8\n")


def test_a_study_that_never_ran_says_how_to_begin(tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "studies" / "small").mkdir(parents=True)
    assert main(["explain", "0", "small", "--root", str(tmp_path)]) == 2
    assert "begin the study with: python -m tuner run --study small" in capsys.readouterr().err


def test_a_folder_of_another_trial_is_not_told_as_this_one(night: Night, capsys: Capture) -> None:
    night.end(night.begin(), measured(234, 1979))
    manifest = Path(night.spec.directory) / "trials" / "0000" / "manifest.json"
    manifest.write_text(json.dumps({"assignment": {"steps": 9}}))
    assert night.explain("0", "small") == 0
    out = capsys.readouterr().out
    assert "trials/0000 is of another trial, which ran steps=9" in out
    assert "start 1" not in out


def test_evidence_that_is_gone_leaves_what_the_database_knows(night: Night, capsys: Capture) -> None:
    night.end(night.begin(), DIED)
    for path in (Path(night.spec.directory) / "trials" / "0000").iterdir():
        path.unlink()
    assert night.explain("0", "small") == 0
    out = capsys.readouterr().out
    assert "(oom_serving, while measuring 16)" in out
    assert "missing   there is no manifest.json" in out


def test_evidence_that_cannot_be_read_is_one_line(night: Night, capsys: Capture) -> None:
    night.end(night.begin(), DIED)
    manifest = Path(night.spec.directory) / "trials" / "0000" / "manifest.json"
    manifest.unlink()
    manifest.mkdir()
    assert night.explain("0", "small") == 3
    err = capsys.readouterr().err
    assert err.endswith("manifest.json: cannot be read (Is a directory); make it readable\n")
    assert err.count("\n") == 1
