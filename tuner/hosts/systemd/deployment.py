"""Puts a trial's drop-in on the host, and holds that it is what systemd will run."""

from __future__ import annotations

from dataclasses import replace

from tuner.errors import HostFault, UsageError
from tuner.hosts.systemd.dropin import ExecStart, ServiceTerms, drop_in, exec_start
from tuner.hosts.systemd.overridden import overridden
from tuner.hosts.systemd.paths import drop_in_path
from tuner.hosts.systemd.root import RELOAD, Root
from tuner.hosts.systemd.unit import Unit, read_unit
from tuner.model.trial import Command
from tuner.ports import HostTransport

_RELOAD_TIMEOUT_S = 90.0  # a reload runs the host's generators, for which systemd itself grants as long


class Deployment:
    """The drop-in of one unit.

    Args:
        transport: to the host.
        root: on the host.
        unit: full name.
        terms: how systemd treats the servers.
        token: marks the drop-in as ours.
    """

    def __init__(self, transport: HostTransport, root: Root, unit: str, terms: ServiceTerms, *, token: str) -> None:
        self._transport = transport
        self._root = root
        self._unit = unit
        self._terms = terms
        self._token = token
        self._base: Unit | None = None  # as it was without our drop-in, when we last saw it so

    async def put(self, command: Command) -> None:
        """Write the drop-in that runs ``command``, and hold that nothing on the host overrides it.

        Raises:
            HostFault: it cannot be written, or does not win.
            TransportFault: the host is not reached.
        """
        base = await self._original()
        problem = overridden(base, [name for name, _ in command.env])
        if problem is not None:
            raise HostFault(problem)
        try:
            line = exec_start(base, command)
            text = drop_in(line, command, self._terms, token=self._token)
        except UsageError as error:
            msg = f"unit {self._unit}: the trial's command cannot be written: {error}"
            raise HostFault(msg) from error
        await self._write(text)
        self._wins(line, await read_unit(self._transport, self._unit))

    async def _original(self) -> Unit:
        """Return the unit as its owner wrote it; what an earlier run left in our drop-in is not his."""
        unit = await read_unit(self._transport, self._unit, self._root)
        if drop_in_path(self._unit) in unit.drop_in_paths:
            if self._base is not None:
                return self._base
            await self._write("# Written by tuner; without effect.\n")
            unit = await read_unit(self._transport, self._unit, self._root)
        self._base = unit
        return unit

    async def _write(self, text: str) -> None:
        await self._root.replace_file(drop_in_path(self._unit), text.encode())
        await self._root.require(RELOAD, timeout_s=_RELOAD_TIMEOUT_S)

    def _wins(self, line: ExecStart, unit: Unit) -> None:
        ours = drop_in_path(self._unit)
        if ours not in unit.drop_in_paths:
            msg = (
                f"unit {self._unit}: systemd does not read {ours} "
                f"(unit file {unit.fragment_path or 'missing'}, {unit.load_state}): see `systemctl cat {self._unit}`"
            )
            raise HostFault(msg)
        held = tuple(replace(entry, flags=tuple(sorted(entry.flags))) for entry in unit.exec_start)
        if held != (replace(line.held, flags=tuple(sorted(line.held.flags))),):
            later = unit.drop_in_paths[unit.drop_in_paths.index(ours) + 1 :]
            who = f"{later[-1]} comes after it and wins" if later else "systemd reads it differently"
            msg = f"unit {self._unit}: the ExecStart of {ours} is not what would run: {who}: rename or remove that"
            raise HostFault(msg)
