"""What may go wrong on the way to a host, in the words of this package."""

from __future__ import annotations

from dataclasses import dataclass

from tuner.errors import TransportFault


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """A command's shell on the host, so that it is found again and no other.

    Attributes:
        boot_id: of the host.
        pid: of the shell.
        start_ticks: when it began, in clock ticks since the boot (proc_pid_stat(5), field 22).
    """

    boot_id: str
    pid: int
    start_ticks: int


class ConnectionLost(TransportFault):
    """The connection is gone, or could not be made; trying again may help.

    Attributes:
        is_sent: the command was sent: it may have run.
        started: the shell that the host had started for it, if that much was heard.
    """

    def __init__(self, message: str, *, is_sent: bool = False, started: Started | None = None) -> None:
        super().__init__(message)
        self.is_sent = is_sent
        self.started = started
