"""Trials on a real host on which other people work too: at its journal, its unit, its GPUs."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace

import pytest

from tuner.hosts.systemd.paths import drop_in_path
from tuner.model.outcome import Cause, Faulted, Infeasible, Measured, TrialState
from tuner.model.study import HostCare
from tuner.testing.host_trials import HostTrials, play
from tuner.testing.rig import Rig, sglang_unit
from tuner.testing.unit_on_host import UnitOnHost

GIB = 1024**3


@pytest.fixture
def host(rig: Rig) -> UnitOnHost:
    return UnitOnHost(rig)


@pytest.fixture
def stranger(host: UnitOnHost) -> Iterator[int]:
    """PID of somebody else's process."""
    host.rig.run("systemd-run", "--unit=research", "sleep", "600", check=True)
    pid = int(host.rig.show("MainPID", unit="research.service")["MainPID"])
    yield pid
    assert host.is_there(f"/proc/{pid}"), "somebody else's process was killed"
    host.rig.run("systemctl", "stop", "research.service", check=True)


# ---------------------------------------------------------------------------- the journal


def rotate(host: UnitOnHost) -> None:
    host.rig.run("journalctl", "--rotate", check=True)
    time.sleep(1.2)
    host.rig.run("journalctl", "--vacuum-time=1s", check=True)


def test_a_journal_that_is_rotated_emptied_and_restarted_goes_on(host: UnitOnHost) -> None:
    # The owner's limit would hide all that the server says.
    host.rig.install_unit(text=sglang_unit(extra="LogLevelMax=warning\n"))

    def meddle() -> None:
        rotate(host)
        host.rig.run("systemctl", "restart", "systemd-journald.service", check=True)
        rotate(host)

    async def scenario(trials: HostTrials) -> None:
        trials.workload = replace(trials.workload, level_min_s=3.0, level_max_s=3.0)
        result = await trials.run({"speculative_num_steps": 2}, when={TrialState.WARMING_UP: meddle})
        assert isinstance(result.outcome, Measured), result.outcome
        assert trials.log.count("The server is fired up and ready to roll!") == 1
        assert trials.log.count("SIGTERM received. signum=15") == 1  # our own stop, at the very end

    play(host, scenario)


def test_a_crash_after_the_journal_was_rotated_is_still_explained(host: UnitOnHost) -> None:
    host.rig.install_unit(
        text=sglang_unit(extra="Environment=TUNER_SIM_FAULTS=die-serving:5\nRestart=no\n"), start=False
    )

    async def scenario(trials: HostTrials) -> None:
        trials.workload = replace(trials.workload, level_min_s=15.0, level_max_s=15.0)
        result = await trials.run(when={TrialState.READY: lambda: rotate(host)}, again=True)
        assert isinstance(result.outcome, Infeasible), result.outcome
        assert result.outcome.verdict.cause is Cause.CUDA_FAULT
        assert result.outcome.state is TrialState.MEASURING
        assert result.attempts == 2  # it may have been the host's fault: two clean deaths

    play(host, scenario)


# ---------------------------------------------------------------------------- the unit


@pytest.mark.parametrize("verb", ["restart", "stop"])
@pytest.mark.parametrize("state", [TrialState.LOADING, TrialState.MEASURING], ids=lambda state: state.value)
def test_an_operator_at_the_unit_is_no_crash_and_the_trial_is_run_again(
    host: UnitOnHost, verb: str, state: TrialState
) -> None:
    speed = 25 if state is TrialState.LOADING else 200
    host.rig.install_unit(text=sglang_unit(extra=f"Environment=TUNER_SIM_SPEED={speed}\n"))

    async def scenario(trials: HostTrials) -> None:
        trials.workload = replace(trials.workload, level_min_s=3.0, level_max_s=3.0)
        result = await trials.run(when={state: lambda: host.rig.run("systemctl", verb, host.unit)})
        assert isinstance(result.outcome, Measured), result.outcome
        assert result.attempts == 2
        assert any("operator_stop" in remark for remark in trials.remarks), trials.remarks

    play(host, scenario)


@pytest.mark.parametrize(("verb", "state"), [("stop", TrialState.MEASURING), ("restart", TrialState.LOADING)])
def test_an_operator_at_every_start_is_named_and_no_configuration_is_blamed(
    host: UnitOnHost, verb: str, state: TrialState
) -> None:
    speed = 25 if state is TrialState.LOADING else 200
    host.rig.install_unit(text=sglang_unit(extra=f"Environment=TUNER_SIM_SPEED={speed}\n"))

    async def scenario(trials: HostTrials) -> None:
        trials.workload = replace(trials.workload, level_min_s=3.0, level_max_s=3.0)
        meddle = {state: lambda: host.rig.run("systemctl", verb, host.unit)}
        result = await trials.run(when=meddle, again=True)
        assert isinstance(result.outcome, Faulted), result.outcome
        assert result.outcome.verdict is not None
        assert result.outcome.verdict.cause is Cause.OPERATOR_STOP

    play(host, scenario)


def test_an_operator_who_puts_the_original_back_has_the_host_and_it_is_left_to_him(host: UnitOnHost) -> None:
    host.rig.install_unit()
    host.wait_until_it_answers()
    original = host.argv()

    def take_back() -> None:
        host.sh('rm "$1"; systemctl daemon-reload; systemctl restart "$2"', drop_in_path(host.unit), host.unit)

    async def scenario(trials: HostTrials) -> None:
        trials.workload = replace(trials.workload, level_min_s=5.0, level_max_s=5.0)
        result = await trials.run({"speculative_num_steps": 2}, when={TrialState.MEASURING: take_back})
        assert isinstance(result.outcome, Faulted), result.outcome
        assert "somebody restored" in result.outcome.error
        host.wait_until_it_answers()
        assert host.argv() == original

    play(host, scenario)


# ---------------------------------------------------------------------------- the GPUs


def test_somebody_elses_work_on_the_gpus_voids_the_leg(host: UnitOnHost, stranger: int) -> None:
    host.rig.install_unit()

    async def scenario(trials: HostTrials) -> None:
        trials.workload = replace(trials.workload, level_min_s=5.0, level_max_s=5.0)
        result = await trials.run(when={TrialState.MEASURING: lambda: host.hold_gpu(stranger, 2 * GIB)})
        assert isinstance(result.outcome, Faulted), result.outcome
        assert f"foreign process {stranger} python train.py" in result.outcome.error
        host.hold_gpu(stranger, 0)

    play(host, scenario)


def test_somebody_elses_work_is_waited_for_before_a_trial(host: UnitOnHost, stranger: int) -> None:
    host.rig.install_unit()
    named = f"{stranger} python train.py"

    async def scenario(trials: HostTrials) -> None:
        def end_the_work() -> None:
            while not any(named in remark for remark in trials.remarks):
                time.sleep(0.1)
            time.sleep(1.0)
            host.hold_gpu(stranger, 0)

        host.hold_gpu(stranger, 2 * GIB)
        result = await trials.run(when={TrialState.CLEANING: end_the_work})
        assert isinstance(result.outcome, Measured), result.outcome
        assert result.attempts == 1

    play(host, scenario)


def test_somebody_elses_work_that_does_not_end_is_named_and_left_alone(host: UnitOnHost, stranger: int) -> None:
    host.rig.install_unit()
    before = host.invocations()

    async def scenario(trials: HostTrials) -> None:
        host.hold_gpu(stranger, 2 * GIB)
        result = await trials.run()
        assert isinstance(result.outcome, Faulted), result.outcome
        assert f"{stranger} python train.py" in result.outcome.error
        assert result.attempts == 0
        host.hold_gpu(stranger, 0)

    play(host, scenario, care=HostCare(wait_s=3.0))
    assert len(host.invocations() - before) == 1  # the original's
