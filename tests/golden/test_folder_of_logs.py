"""Anybody's logs can be judged; what is wrong with a folder is said in one line."""

from __future__ import annotations

import runpy
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from writing.folder import FolderError, folder

from tuner.model.outcome import Cause, Ending, TrialState

SCRIPT = Path(__file__).parents[2] / "scripts" / "report_verdicts.py"
OOM = b"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. caf\xe9\n"


def put(place: Path, verdicts: str, *logs: str) -> Path:
    (place / "verdicts.toml").write_text(verdicts)
    for log in logs:
        (place / f"{log}.log").write_bytes(OOM)
    return place


@pytest.fixture
def report(monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    def run(*argv: str) -> int:
        monkeypatch.setattr(sys, "argv", [str(SCRIPT), *argv])
        with pytest.raises(SystemExit) as left:
            runpy.run_path(str(SCRIPT), run_name="__main__")
        assert isinstance(left.value.code, int)
        return left.value.code

    return run


def test_a_case_says_how_the_server_ended_and_keeps_the_log_s_bytes(tmp_path: Path) -> None:
    text = '[a]\ncause = "unknown"\nsignal = 9\nsent = [15, 9]\nstate = "loading"\nkernel = ["x"]\nended = false\n'
    (case,) = folder(put(tmp_path, text, "a"), "sglang")
    assert case.log == OOM
    assert case.ending == Ending(
        exit_signal=9, signals_sent=(15, 9), state=TrialState.LOADING, kernel=("x",), has_ended=False
    )
    assert case.expected.cause is Cause.UNKNOWN
    assert case.expected.stage is None


@pytest.mark.parametrize(
    ("verdicts", "told"),
    [
        ("", "a has a log but lacks a [section] in verdicts.toml; add it"),
        ('[a]\ncause = "unknown"\n[b]\ncause = "unknown"\n', "b has a verdict but lacks b.log; add it"),
        ("[a]\nsignal = 9\n", "[a]: no cause; name one of"),
        ('[a]\ncause = "oom"\n', "[a]: cause = 'oom' is unknown; name one of"),
        ('[a]\ncause = "unknown"\nstate = "asleep"\n', "[a]: state = 'asleep' is unknown; name one of"),
        ('[a]\ncause = "unknown"\nsignals = 9\n', "[a]: unknown key signals; known are"),
        ('[a]\ncause = "unknown"\nsignal = true\n', "[a]: signal = True is no int; write one"),
        ('[a]\ncause = "unknown"\nsent = ["TERM"]\n', "[a]: sent holds 'TERM', which is no int; write one"),
        ("a = 1\n", "[a]: is no section; write [a] and its keys below"),
        ("[a", "; mend it as tests/golden/README.md says"),
    ],
)
def test_a_bad_folder_gets_one_line_that_names_the_place_and_the_remedy(
    tmp_path: Path, verdicts: str, told: str
) -> None:
    with pytest.raises(FolderError) as error:
        folder(put(tmp_path, verdicts, "a"), "sglang")
    assert told in str(error.value)
    assert str(tmp_path) in str(error.value)
    assert "\n" not in str(error.value)


def test_a_folder_without_verdicts_is_refused_with_where_to_read_on(
    tmp_path: Path, report: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    assert report(str(tmp_path)) == 2
    assert capsys.readouterr().err == (
        f"report_verdicts: {tmp_path}/verdicts.toml: not found; write it as tests/golden/README.md says\n"
    )


def test_the_report_counts_by_cause_names_what_is_wrong_and_fails(
    tmp_path: Path, report: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    put(tmp_path, '[mine]\ncause = "hang"\nsignal = 9\n\n[silent]\ncause = "hang"\nsignal = 9\n', "mine")
    (tmp_path / "silent.log").write_text("")
    assert report(str(tmp_path)) == 1
    out = capsys.readouterr().out
    assert ["hang", "2", "0", "1", "1"] in [line.split() for line in out.splitlines()]
    assert "wrong: sglang-mine: cause " in out
    assert "unknown: sglang-silent: cause 'unknown' instead of 'hang'" in out


def test_an_unknown_verdict_alone_does_not_fail_the_report(
    tmp_path: Path, report: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    put(tmp_path, '[silent]\ncause = "hang"\nsignal = 9\n')
    (tmp_path / "silent.log").write_text("")
    assert report(str(tmp_path)) == 0
    assert ["all", "1", "0", "1", "0"] in [line.split() for line in capsys.readouterr().out.splitlines()]
