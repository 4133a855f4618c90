"""Command lines for the login shell of a host, and how their output is read back.

A command runs under a shell of ours, whose script is constant. It says on both outputs where the command's
own begins and ends, and with which status: what a login script prints is not taken for the command's, a
child that stays behind with the output open delays nothing, and output that just stops is no result. It
also says which process it is, so that a command which takes too long can be ended on the host: sshd itself
leaves commands running when their connection is gone.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from tuner.errors import TransportFault
from tuner.hosts.ssh.faults import Started

_MAX_BYTES = 128 * 1024 - 1  # of one argument (Linux MAX_ARG_STRLEN): all of it is one to the login shell
_SHOWN = 80

LAUNCH = """\
{ read -r boot </proc/sys/kernel/random/boot_id; read -r stat </proc/$$/stat; } 2>/dev/null
token=$1
shift
printf '%s started %s %s\\n' "$token" "$boot" "$stat"
printf '%s started\\n' "$token" >&2
exec 3>&2 2>/dev/null
(exec "$@") 2>&3 3>&-
status=$?
printf '\\n%s ended %s\\n' "$token" "$status"
printf '\\n%s ended 0\\n' "$token" >&3
"""
"""$1: token; the rest: the command. What the shell itself would say of a death goes to /dev/null."""

KILL = """\
{ read -r boot </proc/sys/kernel/random/boot_id; read -r stat </proc/$1/stat; } 2>/dev/null || exit 0
[ "$boot" = "$3" ] || exit 0
set -f
set -- "$1" "$2" ${stat##*) }
[ "${22}" = "$2" ] || exit 0
kill -s KILL -- "-$5"
"""
"""$1: PID, $2: its start in clock ticks, $3: the boot; kills its process group, which is the session's."""

WRITE = """\
umask 077
folder=$(dirname -- "$1") && mkdir -p -- "$folder" && temporary=$(mktemp -- "$folder/.tuner.XXXXXXXXXX") || exit 1
trap 'rm -f -- "$temporary"' EXIT
trap 'exit 1' HUP INT TERM PIPE
cat >"$temporary" || exit 1
[ "$(wc -c <"$temporary")" -eq "$3" ] || { echo 'the connection broke off' >&2; exit 1; }
chmod -- "$2" "$temporary" && mv -f -T -- "$temporary" "$1"
"""
"""$1: path, $2: mode, $3: size in bytes, without which a connection that breaks off would leave half a file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """What a command did, byte by byte."""

    status: int
    stdout: bytes
    stderr: bytes


def command_line(argv: Sequence[str], token: str) -> bytes:
    """Return what the login shell is given; the one place where words are quoted.

    Raises:
        TransportFault: the host cannot be given such words.
    """
    line = os.fsencode(shlex.join(("sh", "-c", LAUNCH, "tuner", token, *argv)))
    if b"\0" in line:
        msg = f"{shown(argv)}: has a NUL byte in it, which no command can have: remove it"
        raise TransportFault(msg)
    if len(line) > _MAX_BYTES:
        msg = f"{shown(argv)}: larger than 128 KiB, which no host takes: send it on standard input"
        raise TransportFault(msg)
    return line


def shown(argv: Sequence[str]) -> str:
    """Return a command as messages show it: one line, not all of a script."""
    line = " ".join(" ".join(argv).split())
    return line if len(line) <= _SHOWN else line[: _SHOWN - 1] + "…"


def kill_arguments(started: Started) -> tuple[str, ...]:
    """Return the command that ends another one."""
    return ("sh", "-c", KILL, "tuner", str(started.pid), str(started.start_ticks), started.boot_id)


def write_arguments(path: str, mode: int, size: int) -> tuple[str, ...]:
    """Return the command that replaces a file by its standard input."""
    return ("env", "LC_ALL=C", "sh", "-c", WRITE, "tuner", path, f"{mode:o}", str(size))


class Reading:
    """One output of a command, as it arrives.

    Attributes:
        started: the first line of the shell, without its token; None: not there yet.
        ended: the last line of the shell, without its token; None: not there yet.
    """

    def __init__(self, token: str) -> None:
        self.started: str | None = None
        self.ended: str | None = None
        self._first = f"{token} started".encode()
        self._last = f"\n{token} ended ".encode()
        self._text = bytearray()
        self._searched = 0

    def feed(self, piece: bytes) -> None:
        """Take the next piece; what comes after the end is somebody else's."""
        if self.ended is not None:
            return
        self._text += piece
        if self.started is None:
            self.started = self._take_start()
        if self.started is not None:
            self.ended = self._take_end()

    @property
    def content(self) -> bytes:
        """What the command itself wrote, so far; before its start: what the host said instead."""
        return bytes(self._text)

    def _take_start(self) -> str | None:
        at = self._text.find(self._first)
        line_end = self._text.find(b"\n", at)
        if at < 0 or line_end < 0:
            return None
        line = self._text[at + len(self._first) : line_end].decode(errors="replace")
        del self._text[: line_end + 1]
        return line.strip()

    def _take_end(self) -> str | None:
        at = self._text.find(self._last, self._searched)
        line_end = self._text.find(b"\n", at + 1)
        if at < 0 or line_end < 0:
            self._searched = max(0, len(self._text) - len(self._last) if at < 0 else at)
            return None
        line = self._text[at + len(self._last) : line_end].decode(errors="replace")
        del self._text[at:]
        return line.strip()


def parse_started(line: str | None) -> Started | None:
    """Read who the shell is; None: it did not say, or its host has no /proc."""
    boot, _, stat = (line or "").partition(" ")
    before, _, fields = stat.rpartition(")")
    pid, values = before.partition(" ")[0], fields.split()
    if not pid.isdigit() or len(values) < 20 or not values[19].isdigit():
        return None
    return Started(boot_id=boot, pid=int(pid), start_ticks=int(values[19]))
