"""Compares the simulated GPU host with the measurements it was calibrated to.

tuner itself measures the simulated server: its own trial runner, load generator and log
diagnosis, as in a study. Prints one row per number of draft steps with the error of every
cell, then what happens at 10 steps. Exit status 1 when a cell is more than 5 % off.

    scripts/calibrate [--quick]
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import socket
import sys
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

from tuner.engines import engine
from tuner.hosts.process import ProcessServiceManager
from tuner.load.client import HttpLoadGenerator
from tuner.load.http import HttpControlClient
from tuner.model.outcome import Cause, Infeasible, Measured
from tuner.model.space import Assignment
from tuner.model.study import SimulatedHostSpec
from tuner.model.trial import Command, TrialRequest, TrialResult
from tuner.model.workload import Workload
from tuner.ports import Target
from tuner.runtime.cleaning import HostSession
from tuner.runtime.trial import Trial
from tuner.simulator.host import environment, prepare
from tuner.wiring.holder import holder_of
from tuner.wiring.host import build_host
from tuner.wiring.load import load_study

ROOT = Path(__file__).resolve().parents[1]
TOLERANCE = 0.05
ADDRESS = "127.0.0.1"
SINGLE_AT_10 = (270.0, 293.0)
ACCEPT_RATE_AT_10 = 0.92
DEATHS = 2  # of the crash loop
WORKLOAD = Workload(
    output_tokens=128,
    level_min_s=3.0,
    level_max_s=6.0,
    interval=0.01,
    soak_s=1.0,
    warmup_requests=2,
    request_timeout_s=60.0,
    load_timeout_s=60.0,
)
QUICK = replace(WORKLOAD, ladder=(1, 16, 32), level_min_s=2.0, level_max_s=4.0, interval=0.02)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """What was measured on the real host; None: not written down."""

    single: float
    peak: float
    kv_tokens: int | None = None
    requests: int | None = None


REAL = {
    1: Row(single=123, peak=1582, kv_tokens=455_357),
    2: Row(single=186, peak=1844, kv_tokens=377_207, requests=21),
    3: Row(single=234, peak=1979, kv_tokens=295_931, requests=17),
    4: Row(single=277, peak=1817),
    5: Row(single=282, peak=1273),
}


class Bench:
    """The simulated host and the study's base command, ready to run trials."""

    def __init__(self, folder: Path, workload: Workload) -> None:
        self._study = load_study(ROOT, "qwen-mtp")
        self._engine = engine(self._study.engine)
        self._workload = workload
        argv = list(self._study.base.argv)
        argv[argv.index("--port") + 1] = str(free_port())
        self._base = replace(self._study.base, argv=tuple(argv))
        host = next(host for host in self._study.hosts if isinstance(host, SimulatedHostSpec))
        self._host = replace(host, address=ADDRESS, state_dir=str(folder), faults=())
        self._session = HostSession(ports=build_host(self._host, holder_of("calibration", self._host.state_dir)))

    def command(self, steps: int) -> tuple[Assignment, Command]:
        """Return the base command with this many draft steps, at the base memory fraction."""
        wanted = {**self._study.baseline, "speculative_num_steps": steps, "speculative_num_draft_tokens": steps + 1}
        assignment = self._engine.canonical(Assignment.of(wanted))
        return assignment, self._engine.command(self._base, assignment)

    async def run(self, steps: int) -> TrialResult:
        """Run a whole trial."""
        assignment, command = self.command(steps)
        request = TrialRequest(
            study="calibration",
            number=steps,
            assignment=assignment,
            command=command,
            engine=self._engine.name,
            workload=self._workload,
            seed=self._study.seed,
        )
        return await Trial(request, self._session, self._engine, lambda _: None, asyncio.Event()).run()

    async def crash_loop(self, steps: int) -> int:
        """Serve under a manager that restarts the dead, put it under load, and count the deaths."""
        folder = Path(self._host.state_dir)
        facts = environment(folder, self._host.profile, self._host.speed, ADDRESS)
        path = f"{prepare(folder, facts=facts)}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
        service = ProcessServiceManager(
            folder / "looping", {**os.environ, **facts, "PATH": path}, restart="always", restart_delay_s=0.5
        )
        _, command = self.command(steps)
        url = f"http://{ADDRESS}:{self._engine.port(command)}"
        target = Target(base_url=url, engine=self._engine, workload=self._workload, seed=self._study.seed)
        control = HttpControlClient(url)
        try:
            await service.start(command)
            async with asyncio.timeout(120):
                while (deaths := (await service.state()).restarts) < DEATHS:
                    if (await control.call(self._engine.health_call())).status == 200:
                        await HttpLoadGenerator().warm_up(target, requests=32, concurrency=16, progress=lambda _: None)
                    await asyncio.sleep(0.2)
        finally:
            await service.stop(grace_s=10.0)
            await control.close()
        return deaths


def free_port() -> int:
    """Return a port nobody listens on."""
    with socket.socket() as probe:
        probe.bind((ADDRESS, 0))
        return int(probe.getsockname()[1])


class Table:
    """Prints cells with their error and remembers whether one is too far off."""

    def __init__(self) -> None:
        self.worst = 0.0

    def cell(self, measured: float, real: float | None, width: int) -> str:
        """Return a number and how far it is from the real one."""
        if real is None:
            return f"{measured:>{width},.0f}        "
        error = measured / real - 1.0
        self.worst = max(self.worst, abs(error))
        return f"{measured:>{width},.0f} ({error:+.1%})".ljust(width + 9)

    def row(self, steps: int, result: TrialResult) -> str:
        """Return one line; a trial without a result is infinitely far off."""
        outcome, real = result.outcome, REAL[steps]
        if not isinstance(outcome, Measured):
            self.worst = float("inf")
            return f"{steps:>5}  not measured: {outcome}"
        capacity = result.effective.capacity if result.effective else None
        cells = [
            self.cell(outcome.single_request_throughput.value, real.single, 6),
            self.cell(outcome.aggregate_throughput.value, real.peak, 7) + f"at {outcome.peak_concurrency:<3}",
            self.cell(capacity.max_total_num_tokens, real.kv_tokens, 9)
            if capacity and capacity.max_total_num_tokens is not None
            else "not said",
            self.cell(capacity.max_running_requests, real.requests, 5)
            if capacity and capacity.max_running_requests is not None
            else "not said",
        ]
        speculation = result.legs[0].speculation
        if speculation and speculation.acceptance_length is not None and speculation.step_time_s is not None:
            cells.append(f"{speculation.acceptance_length:6.2f} x {speculation.step_time_s * 1e3:5.1f} ms")
        return f"{steps:>5}  " + "  ".join(cells)


def story(result: TrialResult) -> tuple[bool, list[str]]:
    """Say what 10 steps did: fast alone, dead of memory under load."""
    lone = result.legs[0] if result.legs else None
    single = lone.single_request_throughput.value if lone and lone.single_request_throughput else None
    acceptance = lone.speculation.acceptance_length if lone and lone.speculation else None
    rate = None if acceptance is None else (acceptance - 1) / 10
    outcome = result.outcome
    is_dead = isinstance(outcome, Infeasible) and outcome.verdict.cause is Cause.OOM_VERIFY_WORKSPACE
    is_fast = single is not None and SINGLE_AT_10[0] <= single <= SINGLE_AT_10[1]
    alone = "not measured" if single is None else f"{single:.0f} tok/s"
    accepted = "not measured" if rate is None else f"{rate:.2f}"
    lines = [f"alone: {alone} (real: 270 to 293), accept rate {accepted} (real: {ACCEPT_RATE_AT_10})"]
    if isinstance(outcome, Infeasible):
        lines.append(f"then: {outcome.verdict.cause.value} at concurrency {outcome.level}")
        lines.append(f"      {outcome.verdict.evidence[0][:110] if outcome.verdict.evidence else ''}")
    else:
        lines.append(f"then: {outcome}")
    return is_dead and is_fast, lines


async def calibrate(*, quick: bool) -> int:
    """Print the comparison; return the exit status."""
    table = Table()
    with tempfile.TemporaryDirectory(prefix="calibrate-") as folder:
        bench = Bench(Path(folder), QUICK if quick else WORKLOAD)
        print("Simulated host, measured by tuner; in brackets the difference from the real host.")
        print("steps   single tok/s     peak aggregate tok/s      max_total_num_tokens  max_running    alone")
        for steps in (1, 3, 5) if quick else REAL:
            print(table.row(steps, await bench.run(steps)), flush=True)
        is_told, lines = story(await bench.run(10))
        print("\n10 steps", *lines, sep="\n  ", flush=True)
        with contextlib.suppress(TimeoutError):
            deaths = await bench.crash_loop(10)
            print(f"  restarted by its manager and put under load again, it died {deaths} times")
            print(f"\nworst cell {table.worst:.1%} off, {TOLERANCE:.0%} allowed")
            return 0 if is_told and table.worst <= TOLERANCE else 1
    print("  it did not crash again under a manager that restarts it")
    return 1


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Compare the simulated host with the real measurements.")
    parser.add_argument("--quick", action="store_true", help="three rows, short legs")
    sys.exit(asyncio.run(calibrate(quick=parser.parse_args().quick)))
