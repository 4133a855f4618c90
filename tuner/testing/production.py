"""A unit on a test host as its owner runs it, and a look at what is left of us there."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine

from tuner.hosts.clock import SystemClock
from tuner.hosts.ssh.transport import SshTransport
from tuner.hosts.systemd.deadman import service_name, timer_name
from tuner.hosts.systemd.paths import drop_in_folder, drop_in_path
from tuner.hosts.systemd.root import Root
from tuner.hosts.systemd.tenancy import UnitTenancy, lease_folder
from tuner.model.lease import Holder, LeaseTerms
from tuner.ports import HostTransport
from tuner.testing.inside import InsideTransport
from tuner.testing.rig import Rig
from tuner.testing.tenancy_suite import LONG, holder

ORIGINAL = ("/usr/bin/tail", "--pid=1", "-f", "/dev/null")
TRIAL = ("/usr/bin/tail", "--pid=1", "-s", "7", "-f", "/dev/null")
STUBBORN = "/bin/sh -c 'trap \"\" TERM; while :; do sleep 0.2; done'"
"""Ignores SIGTERM."""


class Production:
    """A unit on a host, as its owner runs it.

    Args:
        rig: the host.
        unit: full name; of a template, an instance.
    """

    def __init__(self, rig: Rig, unit: str) -> None:
        self.rig = rig
        self.unit = unit
        stem, at, _ = unit.partition("@")
        self.file = f"/etc/systemd/system/{stem}@.service" if at else f"/etc/systemd/system/{unit}"
        self._transports: list[SshTransport] = []

    def play(self, scenario: Callable[[], Coroutine[object, object, None]]) -> None:
        """Run a scenario, then close its connections."""

        async def whole() -> None:
            try:
                await scenario()
            finally:
                for transport in self._transports:
                    await transport.close()
                self._transports.clear()

        asyncio.run(whole())

    def transport(self, user: str) -> SshTransport:
        """Return a user's connection to the host, closed after the scenario."""
        made = SshTransport(self.rig.login(user))
        self._transports.append(made)
        return made

    async def sh(self, script: str, *arguments: str) -> str:
        """Run a script as root, without the network in between; it has to succeed."""
        done = await asyncio.to_thread(self.rig.run, "sh", "-c", script, "test", *arguments)
        assert done.returncode == 0, f"{script}: {done.stderr}"
        return done.stdout.strip()

    async def write(self, path: str, text: str) -> None:
        """Write a file of the owner's."""
        await asyncio.to_thread(self.rig.write, path, text)

    async def install(self, *, runs: bool = True, service: str = "") -> None:
        """Write the unit and start it, unless it is to be stopped."""
        text = f"[Service]\nExecStart={' '.join(ORIGINAL)}\n{service}\n[Install]\nWantedBy=multi-user.target\n"
        await self.write(self.file, text)
        await self.sh("systemctl daemon-reload")
        if runs:
            await self.sh('systemctl start -- "$1"', self.unit)

    def remove(self) -> None:
        """Remove the unit and every trace of us."""
        script = """
        systemctl stop "$4" "$5" 2>/dev/null
        rm -rf "$2" "$3" "$6"
        systemctl kill -s KILL -- "$1" 2>/dev/null; systemctl stop -- "$1" 2>/dev/null
        systemctl disable -- "$1" 2>/dev/null
        systemctl daemon-reload; systemctl reset-failed -- "$1" "$4" "$5" 2>/dev/null
        true"""
        names = (timer_name(self.unit), service_name(self.unit), lease_folder(self.unit))
        self.rig.run("sh", "-c", script, "test", self.unit, self.file, drop_in_folder(self.unit), *names, check=True)

    async def shows(self, name: str) -> str:
        """Return a property as systemd shows it."""
        return await self.sh('systemctl show -p "$2" --value -- "$1"', self.unit, name)

    async def argv(self) -> tuple[str, ...]:
        """Return the command line of the main process."""
        text = await self.sh(
            """pid=$(systemctl show -p MainPID --value -- "$1")
            [ "$pid" = 0 ] || tr "\\0" "\\n" <"/proc/$pid/cmdline" || true""",
            self.unit,
        )
        return tuple(text.splitlines())

    async def has_original(self) -> bool:
        """Whether the original runs."""
        return await self.argv() == ORIGINAL

    async def deploy(self, command: str = " ".join(TRIAL)) -> None:
        """Do what a trial does."""
        drop_in = f"[Service]\nExecStart=\nExecStart={command}\nTimeoutStopSec=600\nRestart=no\n"
        await self.write(drop_in_path(self.unit), drop_in)
        await self.sh('systemctl daemon-reload && systemctl reset-failed "$1"; systemctl restart "$1"', self.unit)

    async def traces(self) -> str:
        """Return what is left of us."""
        return await self.sh(
            """ls -d "$2" "$3" 2>/dev/null
            systemctl list-units --all --no-legend --plain "$4" "$5" | cut -d " " -f 1
            ls /run/systemd/transient 2>/dev/null | grep tuner-deadman
            true""",
            self.unit,
            lease_folder(self.unit),
            drop_in_folder(self.unit),
            timer_name(self.unit),
            service_name(self.unit),
        )

    def tenancy(self, who: Holder | None = None, terms: LeaseTerms = LONG, *, user: str | None = None) -> UnitTenancy:
        """Return a tenancy for who asks: as root, or over SSH as a user who needs sudo."""
        transport: HostTransport = InsideTransport(self.rig) if user is None else self.transport(user)
        root = Root(transport, sudo=user is not None)
        return UnitTenancy(transport, root, self.unit, who or holder(), terms, SystemClock())

    async def until(self, holds: Callable[[], Awaitable[bool]], *, timeout_s: float = 60.0) -> float:
        """Wait until a coroutine function says yes; return how long it took, s."""
        began_s = time.monotonic()
        while not await holds():
            assert time.monotonic() - began_s < timeout_s, f"{holds} never held"
            await asyncio.sleep(0.1)
        return time.monotonic() - began_s

    async def is_traceless(self) -> bool:
        """Whether nothing is left of us."""
        return await self.traces() == ""
