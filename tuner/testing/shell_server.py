"""Servers under the shell supervisor on this machine, under one shell or another."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from tuner.hosts import files
from tuner.hosts.clock import SystemClock
from tuner.hosts.shell.service import ShellServiceManager
from tuner.model.host import ServiceState
from tuner.model.trial import Command
from tuner.ports import HostTransport

PATIENCE_S = 40.0
FAMILY = """
import os, subprocess, sys, time
sleeper = [sys.executable, "-S", "-c", "import time; time.sleep(300)"]
subprocess.Popen(sleeper)                                # a child
subprocess.Popen(sleeper, start_new_session=True)        # one with a session of its own
subprocess.Popen(sleeper, env={})                        # one without our mark
if os.fork() == 0:                                       # one that lost its parent
    os.setsid()
    if os.fork():
        os._exit(0)
    time.sleep(300)
os.wait()
print("up", flush=True)
time.sleep(float(sys.argv[1]))
os._exit(3)
"""
"""A server with processes of every kind; argv: s until it ends with status 3."""


def python(program: str, *arguments: str, env: tuple[tuple[str, str], ...] = ()) -> Command:
    """Return a server that is a Python program."""
    return Command(argv=(sys.executable, "-S", "-c", program, *arguments), env=env)


def tools(folder: Path, shell: str, *, without: Sequence[str] = ()) -> dict[str, str]:
    """Make an environment in which ``sh`` is another shell; ``busybox`` brings all its own programs and no others.

    Raises:
        FileNotFoundError: the shell is not installed.
    """
    program = shutil.which(shell)
    if program is None:
        raise FileNotFoundError(f"{shell} is not installed")
    programs = folder / f"programs-{shell}"
    programs.mkdir(exist_ok=True)
    if shell == "busybox":
        subprocess.run((program, "--install", "-s", str(programs)), check=True)
        return {**os.environ, "PATH": str(programs)}
    (programs / "sh").symlink_to(program)
    if not without:
        return {**os.environ, "PATH": f"{programs}:{os.environ['PATH']}"}
    for name in ("cat", "grep", "head", "mkdir", "mv", "od", "rm", "rmdir", "setsid", "sleep", "tail", "tr", "kill"):
        found = shutil.which(name)
        assert found is not None
        (programs / name).symlink_to(found)
    return {**os.environ, "PATH": str(programs)}


def with_manager(
    transport: HostTransport,
    tmp_path: Path,
    scenario: Callable[[ShellServiceManager], Awaitable[None]],
    *,
    restart: bool = False,
) -> None:
    """Run a scenario with a manager whose state lies in ``host`` under a folder; nothing is left afterwards."""

    async def run() -> None:
        manager = ShellServiceManager(
            transport, str(tmp_path / "host"), SystemClock(), restart=restart, restart_delay_s=0.1
        )
        try:
            await scenario(manager)
        finally:
            await manager.stop(grace_s=0.0)
            assert await manager.leftovers() == ()

    asyncio.run(run())


async def log_until(manager: ShellServiceManager, text: str) -> str:
    """Return the log, once ``text`` is in it."""
    deadline_s = time.monotonic() + PATIENCE_S
    read, cursor = "", None
    while text not in read:
        assert time.monotonic() < deadline_s, f"still {read!r}"
        chunk = await manager.read_log(cursor)
        read, cursor = read + chunk.text, chunk.cursor
        await asyncio.sleep(0.02)
    return read


async def until(manager: ShellServiceManager, holds: Callable[[ServiceState], bool]) -> ServiceState:
    """Return the first state of which something holds."""
    deadline_s = time.monotonic() + PATIENCE_S
    while not holds(state := await manager.state()):
        assert time.monotonic() < deadline_s, f"still {state}"
        await asyncio.sleep(0.01)
    return state


def is_running(pid: int) -> bool:
    """Whether a process lives."""
    found = files.process_stat(pid)
    return found is not None and not found.is_zombie


def supervisor_of(pid: int) -> int:
    """Return the PID of the supervisor of a main process."""
    found = files.process_stat(pid)
    assert found is not None
    return found.parent_pid
