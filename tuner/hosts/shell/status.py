"""What the scripts say of a server, read; pure."""

from __future__ import annotations

import base64
from dataclasses import dataclass
from enum import Enum

from tuner.model.trial import ServiceIdentity

_SIGNAL_STATUS = 128  # a shell adds it to the signal that ended its child
_LAST_SIGNAL = 64


class Phase(Enum):
    """How far the supervisor of a start got."""

    NONE = "none"  # it has written nothing, or its folder is gone
    STARTING = "starting"  # it lives, the server does not yet
    RUNNING = "running"  # the main process was made
    RESTARTING = "restarting"  # it died and will be started again
    STOPPING = "stopping"  # it ended because we asked; what it left is being ended
    STOPPED = "stopped"  # we asked, and all of it is gone
    EXPIRED = "expired"  # nobody renewed the lease: the supervisor stopped it by itself
    FAILED = "failed"  # it died and stays dead
    REFUSED = "refused"  # the program could not be executed


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """The status line of one start.

    Attributes:
        boot_id: of the boot in which it was written; empty when nothing was.
        exit_status: of the last main process that ended, if it exited.
        exit_signal: of the last main process that ended, if a signal ended it. A shell tells both in
            one number: an exit with 129 … 192 looks like a signal.
    """

    boot_id: str
    phase: Phase
    restarts: int
    identity: ServiceIdentity | None
    exit_status: int | None
    exit_signal: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """One look at a start.

    Attributes:
        boot_id: of the boot that runs now.
        supervised: the supervisor lives.
        living: the main process lives.
        flagged: a stop was asked for.
    """

    boot_id: str
    supervised: bool
    living: bool
    flagged: bool
    status: Status


def read_status(line: str) -> Status:
    """Read a status line.

    Raises:
        ValueError: it is none.
    """
    # The boot id, and what follows it, are empty where no status was written.
    boot_id, _, _, phase, restarts, invocation, main_pid, _, code = line.split(" ")
    identity = None
    if invocation != "-" and main_pid != "-":
        identity = ServiceIdentity(invocation_id=invocation, main_pid=int(main_pid))
    exit_status = exit_signal = None
    if code != "-":
        number = int(code)
        by_signal = _SIGNAL_STATUS < number <= _SIGNAL_STATUS + _LAST_SIGNAL
        exit_status, exit_signal = (None, number - _SIGNAL_STATUS) if by_signal else (number, None)
    return Status(
        boot_id=boot_id,
        phase=Phase(phase),
        restarts=int(restarts),
        identity=identity,
        exit_status=exit_status,
        exit_signal=exit_signal,
    )


def read_look(text: str) -> Look:
    """Read what :data:`tuner.hosts.shell.looks.LOOK` printed.

    Raises:
        ValueError: it did not print that.
    """
    first, second = text.splitlines()
    boot_id, supervised, living, flagged = first.split(" ")
    return Look(
        boot_id=boot_id,
        supervised=supervised == "1",
        living=living == "1",
        flagged=flagged == "1",
        status=read_status(second),
    )


def read_piece(text: str) -> tuple[bytes, bool]:
    """Read what :data:`tuner.hosts.shell.looks.READ` printed: the bytes, and whether more may come.

    Raises:
        ValueError: it did not print that.
    """
    header, _, body = text.partition("\n")
    more, _, encoding = header.partition(" ")
    decode = {"none": lambda _: b"", "base64": base64.b64decode, "hex": bytes.fromhex}
    if more not in {"0", "1"} or encoding not in decode:
        msg = f"not a piece of log: {header[:80]!r}"
        raise ValueError(msg)
    return decode[encoding](body), more == "1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A process of ours on the host.

    Attributes:
        supervisor: it is not the server's but watches over it.
        current: it belongs to the start that was asked about.
    """

    pid: int
    command: str
    supervisor: bool
    current: bool


def read_scan(text: str) -> tuple[Found, ...]:
    """Read what :data:`tuner.hosts.shell.looks.SCAN` printed.

    Raises:
        ValueError: it did not print that.
    """
    found: dict[int, Found] = {}
    for line in text.split("\n")[:-1]:
        kind, own, number, command = line.split(" ", 3)
        pid = int(number)
        one = Found(pid=pid, command=command.strip(), supervisor=kind == "s", current=own == "1")
        found.setdefault(pid, one)  # what its session says of it comes after what it says itself
    return tuple(found.values())
