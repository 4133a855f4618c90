from pathlib import Path

import pytest

from tuner.commands.studies import left_behind
from tuner.errors import EvidenceError
from tuner.model.lease import LeaseTerms
from tuner.model.study import HostCare, UnitHostSpec
from tuner.wiring import taken

RESTORE = "python -m tuner restore --study mine"


def host(name: str, dead_man_s: float = 900.0) -> UnitHostSpec:
    care = HostCare(lease=LeaseTerms(lasts_s=dead_man_s))
    return UnitHostSpec(name=name, unit="sglang.service", care=care)


def test_a_run_that_ended_well_leaves_no_note(tmp_path: Path) -> None:
    taken.note(tmp_path, [host("gpu01")], RESTORE)
    taken.forget(tmp_path, ["gpu01"])
    assert left_behind(tmp_path) is None
    assert list(tmp_path.iterdir()) == []
    taken.forget(tmp_path, ["gpu01"])  # nothing is there to forget


def test_hosts_of_a_killed_run_are_named_with_the_command_that_puts_them_back(tmp_path: Path) -> None:
    taken.note(tmp_path / "new", [host("gpu01"), host("gpu02", 1800.0)], RESTORE)
    assert left_behind(tmp_path / "new") == (
        f"gpu01, gpu02 were not given back by the run that was cut off: {RESTORE} "
        "(without it a host restores itself about 30 min after that run)"
    )


def test_only_the_host_that_was_given_back_is_forgotten(tmp_path: Path) -> None:
    taken.note(tmp_path, [host("gpu01"), host("gpu02")], RESTORE)
    taken.forget(tmp_path, ["gpu02"])
    found = taken.read(tmp_path)
    assert found is not None
    assert found.hosts == ("gpu01",)
    assert found.words().startswith("gpu01 was not given back")


@pytest.mark.parametrize("content", ["", "{", '{"hosts": 1}', "[]"])
def test_a_note_that_cannot_be_read_is_an_error_and_no_given_back_host(tmp_path: Path, content: str) -> None:
    (tmp_path / taken.NOTE).write_text(content)
    with pytest.raises(EvidenceError, match="remove it once the study's hosts are restored"):
        left_behind(tmp_path)
