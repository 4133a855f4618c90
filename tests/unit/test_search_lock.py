import os
from pathlib import Path

import pytest

from tuner.errors import LedgerError
from tuner.search.lock import LOCK_FILE, StudyLock, describe_holder


def test_a_second_driver_is_refused_with_the_first_ones_pid(tmp_path: Path) -> None:
    first = StudyLock.acquire(tmp_path)
    with pytest.raises(LedgerError, match=f"process {os.getpid()} since 20"):
        StudyLock.acquire(tmp_path)
    first.release()


def test_a_refused_driver_does_not_take_the_lock_away(tmp_path: Path) -> None:
    first = StudyLock.acquire(tmp_path)
    for _ in range(2):
        with pytest.raises(LedgerError, match=LOCK_FILE):
            StudyLock.acquire(tmp_path)
    first.release()


def test_a_released_lock_can_be_taken_again_and_releasing_twice_is_no_error(tmp_path: Path) -> None:
    first = StudyLock.acquire(tmp_path)
    first.release()
    first.release()
    second = StudyLock.acquire(tmp_path)
    second.release()
    assert (tmp_path / LOCK_FILE).read_bytes() == b""


def test_what_a_dead_driver_left_in_the_file_does_not_lock(tmp_path: Path) -> None:
    (tmp_path / LOCK_FILE).write_text('{"pid": 1, "since": "2026-01-01"}' * 10)
    lock = StudyLock.acquire(tmp_path)
    assert f"process {os.getpid()}" in describe_holder((tmp_path / LOCK_FILE).read_bytes())
    lock.release()


def test_a_removed_lock_file_is_not_the_lock(tmp_path: Path) -> None:
    first = StudyLock.acquire(tmp_path)
    first.remove()
    second = StudyLock.acquire(tmp_path)
    assert (tmp_path / LOCK_FILE).exists()
    first.release()
    second.release()


def test_a_folder_that_is_not_there_is_a_one_line_error(tmp_path: Path) -> None:
    with pytest.raises(LedgerError, match="make the folder writable") as caught:
        StudyLock.acquire(tmp_path / "missing")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"pid": "x"}', b"\xff"])
def test_a_holder_that_has_not_signed_yet_is_still_somebody(content: bytes) -> None:
    assert describe_holder(content) == "another process that has just started"
