"""Every error tuner raises on purpose.

The tree is split by what the caller would do about it::

    TunerError
    ├── UsageError            the person must change a file or an option; exit 2
    │   ├── StudyFileError    a study or search-space file is wrong
    │   ├── AssignmentRejected the engine's rules forbid this assignment
    │   └── LedgerError       the study database cannot be used as it is
    ├── EvidenceError         what a trial did cannot be written down; the run ends, exit 3
    │   └── StudyUnwritable   the study's folder takes no more: disk full, or no right to write
    ├── PreflightError        the host or machine is not ready; nothing was started; exit 3
    │   └── LeaseHeld         somebody else uses the host
    ├── TooManyFaults         every host was set aside; exit 4
    ├── HostFault             the host failed us: clean it, try the same assignment again
    │   ├── TransportFault    a command's result is unknown, or a file cannot be reached
    │   │   ├── HostKeyRefused the host does not prove to be the one that is known
    │   │   └── LoginRefused  the host knows neither our user nor our key
    │   ├── DirtyHost         processes, GPU memory or the port stayed in use after cleaning
    │   ├── ServerInTheWay    another server runs where ours should: it is not ours to stop
    │   ├── LeaseLost         the host is no longer ours: it was rebooted, or taken over
    │   ├── RestoreFailed     the host is not what it was before; a person must look
    │   └── ExecutorFault     the worker that ran the trial is gone
    └── MeasurementFault      the client, not the server, spoiled the leg: measure again

A non-zero exit status of a command and a failed request are values, not errors.
Messages are one line; they name the place and say what to do.
"""


class TunerError(Exception):
    """Base of every error that tuner raises on purpose."""


class UsageError(TunerError):
    """The person must change a file, an option or the command (exit 2)."""


class StudyFileError(UsageError):
    """A study or search-space file is wrong: names file, key, value and what is allowed."""


class AssignmentRejected(UsageError):
    """The engine's own rules forbid this assignment; the message is the rule."""


class LedgerError(UsageError):
    """The study database is corrupt, of another study, or in use."""


class PreflightError(TunerError):
    """Something a run needs is missing; nothing was started (exit 3)."""


class EvidenceError(TunerError):
    """What a trial did cannot be written down: the run ends with its hosts clean (exit 3)."""


class StudyUnwritable(EvidenceError):
    """The study's folder takes nothing more: the disk is full or failing, or it may not be written."""


class LeaseHeld(PreflightError):
    """Somebody else uses the host; the message names who, since when, and when it ends."""


class TooManyFaults(TunerError):
    """Hosts kept failing and none is left to run trials on (exit 4)."""


class HostFault(TunerError):
    """The host failed, not the configuration: clean it and run the assignment again."""


class TransportFault(HostFault):
    """The result of a command is unknown, or a file on the host cannot be reached."""


class HostKeyRefused(TransportFault):
    """The host's key is unknown or has changed; trying again does not help."""


class LoginRefused(TransportFault):
    """The host takes neither this user nor this key; trying again does not help.

    Attributes:
        new_key: fingerprint of a host key that was to be taken as new, and was not for this; None: none was.
    """

    def __init__(self, message: str, *, new_key: str | None = None) -> None:
        super().__init__(message)
        self.new_key = new_key


class DirtyHost(HostFault):
    """Processes, GPU memory or the port stayed in use after cleaning."""


class ServerInTheWay(HostFault):
    """A server runs already where one was to be started; whoever sees this has not started it."""


class LeaseLost(HostFault):
    """The host is no longer ours: it was rebooted, restored by its dead-man, or taken over."""


class RestoreFailed(HostFault):
    """The host is not what it was before; the message names every difference."""


class ExecutorFault(HostFault):
    """The worker process that ran the trial is gone."""


class MeasurementFault(TunerError):
    """The client spoiled the measurement; the server is not to blame."""
