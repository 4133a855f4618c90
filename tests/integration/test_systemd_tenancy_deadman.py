"""A host whose tuner is gone restores itself, on a real systemd."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator

import pytest

from tuner.errors import LeaseLost
from tuner.hosts.systemd.deadman import service_name, timer_name
from tuner.hosts.systemd.paths import drop_in_folder
from tuner.hosts.systemd.tenancy import lease_folder
from tuner.model.lease import LeaseTerms
from tuner.testing.production import STUBBORN, TRIAL, Production
from tuner.testing.rig import Rig
from tuner.testing.tenancy_suite import holder

SIX_SECONDS = LeaseTerms(lasts_s=6.0, renew_s=1.0)
THREE_SECONDS = LeaseTerms(lasts_s=3.0, renew_s=0.5)


@pytest.fixture
def production(rig: Rig, request: pytest.FixtureRequest) -> Iterator[Production]:
    found = Production(rig, getattr(request, "param", "deadman-test.service"))
    try:
        yield found
    finally:
        found.remove()


@pytest.mark.parametrize("production", ["deadman-test.service", r"deadman-test@a\x2db:1.service"], indirect=True)
def test_a_host_whose_tuner_is_gone_restores_itself_and_keeps_no_trace(production: Production) -> None:
    async def scenario() -> None:
        await production.install()
        tenancy = production.tenancy(terms=SIX_SECONDS)
        began_s = time.monotonic()
        await tenancy.enter()
        entered_s = time.monotonic()
        await production.deploy()
        await production.until(production.has_original)
        now_s = time.monotonic()
        # The host counts whole seconds and looks every two; it and this machine may be busy.
        assert now_s - began_s > SIX_SECONDS.lasts_s - 1.0
        assert now_s - entered_s < SIX_SECONDS.lasts_s + 8.0
        await production.until(production.is_traceless)
        with pytest.raises(LeaseLost, match="has restored itself"):
            await tenancy.renew()
        invocation = await production.shows("InvocationID")
        assert (await tenancy.restore()).was_running
        await tenancy.leave()
        assert await production.shows("InvocationID") == invocation

    production.play(scenario)


def test_while_the_lease_is_renewed_the_trial_runs_on(production: Production) -> None:
    async def scenario() -> None:
        await production.install()
        tenancy = production.tenancy(terms=SIX_SECONDS)
        await tenancy.enter()
        await production.deploy()
        began_s = time.monotonic()
        while time.monotonic() - began_s < 1.5 * SIX_SECONDS.lasts_s:
            await asyncio.sleep(0.5)
            await tenancy.renew()
            assert await production.argv() == TRIAL
        await tenancy.restore()
        await tenancy.leave()

    production.play(scenario)


def test_a_trials_server_that_ignores_sigterm_dies_within_the_units_own_time(production: Production) -> None:
    async def scenario() -> None:
        await production.install(service="TimeoutStopSec=2")
        await production.tenancy(terms=THREE_SECONDS).enter()
        await production.deploy(STUBBORN)
        await production.until(production.has_original)
        await production.until(production.is_traceless)

    production.play(scenario)


@pytest.mark.parametrize("command", [" ".join(TRIAL), STUBBORN])
def test_a_unit_that_was_stopped_is_stopped_again(production: Production, command: str) -> None:
    async def scenario() -> None:
        await production.install(runs=False, service="TimeoutStopSec=2")
        await production.tenancy(terms=THREE_SECONDS).enter()
        await production.deploy(command)
        await production.until(production.is_traceless)
        assert await production.shows("ActiveState") == "inactive"
        assert await production.argv() == ()

    production.play(scenario)


def test_an_original_that_was_never_touched_runs_on(production: Production) -> None:
    async def scenario() -> None:
        await production.install()
        invocation = await production.shows("InvocationID")
        await production.tenancy(terms=THREE_SECONDS).enter()
        await production.until(production.is_traceless)
        assert await production.shows("InvocationID") == invocation

    production.play(scenario)


def test_a_crash_loop_of_the_trial_is_ended(production: Production) -> None:
    async def scenario() -> None:
        await production.install(service="Restart=always\nRestartSec=100ms")
        await production.tenancy(terms=THREE_SECONDS).enter()
        drop_in = f"{drop_in_folder(production.unit)}/zzzz-tuner.conf"
        text = "[Unit]\nStartLimitIntervalSec=0\n[Service]\nExecStart=\nExecStart=/bin/false\n"
        await production.write(drop_in, text)
        await production.sh('systemctl daemon-reload; systemctl restart --no-block "$1"', production.unit)
        await production.until(production.has_original)
        await production.until(production.is_traceless)

    production.play(scenario)


def test_a_folder_of_drop_ins_that_was_there_stays(production: Production) -> None:
    async def scenario() -> None:
        await production.install()
        await production.sh('mkdir -p "$1"', drop_in_folder(production.unit))
        await production.tenancy(terms=THREE_SECONDS).enter()
        await production.deploy()
        await production.until(production.has_original)
        assert await production.sh('ls -A "$1"', drop_in_folder(production.unit)) == ""
        await production.sh('rmdir "$1"', drop_in_folder(production.unit))
        await production.until(production.is_traceless)

    production.play(scenario)


def test_a_dead_man_that_somebody_stopped_is_armed_again_by_the_next_renewal(production: Production) -> None:
    async def scenario() -> None:
        await production.install()
        tenancy = production.tenancy()
        await tenancy.enter()
        await production.sh('systemctl stop "$1"', timer_name(production.unit))
        await tenancy.renew()
        assert await production.sh('systemctl is-active "$1"', timer_name(production.unit)) == "active"
        await tenancy.leave()

    production.play(scenario)


@pytest.mark.parametrize("production", ["quiet-deadman-test.service"], indirect=True)
def test_its_looks_are_not_told_in_the_journal(production: Production) -> None:
    async def scenario() -> None:
        await production.install()
        tenancy = production.tenancy(terms=LeaseTerms(lasts_s=5.0))  # a look a second
        await tenancy.enter()
        for _ in range(20):  # more looks than systemd allows starts in ten seconds
            await asyncio.sleep(0.5)
            await tenancy.renew()
        await tenancy.leave()
        told = await production.sh('journalctl -q -u "$1"', service_name(production.unit))
        assert "Started" not in told
        assert "Deactivated" not in told

    production.play(scenario)


def test_a_host_that_is_restoring_itself_can_be_taken_and_keeps_its_original(production: Production) -> None:
    """The dead-man waits for a server that does not want to stop when the next tuner comes."""

    async def scenario() -> None:
        await production.install(runs=False, service="TimeoutStopSec=4")
        await production.tenancy(terms=THREE_SECONDS).enter()
        await production.deploy(STUBBORN)
        await production.until(lambda: _holds(production, "! [ -e $1/holder.json ]"))
        assert await production.shows("ActiveState") in {"active", "deactivating"}
        following = production.tenancy(holder("other"))
        entered = await following.enter()
        assert [remark for remark in entered.remarks if "without a holder" in remark]
        original = await following.restore()
        assert not original.was_running
        await following.leave()
        assert await production.shows("ActiveState") == "inactive"
        assert await production.traces() == ""

    production.play(scenario)


async def _holds(production: Production, test: str) -> bool:
    done = await asyncio.to_thread(production.rig.run, "sh", "-c", test, "test", lease_folder(production.unit))
    return done.returncode == 0
