"""The simulated host, measured by tuner itself, against the measurements that it stands for."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

CALIBRATE = Path(__file__).parents[2] / "scripts" / "calibrate.py"
TOLERANCE_PERCENT = 10.0
"""Twice what the script allows: its own verdict is for a quiet machine."""


def test_tuner_measures_on_the_simulated_host_what_was_measured_on_the_real_one() -> None:
    done = subprocess.run([sys.executable, CALIBRATE, "--quick"], capture_output=True, text=True, check=False)
    worst = re.search(r"worst cell ([0-9.]+)% off", done.stdout)
    assert worst is not None, done.stdout + done.stderr
    assert float(worst.group(1)) <= TOLERANCE_PERCENT, done.stdout
    assert "then: oom_verify_workspace at concurrency" in done.stdout
    assert "under load again, it died 2 times" in done.stdout
