"""One look at a unit and at the boot it lives in, and what it means."""

from __future__ import annotations

from dataclasses import dataclass

from tuner.errors import HostFault
from tuner.hosts.systemd.dropin import mark_of
from tuner.hosts.systemd.paths import drop_in_path, shown_words, slice_cgroup
from tuner.hosts.systemd.timespan import seconds
from tuner.model.host import Activity, CommandResult
from tuner.model.trial import ServiceIdentity
from tuner.ports import HostTransport

_PROPERTIES = (
    "LoadState,ActiveState,SubState,Result,InvocationID,MainPID,ExecMainPID,ExecMainCode,ExecMainStatus,"
    "NRestarts,Restart,DropInPaths,ControlGroup,Slice,Job,"
    "Documentation,TimeoutStopUSec"
)
_LOOK = f"""\
export LC_ALL=C SYSTEMD_PAGER= SYSTEMD_COLORS=0
cat /proc/sys/kernel/random/boot_id || exit
exec systemctl show --no-pager -p {_PROPERTIES} -- "$1"
"""
_EXITED = 1  # CLD_EXITED; CLD_KILLED is 2 and CLD_DUMPED 3
_SETUP_STATUSES = range(200, 244)  # systemd.exec(5): what systemd says of a process it could not set up


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """What ``systemctl show`` said; words are systemd's own.

    Attributes:
        main_pid: 0 while there is none.
        exec_main_pid: of the last main process, alive or not.
        exec_main_code: how that one ended (siginfo's ``si_code``); 0: it has not.
        has_job: a start or stop is queued.
        documentation: addresses; a trial's drop-in adds one that says whose it is.
        stop_timeout_s: what systemd grants it to end; infinite: for ever, and 0: it does not say.
    """

    boot_id: str
    unit: str
    load_state: str
    active_state: str
    sub_state: str
    result: str
    invocation_id: str
    main_pid: int
    exec_main_pid: int
    exec_main_code: int
    exec_main_status: int
    restarts: int
    restart: str
    drop_in_paths: tuple[str, ...]
    control_group: str
    slice: str
    has_job: bool
    documentation: tuple[str, ...] = ()
    stop_timeout_s: float = 0.0

    @property
    def activity(self) -> Activity:
        """What it is doing; a main process that has ended is dead, however long systemd still tidies up."""
        if self.active_state == "inactive":
            return Activity.INACTIVE
        if self.sub_state in {"auto-restart", "auto-restart-queued"}:
            return Activity.RESTARTING
        if self.main_pid or (self.active_state == "activating" or self.sub_state in {"start-post", "reload"}):
            return Activity.RUNNING
        # Left: failed, and the main process has ended: exited under RemainAfterExit=, or still tidied up after.
        is_looping = self.active_state == "deactivating" and self.restart != "no"
        return Activity.RESTARTING if is_looping else Activity.FAILED

    @property
    def is_over(self) -> bool:
        """Whether systemd has nothing left to do with it."""
        return self.active_state in {"inactive", "failed"} and not self.has_job

    @property
    def identity(self) -> ServiceIdentity | None:
        """The current or last invocation; None: systemd knows of none."""
        if not self.invocation_id:
            return None
        return ServiceIdentity(invocation_id=self.invocation_id, main_pid=self.main_pid or self.exec_main_pid)

    @property
    def ending(self) -> tuple[int | None, int | None] | None:
        """Exit status and signal of the main process; None: it has not ended, or is forgotten."""
        if self.main_pid or not self.exec_main_code:
            return None
        if self.exec_main_code == _EXITED:
            return (self.exec_main_status, None)
        return (None, self.exec_main_status)

    @property
    def failure(self) -> str | None:
        """How the main process failed, in systemd's word; None: it did not."""
        return None if self.result in {"", "success"} else self.result

    @property
    def was_never_executed(self) -> bool:
        """Whether systemd failed to set the main process up, so that the program never ran."""
        return self.exec_main_code == _EXITED and self.exec_main_status in _SETUP_STATUSES

    @property
    def has_drop_in(self) -> bool:
        """Whether a trial's drop-in is a part of the unit, whosever it is."""
        return drop_in_path(self.unit) in self.drop_in_paths

    def is_marked(self, token: str) -> bool:
        """Whether the drop-in in force is the one of who has this token."""
        return self.has_drop_in and mark_of(token) in self.documentation

    @property
    def cgroup(self) -> str:
        """The cgroup of its processes, also of those it left behind."""
        return self.control_group or f"{slice_cgroup(self.slice)}/{self.unit}"


async def look_at(transport: HostTransport, unit: str) -> Look:
    """Look, by one command.

    Raises:
        HostFault: systemd does not answer.
        TransportFault: the host is not reached.
    """
    result = await transport.run(("sh", "-c", _LOOK, "tuner", unit))
    return parse_look(unit, result)


def parse_look(unit: str, result: CommandResult) -> Look:
    """Read what ``_LOOK`` printed.

    Raises:
        HostFault: it is something else.
    """
    boot_id, _, rest = result.stdout.partition("\n")
    said = dict(line.split("=", 1) for line in rest.splitlines() if "=" in line)
    try:
        if result.status == 0:
            return Look(
                boot_id=boot_id,
                unit=unit,
                load_state=said["LoadState"],
                active_state=said["ActiveState"],
                sub_state=said["SubState"],
                result=said["Result"],
                invocation_id=said["InvocationID"],
                main_pid=int(said["MainPID"]),
                exec_main_pid=int(said["ExecMainPID"]),
                exec_main_code=int(said["ExecMainCode"]),
                exec_main_status=int(said["ExecMainStatus"]),
                restarts=int(said["NRestarts"]),
                restart=said["Restart"],
                drop_in_paths=shown_words(said["DropInPaths"]),
                control_group=said["ControlGroup"],
                slice=said["Slice"],
                has_job=said.get("Job", "") not in {"", "0"},
                documentation=shown_words(said.get("Documentation", "")),
                stop_timeout_s=seconds(said.get("TimeoutStopUSec", "")) or 0.0,
            )
    except (KeyError, ValueError):
        pass
    words = (result.stderr.strip() or result.stdout.strip() or "nothing").splitlines()[0]
    msg = f"unit {unit}: systemctl show: status {result.status}, it said: {words}: see `systemctl status {unit}`"
    raise HostFault(msg)
