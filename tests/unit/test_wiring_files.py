"""The result files of a study: replaced in one step, and a disk that takes nothing is named."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from tuner.errors import EvidenceError
from tuner.screen.plain import PlainScreen
from tuner.testing.fake_run import infeasible, measured, mtp, row, spec_of
from tuner.wiring.files import ResultFiles

ROWS = (
    row(0, mtp(3), measured(234, 1979)),
    row(1, mtp(2), measured(186, 1844)),
    row(2, mtp(9), infeasible()),
)


def files_in(folder: Path) -> ResultFiles:
    return ResultFiles(replace(spec_of(), directory=str(folder)), PlainScreen(lambda _line: None))


def test_tables_and_picture_are_written_for_all_to_read_and_nothing_else(tmp_path: Path) -> None:
    files = files_in(tmp_path)
    for _ in range(2):
        files.write_tables(ROWS)
        files.write_plot(ROWS)
    assert list(pd.read_csv(tmp_path / "front.csv")["trial"]) == [0]
    assert list(pd.read_csv(tmp_path / "trials.csv")["trial"]) == [0, 1, 2]
    assert (tmp_path / "front.png").read_bytes().startswith(b"\x89PNG")
    assert {path.name: path.stat().st_mode & 0o777 for path in tmp_path.iterdir()} == {
        "front.csv": 0o644,
        "trials.csv": 0o644,
        "front.png": 0o644,
    }


def test_csv_keeps_the_full_names_of_the_settings(tmp_path: Path) -> None:
    files_in(tmp_path).write_tables(ROWS)
    assert "speculative_num_draft_tokens" in (tmp_path / "front.csv").read_text().splitlines()[0]


def test_a_file_that_cannot_be_replaced_stays_is_named_and_leaves_no_rubbish(tmp_path: Path) -> None:
    (tmp_path / "front.csv").mkdir()
    with pytest.raises(EvidenceError, match=f"{tmp_path}: cannot be written"):
        files_in(tmp_path).write_tables(ROWS)
    assert [path.name for path in tmp_path.iterdir()] == ["front.csv"]
