"""A host while it is ours: entered before anything is changed, renewed meanwhile, left as it was."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from tuner.errors import HostFault, LeaseHeld, LeaseLost, RestoreFailed
from tuner.model.host import Original
from tuner.model.trial import Command
from tuner.model.workload import Workload
from tuner.ports import EngineAdapter, HostPorts, Tenancy
from tuner.runtime.authorised import AuthorisedControl, bearer
from tuner.runtime.racing import end
from tuner.runtime.readiness import generates

log = logging.getLogger("tuner.stay")

Remarks = Callable[[str], None]

RETRY_SHARE = 0.2
"""A renewal that did not get through is tried again after this share of the time between two."""
PROOF_LOOK_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """How an original server proves that it answers again.

    Attributes:
        engine: that understands the original's command line.
        workload: its ``load_timeout_s`` is how long the original may take to load.
    """

    engine: EngineAdapter
    workload: Workload
    seed: int = 0


@dataclass(slots=True)
class Stay:
    """Our stay on one host; one object lives as long as its worker.

    Attributes:
        secrets: values of the host's own that must not be stored or shown.
        lost: why the host is no longer ours; None while it is.
        hurried: the original is started but not waited for.
        settled: returns once the original can be started: what it needs is free again.
        left: is told that the host was given back.
    """

    ports: HostPorts
    settled: Callable[[Remarks], Awaitable[None]] | None = None
    left: Callable[[], None] | None = None
    secrets: tuple[str, ...] = ()
    lost: str | None = None
    hurried: asyncio.Event = field(default_factory=asyncio.Event)
    _renewing: asyncio.Task[None] | None = None
    _entered: bool = False
    _told_key: bool = False
    _one_at_a_time: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def enter(self, remark: Remarks) -> None:
        """Take the host, or hold that it is still ours; on a host that is nobody's there is nothing to do.

        Raises:
            LeaseHeld: it is somebody else's.
            HostFault: it failed us.
        """
        tenancy = self.ports.tenancy
        if tenancy is None:
            return
        async with self._one_at_a_time:
            await self._enter(tenancy, remark)

    async def _enter(self, tenancy: Tenancy, remark: Remarks) -> None:
        was_entered, self._entered = self._entered, True  # first: it may be cancelled half way
        try:
            entered = await tenancy.enter()
        except LeaseHeld:
            self._entered = was_entered
            raise
        self.lost = None
        self.secrets = entered.secrets
        for text in entered.remarks:
            remark(text)
        key = None if self.ports.new_key is None or self._told_key else self.ports.new_key()
        if key is not None:
            self._told_key = True
            remark(f"took its key, which was not known: {key}")
        if self._renewing is None or self._renewing.done():  # it ends when the lease is lost
            self._renewing = asyncio.ensure_future(self._keep(tenancy))

    @property
    def is_entered(self) -> bool:
        """Whether this object has taken the host and not given it back."""
        return self._entered

    def require(self) -> None:
        """Hold that the host is still ours.

        Raises:
            LeaseLost: it is not.
        """
        if self.lost is not None:
            raise LeaseLost(self.lost)

    async def _keep(self, tenancy: Tenancy) -> None:
        """Renew the lease until it is lost or given back."""
        wait_s = self.ports.renew_s
        while True:
            await self.ports.clock.sleep(wait_s)
            try:
                await tenancy.renew()
            except LeaseLost as error:
                self.lost = str(error)
                return
            except Exception as error:  # noqa: BLE001  whatever it is: a host whose lease runs out is restored
                log.warning("renew.failed host=%s error=%r", self.ports.name, error)
                wait_s = self.ports.renew_s * RETRY_SHARE
            else:
                wait_s = self.ports.renew_s

    async def leave(self, proof: Proof, remark: Remarks) -> Original | None:
        """Put back what was there, prove that it answers, and give the host back.

        Returns:
            What is there again; None: we never were there.

        Raises:
            RestoreFailed: it is not as it was, or the original does not answer.
            HostFault: the host failed us; its dead-man restores it.
        """
        async with self._one_at_a_time:
            tenancy = self.ports.tenancy
            if self.left is not None:
                self.left()
            if tenancy is None or not self._entered:
                await self.ports.route.close()
                return None
            return await self._leave(tenancy, proof, remark)

    async def _leave(self, tenancy: Tenancy, proof: Proof, remark: Remarks) -> Original:
        try:
            if self.settled is not None:
                await self.settled(remark)
            original = await tenancy.restore()
            problem = await self._problem(original, proof, remark)
            await self._stop_renewing()
            await tenancy.leave()
        finally:
            await self._stop_renewing()
            await self.ports.route.close()
        self._entered, self.lost = False, None
        if problem is not None:
            raise RestoreFailed(
                f"host {self.ports.name}: the original was started again but does not answer: {problem}; "
                "look at its log"
            )
        return original

    async def _stop_renewing(self) -> None:
        if self._renewing is not None:
            await end(self._renewing)
            self._renewing = None

    async def _problem(self, original: Original, proof: Proof, remark: Remarks) -> str | None:
        """Say why the original does not answer; None: it does, or nobody is to wait for it."""
        if not original.was_running or original.command is None:
            return None
        if self.hurried.is_set():
            remark("the original is started again; nobody waits for its answer")
            return None
        remark("waiting for the original to answer again")
        answering = asyncio.ensure_future(self._answers(original.command, proof))
        hurried = asyncio.ensure_future(self.hurried.wait())
        try:
            await asyncio.wait((answering, hurried), return_when=asyncio.FIRST_COMPLETED)
            if answering.done():
                problem = answering.result()
                if problem is None:
                    remark("the original answers again")
                return problem
        finally:
            await end(answering)
            await end(hurried)
        remark("the original is started again; nobody waits for its answer")
        return None

    async def _answers(self, command: Command, proof: Proof) -> str | None:
        """Wait for a generation of the original; say what is wrong when its time is up."""
        engine, clock, port = proof.engine, self.ports.clock, proof.engine.port(command)
        deadline_s = clock.monotonic_s() + proof.workload.load_timeout_s
        try:
            base_url = await self.ports.route.open(port)
        except HostFault as error:
            return str(error)
        control = AuthorisedControl(self.ports.control(base_url), bearer(engine.api_key(command)))
        problem: str | None = "it never was healthy"
        cut: str | None = None
        try:
            while True:
                reply = await control.call(engine.health_call())
                if reply.status == 200:
                    problem = await generates(engine, control, proof.workload, seed=proof.seed)
                    if problem is None:
                        return None
                if clock.monotonic_s() >= deadline_s:
                    return f"{cut or problem} within load_timeout_s = {proof.workload.load_timeout_s:g} s"
                await clock.sleep(PROOF_LOOK_S)
                try:
                    now_url = await self.ports.route.open(port)  # a tunnel may die while the original loads
                except HostFault as error:
                    cut = str(error)
                    continue
                cut = None
                if now_url != base_url:
                    await control.close()
                    base_url = now_url
                    control = AuthorisedControl(self.ports.control(base_url), bearer(engine.api_key(command)))
        finally:
            await control.close()
