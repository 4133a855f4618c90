"""A simulated host on whose GPUs somebody else computes too, or that gets too hot."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from tuner.engines import engine
from tuner.execution.inline import InlineExecutor
from tuner.model.lease import Holder
from tuner.model.outcome import Faulted, Measured, TrialState
from tuner.model.study import SimulatedHostSpec
from tuner.model.trial import LegFinished, Remark, TrialEvent, TrialRequest
from tuner.model.workload import Workload
from tuner.simulator.book import Book
from tuner.simulator.host import DEFAULT_PROFILE
from tuner.testing.base_command import sglang_at
from tuner.testing.fake_optimizer import FakeOptimizer
from tuner.wiring.host import build_host

ADDRESS = "127.0.0.31"
GIB = 1024**3
ENGINE = engine("sglang")
STRANGER = 4_194_306  # no process of this machine: above Linux' highest PID
WORKLOAD = Workload(
    output_tokens=32,
    ladder=(1, 8),
    level_min_s=3.0,
    level_max_s=3.0,
    interval=0.2,
    soak_s=0.0,
    warmup_requests=1,
    request_timeout_s=30,
    load_timeout_s=30,
)


class Study:
    """A study of one host, its trials run one by one as the campaign does."""

    def __init__(self, folder: Path, *faults: str) -> None:
        self.home = folder / "sim"
        spec = SimulatedHostSpec(
            name="sim0", address=ADDRESS, state_dir=str(self.home), profile=DEFAULT_PROFILE, speed=500.0, faults=faults
        )
        holder = Holder(owner="t", study="s", directory=str(folder), machine="m", pid=1, since_s=0.0)
        ports = build_host(spec, holder)
        self.book = Book(self.home)
        self.base = sglang_at(ADDRESS)
        self.events: list[TrialEvent] = []
        baseline = ENGINE.settings_of(self.base)
        self.optimizer = FakeOptimizer((), baseline=baseline, canonical=ENGINE.canonical)
        self._gpu = ports.gpu
        self._executor = InlineExecutor({"sim0": ports}, {"sglang": ENGINE})

    async def run_next(self, on_event: Callable[[TrialEvent], None] = lambda _event: None) -> None:
        """Run the next trial of the queue and tell its end."""
        proposal = self.optimizer.propose("sim0")
        assert proposal is not None
        request = TrialRequest(
            study="s",
            number=proposal.number,
            assignment=proposal.assignment,
            command=self.base,
            engine="sglang",
            workload=WORKLOAD,
            seed=1,
        )
        events: AsyncIterator[TrialEvent] = self._executor.run("sim0", request)
        self.events = []
        async for event in events:
            self.events.append(event)
            on_event(event)
        self.optimizer.tell(self.events[-1].result)  # type: ignore[union-attr]  # always TrialFinished

    async def until_cool(self) -> None:
        """Wait until the hardware slows nothing down any more."""
        while any(reading.slowed_by for reading in await self._gpu.read()):  # noqa: ASYNC110 - a GPU tells nobody
            await asyncio.sleep(0.2)

    @property
    def remarks(self) -> list[str]:
        """What was remarked in the last trial."""
        return [event.text for event in self.events if isinstance(event, Remark)]


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("foreign-gpu:1", "foreign process 4194305 python train.py (2.0 GiB on GPU 0) used the GPU on sim0"),
        ("throttle:1", "GPU 0 is slowed down by hw_thermal_slowdown, hw_slowdown to 1200 MHz"),
    ],
)
def test_a_leg_beside_somebody_else_or_in_the_heat_is_void_and_its_assignment_is_run_again(
    tmp_path: Path, fault: str, words: str
) -> None:
    study = Study(tmp_path, fault)

    async def main() -> None:
        await study.run_next()
        (first, queued) = study.optimizer.rows()
        assert isinstance(first.outcome, Faulted)
        assert words in first.outcome.error
        assert first.outcome.state is TrialState.MEASURING
        assert queued.assignment == first.assignment
        await study.until_cool()
        await study.run_next()
        assert isinstance(study.optimizer.rows()[1].outcome, Measured)

    asyncio.run(main())


def test_a_process_that_begins_in_a_leg_ends_it_within_seconds(tmp_path: Path) -> None:
    study = Study(tmp_path)
    began_s = 0.0

    def join(event: TrialEvent) -> None:
        nonlocal began_s
        if isinstance(event, LegFinished) and event.leg.concurrency == 1:
            began_s = time.monotonic()
            study.book.foreign(STRANGER, name="python eval.py", bytes_per_gpu={2: GIB})

    async def main() -> None:
        await study.run_next(join)

    asyncio.run(main())
    outcome = study.optimizer.rows()[0].outcome
    assert isinstance(outcome, Faulted)
    assert f"{STRANGER} python eval.py (1.0 GiB on GPU 2)" in outcome.error
    assert sum(isinstance(event, LegFinished) for event in study.events) == 1
    assert time.monotonic() - began_s < 8.0


def test_a_process_that_holds_memory_before_a_trial_is_waited_for_and_left_alone(tmp_path: Path) -> None:
    study = Study(tmp_path)
    study.book.foreign(STRANGER, name="python train.py", bytes_per_gpu={1: 30 * GIB}, for_s=3.0)
    asyncio.run(study.run_next())
    assert isinstance(study.optimizer.rows()[0].outcome, Measured)
    assert [text for text in study.remarks if "python train.py (30.0 GiB on GPU 1)" in text]
