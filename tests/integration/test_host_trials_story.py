"""The story that started the project, on a real host with systemd: ten steps, and whose fault it was.

Good throughput first, death under load, a restart loop in memory that the dead still held, a stop that was
ignored and ended in SIGKILL, memory left over for whoever came next. All of it happens here at once, and in the
end ten steps are infeasible under load, the host is clean, and the next configuration is measured.
"""

from __future__ import annotations

import sys
from dataclasses import replace

import pytest

from tuner.hosts.clock import SystemClock
from tuner.hosts.systemd.dropin import ServiceTerms
from tuner.hosts.systemd.root import Root
from tuner.hosts.systemd.service import SystemdServiceManager
from tuner.model.outcome import Cause, Infeasible, Measured, TrialState, violation
from tuner.testing.host_trials import PROGRAM, HostTrials, play
from tuner.testing.rig import HOME, UNIT, Rig, sglang_unit
from tuner.testing.unit_on_host import UnitOnHost

LEVELS = (1, 4, 16)
LINGER_S = 6.0
"""How long a killed server's memory stays taken: the next start comes a tenth of a second later."""

STUBBORN = f"""#!{sys.executable}
import os, signal, sys
# A blocked signal stays blocked in whatever is executed, and in its children.
signal.pthread_sigmask(signal.SIG_BLOCK, {{signal.SIGTERM}})
os.execv({PROGRAM!r}, [{PROGRAM!r}, *sys.argv[1:]])
"""


@pytest.fixture
def host(rig: Rig) -> UnitOnHost:
    return UnitOnHost(rig)


def restarting(trials: HostTrials) -> None:
    """Let systemd start a dead server again at once, as the owner's unit says."""
    transport = trials.transport
    service = SystemdServiceManager(
        transport, Root(transport, sudo=False), UNIT, SystemClock(), ServiceTerms(restart="always")
    )
    trials.session.ports = replace(trials.session.ports, service=service)


def test_ten_steps_are_infeasible_under_load_the_host_is_clean_and_the_next_trial_runs(host: UnitOnHost) -> None:
    host.rig.write(f"{HOME}/bin/stubborn", STUBBORN, mode=0o755)
    unit = sglang_unit(extra="RestartSec=100ms\n").replace(PROGRAM, f"{HOME}/bin/stubborn")
    host.rig.install_unit(text=unit)
    before = host.invocations()

    async def story(trials: HostTrials) -> None:
        restarting(trials)
        trials.workload = replace(trials.workload, ladder=LEVELS, warmup_requests=4)
        trials.base = replace(trials.base, env=(("TUNER_SIM_FAULTS", f"linger:{LINGER_S:g}"),))

        result = await trials.run({"speculative_num_steps": 10})
        outcome = result.outcome
        assert isinstance(outcome, Infeasible), outcome
        assert dict(result.assignment)["speculative_num_steps"] == 10
        assert (outcome.verdict.cause, outcome.verdict.config_fault) == (Cause.OOM_VERIFY_WORKSPACE, True)
        assert (outcome.state, outcome.level, result.attempts) == (TrialState.MEASURING, 16, 1)
        above, below = (violation(TrialState.MEASURING, level_index=index, levels=3, missing=1.0) for index in (2, 1))
        assert 1.0 < outcome.violation <= above < below
        lone, few = result.legs
        assert (lone.concurrency, few.concurrency) == (1, 4)
        assert lone.single_request_throughput is not None
        assert lone.single_request_throughput.value > 120.0, "it was good before it was loaded"
        assert trials.log.count("The server is fired up and ready to roll!") == 1
        starts_of_ten = len(host.invocations() - before)
        assert starts_of_ten >= 2, "systemd started it again"

        after = await trials.run({"speculative_num_steps": 2})
        assert isinstance(after.outcome, Measured), after.outcome
        assert after.attempts == 1
        assert any("GiB in use" in remark for remark in trials.remarks), "the dead one's memory was waited for"
        assert len(host.invocations() - before) == starts_of_ten + 1

    play(host, story, change=lambda ports: replace(ports, stop_grace_s=3.0))
    killed = host.rig.run("journalctl", "-q", "-u", host.unit).stdout
    assert "Killing process" in killed, "it ended by SIGKILL only"
