"""The folder of orders: nothing is lost, nothing comes twice, and a bad file harms nobody."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

import pytest

from tuner.errors import StudyUnwritable
from tuner.model.order import AbortOrder, Answer, Order, TryOrder, VerdictOrder
from tuner.model.ruling import Ruling, Word
from tuner.model.space import Assignment
from tuner.steer.inbox import STALE_S, Inbox
from tuner.steer.order_json import decode_answer, decode_order, encode_answer, encode_order

DONE = Answer(done=True, text="queued")


def ruling(order: str) -> Ruling:
    return Ruling(order=order, word=Word.RETRY, why='load "crashed" — twice', who="me@here", at_s=1_764_550_000.25)


def trying(order: str) -> TryOrder:
    values = Assignment.of({"steps": 10, "fraction": 0.85, "cache": "q8_0", "whole": 1.0})
    return TryOrder(order=order, who="me@here", at_s=1.5, values=values, again=True)


ORDERS: tuple[Order, ...] = (
    trying("1"),
    AbortOrder(ruling=ruling("2"), host="gpu01"),
    AbortOrder(ruling=ruling("3"), trial=7),
    VerdictOrder(ruling=ruling("4"), trial=0),
)


@pytest.mark.parametrize("order", ORDERS, ids=lambda order: type(order).__name__)
def test_an_order_is_read_as_it_was_written(order: Order) -> None:
    read = decode_order(encode_order(order))
    assert read == order
    if isinstance(read, TryOrder):
        assert [type(value) for value in read.values.values()] == [str, float, int, float]


def test_an_answer_is_read_as_it_was_written() -> None:
    assert decode_answer(encode_answer(DONE)) == DONE


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{}",
        b"[]",
        b"\xff\xfe",
        b'{"kind": "stop"}',
        encode_order(ORDERS[1]).replace(b'"retry"', b'"measured"'),
        encode_order(ORDERS[0]).replace(b'"again":true', b'"again":1'),
        encode_order(ORDERS[0]).replace(b'"at_s":1.5', b'"at_s":1e300'),
        encode_order(ORDERS[0]).replace(b"}", b',"more":1}'),
    ],
)
def test_what_is_no_order_is_answered_and_removed_and_the_next_one_comes(tmp_path: Path, content: bytes) -> None:
    inbox = Inbox(tmp_path)
    inbox.put(ORDERS[1])
    bad = tmp_path / "orders" / "0.order"
    bad.write_bytes(content)
    assert inbox.first() == ORDERS[1]
    assert not bad.exists()
    answer = decode_answer((tmp_path / "orders" / "0.answer").read_bytes())
    assert not answer.done
    assert answer.text.startswith(f"{bad}: is no order")
    assert "\n" not in answer.text


def test_an_order_under_the_name_of_another_is_none(tmp_path: Path) -> None:
    inbox = Inbox(tmp_path)
    inbox.put(ORDERS[0])
    (tmp_path / "orders" / "1.order").rename(tmp_path / "orders" / "9.order")
    assert inbox.first() is None


def test_orders_come_in_their_sequence_and_again_until_they_are_answered(tmp_path: Path) -> None:
    inbox, other = Inbox(tmp_path), Inbox(tmp_path)
    assert inbox.first() is None
    for order in reversed(ORDERS):
        other.put(order)
    for order in ORDERS:
        assert asyncio.run(inbox.next()) == order
        assert Inbox(tmp_path).first() == order, "the run after a kill gets it again"
        assert other.take_answer(order) is None
        inbox.answer(order, DONE)
        assert other.take_answer(order) == DONE
        assert other.take_answer(order) is None
    assert list((tmp_path / "orders").iterdir()) == []


def test_an_order_that_comes_while_somebody_waits_is_heard_at_once(tmp_path: Path) -> None:
    async def main() -> float:
        waiting = asyncio.ensure_future(Inbox(tmp_path).next())
        await asyncio.sleep(0.05)
        began_s = time.monotonic()
        Inbox(tmp_path).put(ORDERS[0])
        assert await waiting == ORDERS[0]
        return time.monotonic() - began_s

    assert asyncio.run(main()) < 1.0


def test_a_wait_that_is_cancelled_loses_no_order(tmp_path: Path) -> None:
    async def main() -> None:
        waiting = asyncio.ensure_future(Inbox(tmp_path).next())
        await asyncio.sleep(0.01)
        waiting.cancel()
        await asyncio.wait([waiting])

    asyncio.run(main())
    Inbox(tmp_path).put(ORDERS[0])
    assert Inbox(tmp_path).first() == ORDERS[0]


def test_an_order_can_be_withdrawn_until_it_was_answered(tmp_path: Path) -> None:
    inbox = Inbox(tmp_path)
    inbox.put(ORDERS[0])
    assert inbox.withdraw(ORDERS[0])
    assert inbox.first() is None
    inbox.put(ORDERS[1])
    inbox.answer(ORDERS[1], DONE)
    assert not inbox.withdraw(ORDERS[1])
    assert inbox.take_answer(ORDERS[1]) == DONE


def test_answers_that_nobody_fetched_are_removed_after_a_while(tmp_path: Path) -> None:
    inbox = Inbox(tmp_path)
    for order in ORDERS[:2]:
        inbox.put(order)
        inbox.answer(order, DONE)
    old = tmp_path / "orders" / "1.answer"
    long_ago_s = time.time() - STALE_S - 1
    os.utime(old, (long_ago_s, long_ago_s))
    inbox.put(ORDERS[2])
    asyncio.run(inbox.next())
    assert not old.exists()
    assert inbox.take_answer(ORDERS[1]) == DONE


def test_a_place_where_nothing_can_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "orders").write_text("in the way")
    for use in (lambda: Inbox(tmp_path).put(ORDERS[0]), lambda: Inbox(tmp_path).first()):
        with pytest.raises(StudyUnwritable, match=r"orders: orders cannot be kept there .*make it writable"):
            use()
