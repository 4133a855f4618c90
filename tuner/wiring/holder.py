"""Who this run is, for the hosts it takes."""

from __future__ import annotations

import getpass
import os
import socket
import time
from pathlib import Path

from tuner.model.lease import Holder

MACHINE_ID = Path("/etc/machine-id")


def holder_of(study: str, directory: str) -> Holder:
    """Say who asks for the hosts of a study.

    Args:
        study: its name.
        directory: absolute folder of its results.
    """
    return Holder(
        owner=f"{_user()}@{socket.gethostname()}",
        study=study,
        directory=directory,
        machine=_machine(),
        pid=os.getpid(),
        since_s=time.time(),
    )


def _user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # a container's user without an entry in passwd
        return str(os.getuid())


def _machine() -> str:
    """Return what tells this machine from another; the host name where it has no id."""
    try:
        return MACHINE_ID.read_text().strip() or socket.gethostname()
    except OSError:
        return socket.gethostname()
