"""GPU memory is a book: released by the living, kept for a while by the killed."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tuner.simulator.book import Book, Claim, linger_s, start_time

GIB = 1024**3


@dataclass
class Kernel:
    """Pids and a clock that the test moves."""

    now_s: float = 100.0
    born: dict[int, int] = field(default_factory=dict)

    def clock(self) -> float:
        return self.now_s

    def start_of(self, pid: int) -> int | None:
        return self.born.get(pid)


@pytest.fixture
def kernel() -> Kernel:
    return Kernel(born={10: 1, 11: 2})


@pytest.fixture
def book(tmp_path: Path, kernel: Kernel) -> Book:
    return Book(tmp_path / "host", monotonic_s=kernel.clock, born=kernel.start_of)


def claim(pid: int, gpu: int, gib: int) -> Claim:
    return Claim(pid=pid, name=f"sglang::scheduler_TP{gpu}", gpu=gpu, held_bytes=gib * GIB)


def test_what_is_held_is_used_and_what_is_released_is_free(book: Book) -> None:
    book.hold([claim(10, 0, 30), claim(11, 1, 20)], linger_s=20.0)
    assert (book.used_bytes(0), book.used_bytes(1)) == (30 * GIB, 20 * GIB)
    assert book.free_bytes(gpus=range(2), total_bytes=80 * GIB) == 50 * GIB
    assert book.free_bytes(gpus=range(1, 2), total_bytes=80 * GIB) == 60 * GIB
    book.release(10, 11, 12)
    assert book.free_bytes(gpus=range(2), total_bytes=80 * GIB) == 80 * GIB


def test_holding_again_replaces_what_was_held(book: Book) -> None:
    book.hold([claim(10, 0, 30)], linger_s=20.0)
    book.hold([claim(10, 0, 12)], linger_s=20.0)
    assert book.used_bytes(0) == 12 * GIB


def test_the_killed_hold_their_memory_from_when_someone_looks_until_it_lingered(book: Book, kernel: Kernel) -> None:
    book.hold([claim(10, 0, 30)], linger_s=20.0)
    del kernel.born[10]
    kernel.now_s += 1000.0  # nobody looked meanwhile
    assert book.used_bytes(0) == 30 * GIB
    assert [holding.alive for holding in book.holdings()] == [False]
    kernel.now_s += 19.9
    assert book.used_bytes(0) == 30 * GIB
    kernel.now_s += 0.2
    assert book.holdings() == ()


def test_a_new_process_with_the_pid_of_a_dead_one_is_not_the_holder(book: Book, kernel: Kernel) -> None:
    book.hold([claim(10, 0, 30)], linger_s=5.0)
    kernel.born[10] = 99
    assert [holding.alive for holding in book.holdings()] == [False]
    kernel.now_s += 5.0
    assert book.used_bytes(0) == 0


def test_a_dead_process_cannot_take_memory(book: Book) -> None:
    book.hold([claim(77, 0, 30)], linger_s=5.0)
    assert book.holdings() == ()


def test_planted_usage_stays_until_it_is_released(book: Book, kernel: Kernel) -> None:
    book.foreign(4242, name="someone-else", bytes_per_gpu={0: 7 * GIB})
    kernel.now_s += 10_000.0
    [holding] = book.holdings()
    assert (holding.pid, holding.name, holding.foreign, holding.alive) == (4242, "someone-else", True, True)
    assert book.free_bytes(gpus=range(1), total_bytes=80 * GIB) == 73 * GIB
    book.release(4242)
    assert book.used_bytes(0) == 0


def test_more_held_than_there_is_leaves_nothing_free(book: Book) -> None:
    book.foreign(1, name="a", bytes_per_gpu={0: 90 * GIB})
    assert book.free_bytes(gpus=range(1), total_bytes=80 * GIB) == 0


def test_two_books_of_one_host_are_one(tmp_path: Path, kernel: Kernel) -> None:
    first = Book(tmp_path, monotonic_s=kernel.clock, born=kernel.start_of)
    second = Book(tmp_path, monotonic_s=kernel.clock, born=kernel.start_of)
    assert [first.count_start(), second.count_start(), first.count_start()] == [1, 2, 3]
    first.hold([claim(10, 0, 1)], linger_s=1.0)
    assert second.used_bytes(0) == GIB


def test_lingering_shrinks_with_speed_but_never_to_nothing() -> None:
    assert linger_s(1.0) == 20.0
    assert linger_s(10.0) == 2.0
    assert linger_s(1000.0) == 0.5


def test_start_time_names_a_living_process_only() -> None:
    assert (start_time(1) or 0) >= 0
    assert start_time(1) is not None
    assert start_time(2**22 + 1) is None  # above the largest pid Linux gives


def test_a_foreign_process_of_limited_time_is_gone_when_its_time_is_up(book: Book, kernel: Kernel) -> None:
    book.foreign(99, name="python train.py", bytes_per_gpu={0: 2 * GIB}, for_s=5.0)
    kernel.now_s += 4.9
    assert [(holding.pid, holding.foreign) for holding in book.holdings()] == [(99, True)]
    kernel.now_s += 0.1
    assert book.holdings() == ()


def test_gpus_that_are_too_hot_cool_down(book: Book, kernel: Kernel) -> None:
    assert not book.is_hot()
    book.overheat(for_s=5.0)
    kernel.now_s += 4.9
    assert book.is_hot()
    kernel.now_s += 0.1
    assert not book.is_hot()
