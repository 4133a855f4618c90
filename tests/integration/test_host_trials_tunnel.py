"""Trials on a real host whose server listens on its loopback only, through OpenSSH's own forwarding."""

from __future__ import annotations

import os
import signal
import sys
import time
from dataclasses import replace

import pytest

from tuner.hosts import files
from tuner.hosts.ssh.tunnel import OpenSshTunnel
from tuner.model.outcome import Faulted, Measured, TrialState
from tuner.ports import HostPorts
from tuner.simulator.host import ADDRESS
from tuner.testing.host_trials import HostTrials, play
from tuner.testing.rig import PORT, Rig, sglang_unit
from tuner.testing.unit_on_host import UnitOnHost

ASK = """
import sys, urllib.request
urllib.request.urlopen(f"http://127.0.0.1:{sys.argv[1]}/health", timeout=2)
"""


class Loopback(UnitOnHost):
    """A unit whose server only its own host reaches."""

    def wait_until_it_answers(self) -> None:
        deadline_s = time.monotonic() + 60.0
        while self.rig.run(sys.executable, "-c", ASK, str(PORT)).returncode != 0:
            assert time.monotonic() < deadline_s, self.rig.run("journalctl", "-u", self.unit, "-n", "20").stdout

    def through_tunnel(self, ports: HostPorts) -> HostPorts:
        return replace(ports, route=OpenSshTunnel(self.rig.login()))


def unit(*, extra: str = "") -> str:
    on_loopback = f"Environment={ADDRESS}=127.0.0.1\n{extra}"  # where the simulated server really listens
    return sglang_unit(extra=on_loopback).replace("--host 0.0.0.0", "--host 127.0.0.1")


@pytest.fixture
def host(rig: Rig) -> Loopback:
    return Loopback(rig)


def kill_tunnel() -> None:
    """Kill the ssh of ours that carries the load, as an out-of-memory killer would."""
    pids = [stat.key.pid for stat in files.descendants(os.getpid()) if not stat.is_zombie]
    (pid,) = [pid for pid in pids if "/ssh -F " in files.command_line(pid) and " -L " in files.command_line(pid)]
    os.kill(pid, signal.SIGKILL)


def test_a_server_on_loopback_is_measured_through_a_tunnel_and_answers_through_it_afterwards(host: Loopback) -> None:
    host.rig.install_unit(text=unit())

    async def scenario(trials: HostTrials) -> None:
        result = await trials.run({"speculative_num_steps": 2})
        assert isinstance(result.outcome, Measured), result.outcome
        assert trials.session.ports.route.deaths == 0

    play(host, scenario, change=host.through_tunnel)


def test_a_tunnel_that_dies_in_mid_leg_faults_the_trial_and_the_next_one_is_measured(host: Loopback) -> None:
    host.rig.install_unit(text=unit())

    def kill_in_mid_leg() -> None:
        time.sleep(1.0)
        kill_tunnel()

    async def scenario(trials: HostTrials) -> None:
        short, trials.workload = trials.workload, replace(trials.workload, level_min_s=5.0, level_max_s=5.0)
        result = await trials.run(when={TrialState.MEASURING: kill_in_mid_leg})
        assert isinstance(result.outcome, Faulted), result.outcome
        assert "the tunnel to host" in result.outcome.error
        trials.workload = short
        again = await trials.run()
        assert isinstance(again.outcome, Measured), again.outcome

    play(host, scenario, change=host.through_tunnel)


def test_a_tunnel_that_dies_while_the_server_loads_is_made_anew_and_the_trial_goes_on(host: Loopback) -> None:
    host.rig.install_unit(text=unit(extra="Environment=TUNER_SIM_SPEED=25\n"))

    async def scenario(trials: HostTrials) -> None:
        result = await trials.run({"speculative_num_steps": 2}, when={TrialState.LOADING: kill_tunnel})
        assert isinstance(result.outcome, Measured), result.outcome
        assert trials.session.ports.route.deaths == 1

    play(host, scenario, change=host.through_tunnel)
