"""The owner's unit while we are there: looked at, kept, and put back."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from tuner.errors import HostFault, PreflightError
from tuner.hosts.systemd.definition import UP
from tuner.hosts.systemd.paths import drop_in_folder, drop_in_path
from tuner.hosts.systemd.root import RELOAD, Argv, Root, reset_command, stop_command
from tuner.hosts.systemd.snapshot import Snapshot, snapshot
from tuner.hosts.systemd.unit import Unit, read_unit
from tuner.ports import Clock, HostTransport

_LOOK_S = 0.2
_START_TIMEOUT_S = 60.0  # for the main process to be there; not for the server to be ready
_LONGEST_START_S = 900.0  # while systemd is at it: the owner's ExecStartPre= lines may take their time
_STOP_TIMEOUT_S = 1800.0  # systemd kills after TimeoutStopSec; longer than that, somebody must look
_STARTS = 3
_INVOCATION_STATUS = range(200, 244)  # systemd.exec(5), "Process Exit Codes": the program was not run at all
_RELOAD_TIMEOUT_S = 90.0  # systemd's own limit for its generators, which a reload runs


def commands(unit: str) -> tuple[Argv, ...]:
    """List every command that putting ``unit`` back runs as root."""
    return (
        cat_command(unit),
        *remove_commands(unit),
        RELOAD,
        reset_command(unit),
        restart_command(unit),
        stop_command(unit),
    )


def remove_commands(unit: str) -> tuple[Argv, Argv]:
    """Return the commands that remove a trial's drop-in, and its folder if nothing else is in there."""
    path, folder = drop_in_path(unit), drop_in_folder(unit)
    return ("rm", "-f", path, f"{path}.new"), ("rmdir", "--ignore-fail-on-non-empty", folder)


def restart_command(unit: str) -> Argv:
    """Return the command that queues a restart."""
    return ("systemctl", "restart", "--no-block", unit)


def cat_command(unit: str) -> Argv:
    """Return the command that prints the unit's files; as root, because a drop-in may be nobody else's to read."""
    return ("systemctl", "cat", unit)


async def active_among(transport: HostTransport, units: Sequence[str]) -> tuple[str, ...]:
    """Return those units that run, or are on their way; targets are only reached, and left out.

    Raises:
        TransportFault: the host is not reached.
    """
    names = tuple(dict.fromkeys(name for name in units if not name.endswith(".target")))
    if not names:
        return ()
    states = (await transport.run(("systemctl", "is-active", "--", *names))).stdout.split()
    return tuple(name for name, state in zip(names, states, strict=False) if state in UP)


@dataclass(frozen=True, slots=True, kw_only=True)
class Activity:
    """What a start or a stop is waited for with."""

    state: str
    main_pid: int
    invocation_id: str
    has_job: bool
    result: str
    exit_status: str

    @property
    def is_up(self) -> bool:
        """Whether it runs, or is on its way."""
        return self.state in UP

    @property
    def is_systemds_own(self) -> bool:
        """Whether systemd failed to run the program: by chance at times (219: its cgroup was just being removed)."""
        return self.exit_status.isdecimal() and int(self.exit_status) in _INVOCATION_STATUS

    @property
    def is_under_way(self) -> bool:
        """Whether systemd is about to do something with it."""
        return self.has_job or self.state in {"activating", "deactivating"}


class OwnersUnit:
    """The unit as its owner has it.

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

    async def read(self) -> Unit:
        """Ask systemd for the unit.

        Raises:
            HostFault: it did not answer.
        """
        try:
            return await read_unit(self._transport, self._unit, self._root)
        except PreflightError as error:
            raise HostFault(str(error)) from error

    async def has_drop_in(self, unit: Unit | Snapshot) -> bool:
        """Whether a trial's drop-in is there, or in force: in systemd's memory when somebody removed the file only."""
        path = drop_in_path(self._unit)
        return path in unit.drop_in_paths or await self.holds("-e", path)

    async def remove_drop_in(self, *, made_folder: bool) -> None:
        """Remove a trial's drop-in; what runs goes on.

        Args:
            made_folder: the folder it lies in was not there before.

        Raises:
            HostFault: it cannot be removed.
        """
        is_there = await self.has_drop_in(await self.read())
        remove, remove_folder = remove_commands(self._unit)
        await self._root.require(remove)
        if made_folder and await self.holds("-d", drop_in_folder(self._unit)):
            await self._root.require(remove_folder)
        if is_there:
            await self._root.require(RELOAD, timeout_s=_RELOAD_TIMEOUT_S)

    async def start(self, before: Snapshot, *, others: Collection[str] | None) -> str:
        """Start the original unless it runs already; return its invocation.

        It loads for minutes, so it is not started a second time: not where it was never stopped, nor where its
        owner, the host itself or a restore that was killed has started it since.

        Args:
            before: what was there.
            others: invocations that are not the original's; None: all but the one that ran before.

        Raises:
            HostFault: what ran does not stop, or the original's main process does not live.
        """
        now = await self.look()
        if now.is_up and now.invocation_id == before.invocation_id:
            return now.invocation_id
        if now.is_up and others is not None and now.invocation_id not in others:
            return await self.until_it_lives()
        for is_last in (*[False] * (_STARTS - 1), True):
            await self._root.attempt(reset_command(self._unit))  # of a unit that has not failed, it may say so
            await self._root.require(restart_command(self._unit))
            await self._until_stopped(invocation_id=now.invocation_id)
            try:
                return await self.until_it_lives(after=now.invocation_id)
            except HostFault:
                now = await self.look()
                if is_last or not now.is_systemds_own:
                    raise
        raise AssertionError(self._unit)  # the last start returns or raises

    async def until_it_lives(self, *, after: str | None = None, patience_s: float = 0.0) -> str:
        """Wait until the main process lives; return its invocation.

        Args:
            after: the invocation that ran before, and is not meant.
            patience_s: how long somebody may take to start it; once systemd is at it, that has longer.

        Raises:
            HostFault: it does not.
        """
        began_s = self._clock.monotonic_s()
        while True:
            look = await self.look()
            if look.is_up and look.main_pid and look.invocation_id != after:
                return look.invocation_id
            limit_s = _START_TIMEOUT_S if look.is_up else patience_s
            if look.is_under_way:
                limit_s = _LONGEST_START_S
            if self._clock.monotonic_s() - began_s > limit_s:
                msg = (
                    f"{self._unit}: the original does not start "
                    f"(it is {look.state}, {look.result} {look.exit_status}): "
                    f"see `journalctl -u {self._unit}`"
                )
                raise HostFault(msg)
            await self._clock.sleep(_LOOK_S)

    async def stop(self) -> None:
        """Stop what runs, for an original that was stopped.

        Raises:
            HostFault: it does not stop.
        """
        look = await self.look()
        if look.state not in {"inactive", "failed"}:
            await self._root.require(stop_command(self._unit))
            await self._until_stopped(invocation_id=None)
        if (await self.look()).state == "failed":
            await self._root.attempt(reset_command(self._unit))

    async def _until_stopped(self, *, invocation_id: str | None) -> None:
        """Wait until the unit is stopped; one of another invocation than this has been, and was started again."""
        deadline_s = self._clock.monotonic_s() + _STOP_TIMEOUT_S
        while True:
            look = await self.look()
            if look.state in {"inactive", "failed"} or (invocation_id is not None and look.main_pid == 0):
                return
            if invocation_id is not None and look.invocation_id != invocation_id:
                return
            if self._clock.monotonic_s() > deadline_s:
                msg = f"{self._unit}: it did not stop in {_STOP_TIMEOUT_S:g} s: see `systemctl status {self._unit}`"
                raise HostFault(msg)
            await self._clock.sleep(_LOOK_S)

    async def look(self) -> Activity:
        """Look at the unit, cheaply.

        Raises:
            HostFault: systemd did not answer.
        """
        names = ("ActiveState", "MainPID", "InvocationID", "Job", "Result", "ExecMainStatus")
        argv = ("systemctl", "show", "-p", ",".join(names), "--", self._unit)
        result = await self._transport.run(argv)
        shown = dict(line.split("=", 1) for line in result.stdout.splitlines() if "=" in line)
        if result.status != 0 or "ActiveState" not in shown:
            msg = f"{self._unit}: systemd does not say how it is: {result.stderr.strip() or result.status}"
            raise HostFault(msg)
        return Activity(
            state=shown["ActiveState"],
            main_pid=int(shown.get("MainPID") or 0),
            invocation_id=shown.get("InvocationID", ""),
            has_job=shown.get("Job", "") not in {"", "0"},
            result=shown.get("Result", ""),
            exit_status=shown.get("ExecMainStatus", ""),
        )

    async def snapshot(self, unit: Unit) -> Snapshot:
        """Keep what the unit is now.

        Args:
            unit: as it was just read.

        Raises:
            HostFault: systemd did not answer.
        """
        has_folder = await self.holds("-d", drop_in_folder(self._unit))
        text = await self._root.attempt(cat_command(self._unit))
        kept = snapshot(unit, text.stdout if text.status == 0 else None, has_folder=has_folder)
        return replace(kept, dependants=await active_among(self._transport, unit.dependants))

    async def holds(self, test: str, path: str) -> bool:
        """Whether ``test -e`` (``-d``) holds for a path on the host."""
        return (await self._transport.run(("test", test, path))).status == 0
