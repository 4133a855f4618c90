"""A disk that fills up under a study: a process whose files may not grow any further."""

import subprocess
import sys
from pathlib import Path

import pytest

from tuner.model.outcome import Measured
from tuner.search.ledger import open_ledger
from tuner.testing.draft_trees import canonical
from tuner.testing.specs import full_spec

LIMITED = """
import os, resource, sys
from pathlib import Path
from tuner.errors import StudyUnwritable
from tuner.search.ledger import open_ledger
from tuner.testing.draft_trees import canonical
from tuner.testing.results import measured, result_of
from tuner.testing.specs import full_spec

def limit(size):
    # A write beyond it fails with EFBIG, as one on a full disk fails with ENOSPC.
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))

place, when = Path(sys.argv[1]), sys.argv[2]
if when == "beginning":
    limit(30_000)
try:
    ledger = open_ledger(full_spec(place), canonical)
    limit(400_000)
    for _ in range(2000):
        proposal = ledger.propose("gpu01")
        ledger.tell(result_of(proposal, measured(100, 1000), study="full"))
    print("never full")
except StudyUnwritable as error:
    print(f"refused: {error}")
    sys.stdout.flush()
    os._exit(2)  # as a kill: nothing is closed
"""


def run_until_full(place: Path, when: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, str(place), when], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 2, done.stdout + done.stderr
    assert done.stderr == ""
    return done.stdout.strip()


def test_a_disk_that_is_full_at_the_beginning_leaves_nothing_behind(tmp_path: Path) -> None:
    message = run_until_full(tmp_path, "beginning")
    assert message.startswith(f"refused: {tmp_path / 'study' / 'study.db'}: ")
    assert "disk" in message
    assert "\n" not in message
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("when", ["running"])
def test_a_disk_that_fills_up_while_running_loses_no_told_trial(tmp_path: Path, when: str) -> None:
    message = run_until_full(tmp_path, when)
    assert "disk" in message
    assert "\n" not in message
    # Space was made: the next driver goes on.
    ledger = open_ledger(full_spec(tmp_path), canonical)
    interrupted = ledger.settle()
    told = [row for row in ledger.rows() if isinstance(row.outcome, Measured)]
    assert len(interrupted) <= 1
    assert told
    assert ledger.propose("gpu01") is not None
    ledger.close()
