"""The server's process tree: the parent, one scheduler a GPU, one detokenizer.

The children compute nothing; they are there to be seen, to hold GPU memory in the book, to
be killed and to crash as SGLang's do. They are forked before any thread or event loop exists.
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from tuner.simulator.logs import Log

_PR_SET_PDEATHSIG = 1  # prctl(2)
_PR_SET_NAME = 15
_MESSAGE_BYTES = 1 << 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Child:
    """One process of the tree.

    Attributes:
        name: SGLang's own name for it, ``scheduler_0``.
        title: as it stands in its command line, ``sglang::scheduler_TP0``.
        rank: of a scheduler; None for the detokenizer.
        channel: the parent's end; it reads as ended once the child is gone.
    """

    name: str
    title: str
    rank: int | None
    pid: int
    channel: socket.socket


@dataclass(frozen=True, slots=True, kw_only=True)
class Death:
    """A child that ended.

    Attributes:
        exit_code: negative when a signal ended it.
        announced: it was told to crash, so SIGQUIT is on its way.
    """

    child: Child
    exit_code: int
    announced: bool


class Tree:
    """The children of this process, which is the server's parent process.

    Args:
        ranks: schedulers to start.
        log: the children write to it when they crash.
    """

    def __init__(self, *, ranks: int, log: Log) -> None:
        self._log = log
        self._alive: dict[int, Child] = {}
        self._crashing: set[int] = set()
        for rank in range(ranks):
            suffix = f"_TP{rank}" if ranks > 1 else ""
            self._fork(f"scheduler_{rank}", f"sglang::scheduler{suffix}", rank)
        self._fork("detokenizer_0", "sglang::detokenizer", None)

    @property
    def schedulers(self) -> tuple[Child, ...]:
        """The schedulers that are not known to have ended, by rank."""
        return tuple(child for child in self._alive.values() if child.rank is not None)

    def deaths(self) -> tuple[Death, ...]:
        """Return the children that ended since the last call."""
        found = []
        for child in tuple(self._alive.values()):
            pid, status = os.waitpid(child.pid, os.WNOHANG)
            if pid:
                found.append(self._bury(child, status))
        return tuple(found)

    def sleep(self, seconds: float) -> tuple[Death, ...]:
        """Wait, or return early with the children that ended meanwhile."""
        end = time.monotonic() + seconds
        while True:
            dead = self.deaths()
            left = end - time.monotonic()
            if dead or left <= 0:
                return dead
            # A closed channel is seen at once; the slice is for a child whose exit comes later.
            readable, _, _ = select.select([child.channel for child in self._alive.values()], [], [], min(left, 0.5))
            if readable:
                time.sleep(0.002)

    def serve(self) -> None:
        """Tell the children that the server serves; from now on its parent drains on SIGTERM."""
        for child in self._alive.values():
            self._order(child, "serve")

    def crash(self, rank: int, message: str) -> None:
        """Let a scheduler log an exception, send SIGQUIT to its parent and end."""
        for child in self.schedulers:
            if child.rank == rank:
                self._crashing.add(child.pid)
                self._order(child, "crash", message)

    def end(self) -> None:
        """End all children cleanly and wait for them."""
        for child in tuple(self._alive.values()):
            self._order(child, "end")
            _, status = os.waitpid(child.pid, 0)
            self._bury(child, status)

    def kill(self) -> None:
        """Kill all children."""
        for child in tuple(self._alive.values()):
            os.kill(child.pid, signal.SIGKILL)  # not reaped yet, so the pid is still ours
            _, status = os.waitpid(child.pid, 0)
            self._bury(child, status)

    def kill_with_parent(self) -> NoReturn:
        """Kill the whole tree, this process included, as SGLang ends after a crash."""
        self.kill()
        os.kill(os.getpid(), signal.SIGKILL)
        raise SystemExit(1)  # not reached

    def _bury(self, child: Child, status: int) -> Death:
        del self._alive[child.pid]
        child.channel.close()
        return Death(child=child, exit_code=os.waitstatus_to_exitcode(status), announced=child.pid in self._crashing)

    def _order(self, child: Child, order: str, message: str = "") -> None:
        try:
            child.channel.send(json.dumps([order, message[: _MESSAGE_BYTES // 2]]).encode())
        except OSError:
            return  # it is gone; deaths() will tell

    def _fork(self, name: str, title: str, rank: int | None) -> None:
        parent = os.getpid()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        pid = os.fork()
        if pid == 0:
            ours.close()
            for sibling in self._alive.values():
                sibling.channel.close()
            _live(theirs, title=title, rank=rank, parent=parent, log=self._log)
        theirs.close()
        self._alive[pid] = Child(name=name, title=title, rank=rank, pid=pid, channel=ours)


def _live(channel: socket.socket, *, title: str, rank: int | None, parent: int, log: Log) -> NoReturn:
    """Be a child until told otherwise."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGQUIT, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)  # the parent died before the request above was in force
    set_title((title,))
    while content := channel.recv(_MESSAGE_BYTES):
        order, message = json.loads(content)
        if order == "serve":
            # A service manager signals the whole control group; the parent alone decides when
            # the drain is over.
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        elif order == "crash":
            log.record(message, rank)
            os.kill(parent, signal.SIGQUIT)
            os._exit(1)
        else:
            os._exit(0)
    os._exit(0)


def set_title(words: Sequence[str]) -> None:
    """Show ``words`` as this process's command line, and the first as its short name.

    Overwrites the argument area of the stack, as setproctitle does; what does not fit is cut.
    """
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    start, end = int(fields[45]), int(fields[46])  # proc(5): arg_start and arg_end, fields 48 and 49
    room = end - start
    content = b"\0".join(word.encode() for word in words)[: max(0, room - 1)]
    if start and room > 1:
        ctypes.memset(start, 0, room)
        ctypes.memmove(start, content, len(content))
    name = ctypes.create_string_buffer(words[0].encode()[:15])
    _prctl(_PR_SET_NAME, ctypes.addressof(name))


def _prctl(option: int, argument: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, ctypes.c_ulong(argument), 0, 0, 0)
