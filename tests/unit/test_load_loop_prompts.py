"""What a leg sends of its prompts, and what its records say of them."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import pytest

from tuner.load.loop import ClosedLoop
from tuner.load.prompts import load_prompts
from tuner.load.queue import PromptQueue
from tuner.load.stream import ReadCounts, StreamEnd, StreamSink
from tuner.model.http import HttpCall
from tuner.model.record import RequestRecord, RequestStatus
from tuner.model.workload import Workload
from tuner.ports import Target
from tuner.testing.fake_engine import FakeEngine

LINES = (
    {"id": "plain", "prompt": "one", "class": "chat"},
    {"id": "short", "prompt": "two", "class": "code", "output_tokens": 3},
    {"id": "talk", "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "three"}]},
)


class Echo:
    """Answers with as many tokens as were asked for."""

    def __init__(self) -> None:
        self.counts = ReadCounts()
        self.bodies: list[dict[str, Any]] = []

    async def open(self) -> None:
        """There is nothing to connect."""

    async def close(self) -> None:
        """There is nothing to close."""

    async def stream(self, call: HttpCall, sink: StreamSink) -> StreamEnd:
        assert call.body is not None
        self.bodies.append(dict(call.body))
        sink.sent(time.perf_counter())
        for total in (1, call.body["max_tokens"]):
            event = {"choices": [{"text": "x"}], "usage": {"completion_tokens": total}}
            sink.feed(b"data: " + json.dumps(event).encode() + b"\n\n", time.perf_counter())
            await asyncio.sleep(0)
        sink.feed(b"data: [DONE]\n\n", time.perf_counter())
        return StreamEnd(ended_s=time.perf_counter(), status=200)


@pytest.fixture
def source(tmp_path: Path) -> str:
    path = tmp_path / "mine.jsonl"
    path.write_text("\n".join(json.dumps(line) for line in LINES))
    return str(path)


def sent(source: str, *, salt: str, slots: int = 1, seed: int = 3) -> tuple[list[dict[str, Any]], list[RequestRecord]]:
    """Send each prompt twice."""
    echo = Echo()
    target = Target(
        base_url="http://fake", engine=FakeEngine(), workload=Workload(prompts=source, output_tokens=5), seed=seed
    )
    prompts = PromptQueue(load_prompts(source), seed=seed, salt=salt, limit=2 * len(LINES))

    async def run() -> list[RequestRecord]:
        async with ClosedLoop(
            target, concurrency=slots, prompts=prompts, connect=lambda _: echo, request_s=0.0
        ) as loop:
            while not await loop.wait(1.0):
                continue
            return loop.records

    return echo.bodies, asyncio.run(run())


def test_records_carry_the_class_of_their_prompt(source: str) -> None:
    _, records = sent(source, salt="a")
    assert {record.prompt_id: record.prompt_class for record in records} == {
        "plain": "chat",
        "short": "code",
        "talk": "",
    }


def test_a_prompt_that_says_its_length_is_asked_for_it_and_is_whole_with_it(source: str) -> None:
    bodies, records = sent(source, salt="a")
    assert sorted(body["max_tokens"] for body in bodies) == [3, 3, 5, 5, 5, 5]
    assert {(record.prompt_id, record.tokens) for record in records} == {("plain", 5), ("short", 3), ("talk", 5)}
    assert {record.status for record in records} == {RequestStatus.OK}


def test_a_conversation_keeps_its_roles_and_is_marked_in_its_first_turn(source: str) -> None:
    bodies, _ = sent(source, salt="a")
    talks = [body["messages"] for body in bodies if len(body["messages"]) == 2]
    assert [[turn["role"] for turn in talk] for talk in talks] == [["system", "user"]] * 2
    assert len({talk[0]["content"] for talk in talks}) == 2
    assert {talk[1]["content"] for talk in talks} == {"three"}


def test_two_trials_are_sent_the_same_requests_to_the_letter(source: str) -> None:
    assert sent(source, salt="level-1")[0] == sent(source, salt="level-1")[0]


def test_another_leg_is_sent_the_same_prompts_with_other_starts(source: str) -> None:
    (one, records), (other, others) = (sent(source, salt=salt) for salt in ("level-1", "level-4"))
    assert [record.prompt_id for record in records] == [record.prompt_id for record in others]
    assert [body["seed"] for body in one] == [body["seed"] for body in other]
    assert not {json.dumps(body) for body in one} & {json.dumps(body) for body in other}
