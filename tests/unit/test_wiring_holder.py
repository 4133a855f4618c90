"""Who a run says it is on the hosts it takes."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from tuner.wiring import holder
from tuner.wiring.holder import holder_of


@pytest.fixture(autouse=True)
def machine_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "machine-id"
    monkeypatch.setattr(holder, "MACHINE_ID", path)
    return path


def test_every_part_of_one_run_is_one_run() -> None:
    assert holder_of("s", "/s").is_same_run(holder_of("s", "/s"))


def test_machines_that_are_copies_of_one_image_are_two(machine_id: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine_id.write_text("0123\n")
    one = holder_of("s", "/s")
    monkeypatch.setattr(socket, "gethostname", lambda: "copy")
    assert not one.is_same_study(holder_of("s", "/s"))


def test_machines_of_one_name_are_two(machine_id: Path) -> None:
    one = holder_of("s", "/s")
    machine_id.write_text("0123\n")
    assert not one.is_same_study(holder_of("s", "/s"))
