"""The dead-man: a timer on the host that restores the unit by itself once its lease has run out.

systemd-run makes it, so that it is gone after a reboot, as lease and drop-in are. It fires every period and
mostly finds that the lease has not run out. What restores is a script beside the lease; it is complete in
itself, because by then nobody else may be there: not the tuner, not its machine, not the network.
"""

from __future__ import annotations

import hashlib
import re

from tuner.errors import HostFault
from tuner.hosts.systemd.paths import drop_in_path
from tuner.hosts.systemd.root import Argv, Root, failure
from tuner.hosts.systemd.timespan import seconds
from tuner.model.lease import LeaseTerms
from tuner.ports import HostTransport

LONGEST_PERIOD_S = 60
SCRIPT_FILE = "restore.sh"
BEFORE_FILE = "before"
STALE_FILE = "stale"
"""Names the invocation that ran when a trial's drop-in was removed: it is not the original's, whoever looks next."""

RUNNING, STOPPED = "running", "stopped"
MADE, KEPT = "made", "kept"

_STOP_TIMEOUT_S = 120.0  # longer than the 90 s that systemd gives a service by default
_PERIOD = re.compile(r"OnUnitActiveUSec=([^;]+?) ;")
_LONGEST_STEM = 200  # a unit's name may have 255 characters, and prefix and suffix want some

# $1 unit; $2 the lease's folder; $3 the timer's name; $4 our drop-in
SCRIPT = r"""# Restores a unit whose tuner is gone: see tuner/hosts/systemd/deadman.py.
is_over() {
    read -r up rest </proc/uptime
    expires=$(cat "$folder/expires" 2>/dev/null)
    [ "${up%%.*}" -ge "${expires:-0}" ]
}
lock() { exec 9<"$parent" && flock -w 60 9; }
is_up() {
    case $(systemctl show -p ActiveState --value "$unit") in
        active|activating|reloading|refreshing) true ;;
        *) false ;;
    esac
}
invocation() { systemctl show -p InvocationID --value "$unit"; }
# It loads for minutes: it is not started a second time, whoever started it.
is_original() {
    is_up || return
    [ "$(invocation)" = "$known" ] && return
    [ -z "$had" ] && [ "$(invocation)" != "$stale" ]
}
main() {
    unit=$1 folder=$2 timer=$3 dropin=$4 parent=${2%/*}
    cd / || exit
    # The lock keeps a renewal from coming between the look and what follows; without it we restore all the same.
    [ -d "$folder" ] && lock
    is_over || exit 0
    # From now on the lease is nobody's: its holder cannot renew it, and whoever takes it over finds a unit
    # that is being restored, which does no harm.
    rm -f "$folder/holder.json"
    was= known= made=
    [ -e "$folder/before" ] && read -r was known made <"$folder/before"
    had= stale=
    if [ -e "$dropin" ]; then
        had=yes
        now=$(invocation)
        [ -d "$folder" ] && echo "${now:--}" >"$folder/stale"   # for the next look, should this one not get far
    fi
    [ -e "$folder/stale" ] && read -r stale <"$folder/stale"
    rm -f "$dropin" "$dropin.new"
    [ "$made" = made ] && rmdir --ignore-fail-on-non-empty "${dropin%/*}" 2>/dev/null
    systemctl daemon-reload || exit
    exec 9<&-
    # Without a note of what was there before, a trial's server tells that something ran.
    [ -z "$was" ] && [ -n "$had$stale" ] && was=running
    case $was in
        running)
            if ! is_original; then
                systemctl reset-failed "$unit" 2>/dev/null
                # The restart goes on without us: however long the trial's server takes to die.
                systemctl restart --no-block "$unit" || exit
            fi ;;
        stopped)
            systemctl stop "$unit"   # waits, also for a stop under way, whose failure would stay
            systemctl reset-failed "$unit" 2>/dev/null ;;
    esac
    [ -d "$folder" ] && lock
    [ -e "$folder/holder.json" ] && exit 0   # taken over meanwhile: the timer is its new holder's
    rm -rf "$folder"
    systemctl stop --no-block "$timer"
}
main "$@"
exit
"""


def period_s(terms: LeaseTerms) -> int:
    """Return how often the dead-man looks: often enough that it acts soon after the lease has run out."""
    return max(1, min(LONGEST_PERIOD_S, int(terms.lasts_s / 3)))


def service_name(unit: str) -> str:
    """Return the name of the service that the timer starts.

    An ``@`` would make it an instance of a template of its own, with another meaning to systemd.
    """
    stem = unit.removesuffix(".service").replace("@", r"\x40")
    if len(stem) > _LONGEST_STEM:
        stem = f"{stem[:_LONGEST_STEM]}-{hashlib.sha256(stem.encode()).hexdigest()[:8]}"
    return f"tuner-deadman-{stem}.service"


def timer_name(unit: str) -> str:
    """Return the timer's name."""
    return service_name(unit).removesuffix(".service") + ".timer"


def arm_command(unit: str, folder: str, terms: LeaseTerms) -> Argv:
    """Return the command that makes the timer and starts it."""
    every = f"{period_s(terms)}s"
    return (
        "systemd-run",
        f"--unit={service_name(unit)}",
        f"--on-active={every}",
        f"--on-unit-active={every}",
        "--timer-property=AccuracySec=1s",
        "--property=LogLevelMax=notice",  # else the journal tells of every look
        "--property=StartLimitIntervalSec=0",  # a short period would soon use up the starts systemd allows
        "--collect",
        "/bin/sh",
        f"{folder}/{SCRIPT_FILE}",
        unit,
        folder,
        timer_name(unit),
        drop_in_path(unit),
    )


def disarm_command(unit: str) -> Argv:
    """Return the command that ends the timer, and a restore that it may have begun."""
    return ("systemctl", "stop", timer_name(unit), service_name(unit))


def stop_restore_command(unit: str) -> Argv:
    """Return the command that ends a restore under way, and leaves the timer."""
    return ("systemctl", "stop", service_name(unit))


def commands(unit: str, folder: str, terms: LeaseTerms) -> tuple[Argv, ...]:
    """List every command that a dead-man runs as root; the script itself runs as a service of systemd."""
    return (arm_command(unit, folder, terms), disarm_command(unit), stop_restore_command(unit))


class DeadMan:
    """The dead-man of one unit.

    Args:
        transport: to the host.
        root: on the host.
        unit: full name.
        folder: of the lease, where the script lies.
        terms: of the lease.
    """

    def __init__(self, transport: HostTransport, root: Root, unit: str, *, folder: str, terms: LeaseTerms) -> None:
        self._transport = transport
        self._root = root
        self._unit = unit
        self._period_s = period_s(terms)
        self._arm = arm_command(unit, folder, terms)

    async def take_over(self) -> None:
        """Arm it; one of the same period stays armed all the time, for there is something to be restored.

        Raises:
            HostFault: systemd-run failed.
        """
        if await self._armed_period_s() != self._period_s:
            await self.arm()
            return
        # One under way is about the lease that was taken over, and would end our trial.
        await self._root.attempt(stop_restore_command(self._unit), timeout_s=_STOP_TIMEOUT_S)

    async def arm(self) -> None:
        """Start the timer anew: one that is there may have another period.

        Raises:
            HostFault: systemd-run failed.
        """
        await self.disarm()
        result = await self._root.run(self._arm)
        # Run again after a lost connection, systemd-run finds the timer that it made.
        if result.status != 0 and not await self.is_armed():
            msg = f"{self._unit}: the dead-man cannot be armed: {failure(self._arm, result)}"
            raise HostFault(msg)

    async def is_armed(self) -> bool:
        """Whether the timer is waiting; asks for no rights."""
        result = await self._transport.run(("systemctl", "is-active", timer_name(self._unit)))
        return result.stdout.strip() == "active"

    async def _armed_period_s(self) -> float | None:
        argv = ("systemctl", "show", "-p", "ActiveState,TimersMonotonic", "--", timer_name(self._unit))
        said = (await self._transport.run(argv)).stdout
        found = _PERIOD.search(said)
        return seconds(found[1]) if found is not None and "ActiveState=active\n" in said else None

    async def disarm(self) -> None:
        """Stop the timer, and a restore under way; none is no error.

        Raises:
            HostFault: the timer could not be stopped.
        """
        stop = disarm_command(self._unit)
        result = await self._root.attempt(stop, timeout_s=_STOP_TIMEOUT_S)  # fails where there is nothing to stop
        if result.status != 0 and await self.is_armed():
            msg = f"{self._unit}: the dead-man cannot be disarmed: {failure(stop, result)}"
            raise HostFault(msg)
