"""One Ray actor a host; the only module that knows Ray.

An actor is a thin shell around the pure trial runner: it builds its host's ports,
runs one trial at a time and streams the events back while the trial runs. It is an
async actor, so that a stop is heard while a trial runs.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# Read by Ray when it is imported: no usage reports leave this machine.
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")

import ray
import ray.exceptions

import tuner
from tuner.errors import ExecutorFault, HostFault, LeaseHeld, PreflightError, RestoreFailed, TunerError
from tuner.model.secrets import MASK
from tuner.model.study import HostSpec, SimulatedHostSpec
from tuner.model.trial import TrialEvent, TrialRequest
from tuner.model.workload import Workload
from tuner.ports import EngineAdapter, HostPorts
from tuner.runtime.cleaning import HostSession
from tuner.runtime.limits import Limits
from tuner.runtime.stay import Proof
from tuner.runtime.trial import events_of

log = logging.getLogger("tuner.ray")

HostFactory = Callable[[HostSpec], HostPorts]
EngineFactory = Callable[[str], EngineAdapter]

ORPHAN_CHECK_S = 0.5
"""How often a worker looks whether Ray's node manager, its parent, still lives."""

CONNECT_TIMEOUT_S = 10.0

_NODE = "node:"
_NODE_SHARE = 0.001
"""Every node has 1.0 of the resource that bears its address."""

OBJECT_STORE_BYTES = 128 * 1024**2
"""Events are small; Ray's own default would take a third of the memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Building:
    """How a worker makes its parts; travels to it.

    Attributes:
        host: makes the ports of a host.
        engine: makes an engine by its name.
        restored: under which engine, load and seed an original proves that it answers again.
    """

    host: HostFactory
    engine: EngineFactory
    restored: tuple[str, Workload, int]


class HostWorker:
    """What runs inside the actor of one host."""

    def __init__(self, spec: HostSpec, building: Building) -> None:
        self._session = HostSession(building.host(spec), Limits())
        self._engine = building.engine
        name, workload, seed = building.restored
        self._proof = Proof(engine=building.engine(name), workload=workload, seed=seed)
        self._idle = asyncio.Event()
        self._idle.set()
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
        self._idle.clear()
        try:
            async for event in events_of(request, self._session, self._engine(request.engine), self._stop):
                yield event
        finally:
            self._idle.set()

    async def enter(self) -> tuple[str, ...]:
        """Take the host; return what a reader should know."""
        remarks: list[str] = []
        await self._session.stay.enter(remarks.append)
        return tuple(remarks)

    async def leave(self) -> tuple[str, ...]:
        """End the trial, if one runs, restore the host and give it back.

        A worker that has not entered its host stands for one that died there: it takes over first.
        """
        self._stop.set()
        await self._idle.wait()
        remarks: list[str] = []
        await give_back(self._session, self._proof, remarks.append)
        return tuple(remarks)

    async def probe(self) -> None:
        """Take the host and look at its service and GPUs: whoever lets us can be used."""
        await self._session.stay.enter(log.info)
        await self._session.ports.service.state()
        await self._session.ports.gpu.read()

    async def hurry(self) -> None:
        """Do not wait for the original to answer."""
        self._session.stay.hurried.set()

    async def stop(self) -> None:
        """Ask the running trial to end."""
        self._stop.set()

    async def process_id(self) -> int:
        """Return the worker's PID: an answer proves that the actor is up."""
        return os.getpid()


async def give_back(session: HostSession, proof: Proof, remark: Callable[[str], None]) -> None:
    """Restore a host that this session, or one before it in the same study, had taken.

    Raises:
        LeaseHeld: somebody else has it by now.
        HostFault: it could not be restored; the message holds no secret.
    """
    stay = session.stay

    def scrubbed(text: str) -> str:
        for value in stay.secrets:
            text = text.replace(value, MASK)
        return proof.engine.scrub(text)

    try:
        if not stay.is_entered:
            await stay.enter(remark)
        await stay.leave(proof, lambda text: remark(scrubbed(text)))
    except HostFault as fault:
        raise type(fault)(scrubbed(str(fault))) from None  # the original names what must not be shown


def _require_listener(address: str) -> None:
    """Hold that somebody listens at ``host:port``: Ray itself would wait for minutes.

    Raises:
        OSError: nobody does.
    """
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if not colon or not port.isdigit():
        return  # a name that Ray resolves by itself, as `auto`
    socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT_TIMEOUT_S).close()


def _node_of(spec: HostSpec) -> str | None:
    """Return the resource by which Ray names the node a host's worker is to run on."""
    node = None if isinstance(spec, SimulatedHostSpec) else spec.reach.ray_node
    return None if node is None else f"{_NODE}{node}"


class RayExecutor:
    """An Executor on a Ray cluster of its own, or on the one at ``address``."""

    def __init__(
        self,
        hosts: Mapping[str, HostSpec],
        *,
        building: Building,
        address: str | None = None,
        remark: Callable[[str], None] = log.info,
    ) -> None:
        self._hosts = dict(hosts)
        self._remark = remark
        self._building = building
        self._address = address
        self._hurrying: asyncio.Future[Any] | None = None
        self._taken: set[str] = set()  # not given back yet
        self._actors: dict[str, Any] = {}

    async def open(self) -> None:
        """Start Ray, or join the cluster, and one actor a host, which takes its host.

        Raises:
            PreflightError: Ray cannot be started or reached, or a host cannot be taken.
        """
        try:
            await asyncio.to_thread(self._connect)
            self._check_nodes()
            await asyncio.gather(*(self._actor(host).process_id.remote() for host in self._hosts))
        except (ray.exceptions.RayError, OSError, RuntimeError, ValueError, ConnectionError) as error:
            await self._end()
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
        self._taken.update(self._owned())
        taken = await asyncio.gather(*(self._tell(host, "enter") for host in self._hosts), return_exceptions=True)
        for host, outcome in zip(self._hosts, taken, strict=True):
            if isinstance(outcome, LeaseHeld):
                self._taken.discard(host)  # never ours to restore
        for outcome in taken:
            if isinstance(outcome, BaseException):
                with contextlib.suppress(HostFault):  # the first reason is the one that is told
                    await self.close()
                if isinstance(outcome, HostFault):
                    raise PreflightError(str(outcome)) from outcome
                raise outcome

    async def _tell(self, host: str, method: str) -> None:
        """Call a method of the host's worker that returns remarks, and pass them on."""
        for text in await self._ask(host, method):
            self._remark(f"host {host}: {text}")

    async def _ask(self, host: str, method: str) -> Any:  # noqa: ANN401 - whatever the worker returns
        """Call a method of the host's worker; our own errors come back as themselves.

        Raises:
            TunerError: the worker raised it.
            ExecutorFault: the worker died, or failed in a way that is a bug.
        """
        try:
            return await getattr(self._actor(host), method).remote()
        except ray.exceptions.RayTaskError as error:
            if isinstance(error.cause, TunerError):
                raise error.cause from error
            raise ExecutorFault(f"host {host}: {method} failed in its worker: {error.cause!r}") from error
        except ray.exceptions.RayError as error:
            self._actors.pop(host, None)
            raise ExecutorFault(f"host {host}: its worker is gone ({type(error).__name__})") from error

    async def release(self, host: str) -> None:
        """Restore a host and give it back, by another worker or from here where its own is gone.

        Raises:
            HostFault: it could not be restored.
        """
        if host not in self._owned():
            return
        # Said now: a model takes minutes to load, and the worker's own words come at the end.
        self._remark(f"host {host}: putting back what was there before, and waiting for its answer")
        try:
            await self._tell(host, "leave")
        except ExecutorFault as fault:
            log.warning("leave.failed host=%s error=%s", host, fault)
            await self._give_back_from_here(host)
        self._taken.discard(host)

    async def _give_back_from_here(self, host: str) -> None:
        building = self._building
        name, workload, seed = building.restored
        session = HostSession(building.host(self._hosts[host]), Limits())
        proof = Proof(engine=building.engine(name), workload=workload, seed=seed)
        await give_back(session, proof, lambda text: self._remark(f"host {host}: {text}"))

    def _owned(self) -> tuple[str, ...]:
        """Name the hosts that are somebody's."""
        return tuple(host for host, spec in self._hosts.items() if spec.is_owned)

    async def probe(self, host: str) -> None:
        """Take a host again and hold that it answers.

        Raises:
            LeaseHeld: it is somebody else's by now.
            HostFault: it does not answer.
        """
        if host in self._owned():
            self._taken.add(host)
        await self._ask(host, "probe")

    def hurry(self) -> bool:
        """Do not wait for the originals to answer."""
        owned = [host for host in self._owned() if host in self._actors]
        self._hurrying = asyncio.gather(*(self._ask(host, "hurry") for host in owned), return_exceptions=True)
        return bool(owned)

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

    def _check_nodes(self) -> None:
        """Hold that the cluster has the nodes that hosts name: Ray would wait for them for ever.

        Raises:
            ValueError: it lacks one.
        """
        resources = ray.cluster_resources()  # type: ignore[no-untyped-call]  # of Ray
        there = {name for name in resources if name.startswith(_NODE)}
        for host, spec in self._hosts.items():
            node = _node_of(spec)
            if node is not None and node not in there:
                known = ", ".join(sorted(name.removeprefix(_NODE) for name in there))
                msg = f"host {host}: ray_node {node.removeprefix(_NODE)} is none of its nodes ({known})"
                raise ValueError(msg)

    def _actor(self, host: str) -> Any:  # noqa: ANN401 - Ray's handles are not typed
        if host not in self._actors:
            # An actor drives a GPU host; it needs no GPU and next to no CPU of its own.
            node = _node_of(self._hosts[host])
            actor = ray.remote(HostWorker).options(
                num_cpus=0, num_gpus=0, max_concurrency=8, resources={} if node is None else {node: _NODE_SHARE}
            )
            self._actors[host] = actor.remote(self._hosts[host], self._building)
        return self._actors[host]

    async def run(self, host: str, request: TrialRequest) -> AsyncIterator[TrialEvent]:
        """Run a trial on the host's actor, which takes the host; the last event is TrialFinished.

        Raises:
            ExecutorFault: the actor or its node died; a later call gets a new actor.
        """
        if host in self._owned():
            self._taken.add(host)
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
            log.info("stop.failed host=%s error=%s", host, type(error).__name__)

    async def worker_pids(self) -> dict[str, int]:
        """Return each host's worker PID, where a worker lives."""
        return {host: await actor.process_id.remote() for host, actor in self._actors.items()}

    async def close(self) -> None:
        """Restore the hosts, end the actors, and Ray itself where it was started here.

        Raises:
            HostFault: hosts are not what they were before.
        """
        try:
            left = await asyncio.gather(*(self.release(host) for host in tuple(self._taken)), return_exceptions=True)
        finally:
            await self._end()
        failed = [outcome for outcome in left if isinstance(outcome, BaseException)]
        if failed:
            raise RestoreFailed("; ".join(str(outcome) for outcome in failed)) from failed[0]

    async def _end(self) -> None:
        self._actors.clear()
        await asyncio.to_thread(ray.shutdown)
