import fcntl
import os
import threading
import time
from pathlib import Path

import pytest

from tuner.errors import LedgerError, StudyUnwritable
from tuner.search.lock import (
    LOCK_FILE,
    ONLOOKER_S,
    StudyLock,
    describe_holder,
    driving,
    holder_of,
    require_unlocked,
)


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
    with pytest.raises(StudyUnwritable, match="make the folder writable") as caught:
        StudyLock.acquire(tmp_path / "missing")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"pid": "x"}', b"\xff"])
def test_a_holder_that_has_not_signed_yet_is_still_somebody(content: bytes) -> None:
    assert describe_holder(content) == "another process that has just started"


def test_an_onlooker_who_holds_the_lock_for_a_moment_is_waited_for(tmp_path: Path) -> None:
    StudyLock.acquire(tmp_path).release()
    onlooker = os.open(tmp_path / LOCK_FILE, os.O_RDONLY)
    fcntl.flock(onlooker, fcntl.LOCK_SH)
    timer = threading.Timer(0.2, os.close, [onlooker])
    timer.start()
    StudyLock.acquire(tmp_path).release()
    timer.join()


def test_an_onlooker_who_never_lets_go_is_not_waited_for_for_ever(tmp_path: Path) -> None:
    StudyLock.acquire(tmp_path).release()
    onlooker = os.open(tmp_path / LOCK_FILE, os.O_RDONLY)
    fcntl.flock(onlooker, fcntl.LOCK_SH)
    with pytest.raises(LedgerError, match="is being run by another process"):
        StudyLock.acquire(tmp_path)
    os.close(onlooker)


def test_a_driver_is_refused_at_once(tmp_path: Path) -> None:
    first = StudyLock.acquire(tmp_path)
    began_s = time.monotonic()
    with pytest.raises(LedgerError):
        StudyLock.acquire(tmp_path)
    assert time.monotonic() - began_s < ONLOOKER_S / 2
    first.release()


def test_the_holder_is_named_while_it_holds(tmp_path: Path) -> None:
    assert holder_of(tmp_path) is None
    lock = StudyLock.acquire(tmp_path)
    assert f"process {os.getpid()} since" in (holder_of(tmp_path) or "")
    lock.release()
    assert holder_of(tmp_path) is None


def test_a_study_that_runs_is_refused_before_anything_is_started_for_it(tmp_path: Path) -> None:
    require_unlocked(tmp_path)
    assert list(tmp_path.iterdir()) == []
    lock = StudyLock.acquire(tmp_path)
    with pytest.raises(LedgerError, match=f"process {os.getpid()}"):
        require_unlocked(tmp_path)
    lock.release()
    require_unlocked(tmp_path)


def test_who_drives_a_study_may_lock_it_again_and_nobody_else_may(tmp_path: Path) -> None:
    directory = tmp_path / "studies" / "s"
    with driving(directory):
        StudyLock.acquire(directory).release()
        require_unlocked(directory)
        handle = os.open(directory / LOCK_FILE, os.O_RDONLY)
        try:
            with pytest.raises(BlockingIOError):
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        finally:
            os.close(handle)


def test_a_folder_that_was_driven_and_not_used_is_gone_again(tmp_path: Path) -> None:
    directory = tmp_path / "studies" / "s"
    with driving(directory):
        assert directory.is_dir()
    assert not (tmp_path / "studies").exists()


def test_a_folder_that_was_used_stays_and_can_be_driven_again(tmp_path: Path) -> None:
    directory = tmp_path / "s"
    for _ in range(2):
        with driving(directory):
            (directory / "study.db").write_text("rows")
    assert (directory / "study.db").exists()


def test_a_study_that_another_process_drives_is_refused_and_left_alone(tmp_path: Path) -> None:
    directory = tmp_path / "s"
    directory.mkdir()
    handle = os.open(directory / LOCK_FILE, os.O_RDWR | os.O_CREAT)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        with pytest.raises(LedgerError, match="is being run by"), driving(directory):
            pass
        assert (directory / LOCK_FILE).exists()
    finally:
        os.close(handle)
