"""A host while it is ours: entered, renewed, lost, left; in memory, on a fake clock."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest

from tuner.errors import LeaseHeld, LeaseLost, RestoreFailed, TransportFault
from tuner.model.host import Original
from tuner.model.http import HttpCall, HttpReply
from tuner.model.lease import Holder
from tuner.model.outcome import Faulted
from tuner.model.trial import Command, TrialFinished, TrialRequest
from tuner.model.workload import Workload
from tuner.runtime.cleaning import HostSession, make_clean
from tuner.runtime.stay import Proof, Stay
from tuner.runtime.trial import events_of
from tuner.testing.fake_clock import FakeClock
from tuner.testing.fake_engine import FakeEngine
from tuner.testing.fake_host import FakeHost, Start
from tuner.testing.fake_tenancy import FakeOwnedHost, FakeTenancy

ENGINE = FakeEngine()
ORIGINAL = Command(argv=("serve", "--batch", "8", "--draft", "0"))
WORKLOAD = Workload(ladder=(1, 4), level_min_s=1.0, level_max_s=2.0, soak_s=1.0, load_timeout_s=60.0)
PROOF = Proof(engine=ENGINE, workload=WORKLOAD)
US = Holder(owner="us@here", study="s", directory="/s", machine="here", pid=1, since_s=0.0)
THEM = replace(US, owner="them@there", machine="there")


class Originals:
    """A ControlClient to the original: healthy after so many seconds, and then generates, or does not."""

    def __init__(self, clock: FakeClock, *, loads_s: float, generates: bool = True) -> None:
        self._clock = clock
        self._since_s = clock.monotonic_s() + loads_s
        self._generates = generates

    async def call(self, call: HttpCall) -> HttpReply:
        if self._clock.monotonic_s() < self._since_s:
            return HttpReply(status=None, body=b"", error="refused")
        if call.path == ENGINE.health_call().path:
            return HttpReply(status=200, body=b"")
        return (
            HttpReply(status=200, body=b'{"usage": {"completion_tokens": 8}}')
            if self._generates
            else HttpReply(status=500, body=b"")
        )

    async def close(self) -> None: ...


class House:
    """A fake host that belongs to somebody, and our stay there."""

    def __init__(
        self, *, loads_s: float = 5.0, generates: bool = True, holder: Holder = US, start: Start | None = None
    ) -> None:
        self.clock = FakeClock()
        self.owned = FakeOwnedHost(clock=self.clock, original=ORIGINAL, secrets=("s3cret-of-the-unit",))
        self.remarks: list[str] = []
        self.fake = FakeHost(ENGINE, start or Start(), clock=self.clock)
        self.ports = replace(
            self.fake.ports(),
            tenancy=self.owned.tenancy(holder),
            renew_s=60.0,
            control=lambda _url: Originals(self.clock, loads_s=loads_s, generates=generates),
        )
        self.stay = Stay(self.ports)

    def run(self, story: Callable[[], Awaitable[None]]) -> None:
        async def main() -> None:
            await story()

        asyncio.run(main())

    async def enter(self) -> None:
        await self.stay.enter(self.remarks.append)

    async def leave(self) -> None:
        await self.stay.leave(PROOF, self.remarks.append)


def test_a_stay_renews_its_lease_and_gives_the_host_back_as_it_was() -> None:
    house = House()

    async def story() -> None:
        await house.enter()
        house.owned.deploy()
        await house.clock.sleep(3600)
        assert house.stay.lost is None
        assert house.owned.runs == "trial"
        await house.leave()

    house.run(story)
    assert house.owned.calls.count("renew") >= 59
    assert house.owned.calls[-1] == "leave"
    assert "restore" in house.owned.calls
    assert (house.owned.runs, house.owned.has_drop_in, house.owned.held()) == ("original", False, None)
    assert "the original answers again" in house.remarks


@pytest.mark.parametrize(("returns_s", "waited_s"), [(0.0, 0.0), (7.0, 7.0), (None, 90.0)])
def test_the_original_is_started_once_the_gpu_memory_that_it_needs_is_back(
    returns_s: float | None, waited_s: float
) -> None:
    house = House(loads_s=60.0, start=Start(gpu_returns_s=returns_s))
    session = HostSession(house.ports)
    house.stay = session.stay
    restored_s: list[float] = []
    tenancy = house.ports.tenancy
    assert isinstance(tenancy, FakeTenancy)
    restore = tenancy.restore

    async def noted() -> Original:
        restored_s.append(house.clock.monotonic_s())
        return await restore()

    tenancy.restore = noted  # type: ignore[method-assign]

    async def story() -> None:
        await house.enter()
        await make_clean(session, house.ports.control(""), house.remarks.append)
        await house.fake.service.start(ORIGINAL)
        house.owned.deploy()
        await house.fake.service.stop(grace_s=1.0)
        ended_s = house.clock.monotonic_s()
        await house.leave()
        assert restored_s[0] - ended_s == pytest.approx(waited_s, abs=0.3)

    house.run(story)
    assert any("GPU memory that the original needs" in remark for remark in house.remarks) == bool(waited_s)


def test_a_tunnel_that_dies_while_the_original_loads_does_not_make_it_fail() -> None:
    house = House()
    house.fake.route_dies_s = (10.0, 20.0)

    class Through(Originals):
        async def call(self, call: HttpCall) -> HttpReply:
            if house.fake.route.is_dead:
                return HttpReply(status=None, body=b"", error="refused")
            return await super().call(call)

    house.ports = replace(house.ports, control=lambda _url: Through(house.clock, loads_s=30.0))
    house.stay = Stay(house.ports)

    async def story() -> None:
        await house.enter()
        house.owned.deploy()
        await house.leave()

    house.run(story)
    assert "the original answers again" in house.remarks


def test_a_tunnel_that_cannot_be_made_for_a_while_is_waited_for_and_followed_to_another_port() -> None:
    house = House()
    urls: list[str] = []

    async def opened(port: int) -> str:
        if 10.0 < house.clock.monotonic_s() < 20.0:
            raise TransportFault("no tunnel to its port")
        return f"http://127.0.0.1:{port if house.clock.monotonic_s() < 15.0 else 4711}"

    def control(url: str) -> Originals:
        urls.append(url)
        return Originals(house.clock, loads_s=0.0 if url.endswith(":4711") else 1e9)

    house.fake.route.open = opened  # type: ignore[method-assign]
    house.ports = replace(house.ports, control=control)
    house.stay = Stay(house.ports)

    async def story() -> None:
        await house.enter()
        house.owned.deploy()
        await house.leave()

    house.run(story)
    assert len(urls) == 2
    assert "the original answers again" in house.remarks


def test_the_lease_is_renewed_while_the_original_still_loads() -> None:
    house = House(loads_s=50.0)
    house.ports = replace(house.ports, renew_s=10.0)
    house.stay = Stay(house.ports)

    async def story() -> None:
        await house.enter()
        house.owned.deploy()
        await house.leave()

    house.run(story)
    assert house.owned.calls.count("renew") >= 4


def test_entering_again_keeps_one_renewal() -> None:
    house = House()

    async def story() -> None:
        for _ in range(3):
            await house.enter()
        await house.clock.sleep(90)
        await house.leave()

    house.run(story)
    assert house.owned.calls.count("renew") == 1


def test_a_renewal_that_does_not_get_through_is_tried_again_soon_and_loses_nothing() -> None:
    house = House()

    async def story() -> None:
        await house.enter()
        house.owned.reachable = False
        await house.clock.sleep(100)
        house.owned.reachable = True
        await house.clock.sleep(20)
        house.stay.require()
        await house.leave()

    house.run(story)
    assert house.owned.calls.count("renew") >= 4


def test_a_host_that_was_taken_over_is_lost_and_a_new_entering_asks_for_it_again() -> None:
    house = House()

    async def story() -> None:
        await house.enter()
        house.owned.reboot()
        await house.clock.sleep(61)
        with pytest.raises(LeaseLost, match="our lease is gone"):
            house.stay.require()
        await house.enter()
        house.stay.require()
        await house.leave()

    house.run(story)
    assert house.owned.runs == "original"


def test_a_trial_on_a_host_that_is_lost_is_faulted_and_not_blamed_on_its_configuration() -> None:
    house = House()
    ports = replace(house.fake.ports(), tenancy=house.owned.tenancy(US), renew_s=0.5)
    session = HostSession(ports)
    request = TrialRequest(
        study="s",
        number=0,
        assignment=ENGINE.settings_of(ORIGINAL),
        command=ORIGINAL,
        engine="fake",
        workload=replace(WORKLOAD, level_min_s=20.0, level_max_s=20.0),
        seed=1,
    )

    async def story() -> None:
        async for event in events_of(request, session, ENGINE, asyncio.Event()):
            if isinstance(event, TrialFinished):
                assert isinstance(event.result.outcome, Faulted)
                assert "our lease is gone" in event.result.outcome.error
            elif getattr(event, "level", None) == 1:
                house.owned.reboot()
        session.stay.hurried.set()
        await session.stay.leave(PROOF, house.remarks.append)

    house.run(story)
    assert house.owned.runs == "original"


def test_somebody_elses_host_is_not_entered_and_not_restored() -> None:
    house = House()

    async def story() -> None:
        theirs = house.owned.tenancy(THEM)
        await theirs.enter()
        house.owned.deploy()
        with pytest.raises(LeaseHeld, match="them@there"):
            await house.enter()
        await house.leave()

    house.run(story)
    assert (house.owned.runs, house.owned.has_drop_in) == ("trial", True)
    assert "restore" not in house.owned.calls


def test_an_original_that_does_not_answer_is_an_error_and_the_host_is_given_back_all_the_same() -> None:
    house = House(generates=False)

    async def story() -> None:
        await house.enter()
        house.owned.deploy()
        with pytest.raises(RestoreFailed, match="does not answer: a generation answered 500 within"):
            await house.leave()

    house.run(story)
    assert house.owned.held() is None
    assert house.owned.runs == "original"


def test_who_hurries_does_not_wait_for_the_original() -> None:
    house = House(loads_s=1000.0)

    async def story() -> None:
        await house.enter()
        house.owned.deploy()
        leaving = asyncio.ensure_future(house.leave())
        await house.clock.sleep(10)
        house.stay.hurried.set()
        await leaving

    house.run(story)
    assert house.owned.runs == "original"
    assert house.owned.held() is None
    assert house.remarks[-1].endswith("nobody waits for its answer")


def test_an_original_that_did_not_run_is_not_waited_for() -> None:
    house = House(loads_s=1000.0)
    house.owned.runs = "nothing"

    async def story() -> None:
        await house.enter()
        house.owned.deploy()
        await house.leave()

    house.run(story)
    assert house.owned.runs == "nothing"


def test_a_host_that_fails_while_it_is_restored_can_be_left_later() -> None:
    house = House()

    async def story() -> None:
        await house.enter()
        house.owned.deploy()
        house.owned.reachable = False
        with pytest.raises(TransportFault):
            await house.leave()
        house.owned.reachable = True
        await house.leave()

    house.run(story)
    assert house.owned.runs == "original"


def test_what_differs_afterwards_is_named() -> None:
    house = House()
    house.owned.differs = ("a drop-in is new",)

    async def story() -> None:
        await house.enter()
        with pytest.raises(RestoreFailed, match="a drop-in is new"):
            await house.leave()

    house.run(story)


def test_the_secrets_of_the_host_are_known_once_it_is_entered() -> None:
    house = House()
    house.run(house.enter)
    assert house.stay.secrets == ("s3cret-of-the-unit",)
