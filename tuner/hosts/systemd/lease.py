"""A lease on a host: a folder there that says who uses it, and until when.

``holder.json`` says who, in one line with a token of its own; ``expires`` says until when, in seconds of the
host's own uptime: clocks differ and jump, and a folder under ``/run`` does not outlive a reboot either.

Every operation is one command on the host. It holds a lock on the folder's parent (flock(2), which ends with
the process that holds it), so that what was looked at is still so when it is changed; a folder without
``holder.json`` was left by somebody who died in between. The lock needs no rights; what does, calls ``sudo -n``
with the arguments that :func:`commands` lists and no others.
"""

from __future__ import annotations

import math
import uuid
from pathlib import PurePosixPath

from tuner.errors import HostFault, LeaseLost
from tuner.hosts.systemd.holding import HOLDER, Grant, Seen, grant, read_holder, whose, write_holder
from tuner.hosts.systemd.lease_scripts import DROP, KEEP, LOOK, RENEW, TAKE
from tuner.model.host import CommandResult
from tuner.model.lease import Holder
from tuner.ports import HostTransport

EXPIRES = "expires"

_MODE = "0644"  # who holds the host, and until when, is for everybody to read
_FOLDER_MODE = "0755"
_TRIES = 10  # each lost try means that somebody else changed the lease meanwhile
_TIMEOUT_S = 60.0  # longer than a script waits for the lock


def commands(folder: str, files: tuple[str, ...]) -> tuple[tuple[str, ...], ...]:
    """Return all that a lease in ``folder``, with these files of its user in it, runs as root."""
    rights: list[tuple[str, ...]] = [
        ("install", "-d", "-m", _FOLDER_MODE, str(PurePosixPath(folder).parent)),
        ("mkdir", "-m", _FOLDER_MODE, folder),
        ("rm", "-rf", folder),
    ]
    for path in (f"{folder}/{name}" for name in (HOLDER, EXPIRES, *files)):
        rights.append(("install", "-m", _MODE, "/dev/null", f"{path}.new"))
        rights.append(("tee", f"{path}.new"))
        rights.append(("mv", "-fT", f"{path}.new", path))
    return tuple(rights)


class LeaseFolder:
    """One lease, for who asks; the folder may lie anywhere where ``mkdir`` and flock(2) work.

    Args:
        folder: absolute; its parent is made when needed.
        place: what the lease is on, for messages: ``sglang.service``.
        sudo: what changes the folder goes through ``sudo -n``.
    """

    def __init__(self, transport: HostTransport, folder: str, *, place: str, sudo: bool) -> None:
        self._transport = transport
        self._folder = folder
        self._place = place
        self._sudo = "sudo" if sudo else ""
        self._mine = ""

    async def look(self) -> Seen:
        """Look at the lease, whosever it is.

        Raises:
            HostFault: it cannot be read.
        """
        first, _, text = (await self._script(LOOK)).partition("\n")
        if not first:
            return Seen()
        now_s, expires_s = first.split()
        text = text.strip()
        return Seen(text=text, holder=read_holder(text), left_s=float(expires_s) - float(now_s), exists=True)

    def is_mine(self, seen: Seen) -> bool:
        """Whether this lease is the one that :meth:`take` got."""
        return bool(self._mine) and seen.text == self._mine

    async def take(self, holder: Holder, lasts_s: float) -> str:
        """Take the lease, or renew it if it is ours; return a remark on whose it was, empty: nobody's.

        Raises:
            LeaseHeld: somebody else has it.
            HostFault: it cannot be written.
        """
        seen = Seen()  # first as if it were free, which it mostly is
        for _ in range(_TRIES):
            if self.is_mine(seen):
                may, wanted = Grant(must_have_run_out=False, remark=""), self._mine
            else:
                may = grant(seen, holder, self._place)
                wanted = write_holder(holder, uuid.uuid4().hex)
            condition = "expired" if may.must_have_run_out else ("" if seen.exists else "free")
            if await self._script(TAKE, _whole(lasts_s), seen.text, condition, wanted) == "taken":
                self._mine = wanted
                return may.remark
            seen = await self.look()
        msg = f"{self._place}: the lease changed hands {_TRIES} times while we asked for it: run the same command again"
        raise HostFault(msg)

    async def renew(self, lasts_s: float) -> None:
        """Let the lease end ``lasts_s`` from now.

        Raises:
            LeaseLost: it is no longer ours.
            HostFault: it cannot be written.
        """
        if not self._mine or await self._script(RENEW, _whole(lasts_s), self._mine) != "renewed":
            raise LeaseLost(await self._who_has_it())

    async def keep(self, name: str, content: bytes) -> None:
        """Replace a file in the folder, while the lease is ours.

        Raises:
            LeaseLost: it is no longer ours.
            HostFault: it cannot be written.
        """
        if not self._mine or await self._script(KEEP, name, self._mine, str(len(content)), stdin=content) != "kept":
            raise LeaseLost(await self._who_has_it())

    async def read(self, name: str) -> str | None:
        """Return a file of the folder, whosever the lease is; None: it is not there.

        Raises:
            HostFault: it cannot be read.
        """
        path = f"{self._folder}/{name}"
        result = await self._transport.run(("cat", path))
        if result.status == 0:
            return result.stdout
        if "No such file" not in result.stderr and (await self._transport.run(("test", "-e", path))).status == 0:
            msg = f"{self._place}: {path} cannot be read: {_reason(result)}"
            raise HostFault(msg)
        return None

    async def drop(self) -> None:
        """Give the lease back; one that is no longer ours stays with whoever has it.

        Raises:
            HostFault: it cannot be removed.
        """
        if self._mine:
            await self._script(DROP, self._mine)
            self._mine = ""

    async def _who_has_it(self) -> str:
        seen = await self.look()
        if seen.holder is None:
            return f"{self._place}: our lease is gone: the host was rebooted, or has restored itself"
        return f"{self._place}: our lease was taken over by {whose(seen.holder)}"

    async def _script(self, script: str, *arguments: str, stdin: bytes = b"") -> str:
        argv = ("sh", "-c", script, "tuner-lease", self._sudo, self._folder, *arguments)
        result = await self._transport.run(argv, stdin=stdin, timeout_s=_TIMEOUT_S)
        if result.status != 0:
            msg = f"{self._place}: the lease in {self._folder} cannot be used: {_reason(result)}"
            raise HostFault(msg)
        return result.stdout.strip()


def _reason(result: CommandResult) -> str:
    lines = [line.strip() for line in result.stderr.splitlines() if line.strip()]
    reason = lines[-1] if lines else f"status {result.status}"
    if any("flock" in line and "not found" in line for line in lines):
        return "the host has no flock: install util-linux there"
    if "No space left" in result.stderr:
        return f"{reason}: free space there"
    if "sudo:" in result.stderr or "Permission denied" in result.stderr:
        return f"{reason}: allow the commands that tuner doctor prints"
    return reason


def _whole(seconds: float) -> str:
    return str(math.ceil(seconds))
