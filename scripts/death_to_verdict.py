"""How long a dead server goes unnoticed: from the death of its process to the trial's verdict.

Over SSH it boots a host with systemd and sshd (root is needed, and the Debian packages of scripts/test), runs
trials of the simulated SGLang on it, kills the server in one state after another with SIGKILL and compares
the moment of the kill with that of the trial's JUDGING event; both are of one clock. A death that could be the
host's fault is tried once more, so each trial gives two: the first counts until its cause is told, which is
when the second try begins, the second until the verdict.

    scripts/death_to_verdict [--trials 5] [--only local|ssh]
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import signal
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Callable

from tuner.engines import engine
from tuner.model.outcome import TrialState
from tuner.model.space import Assignment
from tuner.model.study import SimulatedHostSpec, UnitHostSpec
from tuner.model.trial import Command, Remark, StateEntered, TrialEvent, TrialRequest
from tuner.model.workload import Workload
from tuner.runtime.cleaning import HostSession
from tuner.runtime.stay import Proof
from tuner.runtime.trial import events_of
from tuner.testing.base_command import sglang_at
from tuner.testing.rig import UNIT, Rig
from tuner.wiring.holder import holder_of
from tuner.wiring.host import build_host
from tuner.wiring.units import read_base

STATES = (TrialState.LOADING, TrialState.MEASURING, TrialState.SOAKING)
WORKLOAD = Workload(
    output_tokens=24,
    ladder=(1, 4),
    level_min_s=1.0,
    level_max_s=1.0,
    soak_s=1.0,
    warmup_requests=1,
    request_timeout_s=20,
    load_timeout_s=60,
)
SPEED = 20.0
"""Real time for loading, nearly: a server must be caught while it loads."""

ADDRESS = "127.0.0.1"
INTO_STATE_S = 0.3
"""How far into a state the server is killed."""


class Bench:
    """One host and the times seen on it; ``kill`` kills the main process of its server, given its PID."""

    def __init__(self, session: HostSession, base: Command, kill: Callable[[int], object]) -> None:
        self._kill_main = kill
        self._session = session
        self._engine = engine("sglang")
        self._base = base
        self.seen: dict[TrialState, list[float]] = {state: [] for state in STATES}

    def request(self, number: int) -> TrialRequest:
        """Return a trial of the base command itself."""
        return TrialRequest(
            study="death-to-verdict",
            number=number,
            assignment=Assignment.of(dict(self._engine.settings_of(self._base))),
            command=self._base,
            engine="sglang",
            workload=WORKLOAD,
            seed=1,
        )

    async def run(self, number: int, state: TrialState) -> None:
        """Kill the server of one trial each time it is in ``state``; note how long each verdict took."""
        killed_s: float | None = None
        async with self._events(number) as events:
            async for event in events:
                if isinstance(event, StateEntered) and event.state is state:
                    await asyncio.sleep(INTO_STATE_S)
                    killed_s = await self._kill()
                told = isinstance(event, Remark) and event.text.startswith("starting once more")
                judged = isinstance(event, StateEntered) and event.state is TrialState.JUDGING
                if killed_s is not None and (told or judged):
                    self.seen[state].append(event.at_s - killed_s)
                    killed_s = None

    @contextlib.asynccontextmanager
    async def _events(self, number: int) -> AsyncIterator[AsyncIterator[TrialEvent]]:
        events = events_of(self.request(number), self._session, self._engine, asyncio.Event())
        async with contextlib.aclosing(events) as open_events:  # type: ignore[type-var]  # it is a generator
            yield open_events

    async def _kill(self) -> float:
        identity = (await self._session.ports.service.state()).identity
        assert identity is not None
        at_s = time.time()
        await asyncio.to_thread(self._kill_main, identity.main_pid)
        return at_s


async def measure(
    spec: UnitHostSpec | SimulatedHostSpec, base: Command, kill: Callable[[int], object], trials: int
) -> dict[TrialState, list[float]]:
    """Run ``trials`` trials a state and return the seconds seen."""
    with tempfile.TemporaryDirectory() as folder:
        session = HostSession(build_host(spec, holder_of("death-to-verdict", folder)))
        bench = Bench(session, base, kill)
        try:
            for index in range(trials):
                for place, state in enumerate(STATES):
                    await bench.run(index * len(STATES) + place, state)
        finally:
            await session.stay.leave(Proof(engine=engine("sglang"), workload=WORKLOAD), print)
    return bench.seen


def over_ssh(trials: int) -> dict[TrialState, list[float]]:
    """Measure a unit on a host of its own."""
    with Rig(speed=SPEED) as rig:
        rig.install_unit()
        spec = UnitHostSpec(name=rig.name, unit=UNIT, login=rig.login())
        base = read_base((spec,), print)
        return asyncio.run(measure(spec, base, lambda pid: rig.run("kill", "-9", str(pid), check=True), trials))


def at_home(trials: int) -> dict[TrialState, list[float]]:
    """Measure a supervised process of this machine, on the simulated GPU host."""
    with tempfile.TemporaryDirectory() as folder:
        spec = SimulatedHostSpec(
            name="here", address=ADDRESS, state_dir=folder, profile="qwen3.5-122b-a10b-4gpu", speed=SPEED
        )
        return asyncio.run(measure(spec, sglang_at(ADDRESS), lambda pid: os.kill(pid, signal.SIGKILL), trials))


def table(where: str, seen: dict[TrialState, list[float]]) -> list[str]:
    """Return the lines of one place's times, in seconds."""
    for state, times in seen.items():
        assert times, f"no server was killed while {state.value}"
    rows = [(state.value, times) for state, times in seen.items()]
    rows.append(("all", [time_s for times in seen.values() for time_s in times]))
    return [
        f"{where:<6}  {name:<13}  {len(times):>6}   {statistics.median(times):>8.2f}   {max(times):>9.2f}"
        for name, times in rows
    ]


def main() -> None:
    """Read the command line, measure, print."""
    parser = argparse.ArgumentParser(description="time from a server's death to the verdict")
    parser.add_argument("--trials", type=int, default=5, help="trials a state; each has two deaths")
    parser.add_argument("--only", choices=sorted(PLACES), help="one place; both without it")
    given = parser.parse_args()
    lines = [
        line
        for where, work in PLACES.items()
        if given.only in (None, where)
        for line in table(where, work(given.trials))
    ]
    print("place   killed while   deaths   median s   longest s")
    print("\n".join(lines))


PLACES = {"local": at_home, "ssh": over_ssh}

if __name__ == "__main__":
    main()
