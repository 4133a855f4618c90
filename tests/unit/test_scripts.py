"""What is shipped beside the package still fits it."""

from __future__ import annotations

import runpy
from pathlib import Path

from tuner.screen.again import SCRIPT

SCRIPTS = Path(__file__).parents[2] / "scripts"


def test_the_calibration_finds_the_parts_it_imports() -> None:
    assert callable(runpy.run_path(str(SCRIPTS / "calibrate.py"), run_name="calibrate")["load_study"])


def test_the_run_script_says_under_which_name_it_was_called() -> None:
    assert f"export {SCRIPT}=$0\n" in (SCRIPTS / "run").read_text()
