"""Files, /proc, and text cut at a cursor."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tuner.hosts import files
from tuner.hosts.files import decode_prefix
from tuner.hosts.status import STATUS, Status, read_status, write_status


@given(content=st.text(max_size=40), sizes=st.lists(st.integers(min_value=4, max_value=9), min_size=1, max_size=5))
def test_text_read_in_pieces_of_any_size_is_the_text(content: str, sizes: list[int]) -> None:
    data, read, position, turn = content.encode(errors="ignore"), "", 0, 0
    while position < len(data):
        size = sizes[turn % len(sizes)]
        turn += 1
        piece = data[position : position + size]
        text, used = decode_prefix(piece, is_last=False)
        assert used > 0, "four bytes hold a whole character"
        read, position = read + text, position + used
    assert read == data.decode()


@given(st.binary(max_size=50))
def test_any_bytes_are_text_in_the_end(data: bytes) -> None:
    text, used = decode_prefix(data, is_last=True)
    assert used == len(data)
    assert text == data.decode(errors="replace")


@given(st.binary(max_size=50))
def test_at_most_three_bytes_wait_for_the_next_piece(data: bytes) -> None:
    text, used = decode_prefix(data, is_last=False)
    assert 0 <= len(data) - used <= 3
    assert text == data[:used].decode(errors="replace")


def test_this_process_knows_itself() -> None:
    stat = files.process_stat(os.getpid())
    assert stat is not None
    assert (stat.parent_pid, stat.is_zombie) == (os.getppid(), False)
    assert files.is_running(stat.key)
    assert stat.key in {other.key for other in files.processes()}
    assert "python" in files.command_line(os.getpid()) or "pytest" in files.command_line(os.getpid())


def test_another_start_time_is_another_process() -> None:
    stat = files.process_stat(os.getpid())
    assert stat is not None
    other = files.ProcessKey(stat.key.pid, stat.key.start_ticks + 1)
    assert not files.is_running(other)
    # The signal would end this very test.
    assert files.send_signal(other, signal.SIGKILL) is False
    assert files.send_signal(stat.key, 0) is True


def test_a_pid_that_nobody_has_is_gone() -> None:
    beyond = 2**22 + 1  # above the largest pid_max the kernel allows
    assert files.process_stat(beyond) is None
    assert files.environment(beyond) == {}
    assert files.command_line(beyond) == ""
    assert files.send_signal(files.ProcessKey(beyond, 1), signal.SIGKILL) is False
    assert files.kill_all([files.ProcessKey(beyond, 1)], timeout_s=0.0) is True


def test_a_status_file_is_read_as_it_was_written(tmp_path: Path) -> None:
    status = Status(
        boot_id="b",
        supervisor=files.ProcessKey(1, 2),
        activity="running",
        main=files.ProcessKey(3, 4),
        processes=[files.ProcessKey(3, 4), files.ProcessKey(5, 6)],
    )
    write_status(tmp_path, status)
    assert read_status(tmp_path) == status
    assert [path.name for path in tmp_path.iterdir()] == [STATUS]


@pytest.mark.parametrize(
    "content", [b"", b"[]", b"{}", b"\xff", b'{"supervisor": 3}', b'{"supervisor": [1, 2], "x": 1}']
)
def test_what_no_supervisor_wrote_is_no_status(tmp_path: Path, content: bytes) -> None:
    (tmp_path / STATUS).write_bytes(content)
    assert read_status(tmp_path) is None


def test_a_missing_status_file_is_no_status(tmp_path: Path) -> None:
    assert read_status(tmp_path) is None
