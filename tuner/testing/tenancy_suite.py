"""What every tenancy must do; inherited over the fake and over each real one."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Protocol

import pytest

from tuner.errors import LeaseHeld, LeaseLost, RestoreFailed
from tuner.model.lease import Holder, LeaseTerms
from tuner.ports import Tenancy

SHORT = LeaseTerms(lasts_s=4.0, renew_s=1.0)
LONG = LeaseTerms()


def holder(study: str = "mtp", pid: int = 4711) -> Holder:
    """Return who asks: another study is another folder."""
    return Holder(
        owner="ops@box", study=study, directory=f"/studies/{study}", machine="m1", pid=pid, since_s=1_796_000_000.0
    )


class OwnedHost(Protocol):
    """A host of somebody's, with a server on it that runs or does not."""

    def tenancy(self, who: Holder, terms: LeaseTerms) -> Tenancy:
        """Return one tuner's use of it."""

    async def deploy(self) -> None:
        """Do what a trial does: another server, by a drop-in."""

    async def stop(self) -> None:
        """Stop what runs, as the owner would."""

    async def runs(self) -> str:
        """Say what runs: ``original``, ``trial`` or ``nothing``."""

    async def wait_until_runs(self, what: str) -> None:
        """Wait, as long as the dead-man of a SHORT lease may take and no longer."""


Scenario = Callable[[OwnedHost], Awaitable[None]]


class TenancySuite:
    """Inherit as ``class TestMine(TenancySuite)``."""

    def play(self, scenario: Scenario, *, running: bool = True) -> None:
        """Play a scenario on a fresh host, whose server runs or is stopped."""
        raise NotImplementedError

    def test_a_stay_without_a_trial_changes_nothing(self) -> None:
        """And leaves no difference."""

        async def scenario(host: OwnedHost) -> None:
            tenancy = host.tenancy(holder(), LONG)
            assert (await tenancy.enter()).remarks == ()
            await tenancy.renew()
            assert await host.runs() == "original"
            assert (await tenancy.restore()).was_running
            await tenancy.leave()
            assert await host.runs() == "original"

        self.play(scenario)

    def test_after_a_trial_the_original_runs_again(self) -> None:
        """However often it is asked."""

        async def scenario(host: OwnedHost) -> None:
            tenancy = host.tenancy(holder(), LONG)
            await tenancy.enter()
            await host.deploy()
            original = await tenancy.restore()
            assert original.was_running
            assert original.command is not None
            assert await host.runs() == "original"
            assert await tenancy.restore() == original
            await tenancy.leave()
            assert await host.runs() == "original"

        self.play(scenario)

    def test_what_was_stopped_is_left_stopped(self) -> None:
        """Production was down on purpose."""

        async def scenario(host: OwnedHost) -> None:
            tenancy = host.tenancy(holder(), LONG)
            await tenancy.enter()
            await host.deploy()
            assert not (await tenancy.restore()).was_running
            assert await host.runs() == "nothing"
            await tenancy.leave()

        self.play(scenario, running=False)

    def test_somebody_elses_host_is_refused_by_the_owners_name(self) -> None:
        """Until it is given back."""

        async def scenario(host: OwnedHost) -> None:
            first, second = host.tenancy(holder(), LONG), host.tenancy(holder("other"), LONG)
            await first.enter()
            with pytest.raises(LeaseHeld, match=r"ops@box \(study mtp"):
                await second.enter()
            await first.renew()
            await first.leave()
            await second.enter()
            await second.leave()

        self.play(scenario)

    def test_the_same_study_takes_over_at_once_and_keeps_the_original(self) -> None:
        """The earlier run was killed in mid-trial; its process, if it lives, has lost the host."""

        async def scenario(host: OwnedHost) -> None:
            killed, following = host.tenancy(holder(), LONG), host.tenancy(holder(pid=4712), LONG)
            await killed.enter()
            await host.deploy()
            remarks = (await following.enter()).remarks
            assert [remark for remark in remarks if "process 4711" in remark]
            assert [remark for remark in remarks if "drop-in" in remark]
            with pytest.raises(LeaseLost, match="taken over"):
                await killed.renew()
            with pytest.raises(LeaseLost):
                await killed.restore()
            await killed.leave()
            await following.renew()
            assert (await following.restore()).was_running
            assert await host.runs() == "original"
            await following.leave()

        self.play(scenario)

    def test_a_server_under_two_names_is_one_server(self) -> None:
        """Two workers of one run would take it from each other for ever; a worker that is made anew goes on."""

        async def scenario(host: OwnedHost) -> None:
            first = host.tenancy(replace(holder(), host="gpu01"), LONG)
            await first.enter()
            with pytest.raises(LeaseHeld, match="the same server as that of host gpu01"):
                await host.tenancy(replace(holder(), host="gpu01.lan"), LONG).enter()
            await first.renew()
            anew = host.tenancy(replace(holder(), host="gpu01"), LONG)
            assert (await anew.enter()).remarks != ()
            await anew.leave()

        self.play(scenario)

    def test_entering_again_renews_and_leaves_a_trial_alone(self) -> None:
        """It was ours all the time."""

        async def scenario(host: OwnedHost) -> None:
            tenancy = host.tenancy(holder(), LONG)
            await tenancy.enter()
            await host.deploy()
            assert (await tenancy.enter()).remarks == ()
            assert await host.runs() == "trial"
            await tenancy.restore()
            await tenancy.leave()

        self.play(scenario)

    def test_without_a_sign_of_life_the_host_restores_itself(self) -> None:
        """And can be taken anew."""

        async def scenario(host: OwnedHost) -> None:
            tenancy = host.tenancy(holder(), SHORT)
            await tenancy.enter()
            await host.deploy()
            await host.wait_until_runs("original")
            with pytest.raises(LeaseLost):
                await tenancy.renew()
            assert (await tenancy.restore()).was_running
            await tenancy.enter()
            await tenancy.restore()
            await tenancy.leave()
            assert await host.runs() == "original"

        self.play(scenario)

    def test_a_difference_is_an_error_and_the_lease_is_given_back_all_the_same(self) -> None:
        """Somebody stopped production behind our back."""

        async def scenario(host: OwnedHost) -> None:
            tenancy = host.tenancy(holder(), LONG)
            await tenancy.enter()
            await host.stop()
            with pytest.raises(RestoreFailed, match="does not run, and did before"):
                await tenancy.leave()
            other = host.tenancy(holder("other"), LONG)
            await other.enter()
            await other.leave()

        self.play(scenario)

    def test_without_a_lease_nothing_is_restored(self) -> None:
        """What runs is somebody's."""

        async def scenario(host: OwnedHost) -> None:
            await host.stop()
            assert not (await host.tenancy(holder(), LONG).restore()).was_running
            assert await host.runs() == "nothing"

        self.play(scenario)
