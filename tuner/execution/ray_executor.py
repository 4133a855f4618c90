"""One Ray actor a host; the only module that knows Ray.

An actor is a thin shell around the pure trial runner: it builds its host's ports,
runs one trial at a time and streams the events back while the trial runs. It is an
async actor, so that a stop is heard while a trial runs.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any

# Read by Ray when it is imported: no usage reports leave this machine.
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")

import ray
import ray.exceptions

import tuner
from tuner.errors import ExecutorFault, PreflightError
from tuner.model.study import HostSpec
from tuner.model.trial import TrialEvent, TrialRequest
from tuner.ports import EngineAdapter, HostPorts
from tuner.runtime.cleaning import HostSession
from tuner.runtime.limits import Limits
from tuner.runtime.trial import events_of

HostFactory = Callable[[HostSpec], HostPorts]
EngineFactory = Callable[[str], EngineAdapter]

ORPHAN_CHECK_S = 0.5
"""How often a worker looks whether Ray's node manager, its parent, still lives."""

CONNECT_TIMEOUT_S = 10.0

OBJECT_STORE_BYTES = 128 * 1024**2
"""Events are small; Ray's own default would take a third of the memory."""


class HostWorker:
    """What runs inside the actor of one host."""

    def __init__(self, spec: HostSpec, build: HostFactory, engine: EngineFactory) -> None:
        self._session = HostSession(build(spec), Limits())
        self._engine = engine
        self._stop = asyncio.Event()
        self._parent = os.getppid()
        self._orphan_watch = asyncio.ensure_future(self._leave_with_parent())

    async def _leave_with_parent(self) -> None:
        """End at once when the driver was killed and took Ray's node manager with it.

        Ray lets an orphaned worker live for some seconds; its server would be measured on
        for nobody. The end of this process closes the pipe that keeps the server up.
        """
        while os.getppid() == self._parent:  # noqa: ASYNC110 - the death of a parent is no event
            await asyncio.sleep(ORPHAN_CHECK_S)
        os._exit(1)

    async def run(self, request: TrialRequest) -> AsyncIterator[TrialEvent]:
        """Run one trial and yield its events."""
        self._stop.clear()
        async for event in events_of(request, self._session, self._engine(request.engine), self._stop):
            yield event

    async def stop(self) -> None:
        """Ask the running trial to end."""
        self._stop.set()

    async def process_id(self) -> int:
        """Return the worker's PID: an answer proves that the actor is up."""
        return os.getpid()


def _require_listener(address: str) -> None:
    """Hold that somebody listens at ``host:port``: Ray itself would wait for minutes.

    Raises:
        OSError: nobody does.
    """
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if not colon or not port.isdigit():
        return  # a name that Ray resolves by itself, as `auto`
    socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT_TIMEOUT_S).close()


class RayExecutor:
    """An Executor on a Ray cluster of its own, or on the one at ``address``."""

    def __init__(
        self,
        hosts: Mapping[str, HostSpec],
        *,
        build: HostFactory,
        engine: EngineFactory,
        address: str | None = None,
    ) -> None:
        self._hosts = dict(hosts)
        self._build = build
        self._engine = engine
        self._address = address
        self._actors: dict[str, Any] = {}

    async def open(self) -> None:
        """Start Ray, or join the cluster, and one actor a host.

        Raises:
            PreflightError: Ray cannot be started or reached.
        """
        try:
            await asyncio.to_thread(self._connect)
            await asyncio.gather(*(self._actor(host).process_id.remote() for host in self._hosts))
        except (ray.exceptions.RayError, OSError, RuntimeError, ValueError, ConnectionError) as error:
            await self.close()
            where = f"the Ray cluster at {self._address}" if self._address else "a local Ray"
            reason = " ".join(str(error).split())[:300]
            raise PreflightError(
                f"{where} cannot be used: {reason}; "
                + (
                    "check --ray-address and that the cluster runs the same Ray"
                    if self._address
                    else "see `ray status`"
                )
            ) from error

    def _connect(self) -> None:
        if self._address is not None:
            _require_listener(self._address)
            # The cluster's nodes get this very code: no install of tuner is needed there.
            package = str(Path(tuner.__file__).parent)
            ray.init(
                self._address,
                runtime_env={"py_modules": [package]},
                log_to_driver=False,
                logging_level=logging.ERROR,
            )
            return
        ray.init(
            "local",  # never a cluster that happens to run here, or that RAY_ADDRESS names
            num_cpus=max(1, len(self._hosts)),
            num_gpus=0,
            include_dashboard=False,
            object_store_memory=OBJECT_STORE_BYTES,
            log_to_driver=False,
            logging_level=logging.ERROR,
        )

    def _actor(self, host: str) -> Any:  # noqa: ANN401 - Ray's handles are not typed
        if host not in self._actors:
            # An actor drives a GPU host; it needs no GPU and next to no CPU of its own.
            actor = ray.remote(HostWorker).options(num_cpus=0, num_gpus=0, max_concurrency=8)
            self._actors[host] = actor.remote(self._hosts[host], self._build, self._engine)
        return self._actors[host]

    async def run(self, host: str, request: TrialRequest) -> AsyncIterator[TrialEvent]:
        """Run a trial on the host's actor; the last event is TrialFinished.

        Raises:
            ExecutorFault: the actor or its node died; a later call gets a new actor.
        """
        try:
            async for reference in self._actor(host).run.remote(request):
                yield await reference
        except ray.exceptions.RayTaskError as error:
            # The worker lives; what failed in it is a bug of ours that the trial could not catch.
            raise ExecutorFault(f"host {host}: the trial failed in its worker: {error.cause!r}") from error
        except ray.exceptions.RayError as error:
            self._actors.pop(host, None)
            raise ExecutorFault(f"host {host}: its worker is gone ({type(error).__name__})") from error

    async def stop(self, host: str) -> None:
        """Ask the host's trial to end now; a worker that is gone has nothing to end."""
        if host not in self._actors:
            return
        try:
            await self._actors[host].stop.remote()
        except ray.exceptions.RayError as error:
            logging.getLogger("tuner.ray").info("stop.failed host=%s error=%s", host, type(error).__name__)

    async def worker_pids(self) -> dict[str, int]:
        """Return each host's worker PID, where a worker lives."""
        return {host: await actor.process_id.remote() for host, actor in self._actors.items()}

    async def close(self) -> None:
        """End the actors, and Ray itself where it was started here."""
        self._actors.clear()
        await asyncio.to_thread(ray.shutdown)
