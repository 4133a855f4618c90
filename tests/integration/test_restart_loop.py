"""Real trials of configurations that fail: under a manager that restarts the dead, under load, and at the start."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from tuner.engines import engine
from tuner.hosts.process import ProcessServiceManager
from tuner.model.host import Activity
from tuner.model.outcome import Cause, Infeasible, MemoryDirection, TrialState, violation
from tuner.model.space import Assignment
from tuner.model.study import SimulatedHostSpec
from tuner.model.trial import Command, LogText, Remark, TrialEvent, TrialRequest, TrialResult
from tuner.model.workload import Workload
from tuner.ports import HostPorts
from tuner.runtime.cleaning import HostSession
from tuner.runtime.trial import Trial
from tuner.simulator.book import Book
from tuner.simulator.host import DEFAULT_PROFILE, environment, prepare
from tuner.testing.base_command import sglang_at
from tuner.testing.project import processes_of
from tuner.wiring.holder import holder_of
from tuner.wiring.host import build_host

ADDRESS = "127.0.0.29"
GPUS = 4
KEY = "planted-s3cret"
ENGINE = engine("sglang")
WORKLOAD = Workload(
    output_tokens=48,
    ladder=(1, 16),
    level_min_s=1.0,
    level_max_s=1.0,
    interval=0.2,
    soak_s=0.0,
    warmup_requests=1,
    request_timeout_s=30,
    load_timeout_s=30,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """A simulated host of one test, as the study's wiring builds it; its folder has an awkward name."""

    home: Path
    ports: HostPorts

    async def run(self, command: Command, assignment: Assignment, workload: Workload) -> tuple[TrialResult, list[str]]:
        """Run a trial; returns its result and everything that was said and logged."""
        request = TrialRequest(
            study="s", number=1, assignment=assignment, command=command, engine="sglang", workload=workload, seed=1
        )
        events: list[TrialEvent] = []
        trial = Trial(request, HostSession(ports=self.ports), ENGINE, events.append, asyncio.Event())
        result = await trial.run()
        return result, [event.text for event in events if isinstance(event, LogText | Remark)]

    async def is_left_as_found(self) -> None:
        """Hold that nothing runs, that nothing starts again, and that the GPUs' memory comes back."""
        assert await self.ports.service.leftovers() == ()
        assert (await self.ports.service.state()).activity in (Activity.INACTIVE, Activity.FAILED)
        deadline_s = time.monotonic() + 10.0
        while any(Book(self.home).used_bytes(gpu) for gpu in range(GPUS)):
            assert time.monotonic() < deadline_s, "GPU memory did not come back"
            await asyncio.sleep(0.1)
        await asyncio.sleep(0.5)  # longer than the manager waits before it starts a dead server again
        assert processes_of(self.home) == []


def host(folder: Path, *, faults: Sequence[str] = (), restart_delay_s: float | None = None) -> Host:
    home = folder / "a host's größe"
    spec = SimulatedHostSpec(
        name="sim0", address=ADDRESS, state_dir=str(home), profile=DEFAULT_PROFILE, speed=500.0, faults=tuple(faults)
    )
    ports = build_host(spec, holder_of("loop", spec.state_dir))
    if restart_delay_s is not None:
        facts = environment(home, spec.profile, spec.speed, spec.address, spec.faults)
        path = f"{prepare(home, facts=facts)}{os.pathsep}{os.environ['PATH']}"
        service = ProcessServiceManager(
            home / "service", {**os.environ, **facts, "PATH": path}, restart="always", restart_delay_s=restart_delay_s
        )
        ports = replace(ports, service=service)
    return Host(home=home, ports=ports)


def command(steps: int = 3, fraction: float = 0.8, *more: str) -> tuple[Command, Assignment]:
    found = sglang_at(ADDRESS, "--api-key", KEY, *more, steps=steps, fraction=fraction)
    return found, ENGINE.settings_of(found)


def infeasible(result: TrialResult) -> Infeasible:
    assert isinstance(result.outcome, Infeasible), result.outcome
    return result.outcome


def test_a_server_that_its_manager_restarts_for_ever_is_infeasible_and_nothing_is_left(tmp_path: Path) -> None:
    subject = host(tmp_path, faults=("die-serving:2.5",), restart_delay_s=0.2)
    # The first level lasts until the server dies: both lives end in the same state.
    workload = replace(WORKLOAD, level_min_s=30.0, level_max_s=30.0)

    async def scenario() -> tuple[TrialResult, list[str]]:
        done = await subject.run(*command(), workload)
        await subject.is_left_as_found()
        return done

    result, said = asyncio.run(scenario())
    outcome = infeasible(result)
    assert (outcome.state, outcome.level, result.attempts) == (TrialState.MEASURING, 1, 2)
    assert outcome.violation == violation(TrialState.MEASURING, level_index=0, levels=2)
    assert outcome.verdict.cause is Cause.CUDA_FAULT, "the cause of the deaths, not that there were several"
    assert any("starting once more after cleaning" in text for text in said)
    assert KEY not in "".join((*said, *outcome.verdict.evidence, outcome.verdict.advice))
    assert result.finished_s - result.started_s < 25.0, "a loop is seen at its first turn"


def test_a_loop_of_silent_deaths_is_called_what_it_is(tmp_path: Path) -> None:
    subject = host(tmp_path, faults=("exit-at:capture",), restart_delay_s=0.2)

    async def scenario() -> TrialResult:
        result, _ = await subject.run(*command(), WORKLOAD)
        await subject.is_left_as_found()
        return result

    result = asyncio.run(scenario())
    outcome = infeasible(result)
    assert outcome.verdict.cause is Cause.CRASH_LOOP
    assert (outcome.state, result.attempts) == (TrialState.LOADING, 2)
    assert outcome.violation == violation(TrialState.LOADING, stage=outcome.verdict.stage)
    assert result.legs == ()


def test_deep_speculation_is_fast_alone_and_infeasible_under_load_even_where_it_is_restarted(tmp_path: Path) -> None:
    subject = host(tmp_path, restart_delay_s=0.2)

    async def scenario() -> TrialResult:
        result, _ = await subject.run(*command(10), WORKLOAD)
        await subject.is_left_as_found()
        return result

    result = asyncio.run(scenario())
    outcome = infeasible(result)
    assert outcome.verdict.cause is Cause.OOM_VERIFY_WORKSPACE
    assert (outcome.state, outcome.level, result.attempts) == (TrialState.MEASURING, 16, 1)
    assert violation(TrialState.SOAKING) < outcome.violation < violation(TrialState.MEASURING, level_index=0, levels=2)
    (lone,) = result.legs
    assert lone.concurrency == 1
    assert lone.single_request_throughput is not None, "it answered well before it was loaded"


def test_a_command_line_that_is_rejected_has_the_worst_grade_and_no_second_try(tmp_path: Path) -> None:
    subject = host(tmp_path)

    async def scenario() -> TrialResult:
        result, _ = await subject.run(*command(3, 0.8, "--no-such-flag"), WORKLOAD)
        assert (await subject.ports.service.state()).exit_status == 2
        await subject.is_left_as_found()
        return result

    result = asyncio.run(scenario())
    outcome = infeasible(result)
    assert outcome.verdict.cause is Cause.REJECTED_ARGUMENTS
    assert (outcome.violation, result.attempts) == (violation(TrialState.DEPLOYING), 1)
    assert "--no-such-flag" in "".join(outcome.verdict.evidence)


def test_a_fraction_too_low_is_told_with_its_direction_and_what_would_do(tmp_path: Path) -> None:
    subject = host(tmp_path)

    async def scenario() -> TrialResult:
        result, _ = await subject.run(*command(3, 0.3), WORKLOAD)
        await subject.is_left_as_found()
        return result

    result = asyncio.run(scenario())
    outcome = infeasible(result)
    assert outcome.verdict.cause is Cause.KV_POOL_TOO_SMALL
    assert outcome.verdict.direction is MemoryDirection.FRACTION_TOO_LOW
    assert (outcome.verdict.viable_fraction or 0.0) > 0.3
    assert outcome.state is TrialState.LOADING
    missing = (outcome.verdict.viable_fraction or 0.0) - 0.3
    assert outcome.violation == violation(TrialState.LOADING, stage=outcome.verdict.stage, missing=missing)
    assert result.attempts == 1
