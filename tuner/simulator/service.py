"""The serving half of a server's life: open the port, warm up, serve, drain or crash."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable, Mapping

from aiohttp import web

from tuner.simulator import crash
from tuner.simulator.engine import Engine, Status
from tuner.simulator.http import HEALTH_PREFIX, Endpoints
from tuner.simulator.info import Info
from tuner.simulator.machine import Machine
from tuner.simulator.memory import MemoryPlan
from tuner.simulator.metrics import Metrics
from tuner.simulator.request import Request, Sampling
from tuner.simulator.startup import Step
from tuner.simulator.text import tokenize

_OWN_NAMES = frozenset({"0.0.0.0", "127.0.0.1", "localhost", "::", ""})  # noqa: S104 - names, not an address to bind
"""What ``--host`` may say when it means the machine itself."""

_WATCHDOG_S = 0.25  # SGLang polls every second; a death must be seen within one
_DRAIN_POLL_S = 5.0
_CRASH_WAIT_S = 5.0
_COREDUMP_WAIT_S = 60.0
_HANDLERS_END_S = 2.0
_WARMUP_PROMPT = "The capital city of France is"
_WARMUP_TOKENS = 8


def serve(machine: Machine, plan: MemoryPlan, opening: Mapping[str, Step], environ: Mapping[str, str]) -> int:
    """Serve until a signal ends it; return the exit status."""
    return asyncio.run(_Service(machine, plan, opening, environ).run())


class _Service:
    """Serves one loaded machine.

    Args:
        plan: its memory.
        opening: the steps of the start-up script that belong to the open port, by stage.
        environ: SGLang's own switches.
    """

    def __init__(
        self, machine: Machine, plan: MemoryPlan, opening: Mapping[str, Step], environ: Mapping[str, str]
    ) -> None:
        self._machine = machine
        self._plan = plan
        self._opening = opening
        self._environ = environ

    async def run(self) -> int:
        """Serve until a signal ends it; return the exit status."""
        machine = self._machine
        metrics = Metrics(machine.args.served_model_name or machine.args.model_path)
        self._engine = Engine(machine, self._plan, self._opening["ready"].gpu_bytes, _observer(metrics))
        info = Info(machine, self._engine, time.monotonic() - machine.began_s)
        endpoints = Endpoints(machine, self._engine, info, metrics, self._environ)
        runner = web.AppRunner(
            endpoints.application(),
            access_log=None,
            handler_cancellation=True,  # a client that goes away aborts its request
            shutdown_timeout=_HANDLERS_END_S,
        )
        await runner.setup()
        if not await self._open_port(runner):
            return 1
        if await self._serve():
            await runner.cleanup()
        return 0

    async def _open_port(self, runner: web.AppRunner) -> bool:
        machine, args = self._machine, self._machine.args
        step = self._opening["uvicorn"]
        await asyncio.sleep(machine.host.scaled(step.seconds))
        address = machine.host.address if args.host in _OWN_NAMES else args.host
        *starting, running = step.lines
        for line in starting:
            machine.log.record(line)
        try:
            await web.TCPSite(runner, address, args.port).start()
        except OSError as error:
            machine.log.record(crash.port_taken(args.host, args.port, error))
            machine.log.record("INFO:     Waiting for application shutdown.")
            machine.log.record("INFO:     Application shutdown complete.")
            self._end_children()
            return False
        machine.log.record(running)
        return True

    async def _serve(self) -> bool:
        """Serve until told to stop; whether every request was answered (else connections are just cut)."""
        loop = asyncio.get_running_loop()
        stop = asyncio.Event()
        loop.add_signal_handler(signal.SIGQUIT, self._on_sigquit)
        loop.add_signal_handler(signal.SIGTERM, stop.set)
        loop.add_signal_handler(signal.SIGINT, stop.set)
        self._machine.tree.serve()
        tasks = [
            asyncio.create_task(coroutine)
            for coroutine in (self._engine.run(), self._watch_children(), self._warm_up())
        ]
        drained = asyncio.create_task(self._drain(stop))
        try:
            while not drained.done():
                done, _ = await asyncio.wait((drained, *tasks), return_when=asyncio.FIRST_COMPLETED)
                for task in done - {drained}:
                    task.result()
                tasks = [task for task in tasks if not task.done()]
        finally:
            for task in (drained, *tasks):
                task.cancel()
            await asyncio.gather(drained, *tasks, return_exceptions=True)
        self._end_children()
        return drained.result()

    async def _warm_up(self) -> None:
        step = self._opening["ready"]
        await asyncio.sleep(self._machine.host.scaled(step.seconds))
        if not self._machine.args.skip_server_warmup:
            sampling = Sampling(max_new_tokens=_WARMUP_TOKENS, ignore_eos=True, temperature=0.0)
            await self._engine.generate(
                self._engine.submit(f"{HEALTH_PREFIX}_WARMUP", tokenize(_WARMUP_PROMPT), sampling, streamed=False)
            )
            self._engine.scheduler.flush()
        if self._machine.host.faults.exit_at == "ready":
            self._machine.tree.kill()
            os._exit(1)
        self._engine.status = Status.UP
        for line in step.lines:
            self._machine.log.record(line)
        await self._engine.misbehave()

    async def _watch_children(self) -> None:
        while True:
            for death in self._machine.tree.deaths():
                if not death.announced:
                    self._machine.log.record(crash.hard_death(death.child.name, death.child.pid, death.exit_code))
                    self._on_sigquit()
            await asyncio.sleep(_WATCHDOG_S)

    def _on_sigquit(self) -> None:
        """End as SGLang does after a crash; HTTP is blocked while it waits."""
        machine = self._machine
        machine.log.record(crash.SERVING_SIGQUIT)
        first = next((death.child.rank for death in machine.tree.deaths()), None)
        machine.sibling_noise(first)
        if machine.tree.schedulers:
            waits = (
                ("SGLANG_PYSPY_DUMP_BEFORE_CRASH", _CRASH_WAIT_S),
                ("SGLANG_CUDA_COREDUMP_BEFORE_CRASH", _COREDUMP_WAIT_S),
            )
            for switch, wait_s in waits:
                if self._environ.get(switch, "1").lower() not in {"0", "false"}:
                    time.sleep(machine.host.scaled(wait_s))
        machine.tree.kill_with_parent()

    async def _drain(self, stop: asyncio.Event) -> bool:
        """Wait for the signal to end, then for all requests, without limit; False: it was forced."""
        await stop.wait()
        log, engine = self._machine.log, self._engine
        engine.draining = True
        log.record("SIGTERM received. signum=15 frame=None. Draining requests and shutting down...")
        while True:
            if engine.status is Status.UNHEALTHY:
                log.record("Signal SIGTERM received while health check failed. Force exiting.")
                return False
            if self._environ.get("SGL_FORCE_SHUTDOWN", "").lower() in {"1", "true"}:
                log.record("Signal SIGTERM received while force shutdown flag set. Force exiting.")
                return False
            rids = [request.rid for request in engine.scheduler.pending]
            log.record(
                f"Gracefully exiting... Remaining number of requests {len(rids)}. "
                f"Remaining requests remaining_rids={rids}."
            )
            if not rids:
                return True
            await asyncio.sleep(self._machine.host.scaled(_DRAIN_POLL_S))

    def _end_children(self) -> None:
        """End the schedulers in good order: they give their GPU memory back."""
        schedulers = [child.pid for child in self._machine.tree.schedulers]
        self._machine.tree.end()
        self._machine.book.release(*schedulers)


def _observer(metrics: Metrics) -> Callable[[Request], None]:
    """Count what clients asked for, not the server's own probes."""

    def finished(request: Request) -> None:
        if not request.rid.startswith(HEALTH_PREFIX):
            metrics.observe(request)

    return finished
