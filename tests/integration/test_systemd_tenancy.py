"""Lease, restore and leaving on a host with a real systemd."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from tuner.errors import HostFault, LeaseHeld, LeaseLost, RestoreFailed
from tuner.hosts.systemd import root as root_module
from tuner.hosts.systemd import tenancy as tenancy_module
from tuner.hosts.systemd.deadman import timer_name
from tuner.hosts.systemd.lease import EXPIRES
from tuner.hosts.systemd.paths import drop_in_folder
from tuner.hosts.systemd.root import sudoers_lines
from tuner.hosts.systemd.tenancy import UnitTenancy, lease_folder
from tuner.model.lease import Holder, LeaseTerms
from tuner.testing.production import ORIGINAL, TRIAL, Production
from tuner.testing.rig import OPERATOR, Rig
from tuner.testing.tenancy_suite import LONG, Scenario, TenancySuite, holder


@pytest.fixture
def production(rig: Rig, request: pytest.FixtureRequest) -> Iterator[Production]:
    found = Production(rig, getattr(request, "param", "tenancy-test.service"))
    try:
        yield found
    finally:
        found.remove()


class OnUnit:
    def __init__(self, production: Production) -> None:
        self._production = production

    def tenancy(self, who: Holder, terms: LeaseTerms) -> UnitTenancy:
        return self._production.tenancy(who, terms)

    async def deploy(self) -> None:
        await self._production.deploy()

    async def stop(self) -> None:
        await self._production.sh('systemctl stop "$1"', self._production.unit)

    async def runs(self) -> str:
        argv = await self._production.argv()
        return {ORIGINAL: "original", TRIAL: "trial", (): "nothing"}[argv]

    async def wait_until_runs(self, what: str) -> None:
        async def does() -> bool:
            return await self.runs() == what

        await self._production.until(does)
        await self._production.until(self._production.is_traceless)


class TestUnitTenancy(TenancySuite):
    @pytest.fixture(autouse=True)
    def _on_a_unit(self, production: Production) -> None:
        self._production = production

    def play(self, scenario: Scenario, *, running: bool = True) -> None:
        production = self._production

        async def whole() -> None:
            await production.install(runs=running)
            await scenario(OnUnit(production))
            assert await production.traces() == ""

        production.play(whole)


def test_a_stay_without_a_trial_leaves_the_original_running_untouched(production: Production) -> None:
    async def scenario() -> None:
        await production.install()
        invocation = await production.shows("InvocationID")
        tenancy = production.tenancy()
        entered = await tenancy.enter()
        assert entered.remarks == ()
        await tenancy.renew()
        original = await tenancy.restore()
        assert original.was_running
        assert original.command is not None
        assert original.command.argv == ORIGINAL
        await tenancy.leave()
        assert await production.shows("InvocationID") == invocation
        assert await production.traces() == ""

    production.play(scenario)


def test_after_a_trial_the_original_runs_again_and_no_trace_is_left(production: Production) -> None:
    async def scenario() -> None:
        await production.install()
        tenancy = production.tenancy()
        await tenancy.enter()
        await production.deploy()
        assert await production.argv() == TRIAL
        await tenancy.renew()
        await tenancy.restore()
        assert await production.has_original()
        invocation = await production.shows("InvocationID")
        await tenancy.restore()  # again: nothing to do
        assert await production.shows("InvocationID") == invocation
        await tenancy.leave()
        assert await production.traces() == ""

    production.play(scenario)


@pytest.mark.parametrize("command", [" ".join(TRIAL), "/bin/sh -c 'exit 3'"])
def test_a_unit_that_was_stopped_is_left_stopped(production: Production, command: str) -> None:
    async def scenario() -> None:
        await production.install(runs=False)
        tenancy = production.tenancy()
        await tenancy.enter()
        await production.deploy(command)
        original = await tenancy.restore()
        assert not original.was_running
        await tenancy.leave()
        assert await production.shows("ActiveState") == "inactive"
        assert await production.traces() == ""

    production.play(scenario)


def test_an_original_that_cleaning_stopped_is_started_again(production: Production) -> None:
    async def scenario() -> None:
        await production.install()
        tenancy = production.tenancy()
        await tenancy.enter()
        await production.sh('systemctl stop "$1"', production.unit)
        await tenancy.restore()
        assert await production.has_original()
        await tenancy.leave()

    production.play(scenario)


def test_drop_ins_of_the_owner_stay_and_the_folder_too(production: Production) -> None:
    async def scenario() -> None:
        await production.install()
        mine = f"{drop_in_folder(production.unit)}/50-owner.conf"
        await production.write(mine, "[Service]\nNice=3\n")
        await production.sh("systemctl daemon-reload")
        tenancy = production.tenancy()
        await tenancy.enter()
        await production.deploy()
        await tenancy.restore()
        await tenancy.leave()
        assert await production.shows("DropInPaths") == mine
        assert await production.shows("Nice") == "3"

    production.play(scenario)


def test_a_difference_is_named_and_the_lease_is_given_back(production: Production) -> None:
    async def scenario() -> None:
        await production.install()
        tenancy = production.tenancy()
        await tenancy.enter()
        await production.sh('systemctl enable "$1" && echo "# edited" >>"$2"', production.unit, production.file)
        await production.sh('systemctl daemon-reload; systemctl stop "$1"', production.unit)
        with pytest.raises(RestoreFailed) as failed:
            await tenancy.leave()
        said = str(failed.value)
        assert "enabled (enablement), was disabled" in said
        assert "it does not run, and did before" in said
        assert "the text of its unit files differs" in said
        assert await production.traces() == ""

    production.play(scenario)


def test_leaving_with_a_trial_in_place_is_refused_and_the_dead_man_stays(production: Production) -> None:
    async def scenario() -> None:
        await production.install()
        tenancy = production.tenancy()
        await tenancy.enter()
        await production.deploy()
        with pytest.raises(HostFault, match="restore it first"):
            await tenancy.leave()
        assert timer_name(production.unit) in await production.traces()
        await tenancy.restore()
        await tenancy.leave()

    production.play(scenario)


def test_of_tuners_that_ask_at_the_same_moment_one_gets_the_host(production: Production) -> None:
    async def scenario() -> None:
        await production.install()
        for _ in range(10):
            askers = [production.tenancy(holder(f"study{number}")) for number in range(2)]
            answers = await asyncio.gather(*(asker.enter() for asker in askers), return_exceptions=True)
            refused = [answer for answer in answers if isinstance(answer, LeaseHeld)]
            assert len(refused) == 1, answers
            winner = askers[answers.index(next(answer for answer in answers if answer not in refused))]
            await winner.leave()
        assert await production.traces() == ""

    production.play(scenario)


def test_a_lease_that_has_run_out_is_taken_over_with_its_note_of_the_original(production: Production) -> None:
    async def scenario() -> None:
        await production.install(runs=False)
        gone, next_one = production.tenancy(), production.tenancy(holder("other"))
        await gone.enter()
        await production.sh('systemctl stop "$1"', timer_name(production.unit))  # else the dead-man is first
        await production.deploy()
        await production.sh('echo 1 >"$1"', f"{lease_folder(production.unit)}/{EXPIRES}")
        entered = await next_one.enter()
        assert [remark for remark in entered.remarks if "study mtp" in remark and "had run out" in remark]
        await next_one.restore()
        assert await production.shows("ActiveState") == "inactive"
        await next_one.leave()

    production.play(scenario)


def test_a_lease_whose_maker_died_at_once_is_taken_over(production: Production) -> None:
    async def scenario() -> None:
        await production.install()
        await production.sh('mkdir -p "$1"', lease_folder(production.unit))
        tenancy = production.tenancy()
        assert "without a holder" in (await tenancy.enter()).remarks[0]
        await tenancy.leave()

    production.play(scenario)


def test_a_lease_that_vanished_is_lost_and_can_be_taken_anew(production: Production) -> None:
    async def scenario() -> None:
        await production.install()
        tenancy = production.tenancy()
        await tenancy.enter()
        await production.sh('systemctl stop "$1"; rm -rf "$2"', timer_name(production.unit), "/run/tuner")
        await production.sh('systemctl restart "$1"', production.unit)
        with pytest.raises(LeaseLost, match="the host was rebooted, or has restored itself"):
            await tenancy.renew()
        invocation = await production.shows("InvocationID")
        assert (await tenancy.restore()).was_running
        await tenancy.enter()
        await tenancy.restore()
        assert await production.shows("InvocationID") == invocation
        await tenancy.leave()
        assert await production.traces() == ""

    production.play(scenario)


def test_keys_of_the_units_environment_are_told_and_lie_in_no_file_of_ours(production: Production) -> None:
    async def scenario() -> None:
        await production.write("/etc/tenancy-test.env", 'HF_TOKEN="hf_planted"\nMODE=fast\n')
        await production.install(
            service='Environment="API_KEY=sk planted" "HOME_DIR=/srv"\nEnvironmentFile=/etc/tenancy-test.env'
        )
        tenancy = production.tenancy()
        entered = await tenancy.enter()
        assert set(entered.secrets) == {"sk planted", "hf_planted"}
        assert await production.sh('grep -r planted "$1" || true', "/run/tuner") == ""
        await tenancy.leave()
        await production.sh("rm /etc/tenancy-test.env")

    production.play(scenario)


def test_a_full_disk_is_said_and_nothing_is_left(production: Production) -> None:
    async def scenario() -> None:
        await production.install()
        await production.sh("mkdir -p /run/tuner && mount -t tmpfs -o size=8k tmpfs /run/tuner && mkdir /run/tuner/x")
        await production.sh("head -c 8k /dev/zero >/run/tuner/x/full || true")
        try:
            with pytest.raises(HostFault, match="No space left on device: free space there"):
                await production.tenancy().enter()
            assert await production.traces() == ""
        finally:
            await production.sh("umount /run/tuner")

    production.play(scenario)


def test_a_unit_that_is_not_there_is_named_and_nothing_is_left(production: Production) -> None:
    async def scenario() -> None:
        with pytest.raises(HostFault, match=r"unit tenancy-test\.service cannot be used \(it is not-found\)"):
            await production.tenancy().enter()
        assert await production.traces() == ""

    production.play(scenario)


@pytest.mark.parametrize("production", ["tenancy-test.service", r"tenancy-test@a\x2db:1.service"], indirect=True)
def test_a_user_with_exactly_the_printed_sudoers_lines_can_do_all_of_it(production: Production) -> None:
    async def scenario() -> None:
        await production.install()
        wanted = (*root_module.commands(production.unit), *tenancy_module.commands(production.unit, LONG))
        names = sorted({argv[0] for argv in wanted})
        programs = {name: await production.sh('command -v "$1"', name) for name in names}
        await asyncio.to_thread(production.rig.grant, sudoers_lines(OPERATOR, wanted, programs))
        denied = await production.transport(OPERATOR).run(("sudo", "-n", "id"))
        assert denied.status != 0
        tenancy = production.tenancy(terms=LONG, user=OPERATOR)
        await tenancy.enter()
        await production.deploy()
        await tenancy.renew()
        assert (await tenancy.restore()).was_running
        assert await production.has_original()
        await tenancy.leave()
        assert await production.traces() == ""
        # And taking over, which removes a drop-in and arms anew.
        await production.tenancy(terms=LONG, user=OPERATOR).enter()
        await production.deploy()
        again = production.tenancy(terms=LONG, user=OPERATOR)
        await again.enter()
        await again.restore()
        await again.leave()
        assert await production.traces() == ""

    production.play(scenario)


def test_without_the_sudoers_lines_the_first_command_says_what_to_do(production: Production) -> None:
    async def scenario() -> None:
        await production.install()
        with pytest.raises(HostFault, match="allow the commands that tuner doctor prints"):
            await production.tenancy(user=OPERATOR).enter()
        assert await production.traces() == ""

    production.play(scenario)


def test_after_a_reboot_the_lease_is_lost_and_the_original_is_up(production: Production) -> None:
    async def scenario() -> None:
        await production.install()
        await production.sh('systemctl enable "$1"', production.unit)
        tenancy = production.tenancy()
        await tenancy.enter()
        await production.deploy()
        await asyncio.to_thread(production.rig.reboot)
        with pytest.raises(LeaseLost, match="the host was rebooted"):
            await tenancy.renew()
        assert await production.has_original()
        entered = await tenancy.enter()
        assert entered.remarks == ()
        assert (await tenancy.restore()).was_running
        await tenancy.leave()
        assert await production.traces() == ""

    production.play(scenario)
