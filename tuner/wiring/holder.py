"""Who this run is, for the hosts it takes."""

from __future__ import annotations

import getpass
import os
import socket
import time
from pathlib import Path

from tuner.model.lease import Holder

MACHINE_ID = Path("/etc/machine-id")
_BEGAN_S = time.time()  # a container's PIDs are the same each time


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
        since_s=_BEGAN_S,
    )


def _user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # a container's user without an entry in passwd
        return str(os.getuid())


def _machine() -> str:
    """Return what tells this machine from another: its id, which copies of one image share, and its name."""
    try:
        return f"{MACHINE_ID.read_text().strip()} {socket.gethostname()}".strip()
    except OSError:
        return socket.gethostname()
