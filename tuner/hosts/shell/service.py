"""A service manager for a host that has sshd and a POSIX shell: the supervisor is a shell script."""

from __future__ import annotations

import hashlib
import re
import uuid
from collections.abc import Callable
from dataclasses import replace

from tuner.errors import DirtyHost, HostFault, LeaseLost, ServerInTheWay, TransportFault
from tuner.hosts import files
from tuner.hosts.shell import looks, scripts
from tuner.hosts.shell.asking import Shell
from tuner.hosts.shell.order import checked_directory, encode_order
from tuner.hosts.shell.status import Found, Look, Phase, Status, read_look, read_piece, read_scan, read_status
from tuner.hosts.systemd.lease import EXPIRES
from tuner.model.host import Activity, LogChunk, ProcessEntry, ServiceState
from tuner.model.trial import Command, ServiceIdentity
from tuner.ports import Clock, HostTransport

_PIECE_BYTES = 1024 * 1024
_POLL_S = 0.05
_START_TIMEOUT_S = 90.0  # longer than the script waits, for a dying predecessor and for the new server
_UNRECORDED_S = 2.0  # a death is written down within milliseconds, if it can be
_SUPERVISOR_S = 15.0  # what the supervisor gets, after the grace, to end the rest by itself
_UNKILLABLE_S = 20.0  # a process that does not die of SIGKILL for so long hangs in the kernel
_NEVER_STARTED = ServiceState(
    activity=Activity.INACTIVE, identity=None, restarts=0, exit_status=None, exit_signal=None, stop_requested=False
)
_ACTIVITY = {
    Phase.STARTING: Activity.RUNNING,
    Phase.RUNNING: Activity.RUNNING,
    Phase.STOPPING: Activity.RUNNING,
    Phase.RESTARTING: Activity.RESTARTING,
    Phase.STOPPED: Activity.INACTIVE,
    Phase.FAILED: Activity.FAILED,
    Phase.REFUSED: Activity.FAILED,
}


class ShellServiceManager:
    """``ports.ServiceManager`` over :mod:`tuner.hosts.shell.scripts`.

    A server that another manager on the same folder started is a leftover to this one: :meth:`stop`
    and :meth:`kill_leftovers` end it. Managers with different folders do not see each other.

    Args:
        transport: reaches the host.
        directory: absolute folder on the host; made when needed.
        clock: for waiting.
        restart: a dead server is started again, ``restart_delay_s`` after its death.
        lease: its folder is asked for at each start; the server is stopped by its own supervisor when the
            lease there runs out, or is gone. None: nobody's host, and the server lives until it is stopped.
    """

    def __init__(
        self,
        transport: HostTransport,
        directory: str,
        clock: Clock,
        *,
        restart: bool = False,
        restart_delay_s: float = 1.0,
        lease: Callable[[], str] | None = None,
    ) -> None:
        self._directory = checked_directory(directory)
        self._shell = Shell(transport, self._directory)
        self._clock = clock
        self._delay = str(round(restart_delay_s * 100)) if restart else ""  # hundredths: sh has whole numbers
        self._lease = lease
        self._mark = ""
        self._token: str | None = None  # of the current or last start
        self._boot_id = ""
        self._identity: ServiceIdentity | None = None
        self._stopped = False  # we asked the current server to end
        self._ending = False  # we wanted to, though it may not have got through; or have told why to
        self._ended: ServiceState | None = None  # how the current start ended, once that is known

    # ------------------------------------------------------------------ start

    async def start(self, command: Command) -> ServiceIdentity:
        """Start a server under a new supervisor.

        A connection that is lost meanwhile does no harm: the host starts one server for each token.

        Raises:
            HostFault: a server runs already, the program is missing or cannot be executed, or the
                supervisor could not be started.
            TransportFault: whether it runs is not known; :meth:`stop` ends it if it does.
        """
        order = encode_order(command)
        expires = "" if self._lease is None else f"{self._lease()}/{EXPIRES}"
        mark = await self._known_by()
        before = (self._token, self._boot_id, self._identity, self._stopped, self._ended)
        self._token, self._boot_id, self._identity = uuid.uuid4().hex[:16], "", None
        self._stopped, self._ending, self._ended = False, False, None
        printed = await self._shell.run(
            scripts.START,
            *(self._directory, self._token, mark, self._delay, expires),
            *(scripts.LAUNCH, scripts.SUPERVISE, scripts.SERVER, scripts.WATCH),
            stdin=order,
            timeout_s=_START_TIMEOUT_S,
        )
        word, line, reason = (*printed.split("\n", 2), "", "")[:3]
        if word == "busy":
            self._token, self._boot_id, self._identity, self._stopped, self._ended = before
            msg = f"{self._directory}: a server runs already: stop it first"
            raise ServerInTheWay(msg)
        status = self._read_status(line)
        self._boot_id, self._identity = status.boot_id, status.identity
        if word == "refused":
            self._ended = _state(status, stopped=False)
            why = " ".join(reason.split()) or "the host's shell does not say why"
            msg = f"program {command.argv[0]} could not be executed: {why}"
            raise HostFault(msg)
        if word != "started" or status.identity is None:
            msg = f"{self._directory}: the supervisor did not start the server: is setsid (util-linux) on that host?"
            raise HostFault(msg)
        return status.identity

    # ------------------------------------------------------------------ state

    async def state(self) -> ServiceState:
        """Look at the service.

        What is wrong is told once, and not of a server that was to be stopped: the next stop sees to it.

        Raises:
            LeaseLost: the host was rebooted under a lease, or the supervisor stopped the server because
                nobody renewed it.
            HostFault: the host was rebooted, the supervisor is gone, or it cannot write.
            TransportFault: the state is not known.
        """
        if self._token is None:
            return _NEVER_STARTED
        deadline_s = self._clock.monotonic_s() + _UNRECORDED_S
        while self._ended is None:
            look = await self._look()
            fault = self._loss(look) or self._neglect(look)
            if fault is not None:
                return self._tell(fault, look)
            status = look.status
            if status.phase in {Phase.STOPPED, Phase.FAILED, Phase.REFUSED}:
                self._ended = _state(status, stopped=self._stopped)
            elif look.living or status.phase is not Phase.RUNNING or self._clock.monotonic_s() < deadline_s:
                if look.living or status.phase is not Phase.RUNNING:
                    return _state(status, stopped=look.flagged)
                await self._clock.sleep(_POLL_S)
            else:
                msg = f"{self._folder}: the server has died and that cannot be written there: free space on that disk"
                raise HostFault(msg)
        return self._ended

    def _tell(self, fault: HostFault, look: Look) -> ServiceState:
        """Raise what is wrong, once; then the server is gone, or runs on and can be stopped."""
        gone = self._gone(look)
        if self._loss(look) is not None:
            self._ended = gone
        told, self._ending = self._ending, True
        if not told:
            raise fault
        return self._ended or replace(gone, activity=Activity.RUNNING)

    async def _look(self) -> Look:
        printed = await self._shell.run(looks.LOOK, self._folder)
        try:
            return read_look(printed)
        except ValueError as error:
            raise self._not_understood(printed) from error

    def _loss(self, look: Look) -> HostFault | None:
        """Say why the server is gone for good, by nobody's stop and no death of its own; None: it is not."""
        if self._boot_id and look.boot_id != self._boot_id:
            fault = HostFault if self._lease is None else LeaseLost
            return fault(f"{self._directory}: the host was rebooted while the server ran: run the trial again")
        if look.status.phase is Phase.EXPIRED:
            msg = f"{self._directory}: the host stopped the server by itself, because its lease was not renewed"
            return LeaseLost(msg)
        return None

    def _neglect(self, look: Look) -> HostFault | None:
        """Say why nobody on the host watches the server any more; None: it is watched, or has ended."""
        phase = look.status.phase
        if phase is Phase.NONE and not look.supervised:
            msg = f"{self._folder}: somebody deleted what says how the server fares: stop it and start again"
            return HostFault(msg)
        if not look.supervised and phase in {Phase.STARTING, Phase.RUNNING, Phase.RESTARTING, Phase.STOPPING}:
            msg = (
                f"{self._folder}: the server's supervisor was killed, or found the disk full: "
                "see to that disk, then stop the server and start again"
            )
            return HostFault(msg)
        return None

    def _gone(self, look: Look) -> ServiceState:
        """Return the state of a server that is gone without a word on how it ended."""
        return ServiceState(
            activity=Activity.INACTIVE,
            identity=self._identity,
            restarts=look.status.restarts,
            exit_status=None,
            exit_signal=None,
            stop_requested=self._ending,
        )

    # ------------------------------------------------------------------ log

    async def read_log(self, cursor: str | None) -> LogChunk:
        """Return the next megabyte; a cursor of an earlier start begins anew."""
        if self._token is None:
            return LogChunk(text="", cursor="")
        token, _, position = (cursor or "").partition(":")
        offset = int(position) if token == self._token and position else 0
        printed = await self._shell.run(looks.READ, self._folder, str(offset + 1), str(_PIECE_BYTES))
        try:
            piece, more = read_piece(printed)
        except ValueError as error:
            raise self._not_understood(printed) from error
        text, used = files.decode_prefix(piece, is_last=not more and len(piece) < _PIECE_BYTES)
        return LogChunk(text=text, cursor=f"{self._token}:{offset + used}")

    async def forget(self) -> None:
        """Delete what starts whose supervisor has ended have left; how the last one ended is kept here."""
        if self._token is not None and self._ended is None:
            await self.state()
        await self._shell.run(looks.FORGET, self._directory)

    # ------------------------------------------------------------------ stop

    async def stop(self, *, grace_s: float) -> None:
        """Stop every server of this folder, with all that belongs to it.

        Raises:
            DirtyHost: processes survive SIGKILL (they hang in the kernel).
        """
        self._ending = True
        asked = await self._shell.run(looks.STOP, self._directory, await self._known_by())
        if self._token in asked.split():
            self._stopped = True
        began_s = self._clock.monotonic_s()
        # Twice, because a process that is just being executed shows no environment.
        while found := await self._scan() or await self._scan():
            waited_s = self._clock.monotonic_s() - began_s
            if waited_s >= grace_s + _SUPERVISOR_S + _UNKILLABLE_S:
                msg = f"{self._directory}: processes survive SIGKILL: {_names(found)}: the host needs a reboot"
                raise DirtyHost(msg)
            if waited_s >= grace_s:
                await self._kill("all" if waited_s >= grace_s + _SUPERVISOR_S else "servers")
            await self._clock.sleep(_POLL_S)
        await self._note_end()

    async def _note_end(self) -> None:
        """After a stop nothing lives: keep how it ended, whatever the supervisor could still say of it."""
        if self._token is None or self._ended is not None:
            return
        look = await self._look()
        if look.boot_id == self._boot_id and look.status.phase in {Phase.STOPPED, Phase.FAILED, Phase.REFUSED}:
            self._ended = _state(look.status, stopped=self._stopped)
            return
        self._ended = self._gone(look)

    async def leftovers(self) -> tuple[ProcessEntry, ...]:
        """Return what lives of earlier servers, and of the current one if it has ended."""
        return tuple(ProcessEntry(pid=one.pid, command=one.command, ours=True) for one in await self._left())

    async def kill_leftovers(self) -> None:
        """Kill them and wait until they are gone; nothing is known to live before that but the current server.

        Raises:
            DirtyHost: processes survive SIGKILL (they hang in the kernel).
        """
        deadline_s = self._clock.monotonic_s() + _UNKILLABLE_S
        while left := await self._left():
            if self._clock.monotonic_s() > deadline_s:
                msg = f"{self._directory}: processes survive SIGKILL: {_names(left)}: the host needs a reboot"
                raise DirtyHost(msg)
            keep = self._token if await self._is_watched() else None
            await self._shell.run(looks.KILL, self._directory, await self._known_by(), "all", keep or "-")
            await self._clock.sleep(_POLL_S)
        await self._shell.run(looks.FORGET, self._directory)

    async def members(self) -> frozenset[int]:
        """Return the PIDs of the running server: what carries its mark, and what is in its session."""
        if self._token is None or self._ended is not None:
            return frozenset()
        return frozenset(one.pid for one in await self._scan(words="") if one.current and not one.supervisor)

    async def _left(self) -> tuple[Found, ...]:
        found = await self._scan()
        if not found or not await self._is_watched():
            return found
        return tuple(one for one in found if not one.current)

    async def _is_watched(self) -> bool:
        """Whether the current server runs as it should, so that its processes are no leftovers."""
        if self._token is None or self._ended is not None:
            return False
        return (await self._look()).supervised

    async def _scan(self, words: str = "words") -> tuple[Found, ...]:
        printed = await self._shell.run(looks.SCAN, self._directory, await self._known_by(), self._token or "-", words)
        try:
            return read_scan(printed)
        except ValueError as error:
            raise self._not_understood(printed) from error

    async def _kill(self, whom: str) -> None:
        await self._shell.run(looks.KILL, self._directory, await self._known_by(), whom, "-")

    async def _known_by(self) -> str:
        """Return the mark of the processes of this folder.

        Of its path and its file system, not of a file in it: processes are found even if somebody deleted
        the folder, and those of another container that has a folder of this name are not taken for ours.
        """
        if not self._mark:
            place = await self._shell.run(looks.PLACE, self._directory)
            if re.fullmatch(r"\d+:\d+ /.*\n", place) is None:
                raise self._not_understood(place)
            words = f"{self._directory}\n{place}"
            self._mark = hashlib.sha256(words.encode(errors="surrogateescape")).hexdigest()[:16]
        return self._mark

    # ------------------------------------------------------------------ words

    @property
    def _folder(self) -> str:
        return f"{self._directory}/start-{self._token}"

    def _read_status(self, line: str) -> Status:
        try:
            return read_status(line)
        except ValueError as error:
            raise self._not_understood(line) from error

    def _not_understood(self, printed: str) -> TransportFault:
        said = (printed.splitlines() or ["nothing"])[0][:120]
        return TransportFault(
            f"{self._directory}: the host's shell said {said!r}: its login scripts must print nothing"
        )


def _state(status: Status, *, stopped: bool) -> ServiceState:
    """Say what a status means; ``stopped``: our own stop came first."""
    activity = _ACTIVITY[status.phase]
    if stopped and activity is Activity.FAILED:
        activity = Activity.INACTIVE  # its supervisor could not see that we had asked: the disk was full
    return ServiceState(
        activity=activity,
        identity=status.identity,
        restarts=status.restarts,
        exit_status=status.exit_status,
        exit_signal=status.exit_signal,
        stop_requested=stopped or status.phase in {Phase.STOPPING, Phase.STOPPED},
    )


def _names(found: tuple[Found, ...]) -> str:
    return ", ".join(f"{one.pid} ({one.command})" for one in found)
