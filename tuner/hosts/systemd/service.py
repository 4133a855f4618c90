"""``ports.ServiceManager`` over a unit of systemd: each server runs in the unit's place, by a drop-in."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace

from tuner.errors import DirtyHost, HostFault, LeaseLost, ServerInTheWay
from tuner.hosts.systemd.deployment import Deployment
from tuner.hosts.systemd.dropin import ServiceTerms
from tuner.hosts.systemd.journal import cursor_now, read_journal
from tuner.hosts.systemd.launch import Launch, setup_failure
from tuner.hosts.systemd.look import Look, look_at
from tuner.hosts.systemd.processes import Found, kill, processes_of
from tuner.hosts.systemd.root import Root, kill_command, stop_command
from tuner.model.host import Activity, LogChunk, ProcessEntry, ServiceState
from tuner.model.trial import Command, ServiceIdentity
from tuner.ports import Clock, HostTransport

log = logging.getLogger("tuner.hosts.systemd")

_POLL_S = 0.1
_KILL_TIMEOUT_S = 30.0
_GONE = Activity.INACTIVE


@dataclass(slots=True)
class _Run:
    """What is known of the last start.

    Attributes:
        number: of starts; a log's cursor of another one begins anew.
        cursor: of the journal, before the start.
        identity: of the invocation seen last.
        ending: exit status and signal of the main process that ended last.
        final: how it ended; None: it runs, as far as we know.
    """

    number: int
    boot_id: str
    cursor: str
    identity: ServiceIdentity
    ending: tuple[int | None, int | None] = (None, None)
    restarts: int = 0
    stop_requested: bool = False
    final: ServiceState | None = None
    is_forgotten: bool = False


class SystemdServiceManager:
    """Starts a server in the place of a unit's own, and watches it.

    What runs when the manager is made is the owner's: :meth:`state` tells of it and :meth:`stop` stops it.
    Removing the drop-in and starting the owner's again is the tenancy's part.

    Args:
        transport: to the host.
        root: on the host.
        unit: full name.
        clock: for waiting.
        terms: how systemd treats the servers; None: a crash is not followed by a restart.
    """

    def __init__(
        self, transport: HostTransport, root: Root, unit: str, clock: Clock, terms: ServiceTerms | None = None
    ) -> None:
        self._transport = transport
        self._root = root
        self._unit = unit
        self._clock = clock
        self._deployment = Deployment(transport, root, unit, terms or ServiceTerms())
        self._run: _Run | None = None
        self._starts = 0
        self._invocations: set[str] = set()  # of ours, all of them
        self._stopped: ServiceState | None = None  # the owner's, by us

    # ------------------------------------------------------------------ the port

    async def start(self, command: Command) -> ServiceIdentity:
        """Start a server by a drop-in; returns once its program was executed.

        Raises:
            HostFault: a server runs already, the drop-in cannot be written or does not win, the
                program cannot be executed.
        """
        before = await self._look()
        if before.activity in {Activity.RUNNING, Activity.RESTARTING}:
            msg = f"unit {self._unit}: a server runs already (pid {before.main_pid}): stop it first"
            raise ServerInTheWay(msg)
        if not before.is_over:  # ours exited by itself, or is being tidied up after
            await self.stop(grace_s=0.0)
            before = await self._look()
        await self._deployment.put(command)
        cursor = await cursor_now(self._transport)
        look = await Launch(self._transport, self._root, self._unit, self._clock).run(before)
        identity = look.identity
        assert identity is not None  # what a launch waits for
        self._starts += 1
        self._stopped = None
        self._run = _Run(number=self._starts, boot_id=look.boot_id, cursor=cursor, identity=identity)
        self._note(self._run, look)
        if look.was_never_executed and look.activity is not Activity.RUNNING:
            self._run.final = self._dead(self._run)
            msg = f"unit {self._unit}: program {command.argv[0]} could not be executed: {setup_failure(look)}"
            raise HostFault(msg)
        return identity

    async def state(self) -> ServiceState:
        """Look at the service.

        Raises:
            LeaseLost: the host was rebooted, or somebody restored the unit, while a server of ours ran.
            HostFault: systemd does not answer.
            TransportFault: the state is not known.
        """
        look = await self._look()
        run = self._run
        if run is None or (run.final is not None and not look.is_over):
            return self._of_others(look)
        if run.final is not None:
            return run.final
        self._still_ours(run, look)
        self._note(run, look)
        activity = look.activity
        # Nothing of ours makes it inactive but a stop, and it was not ours: somebody stopped it.
        return self._state(run, Activity.FAILED if activity is Activity.INACTIVE else activity)

    async def read_log(self, cursor: str | None) -> LogChunk:
        """Return what the processes of the last start wrote to the journal; a cursor of an earlier one begins anew.

        Raises:
            HostFault: the journal cannot be read.
            TransportFault: the host is not reached.
        """
        run = self._run
        if run is None or run.is_forgotten:
            return LogChunk(text="", cursor="")
        number, _, position = (cursor or "").partition(":")
        after = position if number == str(run.number) else run.cursor
        piece = await read_journal(self._transport, self._unit, after)
        return LogChunk(text=piece.text, cursor=f"{run.number}:{piece.cursor}")

    async def stop(self, *, grace_s: float) -> None:
        """Stop what runs in the unit, the owner's too; a unit that was taken from us is left alone.

        Raises:
            DirtyHost: processes survive SIGKILL.
            HostFault: systemd does not do it.
        """
        look = await self._look()
        run = self._run
        if run is not None and run.final is None:
            try:
                self._still_ours(run, look)
            except LeaseLost as lost:
                # Whatever runs there now is somebody else's; what was ours is gone.
                log.warning("service.lost unit=%s reason=%s", self._unit, lost)
                run.final = self._dead(run, _GONE, requested=True)
                return
            self._note(run, look)
            if look.activity not in {Activity.RUNNING, Activity.RESTARTING}:
                run.final = self._dead(run)  # it died by itself, before we did anything
            else:
                run.stop_requested = True
        last = await self._end(look, grace_s)
        if run is not None and run.final is None:
            self._note(run, last)
            run.final = self._dead(run, _GONE, requested=True)
        elif look.activity in {Activity.RUNNING, Activity.RESTARTING}:
            self._run = None
            self._stopped = replace(self._of_others(look), activity=Activity.INACTIVE, stop_requested=True)

    async def forget(self) -> None:
        """Delete nothing: the journal is the host's. What a stopped server logged is no longer told."""
        run = self._run
        if run is not None and (run.final is not None or (await self._look()).is_over):
            run.is_forgotten = True

    async def leftovers(self) -> tuple[ProcessEntry, ...]:
        """Return what lives in the unit's cgroup although it is stopped, and what our invocations left anywhere."""
        found = await self._left()
        return tuple(ProcessEntry(pid=process.pid, command=process.command, ours=True) for process in found)

    async def kill_leftovers(self) -> None:
        """Kill them, and wait until they are gone."""
        deadline_s = self._clock.monotonic_s() + _KILL_TIMEOUT_S
        while (found := await self._left()) and self._clock.monotonic_s() < deadline_s:
            if (await self._look()).is_over:
                await self._root.attempt(kill_command(self._unit))  # systemd still knows the cgroup of a dead unit
            await kill(self._transport, found)
            await self._clock.sleep(_POLL_S)

    async def members(self) -> frozenset[int]:
        """Return the PIDs in the unit's cgroup while it runs."""
        look = await self._look()
        if look.is_over:
            return frozenset()
        return frozenset(process.pid for process in await processes_of(self._transport, look.cgroup))

    # ------------------------------------------------------------------ watching

    async def _look(self) -> Look:
        return await look_at(self._transport, self._unit)

    def _still_ours(self, run: _Run, look: Look) -> None:
        if look.boot_id != run.boot_id:
            msg = f"unit {self._unit}: the host was rebooted while a trial ran; the owner's server is up again"
            raise LeaseLost(msg)
        # An invocation of ours may outlive its drop-in: then it is still ours to stop.
        if not look.has_drop_in and look.invocation_id != run.identity.invocation_id:
            msg = f"unit {self._unit}: somebody restored or changed the unit (our drop-in is gone) while a trial ran"
            raise LeaseLost(msg)

    def _note(self, run: _Run, look: Look) -> None:
        """Remember what a unit that is inactive may be forgotten by systemd with."""
        if look.identity is None:
            return
        run.identity = look.identity
        run.restarts = look.restarts
        run.ending = look.ending or run.ending
        self._invocations.add(look.identity.invocation_id)

    @staticmethod
    def _state(run: _Run, activity: Activity) -> ServiceState:
        status, ended_by = run.ending
        return ServiceState(
            activity=activity,
            identity=run.identity,
            restarts=run.restarts,
            exit_status=status,
            exit_signal=ended_by,
            stop_requested=run.stop_requested,
        )

    def _dead(self, run: _Run, activity: Activity = Activity.FAILED, *, requested: bool = False) -> ServiceState:
        return replace(self._state(run, activity), stop_requested=requested)

    def _of_others(self, look: Look) -> ServiceState:
        """Tell of a server that we did not start."""
        if look.is_over and self._stopped is not None:
            return self._stopped
        ending = look.ending or (None, None)
        is_inactive = look.activity is Activity.INACTIVE
        return ServiceState(
            activity=look.activity,
            identity=None if is_inactive else look.identity,
            restarts=0 if is_inactive else look.restarts,
            exit_status=None if is_inactive else ending[0],
            exit_signal=None if is_inactive else ending[1],
            stop_requested=False,
        )

    # ------------------------------------------------------------------ ending

    async def _end(self, look: Look, grace_s: float) -> Look:
        """Stop the unit and empty its cgroup; returns the last look that still knew its invocation."""
        began_s = self._clock.monotonic_s()
        last = look
        cgroup = look.cgroup
        if not look.is_over:
            await self._root.require(stop_command(self._unit))
        killed_s: float | None = None
        while True:
            look = await self._look()
            last = look if look.identity is not None else last
            left: tuple[Found, ...] = ()
            if look.is_over:
                left = await processes_of(self._transport, cgroup)
                if not left:
                    return last
            now_s = self._clock.monotonic_s()
            if look.is_over or now_s - began_s >= grace_s:
                # Again and again: a process may fork while it is being killed.
                await self._root.attempt(kill_command(self._unit))
                killed_s = now_s if killed_s is None else killed_s
                if now_s - killed_s > _KILL_TIMEOUT_S:
                    raise self._unkillable(left or await processes_of(self._transport, cgroup))
            await self._clock.sleep(_POLL_S)

    def _unkillable(self, left: tuple[Found, ...]) -> DirtyHost:
        names = ", ".join(f"{process.pid} ({process.command})" for process in left) or "none is listed"
        return DirtyHost(f"unit {self._unit}: processes survive SIGKILL: {names}: the host needs a reboot")

    async def _left(self) -> tuple[Found, ...]:
        look = await self._look()
        cgroup = look.cgroup if look.is_over else ""
        current = set() if look.is_over else {look.invocation_id}
        return await processes_of(self._transport, cgroup, sorted(self._invocations - current))
