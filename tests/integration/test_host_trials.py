"""Single trials on a real host with systemd and sshd: good ones, crashes, servers that do not stop."""

from __future__ import annotations

import sys
from dataclasses import replace

import pytest

from tuner.hosts.clock import SystemClock
from tuner.hosts.systemd.dropin import ServiceTerms
from tuner.hosts.systemd.root import Root
from tuner.hosts.systemd.service import SystemdServiceManager
from tuner.model.outcome import Cause, Infeasible, Measured, MemoryDirection, TrialState
from tuner.testing.host_trials import PROGRAM, HostTrials, play
from tuner.testing.rig import HOME, UNIT, Rig, sglang_unit
from tuner.testing.unit_on_host import UnitOnHost

STUBBORN = f"""#!{sys.executable}
import os, signal, sys
# A blocked signal stays blocked in whatever is executed, and in its children.
signal.pthread_sigmask(signal.SIG_BLOCK, {{signal.SIGTERM}})
os.execv({PROGRAM!r}, [{PROGRAM!r}, *sys.argv[1:]])
"""


@pytest.fixture
def host(rig: Rig) -> UnitOnHost:
    return UnitOnHost(rig)


def test_a_trial_takes_the_place_of_a_running_unit_which_runs_again_afterwards(host: UnitOnHost) -> None:
    host.rig.install_unit()
    before = host.invocations()

    async def scenario(trials: HostTrials) -> None:
        result = await trials.run({"speculative_num_steps": 2})
        assert isinstance(result.outcome, Measured), result.outcome
        assert "speculative_num_steps=2" in trials.log or "'speculative_num_steps': 2" in trials.log

    play(host, scenario)
    assert len(host.invocations() - before) == 2  # the trial's and the original's


def test_a_unit_that_was_stopped_is_left_stopped(host: UnitOnHost) -> None:
    host.rig.install_unit(start=False)
    before = host.invocations()

    async def scenario(trials: HostTrials) -> None:
        result = await trials.run()
        assert isinstance(result.outcome, Measured), result.outcome

    play(host, scenario)
    assert host.shows("ActiveState") == "inactive"
    assert len(host.invocations() - before) == 1


def test_rejected_arguments_are_infeasible_at_once_although_the_unit_restarts_always(host: UnitOnHost) -> None:
    host.rig.install_unit()
    before = host.invocations()

    async def scenario(trials: HostTrials) -> None:
        result = await trials.run(more=("--no-such-flag",))
        assert isinstance(result.outcome, Infeasible), result.outcome
        assert result.outcome.verdict.cause is Cause.REJECTED_ARGUMENTS
        assert result.outcome.violation == 4.0
        assert result.attempts == 1

    play(host, scenario)
    assert len(host.invocations() - before) == 2  # it was not started again: one trial, one original


@pytest.mark.parametrize(
    ("steps", "fraction", "cause", "direction"),
    [
        (3, 0.95, Cause.OOM_GRAPH_CAPTURE, MemoryDirection.FRACTION_TOO_HIGH),
        (10, 0.9, Cause.OOM_VERIFY_WORKSPACE, MemoryDirection.TOO_MANY_DRAFT_TOKENS),
    ],
    ids=["while loading", "while serving"],
)
def test_a_server_that_runs_out_of_memory_is_infeasible_with_its_cause(
    host: UnitOnHost, steps: int, fraction: float, cause: Cause, direction: MemoryDirection
) -> None:
    host.rig.install_unit()
    before = host.invocations()

    async def scenario(trials: HostTrials) -> None:
        trials.workload = replace(trials.workload, ladder=(1, 16), warmup_requests=4)
        result = await trials.run({"speculative_num_steps": steps, "mem_fraction_static": fraction})
        assert isinstance(result.outcome, Infeasible), result.outcome
        assert result.outcome.verdict.cause is cause
        assert result.outcome.verdict.direction is direction
        assert result.outcome.verdict.evidence
        assert result.attempts == 1

    play(host, scenario)
    assert len(host.invocations() - before) == 2


def test_a_restart_loop_is_a_crash_and_is_seen_at_its_first_turn(host: UnitOnHost) -> None:
    host.rig.install_unit(text=sglang_unit(extra="RestartSec=100ms\nEnvironment=TUNER_SIM_FAULTS=\n"))

    async def scenario(trials: HostTrials) -> None:
        transport = trials.transport
        trials.session.ports = replace(
            trials.session.ports,
            service=SystemdServiceManager(
                transport, Root(transport, sudo=False), UNIT, SystemClock(), ServiceTerms(restart="always")
            ),
        )
        trials.base = replace(trials.base, env=(("TUNER_SIM_FAULTS", "exit-at:pool"),))
        result = await trials.run()
        assert isinstance(result.outcome, Infeasible), result.outcome
        # Its later lives may say of what they died: the memory of the one before, or its ranks' noise.
        assert result.outcome.verdict.config_fault is None
        assert result.outcome.state is TrialState.LOADING
        assert result.attempts == 2  # no cause that names the configuration: it was tried once more

    play(host, scenario)


# The owner's server is given that time to end, a trial's the three seconds below.
@pytest.mark.parametrize("owners_timeout_s", [2, 20])
def test_a_server_that_ignores_sigterm_is_killed_and_that_is_no_crash(host: UnitOnHost, owners_timeout_s: int) -> None:
    host.rig.write(f"{HOME}/bin/stubborn", STUBBORN, mode=0o755)
    text = sglang_unit(extra=f"TimeoutStopSec={owners_timeout_s}\n").replace(PROGRAM, f"{HOME}/bin/stubborn")
    host.rig.install_unit(text=text)
    before = host.invocations()

    async def scenario(trials: HostTrials) -> None:
        result = await trials.run({"speculative_num_steps": 2})
        assert isinstance(result.outcome, Measured), result.outcome
        assert result.attempts == 1

    play(host, scenario, change=lambda ports: replace(ports, stop_grace_s=3.0))
    assert len(host.invocations() - before) == 2
