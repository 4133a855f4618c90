"""A measurement in which somebody else, the hardware or the network had a part is void."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tuner.errors import HostFault, MeasurementFault
from tuner.model.account import Limit
from tuner.model.host import GpuLook, GpuProcess, GpuReading
from tuner.model.outcome import Faulted, Infeasible, Measured, TrialState
from tuner.model.space import Assignment
from tuner.model.trial import Command, LegFinished, Remark, StateEntered, TrialEvent, TrialRequest, TrialResult
from tuner.model.workload import Workload
from tuner.runtime.cleaning import HostSession
from tuner.runtime.guard import Guard, clocks_text, slowed_text
from tuner.runtime.strangers import process_text, strangers
from tuner.runtime.trial import Trial
from tuner.testing.fake_clock import EPOCH_S
from tuner.testing.fake_engine import FakeEngine
from tuner.testing.fake_host import GIB, Death, FakeGpu, FakeHost, Guest, Slowdown, Start

ENGINE = FakeEngine()
WORKLOAD = Workload(output_tokens=8, ladder=(1, 4), level_min_s=10.0, level_max_s=10.0, soak_s=10.0)
FOREVER_S = 1e9


def run(host: FakeHost) -> tuple[TrialResult, list[TrialEvent]]:
    assignment = Assignment.of({"batch": 8, "draft": 3})
    request = TrialRequest(
        study="s",
        number=7,
        assignment=assignment,
        command=ENGINE.command(Command(argv=("serve",)), assignment),
        engine="fake",
        workload=WORKLOAD,
        seed=1,
    )
    events: list[TrialEvent] = []

    async def main() -> TrialResult:
        return await Trial(request, HostSession(host.ports()), ENGINE, events.append, asyncio.Event()).run()

    return asyncio.run(main()), events


def guarded(host: FakeHost, seconds: float = 10.0) -> list[str]:
    """Guard a leg of so many seconds on a server that is there; return what was remarked."""
    remarks: list[str] = []

    async def main() -> None:
        session = HostSession(host.ports())
        identity = await host.service.start(Command(argv=("serve",)))
        guard = Guard(session, identity.main_pid, remarks.append)
        await guard.during(lambda: host.clock.sleep(seconds), what="leg at concurrency 4")

    asyncio.run(main())
    return remarks


# ---------------------------------------------------------------------------- a leg


def test_the_gpus_are_looked_at_when_a_leg_begins_every_two_seconds_and_when_it_ends() -> None:
    host = FakeHost(ENGINE)
    guarded(host, seconds=5.0)
    assert host.gpu.looks == [0.0, 2.0, 4.0, 5.0]


def test_the_clocks_of_a_leg_are_kept_in_one_remark() -> None:
    assert guarded(FakeHost(ENGINE)) == ["leg at concurrency 4: GPU clock 1980 to 1980 MHz"]


def test_a_host_without_gpus_is_measured_without_a_remark() -> None:
    assert guarded(FakeHost(ENGINE, gpus=0)) == []


@pytest.mark.parametrize(("from_s", "seen_s"), [(0.0, 0.0), (3.0, 4.0), (9.0, 10.0)])
def test_a_foreign_process_ends_the_leg_at_the_next_look_and_is_named(from_s: float, seen_s: float) -> None:
    host = FakeHost(ENGINE, gpus=2)
    host.gpu.guests = (Guest(pid=4711, from_s=from_s),)
    with pytest.raises(MeasurementFault, match=r"4711 python train.py \(20.0 GiB on GPU 0, 1\) used the GPU on gpu01"):
        guarded(host)
    assert host.clock.monotonic_s() == seen_s


def test_a_gpu_that_the_hardware_slows_down_ends_the_leg_and_is_named_with_its_clock() -> None:
    host = FakeHost(ENGINE, gpus=2)
    host.gpu.slowdowns = (Slowdown(from_s=3.0, to_s=5.0),)
    with pytest.raises(MeasurementFault, match=r"GPU 0 is slowed down by hw_thermal_slowdown to 1200 MHz on gpu01"):
        guarded(host)
    assert host.clock.monotonic_s() == 4.0


@pytest.mark.parametrize(("outage", "is_void"), [((3.0, 4.9), False), ((3.0, 5.5), True)])
def test_a_leg_is_void_when_the_host_was_out_of_reach_for_more_than_two_seconds(
    outage: tuple[float, float], is_void: bool
) -> None:
    host = FakeHost(ENGINE)
    host.outages = (outage,)
    if is_void:
        with pytest.raises(MeasurementFault, match=r"could not be reached for 2.5 s of the measurement"):
            guarded(host)
    else:
        guarded(host)


def test_an_outage_before_the_leg_is_none_of_its() -> None:
    host = FakeHost(ENGINE)
    host.outages = ((0.0, 60.0),)
    host.clock.advance(70.0)
    guarded(host)


def test_gpus_that_cannot_be_looked_at_end_the_leg_as_the_hosts_fault() -> None:
    with pytest.raises(HostFault, match="does not answer"):
        guarded(FakeHost(ENGINE, Start(unreachable_s=(3.0, 60.0))))


def test_a_leg_that_fails_by_itself_fails_with_its_own_error() -> None:
    host = FakeHost(ENGINE)

    async def spoil() -> None:
        await host.clock.sleep(1.0)
        raise MeasurementFault("the client was the bottleneck")

    async def main() -> None:
        await Guard(HostSession(host.ports()), 1, lambda _text: None).during(spoil, what="leg")

    with pytest.raises(MeasurementFault, match="bottleneck"):
        asyncio.run(main())


@pytest.mark.parametrize("after_s", [0.0, 1.0, 2.0])
def test_a_leg_that_is_cancelled_ends_with_its_looks(after_s: float) -> None:
    host = FakeHost(ENGINE)
    ended: list[float] = []

    async def leg() -> None:
        try:
            await host.clock.sleep(FOREVER_S)
        finally:
            ended.append(host.clock.monotonic_s())

    async def main() -> None:
        task = asyncio.ensure_future(Guard(HostSession(host.ports()), 1, lambda _text: None).during(leg, what="leg"))
        await host.clock.sleep(after_s)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(main())
    assert ended in ([after_s], [])


# ---------------------------------------------------------------------------- whose process it is


class Restarting(FakeHost):
    """A server that takes another process while it is measured: its members change, it does not end."""

    def __init__(self, member: int) -> None:
        super().__init__(ENGINE)
        self.service.members = self._members  # type: ignore[method-assign]
        self.asked = 0
        self._member = member

    async def _members(self) -> frozenset[int]:
        self.asked += 1
        return frozenset({self._member})


def test_a_process_that_joins_the_server_later_is_no_stranger_and_asked_for_once() -> None:
    host = Restarting(4711)
    host.gpu.guests = (Guest(pid=4711, from_s=3.0),)
    guarded(host, seconds=30.0)
    assert host.asked == 1


class Dying(FakeHost):
    """A server that dies as soon as it is asked who belongs to it."""

    def __init__(self) -> None:
        super().__init__(ENGINE)
        self.service.members = self._members  # type: ignore[method-assign]

    async def _members(self) -> frozenset[int]:
        await self.service.stop(grace_s=0.0)
        return frozenset()


def test_the_processes_of_a_server_that_died_while_they_were_looked_at_are_no_strangers() -> None:
    host = Dying()
    host.gpu.guests = (Guest(pid=4711, to_s=1.0),)  # a rank of its own
    guarded(host)


def test_a_stranger_that_was_there_when_the_host_was_clean_may_stay_but_not_grow() -> None:
    small = Guest(pid=5, name="exporter", memory_bytes=GIB // 8)
    host = FakeHost(ENGINE)
    host.gpu.guests = (small,)
    assert isinstance(run(host)[0].outcome, Measured)
    host = FakeHost(ENGINE)
    host.gpu.guests = (replace(small, to_s=50.0), replace(small, memory_bytes=GIB, from_s=50.0))
    result, _ = run(host)
    assert isinstance(result.outcome, Faulted)
    assert "5 exporter (1.0 GiB on GPU 0)" in result.outcome.error


PIDS = st.integers(1, 9)
PROCESSES = st.lists(
    st.builds(GpuProcess, pid=PIDS, name=st.sampled_from(("", "a")), memory_used_bytes=st.integers(0, 10)),
    unique_by=lambda process: process.pid,
)


@given(PROCESSES, st.sets(PIDS), st.dictionaries(PIDS, st.integers(0, 10)), st.integers(0, 10))
def test_a_stranger_lives_is_not_ours_and_holds_more_than_it_did(
    processes: list[GpuProcess], ours: set[int], at_clean: dict[int, int], slack_bytes: int
) -> None:
    found = strangers(processes, ours=ours, at_clean=at_clean, slack_bytes=slack_bytes)
    for process in processes:
        grew = process.memory_used_bytes > at_clean.get(process.pid, -FOREVER_S) + slack_bytes
        assert (process in found) == (process.name != "" and process.pid not in ours and grew)


def test_what_is_not_known_is_not_made_up() -> None:
    assert process_text(GpuProcess(pid=7, name="", memory_used_bytes=0)) == "7 (gone) (memory not known)"
    assert clocks_text([]) is None
    cold = GpuReading(index=3, memory_used_bytes=0, memory_total_bytes=1, slowed_by=("hw_slowdown", "x"))
    assert slowed_text([cold]) == "GPU 3 is slowed down by hw_slowdown, x"


# ---------------------------------------------------------------------------- a trial


def test_every_leg_of_a_trial_is_guarded_and_its_clocks_are_kept() -> None:
    _, events = run(FakeHost(ENGINE))
    clocks = [event.text.partition(":")[0] for event in events if isinstance(event, Remark) and "clock" in event.text]
    assert clocks == ["leg at concurrency 1", "leg at concurrency 4", "soak at concurrency 4"]


@pytest.mark.parametrize("leg", [0, 1, 2])
def test_a_foreign_process_in_any_leg_faults_the_trial_and_the_leg_is_not_kept(leg: int) -> None:
    host = FakeHost(ENGINE)
    _, events = run(host)
    ends_s = [event.at_s - EPOCH_S for event in events if isinstance(event, LegFinished)]
    host = FakeHost(ENGINE)
    host.gpu.guests = (Guest(from_s=ends_s[leg] - 5.0),)
    result, events = run(host)
    assert isinstance(result.outcome, Faulted)
    assert result.outcome.state is (TrialState.MEASURING, TrialState.MEASURING, TrialState.SOAKING)[leg]
    assert "foreign process 9000 python train.py" in result.outcome.error
    assert sum(isinstance(event, LegFinished) for event in events) == leg
    assert host.service.gpu_bytes == 0


DYING = Start(
    death=Death(at=TrialState.MEASURING, level=4, after_s=3.0, exit_status=1, log="fake: fatal: configuration\n")
)


def test_a_death_beside_a_foreign_process_proves_nothing() -> None:
    host = FakeHost(ENGINE, DYING)
    result, events = run(host)
    assert isinstance(result.outcome, Infeasible)
    began_s = next(event.at_s for event in events if isinstance(event, StateEntered) and event.level == 4)
    host = FakeHost(ENGINE, DYING)
    # After the last look before the death, which is two seconds into the leg.
    host.gpu.guests = (Guest(from_s=began_s - EPOCH_S + 2.5),)
    result, _ = run(host)
    assert isinstance(result.outcome, Faulted)
    assert "the server died while foreign process 9000 python train.py" in result.outcome.error


class Passing(FakeGpu):
    """Shows another unknown process at each look, as a server does that is started again and again."""

    async def look(self) -> GpuLook:
        look = await super().look()
        if self._service.is_alive:
            return look
        ghost = GpuProcess(pid=100 + len(self.looks), name="python", memory_used_bytes=GIB)
        return replace(look, processes=(ghost,))


def test_processes_that_pass_while_a_server_dies_are_nobodys() -> None:
    host = FakeHost(ENGINE, DYING)
    host.gpu = Passing(host.service, host.clock, gpus=1, baseline_bytes=0, total_bytes=80 * GIB)
    assert isinstance(run(host)[0].outcome, Infeasible)


def test_gpus_that_cannot_be_looked_at_after_a_death_do_not_overturn_it() -> None:
    class Lost(FakeGpu):
        async def look(self) -> GpuLook:
            look = await super().look()
            if host.service.commands and not host.service.is_alive:
                raise HostFault("nvidia-smi hangs")
            return look

    host = FakeHost(ENGINE, DYING)
    host.gpu = Lost(host.service, host.clock, gpus=1, baseline_bytes=0, total_bytes=80 * GIB)
    result, events = run(host)
    assert isinstance(result.outcome, Infeasible)
    assert any("could not be looked at" in event.text for event in events if isinstance(event, Remark))


@pytest.mark.parametrize(("outage_s", "outcome"), [(1.9, Infeasible), (2.5, Faulted)])
def test_requests_that_fail_while_the_host_is_out_of_reach_are_not_the_servers(
    outage_s: float, outcome: type[Infeasible | Faulted]
) -> None:
    host = FakeHost(ENGINE, Start(generates=False))  # fails before any leg, at its proof
    host.outages = ((32.0, 32.0 + outage_s),)  # while it loads: cleaning takes 30 s
    result, _ = run(host)
    assert isinstance(result.outcome, outcome)


def test_a_leg_whose_requests_failed_in_an_outage_is_void_and_the_server_not_judged() -> None:
    host = FakeHost(ENGINE, Start(failed_requests={4: 3}))
    result, events = run(host)
    assert isinstance(result.outcome, Infeasible)
    began_s = next(event.at_s for event in events if isinstance(event, StateEntered) and event.level == 4)
    host = FakeHost(ENGINE, Start(failed_requests={4: 3}))
    host.outages = ((began_s - EPOCH_S + 1.0, began_s - EPOCH_S + 4.0),)
    result, _ = run(host)
    assert isinstance(result.outcome, Faulted)
    assert "could not be reached for 3.0 s of the measurement" in result.outcome.error


# ---------------------------------------------------------------------------- the tunnel


def entered_s(events: list[TrialEvent], state: TrialState) -> float:
    return next(event.at_s for event in events if isinstance(event, StateEntered) and event.state is state) - EPOCH_S


@pytest.mark.parametrize("state", [TrialState.WARMING_UP, TrialState.MEASURING, TrialState.SOAKING])
def test_a_tunnel_that_dies_under_load_voids_the_trial_and_the_server_is_not_judged(state: TrialState) -> None:
    host = FakeHost(ENGINE)
    _, events = run(host)
    host = FakeHost(ENGINE)
    host.route_dies_s = (entered_s(events, state) + 0.5,)
    result, _ = run(host)
    assert isinstance(result.outcome, Faulted)
    assert "the tunnel to host gpu01 broke down" in result.outcome.error
    assert result.attempts == 1


def test_a_tunnel_that_dies_while_the_server_loads_is_made_anew_and_costs_nothing() -> None:
    host = FakeHost(ENGINE, Start(ready_s=20.0))
    _, events = run(host)
    host = FakeHost(ENGINE, Start(ready_s=20.0))
    host.route_dies_s = (entered_s(events, TrialState.DEPLOYING) + 10.0,)
    assert isinstance(run(host)[0].outcome, Measured)


@pytest.mark.parametrize(("dies_s", "outcome"), [((), Infeasible), ((40.0,), Faulted)])
def test_a_server_that_is_not_ready_in_time_is_not_judged_if_the_tunnel_to_it_died(
    dies_s: tuple[float, ...], outcome: type[Infeasible | Faulted]
) -> None:
    host = FakeHost(ENGINE, Start(ready_s=None))
    host.route_dies_s = dies_s
    assert isinstance(run(host)[0].outcome, outcome)


def test_a_way_that_begins_elsewhere_after_it_broke_down_is_the_hosts_fault() -> None:
    host = FakeHost(ENGINE, Start(ready_s=20.0))
    opened: list[int] = []

    async def elsewhere(port: int) -> str:
        opened.append(port)
        return f"http://127.0.0.1:{port if len(opened) < 5 else 4711}"

    host.route.open = elsewhere  # type: ignore[method-assign]
    result, _ = run(host)
    assert isinstance(result.outcome, Faulted)
    assert "begins at http://127.0.0.1:4711 now" in result.outcome.error


def test_a_leg_says_what_its_gpus_did_and_what_limited_it() -> None:
    _, events = run(FakeHost(ENGINE))
    legs = [event.leg for event in events if isinstance(event, LegFinished)]
    assert [leg.concurrency for leg in legs] == [1, 4, 4]
    assert all(leg.gpu is not None and leg.gpu.sm_clock_hz for leg in legs)
    assert all(leg.gpu is not None and leg.gpu.joules_per_token is None for leg in legs)  # this one tells no power
    assert legs[0].limit is Limit.LOAD
    assert legs[1].limit in (Limit.LOAD, Limit.COMPUTE)
