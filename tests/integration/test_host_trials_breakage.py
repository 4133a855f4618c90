"""Trials on a real host that breaks meanwhile: its sshd, its network, all of it. Never the configuration's fault."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable
from dataclasses import replace

import pytest

from tuner.hosts.systemd.holding import HOLDER
from tuner.hosts.systemd.paths import drop_in_path
from tuner.hosts.systemd.tenancy import lease_folder
from tuner.model.outcome import Faulted, Measured, TrialState
from tuner.testing.host_trials import HostTrials, play
from tuner.testing.rig import Rig, sglang_unit
from tuner.testing.unit_on_host import UnitOnHost

SLOW_TO_LOAD = "Environment=TUNER_SIM_SPEED=25\n"
"""Loads in 6 s."""


@pytest.fixture
def host(rig: Rig) -> UnitOnHost:
    return UnitOnHost(rig)


@pytest.mark.parametrize(
    "state",
    [
        TrialState.CLEANING,
        TrialState.DEPLOYING,
        TrialState.LOADING,
        TrialState.READY,
        TrialState.WARMING_UP,
        TrialState.MEASURING,
        TrialState.SOAKING,
    ],
    ids=lambda state: state.value,
)
def test_an_sshd_that_is_killed_and_comes_back_blames_no_configuration(host: UnitOnHost, state: TrialState) -> None:
    host.rig.install_unit(text=sglang_unit(extra=SLOW_TO_LOAD if state is TrialState.LOADING else ""))
    before = host.invocations()

    def restart_sshd() -> None:
        host.rig.stop_sshd()
        time.sleep(2.5)
        host.rig.start_sshd()

    async def scenario(trials: HostTrials) -> None:
        result = await trials.run({"speculative_num_steps": 2}, when={state: restart_sshd})
        assert isinstance(result.outcome, Measured | Faulted), result.outcome
        started = len(host.invocations() - before)
        assert started == result.attempts or (isinstance(result.outcome, Faulted) and started < result.attempts)

    play(host, scenario)


def test_a_cable_that_is_pulled_while_measuring_voids_the_leg(host: UnitOnHost) -> None:
    host.rig.install_unit()

    def pull_the_cable() -> None:
        host.rig.pull_cable()
        time.sleep(30)
        host.rig.plug_cable()

    async def scenario(trials: HostTrials) -> None:
        trials.workload = replace(trials.workload, level_min_s=5.0, level_max_s=5.0)
        result = await trials.run(when={TrialState.MEASURING: pull_the_cable})
        assert isinstance(result.outcome, Faulted), result.outcome
        assert "could not be reached for" in result.outcome.error

    play(host, scenario)


def orderly(rig: Rig) -> None:
    rig.reboot()


def power_cut(rig: Rig) -> None:
    os.kill(rig._leader, signal.SIGKILL)
    assert rig._nspawn is not None
    rig._nspawn.wait(20)
    rig.reboot()


@pytest.mark.parametrize("reboot", [orderly, power_cut])
def test_a_host_that_is_rebooted_is_production_again_and_can_be_entered_anew(
    host: UnitOnHost, reboot: Callable[[Rig], None]
) -> None:
    host.rig.install_unit()
    host.rig.run("systemctl", "enable", host.unit, check=True)
    host.wait_until_it_answers()
    original = host.argv()

    async def scenario(trials: HostTrials) -> None:
        short, trials.workload = trials.workload, replace(trials.workload, level_min_s=60.0, level_max_s=60.0)
        result = await trials.run({"speculative_num_steps": 2}, when={TrialState.MEASURING: lambda: reboot(host.rig)})
        if isinstance(result.outcome, Measured):
            # An orderly shutdown stops the server first; seen before the connection goes, that is somebody's
            # stop, after which the trial starts once more: on the booted host, taken like any other.
            assert reboot is orderly
            assert result.attempts > 1
            assert host.is_there(f"{lease_folder(host.unit)}/{HOLDER}")
            return
        assert isinstance(result.outcome, Faulted), result.outcome
        assert not host.is_there(drop_in_path(host.unit))
        host.wait_until_it_answers()
        assert host.argv() == original
        left_alone = host.shows("InvocationID")
        await asyncio.sleep(2.0)
        assert host.shows("InvocationID") == left_alone
        trials.workload = short
        again = await trials.run({"speculative_num_steps": 2})
        assert isinstance(again.outcome, Measured), again.outcome

    play(host, scenario)
