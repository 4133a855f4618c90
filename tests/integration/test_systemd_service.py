"""Trials in a unit's place on a real systemd: who wins, who stopped it, who is left."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Sequence

import pytest

from tuner.errors import HostFault, LeaseLost, TransportFault
from tuner.hosts.clock import SystemClock
from tuner.hosts.ssh.transport import SshTransport
from tuner.hosts.systemd.paths import drop_in_folder, drop_in_path
from tuner.hosts.systemd.root import Root, commands, sudoers_lines
from tuner.hosts.systemd.service import SystemdServiceManager
from tuner.hosts.systemd.unit import read_command_line, read_unit
from tuner.model.host import Activity, CommandResult, ServiceState
from tuner.model.trial import Command
from tuner.ports import HostTransport
from tuner.testing.inside import InsideTransport
from tuner.testing.rig import OPERATOR, Rig

PYTHON = "/usr/bin/python3"
SLEEPS = Command(argv=(PYTHON, "-S", "-c", "import time; time.sleep(300)"))
OWNERS = (
    "[Service]\nExecStart=/bin/sleep 3600\nRestart=always\nRestartSec=100ms\n[Install]\nWantedBy=multi-user.target\n"
)


class Case:
    """A unit of an owner, and a manager of ours over it."""

    def __init__(self, rig: Rig, text: str = OWNERS, *, start: bool = False, unit: str | None = None) -> None:
        self.rig = rig
        self.unit = unit or f"case-{uuid.uuid4().hex[:8]}.service"
        rig.install_unit(self.unit, text, start=start)
        self.clock = SystemClock()
        self.manager = self.over(InsideTransport(rig))

    def over(self, transport: HostTransport, *, sudo: bool = False) -> SystemdServiceManager:
        return SystemdServiceManager(transport, Root(transport, sudo=sudo), self.unit, self.clock)

    def shows(self, name: str) -> str:
        return self.rig.show(name, unit=self.unit)[name]

    async def until(self, activity: Activity) -> ServiceState:
        deadline_s = self.clock.monotonic_s() + 20.0
        while (state := await self.manager.state()).activity is not activity:
            assert self.clock.monotonic_s() < deadline_s, state
            await self.clock.sleep(0.05)
        return state


# ---------------------------------------------------------------------------- the drop-in


def test_the_override_that_systemctl_edit_makes_does_not_win_over_a_trial(rig: Rig) -> None:
    async def scenario() -> None:
        case = Case(rig)
        override = "[Service]\nExecStart=\nExecStart=/bin/sleep 1800\nRestart=always\n"
        rig.write(f"/etc/systemd/system/{case.unit}.d/override.conf", override)
        rig.run("systemctl", "daemon-reload", check=True)
        identity = await case.manager.start(SLEEPS)
        assert await read_command_line(InsideTransport(rig), identity.main_pid) == SLEEPS.argv
        await case.manager.stop(grace_s=0.0)

    asyncio.run(scenario())


def test_a_drop_in_that_wins_over_ours_is_named_and_nothing_is_started(rig: Rig) -> None:
    async def scenario() -> None:
        case = Case(rig)
        later = f"/etc/systemd/system/{case.unit}.d/zzzzz.conf"
        rig.write(later, "[Service]\nExecStart=\nExecStart=/bin/sleep 1800\n")
        with pytest.raises(HostFault, match=r"zzzzz\.conf comes after it and wins"):
            await case.manager.start(SLEEPS)
        assert case.shows("ActiveState") == "inactive"

    asyncio.run(scenario())


def test_a_variable_that_an_environment_file_would_win_is_refused(rig: Rig) -> None:
    async def scenario() -> None:
        case = Case(rig, "[Service]\nEnvironmentFile=/etc/case.env\nExecStart=/bin/sleep 3600\n")
        rig.write("/etc/case.env", "LEVEL=1\n")
        with pytest.raises(HostFault, match=r"LEVEL comes from an EnvironmentFile="):
            await case.manager.start(Command(argv=SLEEPS.argv, env=(("LEVEL", "2"),)))

    asyncio.run(scenario())


def test_a_full_run_is_a_fault_that_names_the_file_and_the_unit_stays_as_it_is(rig: Rig) -> None:
    async def scenario() -> None:
        case = Case(rig)
        folder = drop_in_folder(case.unit)
        rig.run("mkdir", "-p", folder, check=True)
        rig.run("mount", "-t", "tmpfs", "-o", "size=4k", "tmpfs", folder, check=True)
        try:
            rig.run("sh", "-c", 'head -c 8192 /dev/zero > "$1/full"', "sh", folder)
            with pytest.raises(HostFault, match=rf"{case.unit}.*No space left on device"):
                await case.manager.start(SLEEPS)
        finally:
            rig.run("umount", folder, check=True)
        assert case.shows("ActiveState") == "inactive"

    asyncio.run(scenario())


# ---------------------------------------------------------------------------- starting


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        ("User=nobody-there\n", r"User= does not exist"),
        ("WorkingDirectory=/no/such/folder\n", r"WorkingDirectory= cannot be entered"),
        ("ExecStartPre=/bin/false\n", r"ExecStartPre= or a condition failed"),
        ("ExecCondition=/bin/false\n", r"condition"),
    ],
)
def test_what_systemd_cannot_set_up_is_the_hosts_fault_and_named(rig: Rig, lines: str, says: str) -> None:
    async def scenario() -> None:
        case = Case(rig, f"[Service]\nExecStart=/bin/sleep 3600\n{lines}")
        with pytest.raises(HostFault, match=says):
            await case.manager.start(SLEEPS)
        await case.manager.stop(grace_s=0.0)
        assert (await case.manager.state()).activity is not Activity.RUNNING

    asyncio.run(scenario())


def test_a_condition_of_the_unit_that_does_not_hold_is_no_start(rig: Rig) -> None:
    async def scenario() -> None:
        case = Case(rig, "[Unit]\nConditionPathExists=/no/such/file\n[Service]\nExecStart=/bin/sleep 3600\n")
        with pytest.raises(HostFault, match="systemd did not start it"):
            await case.manager.start(SLEEPS)

    asyncio.run(scenario())


class LosesStart:
    """Loses the connection at the start of the unit: after the command ran, or before."""

    def __init__(self, inner: HostTransport, *, was_run: bool) -> None:
        self._inner = inner
        self._was_run = was_run
        self.starts = 0

    async def run(
        self, argv: Sequence[str], *, stdin: bytes = b"", timeout_s: float = 30.0, repeat: bool = True
    ) -> CommandResult:
        if argv[:2] != ("systemctl", "start"):
            return await self._inner.run(argv, stdin=stdin, timeout_s=timeout_s, repeat=repeat)
        assert not repeat
        self.starts += 1
        if self._was_run:
            await self._inner.run(argv)
        raise TransportFault("connection lost")

    async def read_file(self, path: str) -> bytes:
        return await self._inner.read_file(path)

    async def write_file(self, path: str, content: bytes, *, mode: int = 0o600) -> None:
        await self._inner.write_file(path, content, mode=mode)

    async def close(self) -> None:
        await self._inner.close()


def test_a_start_whose_answer_was_lost_is_found_and_not_repeated(rig: Rig) -> None:
    async def scenario() -> None:
        case = Case(rig)
        transport = LosesStart(InsideTransport(rig), was_run=True)
        manager = case.over(transport)
        identity = await manager.start(SLEEPS)
        assert transport.starts == 1
        assert (await manager.state()).identity == identity
        await manager.stop(grace_s=0.0)

    asyncio.run(scenario())


def test_a_start_that_was_lost_on_the_way_is_a_fault_and_nothing_runs(rig: Rig) -> None:
    async def scenario() -> None:
        case = Case(rig)
        transport = LosesStart(InsideTransport(rig), was_run=False)
        with pytest.raises(TransportFault, match="connection lost"):
            await case.over(transport).start(SLEEPS)
        assert transport.starts == 1
        assert case.shows("ActiveState") == "inactive"

    asyncio.run(scenario())


# ---------------------------------------------------------------------------- watching


def test_a_server_that_exits_with_status_0_is_dead_and_its_status_is_known(rig: Rig) -> None:
    async def scenario() -> None:
        case = Case(rig)
        identity = await case.manager.start(Command(argv=("/bin/true",)))
        state = await case.until(Activity.FAILED)
        assert (state.identity, state.exit_status, state.stop_requested) == (identity, 0, False)
        await case.manager.stop(grace_s=0.0)
        assert await case.manager.state() == state
        await case.manager.start(SLEEPS)
        await case.manager.stop(grace_s=0.0)

    asyncio.run(scenario())


def test_a_stop_by_somebody_else_is_a_death_and_not_ours(rig: Rig) -> None:
    async def scenario() -> None:
        case = Case(rig)
        await case.manager.start(SLEEPS)
        rig.run("systemctl", "stop", case.unit, check=True)
        state = await case.manager.state()
        assert (state.activity, state.stop_requested) == (Activity.FAILED, False)
        await case.manager.stop(grace_s=0.0)
        assert (await case.manager.state()).stop_requested is False

    asyncio.run(scenario())


def test_an_owner_who_takes_the_unit_back_is_noticed_and_left_alone(rig: Rig) -> None:
    async def scenario() -> None:
        case = Case(rig)
        await case.manager.start(SLEEPS)
        rig.run("rm", drop_in_path(case.unit), check=True)
        rig.run("systemctl", "daemon-reload", check=True)
        assert (await case.manager.state()).activity is Activity.RUNNING  # still our invocation
        rig.run("systemctl", "restart", case.unit, check=True)
        owners = case.shows("InvocationID")
        with pytest.raises(LeaseLost, match="somebody restored or changed the unit"):
            await case.manager.state()
        await case.manager.stop(grace_s=0.0)
        assert (case.shows("InvocationID"), case.shows("ActiveState")) == (owners, "active")
        # What runs there now is the owner's, for the next cleaning to stop once the host is ours again.
        state = await case.manager.state()
        assert state.activity is Activity.RUNNING
        assert state.identity is not None
        assert state.identity.invocation_id == owners

    asyncio.run(scenario())


def test_a_reboot_is_noticed_and_the_owners_server_left_alone(rig: Rig) -> None:
    async def scenario() -> None:
        case = Case(rig)
        rig.run("systemctl", "enable", case.unit, check=True)
        await case.manager.start(SLEEPS)
        await asyncio.to_thread(rig.reboot)
        with pytest.raises(LeaseLost, match="rebooted"):
            await case.manager.state()
        await case.manager.stop(grace_s=0.0)
        assert case.shows("ActiveState") == "active"
        await case.manager.stop(grace_s=0.0)  # the next cleaning
        assert case.shows("ActiveState") == "inactive"
        await case.manager.start(SLEEPS)
        await case.manager.stop(grace_s=0.0)

    asyncio.run(scenario())


# ---------------------------------------------------------------------------- stopping


def test_the_owners_server_is_stopped_before_the_first_trial(rig: Rig) -> None:
    async def scenario() -> None:
        case = Case(rig, start=True)
        before = await case.manager.state()
        assert before.activity is Activity.RUNNING
        await case.manager.stop(grace_s=5.0)
        state = await case.manager.state()
        assert (state.activity, state.identity, state.stop_requested) == (Activity.INACTIVE, before.identity, True)
        assert await case.manager.members() == frozenset()

    asyncio.run(scenario())


def test_every_process_of_the_server_is_a_member_and_gone_after_the_stop(rig: Rig) -> None:
    async def scenario() -> None:
        case = Case(rig)
        program = "import os, time\nfor _ in range(2): os.fork()\ntime.sleep(300)"
        identity = await case.manager.start(Command(argv=(PYTHON, "-S", "-c", program)))
        await case.clock.sleep(0.5)
        members = await case.manager.members()
        assert len(members) == 4
        assert identity.main_pid in members
        assert await case.manager.leftovers() == ()
        await case.manager.stop(grace_s=0.0)
        assert await case.manager.members() == frozenset()
        assert all(rig.run("test", "-e", f"/proc/{pid}").returncode for pid in members)

    asyncio.run(scenario())


def test_what_the_owners_server_left_in_its_cgroup_is_ours_to_kill(rig: Rig) -> None:
    async def scenario() -> None:
        text = "[Service]\nKillMode=process\nExecStart=/bin/sh -c 'sleep 4321 & exec sleep 3600'\n"
        case = Case(rig, text, start=True)
        rig.run("systemctl", "stop", case.unit, check=True)
        found = await case.manager.leftovers()
        assert [(entry.command, entry.ours) for entry in found] == [("sleep 4321", True)]
        await case.manager.kill_leftovers()
        assert await case.manager.leftovers() == ()

    asyncio.run(scenario())


def test_a_process_that_left_the_cgroup_is_found_by_our_invocation_and_others_are_not_touched(rig: Rig) -> None:
    async def scenario() -> None:
        case = Case(rig)
        foreign = rig.run("sh", "-c", "sleep 4242 >/dev/null 2>&1 & echo $!", check=True).stdout.strip()
        program = (
            "import os, subprocess, time\n"
            "child = subprocess.Popen(['sleep', '4321'])\n"
            "for tree in ('systemd', 'unified', ''):\n"
            "    try: open(f'/sys/fs/cgroup/{tree}/init.scope/cgroup.procs', 'w').write(str(child.pid))\n"
            "    except OSError: pass\n"
            "time.sleep(300)"
        )
        await case.manager.start(Command(argv=(PYTHON, "-S", "-c", program)))
        await case.clock.sleep(1.0)
        await case.manager.stop(grace_s=0.0)
        assert [entry.command for entry in await case.manager.leftovers()] == ["sleep 4321"]
        await case.manager.kill_leftovers()
        assert await case.manager.leftovers() == ()
        assert rig.run("kill", foreign).returncode == 0

    asyncio.run(scenario())


# ---------------------------------------------------------------------------- rights


def programs(rig: Rig) -> dict[str, str]:
    names = {argv[0] for argv in commands("x.service")}
    return {name: rig.run("sh", "-c", 'command -v "$1"', "sh", name, check=True).stdout.strip() for name in names}


def test_a_login_without_rights_runs_trials_with_exactly_the_printed_sudoers_lines(rig: Rig) -> None:
    async def scenario() -> None:
        case = Case(rig, unit=f"case\\x2d{uuid.uuid4().hex[:8]}:1.service", start=True)
        rig.run("usermod", "-aG", "systemd-journal", OPERATOR, check=True)
        transport = SshTransport(rig.login(OPERATOR))
        try:
            manager = case.over(transport, sudo=True)
            with pytest.raises(HostFault, match="add the sudoers lines that `tuner doctor` prints"):
                await manager.stop(grace_s=5.0)
            assert case.shows("ActiveState") == "active"
            rig.grant(sudoers_lines(OPERATOR, commands(case.unit), programs(rig)))
            await manager.stop(grace_s=5.0)
            speaks = Command(argv=(PYTHON, "-S", "-u", "-c", "import time; print('hello'); time.sleep(300)"))
            identity = await manager.start(speaks)
            assert (await manager.state()).identity == identity
            text = ""
            while "hello" not in text:
                text = (await manager.read_log(None)).text
            await manager.stop(grace_s=0.0)
            assert (await manager.state()).activity is Activity.INACTIVE
            other = await transport.run(("sudo", "-n", "systemctl", "stop", "--no-block", "ssh.service"))
            assert other.status != 0
        finally:
            await transport.close()

    asyncio.run(scenario())


def test_an_environment_file_the_login_may_not_read_is_named_or_read_as_root(rig: Rig) -> None:
    async def scenario() -> None:
        case = Case(rig, "[Service]\nEnvironmentFile=/etc/hidden/a.env\nExecStart=/bin/sleep --x ${KEY}\n")
        rig.write("/etc/hidden/a.env", "KEY=sk-1\n", mode=0o600)
        transport = SshTransport(rig.login(OPERATOR))
        try:
            unit = await read_unit(transport, case.unit)
            assert unit.unreadable_files == ("/etc/hidden/a.env",)
            as_root = await read_unit(InsideTransport(rig), case.unit)
            assert as_root.command().argv == ("/bin/sleep", "--x", "sk-1")
        finally:
            await transport.close()

    asyncio.run(scenario())
