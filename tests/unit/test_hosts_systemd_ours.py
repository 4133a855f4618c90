"""Which servers a manager stops, and how long an original may take: over a unit that is told, not real."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest

from tuner.errors import HostFault, LeaseLost, TransportFault
from tuner.hosts.systemd.dropin import mark_of
from tuner.hosts.systemd.owners_unit import OwnersUnit
from tuner.hosts.systemd.paths import drop_in_path
from tuner.hosts.systemd.record import StayRecord
from tuner.hosts.systemd.root import Root
from tuner.hosts.systemd.run import Run
from tuner.hosts.systemd.service import SystemdServiceManager
from tuner.hosts.systemd.snapshot import Snapshot
from tuner.hosts.systemd.timespan import seconds
from tuner.model.host import Activity, CommandResult
from tuner.model.trial import ServiceIdentity
from tuner.testing.fake_clock import FakeClock
from tuner.testing.scripted_transport import ScriptedTransport, said

UNIT = "a.service"
OURS = "0123456789abcdef" * 2
OWNERS = "f" * 32


@dataclass
class ToldUnit(ScriptedTransport):
    """A host with one unit; a step is taken at each look."""

    boot: str = "boot1"
    state: str = "active"
    invocation: str = OURS
    mark: str = ""
    timeout_stop: str = "1min 30s"
    main_pid: int = 7
    job: str = "0"
    exit_status: str = "0"
    fault: TransportFault | None = None
    then: Callable[[], None] = lambda: None

    def __post_init__(self) -> None:
        super().__init__(self._say)

    def _say(self, argv: tuple[str, ...]) -> CommandResult:
        if self.fault is not None:
            raise self.fault
        if argv[:2] == ("systemctl", "stop"):
            self.state = "deactivating"
        if argv[:2] == ("systemctl", "kill"):
            self.state, self.main_pid = "inactive", 0
        if argv[0] != "sh" and argv[1] != "show":
            return said()
        shown = {
            "LoadState": "loaded",
            "ActiveState": self.state,
            "SubState": "?",
            "Result": "success",
            "InvocationID": self.invocation,
            "MainPID": str(self.main_pid),
            "ExecMainPID": "7",
            "ExecMainCode": "0",
            "ExecMainStatus": self.exit_status,
            "NRestarts": "0",
            "Restart": "no",
            "DropInPaths": drop_in_path(UNIT) if self.mark else "",
            "ControlGroup": "",
            "Slice": "system.slice",
            "Job": self.job,
            "Documentation": self.mark,
            "TimeoutStopUSec": self.timeout_stop,
        }
        text = "".join(f"{name}={value}\n" for name, value in shown.items())
        if argv[0] == "sh":
            text = f"{self.boot}\n{text}" if "systemctl show" in argv[2] else ""
        self.then()
        return said(text)

    def asked(self, verb: str) -> bool:
        return any(call[:2] == ("systemctl", verb) for call in self.calls)


class House:
    """A unit whose manager has started a server in it."""

    def __init__(self, *, started: bool = True) -> None:
        self.unit, self.clock, self.record = ToldUnit(), FakeClock(), StayRecord(lease="first")
        root = Root(self.unit, sudo=False)
        self.manager = SystemdServiceManager(self.unit, root, UNIT, self.clock, record=self.record)
        self.mark = mark_of(self.manager._token)
        if started:
            self.unit.mark = self.mark
            identity = ServiceIdentity(invocation_id=OURS, main_pid=7)
            self.manager._run = Run(number=1, lease="first", boot_id="boot1", cursor="", identity=identity)

    def taken_from_us(self) -> None:
        self.unit.mark, self.unit.invocation = "", OWNERS


def play(scenario: Callable[[], object]) -> None:
    asyncio.run(scenario())  # type: ignore[arg-type]


def test_a_server_of_ours_whose_drop_in_is_gone_is_left_to_who_removed_it() -> None:
    """A stop would cancel the restart that the dead-man has queued, and leave production down."""

    async def scenario() -> None:
        house = House()
        house.unit.mark, house.unit.state, house.unit.job = "", "deactivating", "12"
        await house.manager.stop(grace_s=0.0)
        assert not house.unit.asked("stop")
        assert not house.unit.asked("kill")

    play(scenario)


def test_another_tuners_server_under_a_drop_in_of_the_same_path_is_not_ours() -> None:
    async def scenario() -> None:
        house = House()
        house.unit.mark, house.unit.invocation = mark_of("another"), OWNERS
        with pytest.raises(LeaseLost, match="our drop-in is gone"):
            await house.manager.state()
        await house.manager.stop(grace_s=0.0)
        assert not house.unit.asked("stop")

    play(scenario)


def test_what_was_started_while_ours_was_ending_is_not_killed() -> None:
    async def scenario() -> None:
        house = House()

        def restored() -> None:
            if house.unit.state == "deactivating" and house.clock.monotonic_s() > began_s + 5.0:
                house.taken_from_us()
                house.unit.state = "active"

        began_s = house.clock.monotonic_s()
        house.unit.then = restored
        await house.manager.stop(grace_s=10.0)
        assert house.unit.asked("stop")
        assert not house.unit.asked("kill")

    play(scenario)


@pytest.mark.parametrize(("timeout_stop", "expected_s"), [("10min", 600.0), ("infinity", 1800.0), ("5s", 120.0)])
def test_the_owners_server_gets_the_time_that_its_owner_gives_it_to_end(timeout_stop: str, expected_s: float) -> None:
    async def scenario() -> None:
        house = House(started=False)
        house.unit.invocation, house.unit.timeout_stop = OWNERS, timeout_stop
        began_s = house.clock.monotonic_s()
        await house.manager.stop(grace_s=120.0)
        assert house.unit.asked("kill")
        assert house.clock.monotonic_s() - began_s == pytest.approx(expected_s, abs=1.0)

    play(scenario)


def test_a_server_of_ours_gets_the_grace_and_no_more() -> None:
    async def scenario() -> None:
        house = House()
        house.unit.timeout_stop = "10min"
        began_s = house.clock.monotonic_s()
        await house.manager.stop(grace_s=120.0)
        assert house.clock.monotonic_s() - began_s == pytest.approx(120.0, abs=1.0)
        assert (await house.manager.state()).stop_requested

    play(scenario)


def test_a_host_that_was_rebooted_after_a_stop_that_did_not_reach_it_can_be_used_again() -> None:
    async def scenario() -> None:
        house = House()
        house.unit.fault = TransportFault("gpu01: no route")
        with pytest.raises(TransportFault):
            await house.manager.stop(grace_s=0.0)
        house.unit.fault = None
        house.unit.boot = "boot2"
        house.taken_from_us()
        assert (await house.manager.state()).activity is Activity.RUNNING
        await house.manager.stop(grace_s=0.0)  # cleaning, under the lease
        assert house.unit.asked("stop")

    play(scenario)


def test_a_loss_is_told_once_and_nothing_is_stopped_for_it() -> None:
    async def scenario() -> None:
        house = House()
        house.taken_from_us()
        with pytest.raises(LeaseLost):
            await house.manager.state()
        await house.manager.stop(grace_s=0.0)
        assert not house.unit.asked("stop")
        assert (await house.manager.state()).activity is Activity.RUNNING
        await house.manager.stop(grace_s=0.0)
        assert house.unit.asked("stop")

    play(scenario)


def test_under_a_lease_taken_since_what_runs_is_stopped() -> None:
    async def scenario() -> None:
        house = House()
        house.taken_from_us()
        house.record.lease = "second"
        assert (await house.manager.state()).activity is Activity.RUNNING
        await house.manager.stop(grace_s=0.0)
        assert house.unit.asked("stop")

    play(scenario)


def test_a_host_that_was_rebooted_while_a_server_was_started_is_left_alone() -> None:
    async def scenario() -> None:
        house = House(started=False)
        house.manager._launched = ("boot1", "first")
        house.unit.boot, house.unit.invocation = "boot2", OWNERS
        await house.manager.stop(grace_s=0.0)
        assert not house.unit.asked("stop")

    play(scenario)


# ---------------------------------------------------------------------------- the original

BEFORE = Snapshot(
    fragment_path="/etc/systemd/system/a.service",
    drop_in_paths=(),
    unit_file_state="enabled",
    is_running=True,
    exec_start=(),
    text_digest=None,
    need_daemon_reload=False,
    invocation_id="before",
)


def owners(unit: ToldUnit, clock: FakeClock) -> OwnersUnit:
    return OwnersUnit(unit, Root(unit, sudo=False), UNIT, clock)


def test_an_original_that_somebody_has_started_since_is_not_started_again() -> None:
    async def scenario() -> None:
        unit = ToldUnit(invocation=OWNERS)
        assert await owners(unit, FakeClock()).start(BEFORE, others={OURS}) == OWNERS
        assert not unit.asked("restart")
        unit = ToldUnit(invocation="before")
        assert await owners(unit, FakeClock()).start(BEFORE, others=None) == "before"
        assert not unit.asked("restart")

    play(scenario)


@pytest.mark.parametrize("others", [None, {OURS}])
def test_a_trials_server_is_replaced_by_the_original(others: set[str] | None) -> None:
    async def scenario() -> None:
        unit = ToldUnit(invocation=OURS)

        def started() -> None:
            if unit.asked("restart"):
                unit.invocation = OWNERS

        unit.then = started
        assert await owners(unit, FakeClock()).start(BEFORE, others=others) == OWNERS
        assert unit.asked("restart")

    play(scenario)


def test_an_original_whose_preparation_takes_minutes_is_waited_for() -> None:
    async def scenario() -> None:
        clock = FakeClock()
        unit = ToldUnit(state="activating", invocation=OWNERS, main_pid=0, job="9")
        began_s = clock.monotonic_s()

        def started() -> None:
            if clock.monotonic_s() - began_s > 600.0:
                unit.state, unit.main_pid = "active", 9

        unit.then = started
        assert await owners(unit, clock).start(BEFORE, others={OURS}) == OWNERS
        assert not unit.asked("restart")

    play(scenario)


def test_an_original_that_dies_is_told_at_once() -> None:
    async def scenario() -> None:
        clock = FakeClock()
        unit = ToldUnit(state="failed", invocation=OWNERS, main_pid=0)
        began_s = clock.monotonic_s()
        with pytest.raises(HostFault, match="the original does not start"):
            await owners(unit, clock).start(replace(BEFORE), others=set())
        assert clock.monotonic_s() - began_s < 2.0

    play(scenario)


@pytest.mark.parametrize(
    ("failures", "exit_status", "starts", "lives"),
    [(1, "219", 2, True), (2, "219", 3, True), (9, "219", 3, False), (9, "1", 1, False)],
    ids=["cgroup once", "cgroup twice", "cgroup for ever", "its own failure"],
)
def test_an_original_that_systemd_could_not_run_is_started_again(
    failures: int, exit_status: str, starts: int, lives: bool
) -> None:
    async def scenario() -> None:
        unit = ToldUnit(invocation=OURS)

        def restarted() -> None:
            times = sum(call[:2] == ("systemctl", "restart") for call in unit.calls)
            if times == 0:
                return
            has_failed = times <= failures
            unit.invocation, unit.exit_status = f"{OWNERS}-{times}", exit_status
            unit.state, unit.main_pid = ("failed", 0) if has_failed else ("active", 9)

        unit.then = restarted
        start = owners(unit, FakeClock()).start(BEFORE, others=None)
        if lives:
            assert await start == f"{OWNERS}-{starts}"
        else:
            with pytest.raises(HostFault, match=rf"does not start \(it is failed, success {exit_status}\)"):
                await start
        assert sum(call[:2] == ("systemctl", "restart") for call in unit.calls) == starts

    play(scenario)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1min 30s", 90.0),
        ("500ms", 0.5),
        ("1h", 3600.0),
        ("infinity", float("inf")),
        ("0", 0.0),
        ("", None),
        ("x", None),
    ],
)
def test_a_span_of_systemd_is_read(text: str, expected: float | None) -> None:
    assert seconds(text) == expected
