"""A service manager for a host without systemd: each server runs under a supervisor of our own."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Literal

from tuner.errors import DirtyHost, HostFault, ServerInTheWay, TransportFault
from tuner.hosts import files, starts
from tuner.hosts.files import ProcessKey
from tuner.hosts.status import FAULT, LOG, MARKER, Order, Status, read_status
from tuner.model.host import Activity, LogChunk, ProcessEntry, ServiceState
from tuner.model.trial import Command, ServiceIdentity

_CHUNK_BYTES = 1024 * 1024
_POLL_S = 0.01
_EXEC_TIMEOUT_S = 60.0  # for a Python without site packages to start on a machine under load
_KILL_TIMEOUT_S = 10.0
_OTHERS_POLL_S = 0.1  # each looks at all of /proc
_STOP_MARGIN_S = 30.0  # what the supervisor may need after the grace: longer than it tries to kill
_MAKE_ROOM = "free space there, then run the same command again"
_PACKAGE_ROOT = Path(__file__).parents[2]
_NEVER_STARTED = ServiceState(
    activity=Activity.INACTIVE, identity=None, restarts=0, exit_status=None, exit_signal=None, stop_requested=False
)


class ProcessServiceManager:
    """``ports.ServiceManager`` over :mod:`tuner.hosts.supervisor`.

    A server that another manager on the same folder started is a leftover to this one: :meth:`stop`
    and :meth:`kill_leftovers` end it. Managers with different folders do not see each other. If this
    process dies in whatever way, the supervisor stops the server.

    Args:
        state_dir: keeps status and log of the last start; made when needed.
        env: the servers' environment; a command's own entries come on top.
        restart: whether a dead server is started again, as a unit's ``Restart=`` says.
        restart_delay_s: time from a death to the next start.
    """

    def __init__(
        self,
        state_dir: Path,
        env: Mapping[str, str],
        restart: Literal["no", "always"] = "no",
        restart_delay_s: float = 1.0,
    ) -> None:
        self._state_dir = state_dir.absolute()
        self._env = dict(env)
        self._restart_delay_s = restart_delay_s if restart == "always" else None
        # Of the path and not of a file in it: processes are found even if somebody deleted the folder.
        self._mark = hashlib.sha256(os.fsencode(self._state_dir.resolve())).hexdigest()[:16]
        self._supervisor: subprocess.Popen[bytes] | None = None
        self._directory: Path | None = None  # of the current or last start
        self._lost_and_cleaned = False  # the supervisor was killed, and stop() did its work
        self._last: Status | None = None  # of a start whose folder is gone
        self._said = ""  # by the supervisor, last

    async def start(self, command: Command) -> ServiceIdentity:
        """Start a server under a new supervisor.

        Raises:
            HostFault: a server of this manager runs already, the program is missing or cannot be
                executed, or the supervisor could not be started.
        """
        await self._dead_server_is_buried()
        if self._is_supervised():
            msg = f"{self._state_dir}: a server runs already: stop it first"
            raise ServerInTheWay(msg)
        order = self._order(command)
        supervisor = self._launch(order)
        answer = await self._first_word(supervisor)
        status = self._status()
        if FAULT in answer:
            self._said = answer.splitlines()[-1]
            raise HostFault(f"{self._directory}: {self._how_it_was_lost()}")
        if answer != "started" or status is None or status.main is None or status.invocation_id is None:
            reason = status.error if status is not None and status.error else self._last_words()
            msg = f"program {order.argv[0]} could not be executed: {reason}"
            raise HostFault(msg)
        return ServiceIdentity(invocation_id=status.invocation_id, main_pid=status.main.pid)

    async def state(self) -> ServiceState:
        """Look at the service.

        Raises:
            TransportFault: the supervisor was killed by somebody else; :meth:`stop` cleans up after it.
        """
        if self._supervisor is None:
            return _NEVER_STARTED
        # First whether it lives, then what it says: it writes before it ends.
        is_supervised = self._is_supervised()
        status = self._status()
        if status is None:
            if is_supervised or self._lost_and_cleaned:
                return _NEVER_STARTED
            raise TransportFault(f"{self._directory}: {self._how_it_was_lost()}")
        activity, stop_requested = Activity(status.activity), status.stop_requested
        if not is_supervised and not status.is_final:
            if not self._lost_and_cleaned:
                raise TransportFault(f"{self._directory}: {self._how_it_was_lost()}")
            activity, stop_requested = Activity.INACTIVE, True
        identity = None
        if status.main is not None and status.invocation_id is not None:
            identity = ServiceIdentity(invocation_id=status.invocation_id, main_pid=status.main.pid)
        return ServiceState(
            activity=activity,
            identity=identity,
            restarts=status.restarts,
            exit_status=status.exit_status,
            exit_signal=status.exit_signal,
            stop_requested=stop_requested,
        )

    async def read_log(self, cursor: str | None) -> LogChunk:
        """Return the next megabyte; a cursor of an earlier start begins anew."""
        if self._directory is None:
            return LogChunk(text="", cursor="")
        name, _, position = (cursor or "").partition(":")
        offset = int(position) if name == self._directory.name and position else 0
        is_complete = not self._is_supervised()
        try:
            with (self._directory / LOG).open("rb") as log:
                log.seek(offset)
                piece = log.read(_CHUNK_BYTES)
        except FileNotFoundError:
            piece = b""
        except OSError as error:
            msg = f"{self._directory / LOG}: cannot be read: {error}"
            raise TransportFault(msg) from error
        text, used = files.decode_prefix(piece, is_last=is_complete and len(piece) < _CHUNK_BYTES)
        return LogChunk(text=text, cursor=f"{self._directory.name}:{offset + used}")

    async def stop(self, *, grace_s: float) -> None:
        """Stop the server and everything below it.

        Raises:
            DirtyHost: processes survive SIGKILL (they hang in the kernel).
        """
        supervisor = self._supervisor
        if supervisor is None:
            await self._stop_others(grace_s)
            return
        if self._is_supervised():
            self._ask(supervisor, {"stop": grace_s})
            deadline_s = time.monotonic() + grace_s + _STOP_MARGIN_S
            while supervisor.poll() is None:
                if time.monotonic() > deadline_s:
                    supervisor.kill()
                    break
                await asyncio.sleep(_POLL_S)
            supervisor.wait()
        self._close(supervisor)
        status = self._status()
        if status is None or not status.is_final:
            await self._kill([key for key, _ in self._survivors()])
            self._lost_and_cleaned = True
        if status is not None and (alive := [key for key in starts.keys_of(status) if files.is_running(key)]):
            names = ", ".join(f"{key.pid} ({files.command_line(key.pid)})" for key in alive)
            msg = f"{self._state_dir}: processes survive SIGKILL: {names}: the host needs a reboot"
            raise DirtyHost(msg)

    async def forget(self) -> None:
        """Delete the folders of stopped servers, those of earlier managers too.

        A folder stays while one of its processes lives, for the next manager to find that; without the log.
        """
        if not self._is_supervised():
            self._last = self._status()
            starts.forget_dead(self._state_dir)

    async def leftovers(self) -> tuple[ProcessEntry, ...]:
        """Return what lives of earlier servers, and of the current one if it is stopped."""
        return tuple(ProcessEntry(pid=key.pid, command=name, ours=True) for key, name in self._survivors())

    async def kill_leftovers(self) -> None:
        """Kill them, their supervisors first, and wait until they are gone."""
        await self._kill([key for key, _ in self._survivors()])
        starts.forget_dead(self._state_dir, keep=self._directory)

    async def members(self) -> frozenset[int]:
        """Return the PIDs of the supervisor's descendants: all of a running server."""
        if self._supervisor is None or not self._is_supervised():
            return frozenset()
        return frozenset(stat.key.pid for stat in files.descendants(self._supervisor.pid))

    # ------------------------------------------------------------------ the supervisor

    async def _dead_server_is_buried(self) -> None:
        """Wait while the supervisor of a server that died by itself still ends what that one left."""
        deadline_s = time.monotonic() + _STOP_MARGIN_S
        while self._is_supervised() and time.monotonic() < deadline_s:
            status = self._status()
            if status is None or status.activity != Activity.FAILED.value:
                return
            await asyncio.sleep(_POLL_S)

    def _is_supervised(self) -> bool:
        supervisor = self._supervisor
        if supervisor is None:
            return False
        if supervisor.poll() is None:
            return True
        self._close(supervisor)
        return False

    def _close(self, supervisor: subprocess.Popen[bytes]) -> None:
        """Close the pipes of a supervisor that has ended, and keep what it said last."""
        assert supervisor.stdin is not None
        assert supervisor.stdout is not None
        if supervisor.stdout.closed:
            return
        os.set_blocking(supervisor.stdout.fileno(), False)
        said = (supervisor.stdout.read() or b"").decode(errors="replace").splitlines()
        self._said = said[-1] if said else self._said
        supervisor.stdin.close()
        supervisor.stdout.close()

    def _order(self, command: Command) -> Order:
        env = {**self._env, **dict(command.env)}
        name = command.argv[0]
        program = shutil.which(name, path=env.get("PATH", os.defpath))
        if program is None:
            msg = f"program {name!r} is not on this host's PATH, or not executable: install it or correct the command"
            raise HostFault(msg)
        return Order(
            argv=[str(Path(program).absolute()), *command.argv[1:]],
            # The setproctitle that SGLang uses overwrites the environment in /proc, and our mark with it, unless told.
            env={"SPT_NOENV": "1", **env},
            cwd=str(Path.cwd()),
            marker=f"{self._mark}:",
            restart_delay_s=self._restart_delay_s,
            owner_pid=os.getpid(),
        )

    def _launch(self, order: Order) -> subprocess.Popen[bytes]:
        directory = starts.new_folder(self._state_dir)
        try:
            starts.forget_dead(self._state_dir)
            self._state_dir.mkdir(parents=True, exist_ok=True)
            directory.mkdir(mode=0o700)
            with (directory / "supervisor.err").open("wb") as errors:
                supervisor = subprocess.Popen(
                    [sys.executable, "-E", "-S", "-m", "tuner.hosts.supervisor", "--state-dir", str(directory)],
                    cwd=_PACKAGE_ROOT,
                    # Found by the next manager from its first moment, and before it has a status file.
                    env={**os.environ, MARKER: f"{self._mark}:supervisor"},
                    bufsize=0,  # nothing half written is left to fail at the close
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=errors,
                    start_new_session=True,  # Ctrl-C in the tuner's terminal is not for it
                )
        except OSError as error:
            msg = f"{directory}: the supervisor cannot be started: {error}"
            raise HostFault(msg) from error
        self._supervisor, self._directory, self._lost_and_cleaned = supervisor, directory, False
        self._last, self._said = None, ""
        self._ask(supervisor, asdict(order))
        return supervisor

    @staticmethod
    def _ask(supervisor: subprocess.Popen[bytes], message: Mapping[str, object]) -> None:
        assert supervisor.stdin is not None
        rest = memoryview(json.dumps(message).encode() + b"\n")
        try:
            while rest:
                rest = rest[supervisor.stdin.write(rest) :]
        except (BrokenPipeError, ValueError):
            # It has just ended by itself; whoever asks looks at its status next.
            return

    @staticmethod
    async def _first_word(supervisor: subprocess.Popen[bytes]) -> str:
        """Return what the supervisor says after the first exec; empty: it ended or said nothing in time."""
        assert supervisor.stdout is not None
        os.set_blocking(supervisor.stdout.fileno(), False)
        deadline_s = time.monotonic() + _EXEC_TIMEOUT_S
        while time.monotonic() < deadline_s:
            piece = supervisor.stdout.read()
            if piece is not None:
                return piece.decode(errors="replace").strip()
            await asyncio.sleep(_POLL_S)
        return ""

    def _status(self) -> Status | None:
        if self._last is not None:
            return self._last
        return read_status(self._directory) if self._directory is not None else None

    def _how_it_was_lost(self) -> str:
        if self._said.startswith(FAULT):
            reason = self._said.removeprefix(FAULT)
            return f"the supervisor could not write and ended its server: {reason}: {_MAKE_ROOM}"
        if self._status() is None:
            return f"the supervisor ended before it wrote anything: {self._last_words()}"
        return "the supervisor was killed, nobody knows how its server ended; stop cleans up"

    def _last_words(self) -> str:
        if self._directory is None:
            return ""
        try:
            lines = (self._directory / "supervisor.err").read_text(errors="replace").strip().splitlines()
        except OSError as error:
            return str(error)
        return lines[-1] if lines else "it said nothing"

    # ------------------------------------------------------------------ survivors

    def _survivors(self) -> list[tuple[ProcessKey, str]]:
        """Return processes of our servers with their command lines, supervisors first.

        While the current server is supervised, its processes are no survivors.
        """
        exempt: set[int] = set()
        if self._supervisor is not None and self._is_supervised():
            exempt = {self._supervisor.pid, *(stat.key.pid for stat in files.descendants(self._supervisor.pid))}
        found = starts.living(self._state_dir, self._mark)
        return [(key, files.command_line(key.pid)) for key in found if key.pid not in exempt]

    async def _stop_others(self, grace_s: float) -> None:
        """End what another manager started: politely, then all that is left."""
        deadline_s = time.monotonic() + grace_s
        asked: set[ProcessKey] = set()
        while survivors := self._survivors():
            if time.monotonic() >= deadline_s:
                await self._kill([key for key, _ in survivors])
                return
            for supervisor in starts.supervisors(self._state_dir) - asked:
                files.send_signal(supervisor, signal.SIGTERM)
                asked.add(supervisor)
            await asyncio.sleep(_OTHERS_POLL_S)

    async def _kill(self, keys: list[ProcessKey]) -> None:
        await asyncio.to_thread(files.kill_all, keys, timeout_s=_KILL_TIMEOUT_S)
