"""Our use of a host that has no systemd: a lease in its folder, and supervisors that heed it."""

from __future__ import annotations

import contextlib

from tuner.errors import HostFault, LeaseLost, RestoreFailed, TransportFault
from tuner.hosts.shell.asking import Shell
from tuner.hosts.shell.order import checked_directory
from tuner.hosts.shell.service import ShellServiceManager
from tuner.hosts.systemd.lease import LeaseFolder
from tuner.model.host import Entered, Original
from tuner.model.lease import Holder, LeaseTerms
from tuner.ports import Clock, HostTransport

_GRACE_S = 10.0  # its load was stopped before
_MADE = "made"  # in the lease: we made the folder it is in

# A lease of another boot counts its time by another clock, and what it was about ended with that boot.
_ENTER = """
# DIRECTORY: prints the boot id, and whether the folder is there already; deletes leases of other boots.
read -r boot </proc/sys/kernel/random/boot_id
there=0
[ ! -d "$1" ] || there=1
echo "$boot $there"
for lease in "$1"/lease-*; do
    [ "$lease" = "$1/lease-$boot" ] || rm -rf -- "$lease"
done
"""
_LEAVE = """
# LEASE: says whether the folder it is in was made by us.
if [ -e "$1/made" ]; then echo yes; fi
"""
_REMOVE = """
# DIRECTORY: goes if nothing is left in it, and never with something in it.
rmdir -- "$1" 2>/dev/null
:
"""


def lease_folder(directory: str, boot_id: str) -> str:
    """Return the folder of the lease on the servers of ``directory``."""
    return f"{directory}/lease-{boot_id}"


class ShellTenancy:
    """``ports.Tenancy`` of a host whose servers :class:`ShellServiceManager` starts in the same folder.

    Nothing ran there before, so restoring is to stop what we started. The dead-man is the supervisor of
    each server: start servers with ``ShellServiceManager(..., lease=tenancy.lease_folder)``.

    Args:
        transport: to the host.
        directory: absolute folder on the host. Only tuners that name the same one see each other's lease.
        holder: who we are.
        terms: of the lease.
        clock: for waiting.
    """

    def __init__(
        self, transport: HostTransport, directory: str, holder: Holder, terms: LeaseTerms, clock: Clock
    ) -> None:
        self._directory = checked_directory(directory)
        self._transport = transport
        self._holder = holder
        self._terms = terms
        self._shell = Shell(transport, self._directory)
        self._servers = ShellServiceManager(transport, self._directory, clock)
        self._boot_id: str | None = None
        self._lease: LeaseFolder | None = None
        self._made = False  # a dead-man takes our note of that away with the lease

    def lease_folder(self) -> str:
        """Return where our lease lies, for the supervisors of our servers.

        Raises:
            LeaseLost: we have none; enter first.
        """
        if self._lease is None:
            raise LeaseLost(f"{self._directory}: the host is not ours: take its lease first")
        return lease_folder(self._directory, self._boot_id or "")

    async def enter(self) -> Entered:
        """Take the lease; nothing else changes.

        Raises:
            LeaseHeld: somebody else's.
            HostFault: the host failed us.
        """
        boot_id, there = (await self._shell.run(_ENTER, self._directory)).split()
        if self._lease is not None and boot_id == self._boot_id:
            remark = await self._lease.take(self._holder, self._terms.lasts_s)
            return Entered(remarks=(remark,) if remark else ())
        lease = self._folder(boot_id)
        try:
            remark = await lease.take(self._holder, self._terms.lasts_s)
            self._made = self._made or there == "0"
            if self._made:
                await lease.keep(_MADE, b"")
        except BaseException:
            with contextlib.suppress(HostFault):
                await lease.drop()
            raise
        self._boot_id, self._lease = boot_id, lease
        return Entered(remarks=(remark,) if remark else ())

    async def renew(self) -> None:
        """Push the end of the lease away.

        Raises:
            LeaseLost: the host was rebooted, or somebody else has the lease, or it ran out and the
                supervisor stopped the server.
            TransportFault: the host is not reached, or cannot write it down.
        """
        if self._lease is None:
            raise LeaseLost(f"{self._directory}: the host is not ours: take its lease first")
        if not await self._is_same_boot():
            raise LeaseLost(f"{self._directory}: our lease is gone: the host was rebooted")
        try:
            await self._lease.renew(self._terms.lasts_s)
        except (LeaseLost, TransportFault):
            raise
        except HostFault as fault:
            raise TransportFault(str(fault)) from fault

    async def restore(self) -> Original:
        """Stop every server of ours on the host; there is nothing to start again.

        Raises:
            LeaseLost: somebody else holds the host now; nothing was changed.
            HostFault: the host failed us.
        """
        nothing = Original(command=None, was_running=False)
        if self._lease is None or not await self._is_same_boot():
            return nothing
        seen = await self._lease.look()
        if not self._lease.is_mine(seen):
            if seen.holder is not None:
                msg = f"{self._directory}: the host is leased to {seen.holder.owner} now: nothing was stopped"
                raise LeaseLost(msg)
            return nothing
        await self._servers.stop(grace_s=_GRACE_S)
        return nothing

    async def leave(self) -> None:
        """Give the lease back, with nothing of ours left on the host.

        Raises:
            RestoreFailed: a process of ours still lives.
            HostFault: the host failed us.
        """
        if self._lease is None:
            return
        lease, folder = self._lease, self.lease_folder()
        seen = await lease.look()
        if not await self._is_same_boot() or (seen.text and not lease.is_mine(seen)):
            self._lease = None  # the next holder's to clean
            return
        left = await self._servers.leftovers()
        if not left:
            await self._servers.forget()
        made = (await self._shell.run(_LEAVE, folder)).strip()
        await lease.drop()
        self._lease = None
        if left:
            names = ", ".join(f"{entry.pid} ({entry.command})" for entry in left)
            raise RestoreFailed(f"{self._directory}: processes of ours still live: {names}: end them by hand")
        if made or self._made:
            await self._shell.run(_REMOVE, self._directory)

    async def _is_same_boot(self) -> bool:
        content = await self._transport.read_file("/proc/sys/kernel/random/boot_id")
        return content.decode(errors="replace").strip() == self._boot_id

    def _folder(self, boot_id: str) -> LeaseFolder:
        return LeaseFolder(self._transport, lease_folder(self._directory, boot_id), place=self._directory, sudo=False)
