"""Our use of a host whose server is somebody's unit: lease, dead-man, and putting back what was there."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from dataclasses import replace

from tuner.errors import HostFault, LeaseLost, RestoreFailed, TransportFault, UsageError
from tuner.hosts.systemd import deadman, lease, owners_unit
from tuner.hosts.systemd.deadman import BEFORE_FILE, SCRIPT, SCRIPT_FILE, STALE_FILE, DeadMan
from tuner.hosts.systemd.lease import LeaseFolder
from tuner.hosts.systemd.owners_unit import OwnersUnit
from tuner.hosts.systemd.record import StayRecord
from tuner.hosts.systemd.root import Argv, Root
from tuner.hosts.systemd.snapshot import Snapshot, differences, read_before, restarted, write_before
from tuner.hosts.systemd.unit import Unit
from tuner.model.host import Entered, Original
from tuner.model.lease import Holder, LeaseTerms
from tuner.model.secrets import secret_values
from tuner.model.trial import Command
from tuner.ports import Clock, HostTransport

LEASES = "/run/tuner"

_LOOK_S = 0.5
_HEALING_S = 60.0  # how long a dead-man that has begun may take, and an original that it started


def lease_folder(unit: str) -> str:
    """Return the folder of a unit's lease."""
    return f"{LEASES}/{unit}"


def commands(unit: str, terms: LeaseTerms) -> tuple[Argv, ...]:
    """List every command that a tenancy runs as root for ``unit``."""
    folder = lease_folder(unit)
    return (
        *lease.commands(folder, (BEFORE_FILE, SCRIPT_FILE, STALE_FILE)),
        *deadman.commands(unit, folder, terms),
        *owners_unit.commands(unit),
    )


class UnitTenancy:
    """``ports.Tenancy`` of a unit.

    Args:
        transport: to the host.
        root: on the host.
        unit: full name.
        holder: who we are.
        terms: of the lease.
        clock: for waiting.

    Attributes:
        record: shared with the manager of this unit's servers.
    """

    def __init__(
        self, transport: HostTransport, root: Root, unit: str, holder: Holder, terms: LeaseTerms, clock: Clock
    ) -> None:
        self._unit = unit
        self._owners = OwnersUnit(transport, root, unit, clock)
        self._holder = holder
        self._terms = terms
        self._clock = clock
        self._lease = LeaseFolder(transport, lease_folder(unit), place=unit, sudo=bool(root.prefix))
        self._dead_man = DeadMan(transport, root, unit, folder=lease_folder(unit), terms=terms)
        self._arming = asyncio.Lock()  # a renewal may find the dead-man gone while it is armed anew
        self._before: Snapshot | None = None
        self.record = StayRecord()

    # ------------------------------------------------------------------ the port

    async def enter(self) -> Entered:
        """Take the lease, keep what is there, arm the dead-man.

        Raises:
            LeaseHeld: somebody else's.
            HostFault: the host failed us, or there is no such unit.
        """
        if self._before is not None and self._lease.is_mine(await self._lease.look()):
            with contextlib.suppress(LeaseLost):  # in between; then it is taken like any other
                await self.renew()
                return Entered(secrets=_secrets(await self._owners.read()))
        taken_over = await self._lease.take(self._holder, self._terms.lasts_s)
        self.record.lease = uuid.uuid4().hex
        remarks = [taken_over] if taken_over else []
        try:
            # Armed before anything is changed; where something was changed already, armed all the time.
            await self._lease.keep(SCRIPT_FILE, SCRIPT.encode())
            async with self._arming:
                await (self._dead_man.take_over() if taken_over else self._dead_man.arm())
            kept = await self._kept()
            before, unit, left = await self._settle(kept)
            if before != kept:
                await self._lease.keep(BEFORE_FILE, write_before(before))
            await self._lease.renew(self._terms.lasts_s)  # all this may have taken a good part of a short lease
        except BaseException:
            if not taken_over:  # nothing else has been changed; a lease taken over says what its holder changed
                await self._give_up()
            raise
        self._before = before
        return Entered(secrets=_secrets(unit), remarks=(*remarks, *left, *_warnings(unit)))

    async def renew(self) -> None:
        """Push the end of the lease away, and hold that the dead-man is armed.

        Raises:
            LeaseLost: it is no longer ours.
            TransportFault: the host is not reached, or cannot write it down.
        """
        try:
            await self._lease.renew(self._terms.lasts_s)
            async with self._arming:
                if not await self._dead_man.is_armed():
                    await self._dead_man.arm()
        except (LeaseLost, TransportFault):
            raise
        except HostFault as fault:
            raise TransportFault(str(fault)) from fault

    async def restore(self) -> Original:
        """Put back what was there, and wait until the original's main process lives.

        Raises:
            LeaseLost: somebody else holds the host now; nothing was changed.
            HostFault: the host failed us.
        """
        seen = await self._lease.look()
        if not self._lease.is_mine(seen):
            if seen.holder is not None:
                msg = f"{self._unit}: the host is leased to {seen.holder.owner} now: nothing was restored"
                raise LeaseLost(msg)
            return await self._as_it_is(is_healing=seen.exists)
        before = self._before or await self._kept()
        if before is None:
            msg = f"{self._unit}: the note of what was there before is gone: start or stop the unit by hand"
            raise HostFault(msg)
        had_drop_in = await self._remove_drop_in(await self._owners.read(), made_folder=not before.has_folder)
        if before.is_running:
            invocation_id = await self._owners.start(before, others=None if had_drop_in else await self._others())
            self._before = restarted(before, invocation_id)
            with contextlib.suppress(LeaseLost):  # the dead-man came at this moment, to do the same
                await self._lease.keep(BEFORE_FILE, write_before(self._before))
        else:
            self._before = before
            await self._owners.stop()
        return await self._original(was_running=before.is_running)

    async def leave(self) -> None:
        """Compare, disarm the dead-man, give the lease back.

        Raises:
            RestoreFailed: something differs.
            HostFault: the host failed us, or a trial's drop-in is still there; the dead-man stays armed.
        """
        seen = await self._lease.look()
        is_mine = self._lease.is_mine(seen)
        if seen.text and not is_mine:
            return  # the next holder's to restore
        before = self._before or (await self._kept() if is_mine else None)
        after = await self._owners.snapshot(await self._owners.read())
        if is_mine:
            if await self._owners.has_drop_in(after):
                msg = f"{self._unit}: the trial's drop-in is still there: restore it first"
                raise HostFault(msg)
            await self._dead_man.disarm()
            await self._lease.drop()
        self._before = None
        found = () if before is None else differences(before, after)
        if found:
            msg = f"{self._unit} is not what it was before: {'; '.join(found)}: see `systemctl cat {self._unit}`"
            raise RestoreFailed(msg)

    # ------------------------------------------------------------------ what was there

    async def _settle(self, kept: Snapshot | None) -> tuple[Snapshot, Unit, list[str]]:
        """Remove what a killed run left, and know what was there before it; return the unit and remarks too."""
        unit = await self._owners.read()
        if not unit.is_found:
            msg = f"unit {self._unit} cannot be used (it is {unit.load_state}): look with `systemctl list-unit-files`"
            raise HostFault(msg)
        is_left = await self._owners.has_drop_in(unit)
        if is_left:
            await self._remove_drop_in(unit, made_folder=kept is None or not kept.has_folder)
            unit = await self._owners.read()
        before = kept or await self._owners.snapshot(unit)
        if kept is None and (is_left or await self._lease.read(STALE_FILE) is not None):
            # Nobody knows what ran: a trial's server, or an enabled unit, tells that something did.
            before = replace(before, is_running=before.is_running or unit.is_enabled, invocation_id="")
        remarks = [f"{self._unit}: the drop-in of a run that was killed was removed"] if is_left else []
        if self._before is not None and self._before.is_running and not before.is_running:
            # A host that was just booted, or is being restored, may not have come to it yet.
            before = replace(before, is_running=True)
            remarks.append(f"{self._unit}: it does not run now, but did when this run took it first: it will again")
        return before, unit, remarks

    async def _remove_drop_in(self, unit: Unit, *, made_folder: bool) -> bool:
        """Remove a trial's drop-in, if there is one; note before what ran with it, for it may outlive us."""
        is_there = await self._owners.has_drop_in(unit)
        if is_there:
            look = await self._owners.look()
            await self._lease.keep(STALE_FILE, f"{look.invocation_id or '-'}\n".encode())
        await self._owners.remove_drop_in(made_folder=made_folder)
        return is_there

    async def _others(self) -> frozenset[str]:
        """Return the invocations that are known not to be the original's."""
        stale = await self._lease.read(STALE_FILE)
        return frozenset((*self.record.invocations, *(stale or "").split()))

    async def _give_up(self) -> None:
        with contextlib.suppress(HostFault):
            if self._lease.is_mine(await self._lease.look()):  # else the dead-man is somebody else's by now
                await self._dead_man.disarm()
                await self._lease.drop()

    async def _kept(self) -> Snapshot | None:
        content = await self._lease.read(BEFORE_FILE)
        return None if content is None else read_before(content)

    async def _as_it_is(self, *, is_healing: bool) -> Original:
        """Say what there is without a lease of ours, once the dead-man has done what it is about."""
        deadline_s = self._clock.monotonic_s() + _HEALING_S
        was_running = None if self._before is None else self._before.is_running
        while is_healing and self._clock.monotonic_s() < deadline_s:
            await self._clock.sleep(_LOOK_S)
            is_healing = (await self._lease.look()).exists
        if was_running:
            await self._owners.until_it_lives(patience_s=max(0.0, deadline_s - self._clock.monotonic_s()))
        unit = await self._owners.read()
        return await self._original(was_running=unit.is_active if was_running is None else was_running)

    async def _original(self, *, was_running: bool) -> Original:
        try:
            command: Command | None = (await self._owners.read()).command()
        except UsageError as error:
            raise HostFault(str(error)) from error
        return Original(command=command, was_running=was_running)


def _secrets(unit: Unit) -> tuple[str, ...]:
    return secret_values(Command(argv=(), env=(*unit.environment, *unit.file_environment)))


def _warnings(unit: Unit) -> list[str]:
    found = [
        f"{unit.name}: {path} cannot be read, so keys in it may be shown: let the user read it"
        for path in unit.unreadable_files
    ]
    if unit.need_daemon_reload:
        found.append(
            f"{unit.name}: its files were changed since systemd read them: the first trial's daemon-reload applies that"
        )
    return found
