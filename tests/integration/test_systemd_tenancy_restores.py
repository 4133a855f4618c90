"""An original is started once, whoever was killed while it was put back, on a real systemd."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tuner.hosts.systemd.deadman import STALE_FILE, timer_name
from tuner.hosts.systemd.paths import drop_in_path
from tuner.hosts.systemd.snapshot import read_before
from tuner.hosts.systemd.tenancy import lease_folder
from tuner.model.lease import LeaseTerms
from tuner.testing.production import STUBBORN, Production
from tuner.testing.rig import Rig
from tuner.testing.tenancy_suite import holder

SIX_SECONDS = LeaseTerms(lasts_s=6.0, renew_s=1.0)


@pytest.fixture
def production(rig: Rig) -> Iterator[Production]:
    found = Production(rig, "restores-test.service")
    try:
        yield found
    finally:
        found.remove()


async def put_back_and_die(production: Production, *, restart: bool = True) -> None:
    """Do what a restore does, up to its note that the original was started."""
    script = """
    systemctl show -p InvocationID --value "$1" >"$2"
    rm "$3"
    systemctl daemon-reload"""
    stale = f"{lease_folder(production.unit)}/{STALE_FILE}"
    await production.sh(script, production.unit, stale, drop_in_path(production.unit))
    if restart:
        await production.sh('systemctl restart "$1"', production.unit)


async def armed_since(production: Production) -> str:
    return await production.sh(
        'systemctl show -p ActiveEnterTimestampMonotonic --value "$1"', timer_name(production.unit)
    )


def test_the_dead_man_leaves_an_original_that_a_killed_restore_has_started(production: Production) -> None:
    async def scenario() -> None:
        await production.install()
        await production.tenancy(terms=SIX_SECONDS).enter()
        await production.deploy()
        await put_back_and_die(production)
        invocation = await production.shows("InvocationID")
        await production.until(production.is_traceless, timeout_s=30.0)
        assert await production.shows("InvocationID") == invocation

    production.play(scenario)


def test_the_dead_man_replaces_a_trials_server_whose_drop_in_a_killed_restore_has_removed(
    production: Production,
) -> None:
    async def scenario() -> None:
        await production.install()
        await production.tenancy(terms=SIX_SECONDS).enter()
        await production.deploy()
        await put_back_and_die(production, restart=False)
        assert not await production.has_original()
        await production.until(production.is_traceless, timeout_s=30.0)
        assert await production.has_original()

    production.play(scenario)


@pytest.mark.parametrize("restart", [True, False])
def test_the_next_run_starts_the_original_once_and_the_dead_man_stays_armed(
    production: Production, *, restart: bool
) -> None:
    async def scenario() -> None:
        await production.install()
        await production.tenancy().enter()
        since = await armed_since(production)
        await production.deploy()
        await put_back_and_die(production, restart=restart)
        invocation = await production.shows("InvocationID")
        following = production.tenancy(holder(pid=4712))
        await following.enter()
        assert await armed_since(production) == since
        assert (await following.restore()).was_running
        assert await production.has_original()
        assert (await production.shows("InvocationID") == invocation) is restart
        await following.leave()
        assert await production.traces() == ""

    production.play(scenario)


def test_another_period_arms_the_dead_man_anew(production: Production) -> None:
    async def scenario() -> None:
        await production.install()
        await production.tenancy().enter()
        since = await armed_since(production)
        following = production.tenancy(holder(pid=4712), LeaseTerms(lasts_s=60.0))
        await following.enter()
        assert await armed_since(production) != since
        await following.leave()

    production.play(scenario)


def test_a_unit_that_is_being_restarted_is_noted_as_running(production: Production) -> None:
    """A dead-man's restart waits for the trial's server to die; the note of the trial before is gone by then."""

    async def scenario() -> None:
        await production.install(service="TimeoutStopSec=5")
        await production.deploy(STUBBORN)
        await production.sh('rm "$1" && systemctl daemon-reload', drop_in_path(production.unit))
        await production.sh('systemctl restart --no-block "$1"', production.unit)
        assert await production.shows("ActiveState") == "deactivating"
        tenancy = production.tenancy()
        await tenancy.enter()
        note = read_before(await production.sh('cat "$1"', f"{lease_folder(production.unit)}/before"))
        assert note is not None
        assert (note.is_running, note.invocation_id) == (True, "")
        assert (await tenancy.restore()).was_running
        assert await production.has_original()
        await tenancy.leave()

    production.play(scenario)


def test_an_original_that_had_not_come_back_when_it_was_taken_again_is_started(production: Production) -> None:
    async def scenario() -> None:
        await production.install()
        tenancy = production.tenancy()
        await tenancy.enter()
        await production.sh(
            'systemctl stop "$1"; rm -rf "$2"; systemctl stop "$3"',
            timer_name(production.unit),
            "/run/tuner",
            production.unit,
        )
        entered = await tenancy.enter()
        assert [remark for remark in entered.remarks if "it does not run now" in remark]
        assert (await tenancy.restore()).was_running
        assert await production.has_original()
        await tenancy.leave()

    production.play(scenario)
