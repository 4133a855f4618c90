"""Starts a unit once, and tells when its program was executed."""

from __future__ import annotations

from tuner.errors import HostFault, LeaseLost, TransportFault
from tuner.hosts.systemd.look import Look, look_at
from tuner.hosts.systemd.root import Root, failure, reset_command, start_command, stop_command
from tuner.model.host import Activity
from tuner.ports import Clock, HostTransport

_POLL_S = 0.1
_EXEC_TIMEOUT_S = 600.0  # the owner's ExecStartPre= lines may take their time
_ACCEPT_S = 5.0  # until a start whose command was lost on the way shows, if it was taken at all
_SETUP = {
    200: "its WorkingDirectory= cannot be entered",
    203: "the program is missing or not executable",
    216: "its Group= does not exist",
    217: "its User= does not exist",
    226: "its namespace cannot be set up",
}
"""systemd.exec(5), the likely ones."""


class Launch:
    """One start of a unit.

    Args:
        transport: to the host.
        root: on the host.
        unit: full name.
        clock: for waiting.
    """

    def __init__(self, transport: HostTransport, root: Root, unit: str, clock: Clock) -> None:
        self._transport = transport
        self._root = root
        self._unit = unit
        self._clock = clock

    async def run(self, before: Look) -> Look:
        """Start the unit; returns the first look at which its program was executed, or could not be.

        Args:
            before: a look at the unit, which did not run.

        Raises:
            HostFault: systemd did not start it.
            LeaseLost: the host was rebooted meanwhile.
            TransportFault: the connection was lost, and the start was not taken.
        """
        await self._reset_failed()
        return await self._executed(before, await self._queue_start())

    async def _reset_failed(self) -> None:
        command = reset_command(self._unit)
        result = await self._root.attempt(command)
        if result.status != 0 and "not loaded" not in result.stderr:
            raise HostFault(failure(command, result))

    async def _queue_start(self) -> TransportFault | None:
        """Queue the start once; returns the fault after which it is not known whether that was done."""
        command = start_command(self._unit)
        try:
            await self._root.require(command, repeat=False)
        except TransportFault as fault:
            return fault
        return None

    async def _executed(self, before: Look, lost: TransportFault | None) -> Look:
        """Wait until the program was executed, or is dead already; returns the first look that shows it."""
        began_s = self._clock.monotonic_s()
        while True:
            look = await look_at(self._transport, self._unit)
            if look.boot_id != before.boot_id:
                msg = f"unit {self._unit}: the host was rebooted while a server was started"
                raise LeaseLost(msg)
            is_new = bool(look.invocation_id) and look.invocation_id != before.invocation_id
            waited_s = self._clock.monotonic_s() - began_s
            if is_new and (look.main_pid or look.exec_main_pid != before.exec_main_pid):
                # start-post: executed, and the owner's ExecStartPost= may wait for it to be ready.
                if (
                    look.active_state != "activating"
                    or look.sub_state == "start-post"
                    or look.activity is Activity.RESTARTING
                ):
                    return look
            elif is_new and look.active_state in {"failed", "inactive"} and not look.has_job:
                msg = (
                    f"unit {self._unit}: its ExecStartPre= or a condition failed (result {look.result}), and the "
                    f"server was not started: see `journalctl -u {self._unit}`"
                )
                raise HostFault(msg)
            elif not is_new and not look.has_job and waited_s > _ACCEPT_S:
                if lost is not None:
                    raise lost
                msg = (
                    f"unit {self._unit}: systemd did not start it ({look.active_state}, result {look.result}; does a "
                    f"condition of the unit not hold?): see `systemctl status {self._unit}`"
                )
                raise HostFault(msg)
            if waited_s > _EXEC_TIMEOUT_S:
                await self._root.require(stop_command(self._unit))
                msg = f"unit {self._unit}: not started after {_EXEC_TIMEOUT_S:g} s ({look.sub_state}): see its journal"
                raise HostFault(msg)
            await self._clock.sleep(_POLL_S)


def setup_failure(look: Look) -> str:
    """Say why systemd could not execute the program of a unit, and what to do."""
    reason = _SETUP.get(look.exec_main_status, "see systemd.exec(5)")
    return (
        f"systemd says {look.exec_main_status} ({reason}): "
        f"see `journalctl -u {look.unit}`, and correct the command or the unit"
    )
