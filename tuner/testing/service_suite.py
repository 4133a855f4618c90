"""What every service manager must do; inherited over the fake and over each real one."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

import pytest

from tuner.errors import HostFault
from tuner.model.host import Activity, ServiceState
from tuner.model.trial import Command
from tuner.ports import Clock, ServiceManager

LOG_LINES = ("first line é", "second line", "third line")


class Behaviour(Enum):
    """What the server of a test does."""

    LIVES = "lives"  # writes LOG_LINES and lives until it is told to end, then ends at once
    EXITS = "exits"  # writes LOG_LINES and exits with status 3
    IS_KILLED = "is_killed"  # writes LOG_LINES and dies of SIGKILL
    IGNORES_SIGTERM = "ignores_sigterm"  # writes LOG_LINES when SIGTERM no longer ends it, and lives
    LOOPS = "loops"  # writes LOG_LINES, exits with status 3, and its manager starts it again
    IS_MISSING = "is_missing"  # there is no such program


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """A fresh manager, and the command that behaves as asked."""

    manager: ServiceManager
    command: Command
    clock: Clock

    async def until(self, holds: Callable[[ServiceState], bool], *, timeout_s: float = 20.0) -> ServiceState:
        """Wait for a state."""
        deadline_s = self.clock.monotonic_s() + timeout_s
        while not holds(state := await self.manager.state()):
            assert self.clock.monotonic_s() < deadline_s, f"still {state}"
            await self.clock.sleep(0.02)
        return state

    async def log_until(self, text: str, *, cursor: str | None = None, timeout_s: float = 20.0) -> tuple[str, str]:
        """Read on from ``cursor`` until ``text`` is there; returns all that was read, and the new cursor."""
        deadline_s = self.clock.monotonic_s() + timeout_s
        read = ""
        while text not in read:
            assert self.clock.monotonic_s() < deadline_s, f"still {read!r}"
            chunk = await self.manager.read_log(cursor)
            read, cursor = read + chunk.text, chunk.cursor
            await self.clock.sleep(0.02)
        assert cursor is not None
        return read, cursor


class ServiceManagerSuite:
    """Inherit as ``class TestMine(ServiceManagerSuite)`` and write :meth:`subject`."""

    def subject(self, behaviour: Behaviour, tmp_path: Path) -> Subject:
        """Return a manager that has never started anything, and a command."""
        raise NotImplementedError

    def _run(self, behaviour: Behaviour, tmp_path: Path, scenario: Callable[[Subject], Awaitable[None]]) -> None:
        async def run() -> None:
            subject = self.subject(behaviour, tmp_path)
            try:
                await scenario(subject)
            finally:
                await subject.manager.stop(grace_s=0.0)

        asyncio.run(run())

    def test_a_service_never_started_is_inactive_and_can_be_stopped(self, tmp_path: Path) -> None:
        """Cleaning comes before the first start."""

        async def scenario(subject: Subject) -> None:
            await subject.manager.stop(grace_s=1.0)
            await subject.manager.kill_leftovers()
            state = await subject.manager.state()
            assert (state.activity, state.identity, state.restarts) == (Activity.INACTIVE, None, 0)
            assert not state.stop_requested
            assert await subject.manager.leftovers() == ()
            await subject.manager.forget()
            assert (await subject.manager.read_log(None)).text == ""

        self._run(Behaviour.LIVES, tmp_path, scenario)

    def test_a_started_server_runs_under_the_identity_that_start_returned(self, tmp_path: Path) -> None:
        """Identity, rule 2."""

        async def scenario(subject: Subject) -> None:
            identity = await subject.manager.start(subject.command)
            await subject.log_until(LOG_LINES[-1])
            state = await subject.manager.state()
            assert (state.activity, state.identity, state.restarts) == (Activity.RUNNING, identity, 0)
            assert (state.exit_status, state.exit_signal, state.stop_requested) == (None, None, False)
            assert await subject.manager.leftovers() == ()

        self._run(Behaviour.LIVES, tmp_path, scenario)

    def test_a_second_start_beside_a_running_server_is_refused(self, tmp_path: Path) -> None:
        """One server a host."""

        async def scenario(subject: Subject) -> None:
            identity = await subject.manager.start(subject.command)
            with pytest.raises(HostFault):
                await subject.manager.start(subject.command)
            assert (await subject.manager.state()).identity == identity

        self._run(Behaviour.LIVES, tmp_path, scenario)

    def test_a_program_that_is_missing_is_the_hosts_fault_and_named(self, tmp_path: Path) -> None:
        """The configuration did not do it."""

        async def scenario(subject: Subject) -> None:
            with pytest.raises(HostFault, match=subject.command.argv[0]):
                await subject.manager.start(subject.command)
            assert (await subject.manager.state()).activity is not Activity.RUNNING

        self._run(Behaviour.IS_MISSING, tmp_path, scenario)

    def test_an_exit_is_a_failure_with_its_status(self, tmp_path: Path) -> None:
        """And not our stop."""

        async def scenario(subject: Subject) -> None:
            identity = await subject.manager.start(subject.command)
            state = await subject.until(lambda state: state.activity is not Activity.RUNNING)
            assert (state.activity, state.identity, state.restarts) == (Activity.FAILED, identity, 0)
            assert (state.exit_status, state.exit_signal, state.stop_requested) == (3, None, False)

        self._run(Behaviour.EXITS, tmp_path, scenario)

    def test_a_death_by_signal_is_a_failure_with_that_signal(self, tmp_path: Path) -> None:
        """SGLang ends by killing itself."""

        async def scenario(subject: Subject) -> None:
            await subject.manager.start(subject.command)
            state = await subject.until(lambda state: state.activity is not Activity.RUNNING)
            assert state.activity is Activity.FAILED
            assert (state.exit_status, state.exit_signal, state.stop_requested) == (None, signal.SIGKILL, False)

        self._run(Behaviour.IS_KILLED, tmp_path, scenario)

    def test_stopping_a_dead_server_does_not_make_its_death_ours(self, tmp_path: Path) -> None:
        """Rule 5, from the other side."""

        async def scenario(subject: Subject) -> None:
            await subject.manager.start(subject.command)
            died = await subject.until(lambda state: state.activity is not Activity.RUNNING)
            await subject.manager.stop(grace_s=1.0)
            assert await subject.manager.state() == died

        self._run(Behaviour.EXITS, tmp_path, scenario)

    def test_the_log_of_a_dead_server_can_be_read_from_its_first_line(self, tmp_path: Path) -> None:
        """A cause is read after the death."""

        async def scenario(subject: Subject) -> None:
            await subject.manager.start(subject.command)
            await subject.until(lambda state: state.activity is not Activity.RUNNING)
            read, cursor = await subject.log_until(LOG_LINES[-1])
            assert read.splitlines() == list(LOG_LINES)
            assert (await subject.manager.read_log(cursor)).text == ""
            assert (await subject.manager.read_log(None)).text == read

        self._run(Behaviour.EXITS, tmp_path, scenario)

    def test_what_is_forgotten_can_no_longer_be_read_but_its_end_is_known(self, tmp_path: Path) -> None:
        """Logs hold command lines and keys."""

        async def scenario(subject: Subject) -> None:
            await subject.manager.start(subject.command)
            await subject.until(lambda state: state.activity is not Activity.RUNNING)
            _, cursor = await subject.log_until(LOG_LINES[-1])
            await subject.manager.stop(grace_s=1.0)
            ended = await subject.manager.state()
            for _ in range(2):
                await subject.manager.forget()
                assert (await subject.manager.read_log(None)).text == ""
                assert (await subject.manager.read_log(cursor)).text == ""
                assert await subject.manager.state() == ended
            await subject.manager.stop(grace_s=1.0)
            await subject.manager.start(subject.command)
            read, _ = await subject.log_until(LOG_LINES[-1])
            assert read.startswith(LOG_LINES[0])

        self._run(Behaviour.EXITS, tmp_path, scenario)

    def test_the_log_of_a_running_server_is_not_forgotten(self, tmp_path: Path) -> None:
        """Its cause of death is still to be read."""

        async def scenario(subject: Subject) -> None:
            await subject.manager.start(subject.command)
            await subject.log_until(LOG_LINES[-1])
            await subject.manager.forget()
            read, _ = await subject.log_until(LOG_LINES[-1])
            assert read.startswith(LOG_LINES[0])

        self._run(Behaviour.LIVES, tmp_path, scenario)

    def test_our_stop_is_no_failure_and_may_be_repeated(self, tmp_path: Path) -> None:
        """Rule 5."""

        async def scenario(subject: Subject) -> None:
            identity = await subject.manager.start(subject.command)
            await subject.log_until(LOG_LINES[-1])
            for _ in range(2):
                await subject.manager.stop(grace_s=20.0)
                state = await subject.manager.state()
                assert (state.activity, state.identity, state.stop_requested) == (Activity.INACTIVE, identity, True)
                assert state.exit_signal != signal.SIGKILL
                assert await subject.manager.leftovers() == ()

        self._run(Behaviour.LIVES, tmp_path, scenario)

    def test_a_server_that_ignores_sigterm_is_killed_after_the_grace_and_that_is_ours(self, tmp_path: Path) -> None:
        """A drain without limit must not hold up the night."""

        async def scenario(subject: Subject) -> None:
            await subject.manager.start(subject.command)
            await subject.log_until(LOG_LINES[-1])
            began_s = subject.clock.monotonic_s()
            await subject.manager.stop(grace_s=0.5)
            assert subject.clock.monotonic_s() - began_s >= 0.5
            state = await subject.manager.state()
            assert (state.activity, state.exit_signal, state.stop_requested) == (
                Activity.INACTIVE,
                signal.SIGKILL,
                True,
            )

        self._run(Behaviour.IGNORES_SIGTERM, tmp_path, scenario)

    def test_a_new_start_is_another_server_with_a_log_of_its_own(self, tmp_path: Path) -> None:
        """Nothing of the last server is told of the next."""

        async def scenario(subject: Subject) -> None:
            first = await subject.manager.start(subject.command)
            await subject.log_until(LOG_LINES[-1])
            await subject.manager.stop(grace_s=20.0)
            second = await subject.manager.start(subject.command)
            assert second.invocation_id != first.invocation_id
            read, _ = await subject.log_until(LOG_LINES[-1])
            assert read.splitlines() == list(LOG_LINES)
            state = await subject.manager.state()
            assert (state.identity, state.stop_requested) == (second, False)
            assert (state.exit_status, state.exit_signal) == (None, None)

        self._run(Behaviour.LIVES, tmp_path, scenario)

    def test_a_crash_loop_counts_restarts_and_changes_identity(self, tmp_path: Path) -> None:
        """Rule 4."""

        async def scenario(subject: Subject) -> None:
            first = await subject.manager.start(subject.command)
            state = await subject.until(lambda state: state.restarts >= 2)
            assert state.identity is not None
            assert state.identity.invocation_id != first.invocation_id
            assert state.identity.main_pid != first.main_pid
            assert not state.stop_requested
            read, _ = await subject.log_until(f"{LOG_LINES[-1]}\n{LOG_LINES[0]}")
            assert read.startswith(LOG_LINES[0])

        self._run(Behaviour.LOOPS, tmp_path, scenario)

    def test_a_stop_ends_a_crash_loop(self, tmp_path: Path) -> None:
        """Whatever the loop is doing just then."""

        async def scenario(subject: Subject) -> None:
            await subject.manager.start(subject.command)
            await subject.until(lambda state: state.restarts >= 1)
            await subject.manager.stop(grace_s=5.0)
            stopped = await subject.manager.state()
            assert (stopped.activity, stopped.stop_requested) == (Activity.INACTIVE, True)
            await subject.clock.sleep(0.5)
            assert await subject.manager.state() == stopped

        self._run(Behaviour.LOOPS, tmp_path, scenario)
