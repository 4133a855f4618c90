"""The tenancy's contract over the fake, and what a unit's tenancy wants to do as root."""

from __future__ import annotations

import asyncio

import pytest

from tuner.errors import TransportFault
from tuner.hosts.systemd import deadman
from tuner.hosts.systemd.deadman import arm_command, period_s, service_name, timer_name
from tuner.hosts.systemd.root import sudoers_lines
from tuner.hosts.systemd.tenancy import commands, lease_folder
from tuner.model.lease import Holder, LeaseTerms
from tuner.testing.fake_clock import FakeClock
from tuner.testing.fake_tenancy import FakeOwnedHost, FakeTenancy
from tuner.testing.tenancy_suite import LONG, SHORT, Scenario, TenancySuite, holder

UNIT = "sglang-qwen.service"


class OnFake:
    def __init__(self, clock: FakeClock, *, running: bool) -> None:
        self._clock = clock
        self.host = FakeOwnedHost(clock=clock, runs="original" if running else "nothing")

    def tenancy(self, who: Holder, terms: LeaseTerms) -> FakeTenancy:
        return self.host.tenancy(who, terms)

    async def deploy(self) -> None:
        self.host.deploy()

    async def stop(self) -> None:
        self.host.runs = "nothing"

    async def runs(self) -> str:
        self.host.held()
        return self.host.runs

    async def wait_until_runs(self, what: str) -> None:
        await self._clock.sleep(SHORT.lasts_s)
        assert await self.runs() == what


class TestFakeTenancy(TenancySuite):
    def play(self, scenario: Scenario, *, running: bool = True) -> None:
        clock = FakeClock()

        async def whole() -> None:
            await scenario(OnFake(clock, running=running))

        asyncio.run(whole())


def test_a_fake_host_that_does_not_answer_faults() -> None:
    host = FakeOwnedHost(clock=FakeClock(), reachable=False)
    with pytest.raises(TransportFault):
        asyncio.run(host.tenancy(holder(), LONG).enter())
    assert host.calls == ["enter"]


@pytest.mark.parametrize(("lasts_s", "expected"), [(900.0, 60), (180.0, 60), (60.0, 20), (6.0, 2), (1.0, 1)])
def test_the_dead_man_looks_each_minute_or_three_times_in_a_short_lease(lasts_s: float, expected: int) -> None:
    assert period_s(LeaseTerms(lasts_s=lasts_s)) == expected


@pytest.mark.parametrize(
    ("unit", "expected"),
    [
        ("sglang-qwen.service", "tuner-deadman-sglang-qwen"),
        ("vllm@a.service", r"tuner-deadman-vllm\x40a"),
        (r"a\x2db@1.service", r"tuner-deadman-a\x2db\x401"),
        ("odd.timer.service", "tuner-deadman-odd.timer"),
    ],
)
def test_the_dead_mans_units_are_named_after_the_unit(unit: str, expected: str) -> None:
    assert service_name(unit) == f"{expected}.service"
    assert timer_name(unit) == f"{expected}.timer"


def test_long_names_are_cut_and_still_differ() -> None:
    one, other = (timer_name(f"{'x' * 230}{end}.service") for end in "ab")
    assert one != other
    assert len(one) < 255


def test_every_command_that_needs_root_can_stand_in_a_sudoers_file() -> None:
    wanted = commands(UNIT, LONG)
    programs = {argv[0]: f"/usr/bin/{argv[0]}" for argv in wanted}
    lines = sudoers_lines("ops", wanted, programs)
    assert len(lines) == len(set(wanted))
    assert "ops ALL=(root) NOPASSWD: /usr/bin/mkdir -m 0755 /run/tuner/sglang-qwen.service" in lines


def test_what_the_dead_man_runs_is_one_file_with_plain_arguments() -> None:
    argv = arm_command(UNIT, lease_folder(UNIT), LONG)
    assert argv[:4] == (
        "systemd-run",
        "--unit=tuner-deadman-sglang-qwen.service",
        "--on-active=60s",
        "--on-unit-active=60s",
    )
    assert argv[-6:] == (
        "/bin/sh",
        "/run/tuner/sglang-qwen.service/restore.sh",
        UNIT,
        "/run/tuner/sglang-qwen.service",
        "tuner-deadman-sglang-qwen.timer",
        "/run/systemd/system/sglang-qwen.service.d/zzzz-tuner.conf",
    )


def test_the_script_is_read_whole_before_it_does_anything() -> None:
    """It removes the folder that it lies in."""
    assert deadman.SCRIPT.rstrip().endswith('main "$@"\nexit')
