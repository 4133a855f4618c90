"""``ports.ServiceManager`` over a unit of systemd: each server runs in the unit's place, by a drop-in."""

from __future__ import annotations

import logging
import math
import uuid
from dataclasses import replace

from tuner.errors import DirtyHost, HostFault, LeaseLost, ServerInTheWay
from tuner.hosts.systemd.deployment import Deployment
from tuner.hosts.systemd.dropin import ServiceTerms
from tuner.hosts.systemd.journal import cursor_now, read_journal
from tuner.hosts.systemd.launch import Launch, setup_failure
from tuner.hosts.systemd.look import Look, look_at
from tuner.hosts.systemd.processes import Found, kill, processes_of
from tuner.hosts.systemd.record import StayRecord
from tuner.hosts.systemd.root import Root, kill_command, stop_command
from tuner.hosts.systemd.run import Run
from tuner.model.host import Activity, LogChunk, ProcessEntry, ServiceState
from tuner.model.trial import Command, ServiceIdentity
from tuner.ports import Clock, HostTransport

log = logging.getLogger("tuner.hosts.systemd")

_POLL_S = 0.1
_KILL_TIMEOUT_S = 30.0
_LONGEST_DRAIN_S = 1800.0  # of an owner's server that systemd would let drain for ever


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
        record: shared with the tenancy of the same unit; None: there is none.
    """

    def __init__(
        self,
        transport: HostTransport,
        root: Root,
        unit: str,
        clock: Clock,
        terms: ServiceTerms | None = None,
        record: StayRecord | None = None,
    ) -> None:
        self._transport = transport
        self._root = root
        self._unit = unit
        self._clock = clock
        self._token = uuid.uuid4().hex
        self._deployment = Deployment(transport, root, unit, terms or ServiceTerms(), token=self._token)
        self._record = record or StayRecord()
        self._run: Run | None = None
        self._launched: tuple[str, str] | None = None  # boot and lease of a start of which no end is known
        self._starts = 0
        self._stopped: ServiceState | None = None  # the owner's, by us

    # ------------------------------------------------------------------ the port

    async def start(self, command: Command) -> ServiceIdentity:
        """Start a server by a drop-in; returns once its program was executed.

        Raises:
            HostFault: a server runs already, the drop-in cannot be written or does not win, the
                program cannot be executed.
        """
        before = await self._look()
        if not before.is_over and before.activity is Activity.FAILED:  # it exited by itself, or is tidied up after
            await self.stop(grace_s=0.0)
            before = await self._look()
        if not before.is_over:
            msg = f"unit {self._unit}: a server runs already (pid {before.main_pid}): stop it first"
            raise ServerInTheWay(msg)
        await self._deployment.put(command)
        cursor = await cursor_now(self._transport)
        self._launched = (before.boot_id, self._record.lease)
        look = await Launch(self._transport, self._root, self._unit, self._clock).run(before)
        self._launched = None
        identity = look.identity
        assert identity is not None  # what a launch waits for
        self._starts += 1
        self._stopped = None
        self._run = Run(
            number=self._starts,
            lease=self._record.lease,
            boot_id=look.boot_id,
            cursor=cursor,
            identity=identity,
        )
        self._note(self._run, look)
        if look.was_never_executed and look.activity is not Activity.RUNNING:
            self._run.final = self._run.dead()
            msg = f"unit {self._unit}: program {command.argv[0]} could not be executed: {setup_failure(look)}"
            raise HostFault(msg)
        return identity

    async def state(self) -> ServiceState:
        """Look at the service.

        That the unit is no longer ours is told once, and not after a stop or under another lease: by then
        what runs there is somebody's server like any other.

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
        loss = self._loss(run, look)
        if loss is not None:
            run.final = run.stopped(requested=run.is_ending)
            if run.is_ending or self._is_retaken(run.lease):
                return self._of_others(look)
            run.is_lost = True
            raise LeaseLost(loss)
        self._note(run, look)
        activity = look.activity
        # Nothing of ours makes it inactive but a stop, and it was not ours: somebody stopped it.
        if activity is Activity.INACTIVE:
            return replace(run.state(Activity.FAILED), stopped_by_others=True)
        return run.state(activity)

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
        run = self._run
        if run is not None and run.is_lost:
            run.is_lost = False
            if not self._is_retaken(run.lease):
                return
        was_ending = run is not None and run.is_ending
        if run is not None:
            run.is_ending = True  # first: the look may not get through
        look = await self._look()
        if self._was_lost_at_launch(look):
            return
        is_owners = (run is None or run.final is not None) and not look.has_drop_in
        if run is not None and run.final is None:
            is_lost = self._note_stop(run, look)
            if is_lost and not was_ending and not self._is_retaken(run.lease):
                return
        last = await self._end(look, max(grace_s, _drain_s(look)) if is_owners else grace_s)
        if run is not None and run.final is None:
            self._note(run, last)
            run.final = run.stopped()
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

    def _loss(self, run: Run, look: Look) -> str | None:
        """Say why what runs in the unit is not our server; None: it is."""
        if look.boot_id != run.boot_id:
            return f"unit {self._unit}: the host was rebooted while a trial ran; the owner's server is up again"
        # An invocation of ours may outlive its drop-in.
        if not look.is_marked(self._token) and look.invocation_id != run.identity.invocation_id:
            return f"unit {self._unit}: somebody restored or changed the unit (our drop-in is gone) while a trial ran"
        return None

    def _restorer(self, look: Look) -> str | None:
        """Say who ends our server instead of us; None: nobody.

        Whoever removed the drop-in restarts the unit; a stop would cancel that, and leave it stopped.
        """
        if look.is_marked(self._token):
            return None
        return f"unit {self._unit}: our drop-in is gone: who removed it restores the unit"

    def _note_stop(self, run: Run, look: Look) -> bool:
        """Note that our server is about to be stopped, before any signal is sent; whether it is not ours to stop."""
        loss = self._loss(run, look) or self._restorer(look)
        if loss is not None:
            # Whatever runs there now is somebody else's; what was ours is gone, or ended by who took the unit.
            log.warning("service.lost unit=%s reason=%s", self._unit, loss)
            run.final = run.stopped()
            return True
        self._note(run, look)
        if look.activity in {Activity.RUNNING, Activity.RESTARTING}:
            run.stop_requested = True
        else:
            run.final = run.dead()  # it died by itself, before we did anything
        return False

    def _is_retaken(self, lease: str) -> bool:
        """Whether the host was taken again since this lease: all that runs there is ours to stop."""
        return lease != self._record.lease

    def _was_lost_at_launch(self, look: Look) -> bool:
        """Whether the last start was never told to be done, and what runs now cannot be its server."""
        if self._launched is None:
            return False
        (boot_id, lease), self._launched = self._launched, None
        return not self._is_retaken(lease) and (look.boot_id != boot_id or not look.is_marked(self._token))

    def _note(self, run: Run, look: Look) -> None:
        run.note(look)
        self._record.invocations.add(run.identity.invocation_id)

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
            result=None if is_inactive else look.failure,
        )

    # ------------------------------------------------------------------ ending

    async def _end(self, look: Look, grace_s: float) -> Look:
        """Stop the unit and empty its cgroup; returns the last look that still knew its invocation."""
        began_s = self._clock.monotonic_s()
        last = look
        cgroup = look.cgroup
        if not look.is_over:
            await self._root.require(stop_command(self._unit))
            look = await self._look()  # until now it may have been started once more by its own Restart=
            last = look if look.identity is not None else last
        killed_s: float | None = None
        while True:
            look = await self._look()
            if _is_another(look, last):
                return last  # whoever started that, while ours was ending, keeps it
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
        return await processes_of(self._transport, cgroup, sorted(self._record.invocations - current))


def _is_another(look: Look, last: Look) -> bool:
    """Whether another server has been started since."""
    if look.boot_id != last.boot_id:
        return True
    return not look.is_over and bool(look.invocation_id) and look.invocation_id != last.invocation_id


def _drain_s(look: Look) -> float:
    """Return how long the owner lets his server end before it is killed."""
    return _LONGEST_DRAIN_S if math.isinf(look.stop_timeout_s) else look.stop_timeout_s
