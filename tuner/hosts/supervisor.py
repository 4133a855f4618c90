"""The process host's systemd: starts one server, watches it, and outlives nobody.

Run by :class:`tuner.hosts.process.ProcessServiceManager` as a program of its own, in its own
session, one for each start of a server::

    python -m tuner.hosts.supervisor --state-dir D

Standard input is a pipe from the tuner: the first JSON line is the order (:class:`tuner.hosts.status.Order`),
``{"stop": grace_s}`` ends it, and end of file means that the tuner is gone: the server is stopped
at once. One word on standard output says that the first exec has been tried. Everything else is in
``D/status.json``, which is replaced as a whole at each change, and ``D/log``, what the server wrote.
When these cannot be written (a full disk) nobody could see how the server fares: it is ended, and
standard output says why.

No process of the server escapes: the supervisor is the subreaper of its descendants, so a child that
forks twice and loses its parent comes back to it. If the supervisor itself is killed the kernel kills
the server's main process (PR_SET_PDEATHSIG), and the next manager finds the rest by the marker in their
environment and by the list in the status file.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import json
import os
import selectors
import signal
import subprocess
import time
import uuid
from pathlib import Path
from typing import Any

from tuner.hosts import files
from tuner.hosts.status import FAULT, LOG, MARKER, Order, Status, write_status

EXEC_FAILED_STATUS = 203  # what systemd says of a program that cannot be executed

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_ORPHANED_GRACE_S = 2.0  # nobody waits for a good end when the tuner is gone
_ORPHANED = "the tuner is gone"
_REST_GRACE_S = 1.0  # for children whose server has already ended
_UNKILLABLE_S = 20.0  # a process that does not die of SIGKILL for so long hangs in the kernel
_LOOK_S = 1.0  # between two looks at whether the tuner lives
# Between two looks at who descends from the server: each reads all of /proc (0.01 s of CPU time at 140
# processes), on a machine that is being measured, and servers have their children early.
_FIRST_LOOK_S = 1.0
_LOOK_GROWTH = 1.5
_LAST_LOOK_S = 30.0


class Supervisor:
    """One server from its first exec to the end of its last process."""

    def __init__(self, directory: Path) -> None:
        own = files.process_stat(os.getpid())
        assert own is not None
        self._directory = directory
        self._status = Status(boot_id=files.boot_id(), supervisor=own.key)
        self._stop_grace_s: float | None = None
        self._main_ended = False
        self._is_orphaned = False
        self._is_mute = False  # the status file could not be written
        self._look_gap_s, self._next_look_s = _FIRST_LOOK_S, 0.0
        self._buffer = b""  # an unfinished line
        self._lines: list[bytes] = []  # not yet taken
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        self._wake, write_end = os.pipe()
        for end in (self._wake, write_end, 0):
            os.set_blocking(end, False)
        # Handlers and not SIG_IGN: an ignored signal stays ignored in the server.
        for number in (signal.SIGHUP, signal.SIGINT, signal.SIGCHLD, signal.SIGTERM):
            signal.signal(number, self._on_signal)
        signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._wake, selectors.EVENT_READ)
        self._selector.register(0, selectors.EVENT_READ)

    def run(self) -> None:
        """Serve until the server has ended for good."""
        try:
            self._serve()
        except OSError as error:
            self._is_mute = True
            self._end_rest(0.0)
            self._say(f"{FAULT}{error.strerror} ({error.filename or self._directory})".encode())

    def _serve(self) -> None:
        self._write()  # from now on the next manager finds this process
        order = self._await_order()
        # It may have been killed when the order was in the pipe: nobody waits for this server.
        if order is None or os.getppid() != order.owner_pid:
            self._write(stop_requested=True, stop_reason=self._status.stop_reason or _ORPHANED, is_final=True)
            return
        self._order = order
        if not self._spawn():
            self._write(activity="failed", is_final=True)
            self._say(b"failed")
            return
        self._say(b"started")
        self._take_requests()  # a stop may have come with the order
        while self._stop_grace_s is None:
            self._wait(_LOOK_S)
            if self._main_ended:
                # What a dead server's children still hold, a port or memory, its successor needs.
                self._end_rest(0.0)
                if order.restart_delay_s is None:
                    self._write(is_final=True)
                    return
                self._restart_after(order.restart_delay_s)
            elif self._stop_grace_s is None:
                self._note_processes()
        self._stop()

    # ------------------------------------------------------------------ the server

    def _spawn(self) -> bool:
        order, status = self._order, self._status
        status.invocation_id = uuid.uuid4().hex
        supervisor_pid = os.getpid()

        def die_with_supervisor() -> None:
            self._libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
            if os.getppid() != supervisor_pid:  # it died before the line above
                os._exit(1)

        # For the owner only: servers log their keys.
        with open(self._directory / LOG, "ab", opener=lambda path, flags: os.open(path, flags, 0o600)) as log:
            try:
                server = subprocess.Popen(
                    order.argv,
                    env={**order.env, MARKER: f"{order.marker}{status.invocation_id}"},
                    cwd=order.cwd,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                    preexec_fn=die_with_supervisor,  # noqa: PLW1509 - this program has one thread
                )
            except OSError as error:
                self._write(
                    error=str(error), exit_status=EXEC_FAILED_STATUS, exit_signal=None, main=None, ended_s=time.time()
                )
                return False
        stat = files.process_stat(server.pid)
        assert stat is not None, "a child that was not waited for has an entry in /proc"
        server.returncode = 0  # this program waits for all its children itself
        self._main_ended = False
        self._look_gap_s, self._next_look_s = _FIRST_LOOK_S, time.monotonic() + _FIRST_LOOK_S
        self._write(activity="running", main=stat.key, started_s=time.time(), ended_s=None, processes=[stat.key])
        return True

    def _restart_after(self, delay_s: float) -> None:
        deadline_s = time.monotonic() + delay_s
        while self._stop_grace_s is None:
            left_s = deadline_s - time.monotonic()
            if left_s <= 0:
                self._status.restarts += 1
                self._spawn()  # a failure is a death like any other: the loop goes on
                return
            self._wait(left_s)

    def _stop(self) -> None:
        assert self._stop_grace_s is not None
        # On disk before the signal: whoever sees the death knows whose it is.
        self._write(stop_requested=True)
        main = self._status.main
        if main is not None and not self._main_ended:
            files.send_signal(main, signal.SIGTERM)
            began_s = time.monotonic()
            while not self._main_ended:
                # Looked at again each time: a second request, or the tuner's death, shortens it.
                left_s = began_s + self._stop_grace_s - time.monotonic()
                if left_s <= 0:
                    break
                self._wait(left_s)
        self._end_rest(_REST_GRACE_S if self._main_ended else 0.0)
        if self._is_orphaned:
            # Nobody is left to read it, and it may hold the server's keys.
            (self._directory / LOG).unlink(missing_ok=True)
        self._write(activity="inactive", is_final=True)

    def _end_rest(self, grace_s: float) -> None:
        """Kill every descendant; those that can end by themselves get ``grace_s`` for it."""
        rest = [stat.key for stat in files.descendants(os.getpid()) if not stat.is_zombie]
        if grace_s > 0:
            for key in rest:
                files.send_signal(key, signal.SIGTERM)
        now_s = time.monotonic()
        polite_s, given_up_s = now_s + grace_s, now_s + grace_s + _UNKILLABLE_S
        # Again and again: a process may fork while it is being looked for.
        while True:
            self._reap()
            rest = [stat.key for stat in files.descendants(os.getpid())]
            if not rest or time.monotonic() > given_up_s:
                break
            if time.monotonic() >= polite_s:
                for key in rest:
                    files.send_signal(key, signal.SIGKILL)
            self._wait(0.01)
        self._status.processes = rest

    def _note_processes(self) -> None:
        if time.monotonic() < self._next_look_s:
            return
        self._look_gap_s = min(self._look_gap_s * _LOOK_GROWTH, _LAST_LOOK_S)
        self._next_look_s = time.monotonic() + self._look_gap_s
        keys = [stat.key for stat in files.descendants(os.getpid()) if not stat.is_zombie]
        if set(keys) != set(self._status.processes):
            self._write(processes=keys)

    # ------------------------------------------------------------------ events

    def _on_signal(self, number: int, _frame: object) -> None:
        if number == signal.SIGTERM:
            self._request_stop(_ORPHANED_GRACE_S, "SIGTERM to the supervisor")

    def _request_stop(self, grace_s: float, reason: str) -> None:
        """Stop, or, when that is under way, hurry."""
        if self._stop_grace_s is None:
            self._status.stop_reason = reason
            self._stop_grace_s = grace_s
        self._stop_grace_s = min(grace_s, self._stop_grace_s)

    def _wait(self, timeout_s: float) -> None:
        """Wait for the next event and take note of it."""
        for key, _ in self._selector.select(min(timeout_s, _LOOK_S)):
            if key.fd == self._wake:
                os.read(self._wake, 4096)
            else:
                self._read_lines()
        self._take_requests()
        self._reap()
        if os.getppid() != self._order.owner_pid:
            # A second line of defence: another process may have inherited the pipe's other end.
            self._orphaned()

    def _orphaned(self) -> None:
        self._is_orphaned = True
        self._request_stop(_ORPHANED_GRACE_S, _ORPHANED)

    def _reap(self) -> None:
        while True:
            try:
                pid, wait_status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if self._status.main is not None and pid == self._status.main.pid and not self._main_ended:
                self._main_ended = True
                code = os.waitstatus_to_exitcode(wait_status)
                activity = "failed" if self._order.restart_delay_s is None else "restarting"
                self._write(
                    activity=self._status.activity if self._status.stop_requested else activity,
                    exit_status=code if code >= 0 else None,
                    exit_signal=-code if code < 0 else None,
                    ended_s=time.time(),
                )

    def _take_requests(self) -> None:
        while self._lines:
            self._request_stop(float(json.loads(self._lines.pop(0))["stop"]), "requested")

    def _read_lines(self) -> None:
        try:
            piece = os.read(0, 1 << 20)
        except BlockingIOError:
            return
        if not piece:
            self._selector.unregister(0)
            self._orphaned()
        *lines, self._buffer = (self._buffer + piece).split(b"\n")
        self._lines += lines

    def _await_order(self) -> Order | None:
        """Return the first line; None: the tuner was gone before it was written."""
        while self._stop_grace_s is None:
            for key, _ in self._selector.select(_LOOK_S):
                if key.fd == self._wake:
                    os.read(self._wake, 4096)
                else:
                    self._read_lines()
            if self._lines:
                return Order(**json.loads(self._lines.pop(0)))
        return None

    @staticmethod
    def _say(word: bytes) -> None:
        with contextlib.suppress(BrokenPipeError):  # end of file on standard input tells the same
            os.write(1, word + b"\n")

    def _write(self, **changes: Any) -> None:  # noqa: ANN401 - the fields of Status
        for name, value in changes.items():
            setattr(self._status, name, value)
        if not self._is_mute:
            write_status(self._directory, self._status)


def main() -> None:
    """Read the command line and serve."""
    parser = argparse.ArgumentParser(prog="tuner.hosts.supervisor")
    parser.add_argument("--state-dir", type=Path, required=True)
    Supervisor(parser.parse_args().state_dir).run()


if __name__ == "__main__":
    main()
