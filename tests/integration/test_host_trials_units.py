"""Trials in the place of units as people write them: keys, templates, overrides, quotes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tuner.hosts.systemd.paths import drop_in_path
from tuner.model.outcome import Measured
from tuner.model.outcome import TrialState as State
from tuner.testing.base_command import sglang_arguments
from tuner.testing.host_trials import PROGRAM, HostTrials, play
from tuner.testing.rig import PORT, UNIT, Rig, sglang_unit
from tuner.testing.unit_on_host import UnitOnHost

KEY = "sk-planted-7f3a9c"
ARGUMENTS = sglang_arguments(PORT, host="0.0.0.0")
TRIAL = {"speculative_num_steps": 2}


@pytest.fixture
def host(rig: Rig) -> UnitOnHost:
    return UnitOnHost(rig)


@pytest.fixture
def instance(rig: Rig) -> Iterator[UnitOnHost]:
    found = UnitOnHost(rig, "sglang@30000.service")
    yield found
    rig.run("systemctl", "kill", "--signal=SIGKILL", found.unit)
    rig.run("systemctl", "stop", found.unit)


class Looks:
    """What a trial's server was seen to be."""

    def __init__(self, host: UnitOnHost) -> None:
        self.host = host
        self.argv: tuple[str, ...] = ()
        self.drop_in = ""

    def look(self) -> None:
        self.argv = self.host.argv()
        self.drop_in = self.host.sh('cat "$1"', drop_in_path(self.host.unit))


def with_steps(arguments: tuple[str, ...], steps: int) -> tuple[str, ...]:
    """Write what a trial changes into the arguments, by hand."""
    changed = list(arguments)
    changed[changed.index("--speculative-num-steps") + 1] = str(steps)
    changed[changed.index("--speculative-num-draft-tokens") + 1] = str(steps + 1)
    return tuple(changed)


def test_a_key_of_an_environment_file_reaches_the_server_and_nothing_else(host: UnitOnHost) -> None:
    host.rig.write("/etc/sglang.env", f"API_KEY={KEY}\n", mode=0o600)
    line = f"{PROGRAM} {' '.join(ARGUMENTS)} --api-key ${{API_KEY}}"
    host.rig.install_unit(text=sglang_unit(command=line, extra="EnvironmentFile=/etc/sglang.env\n"))
    looks = Looks(host)

    async def scenario(trials: HostTrials) -> None:
        result = await trials.run(TRIAL, when={State.READY: looks.look})
        assert isinstance(result.outcome, Measured), result.outcome
        assert looks.argv == ("sglang", *with_steps(ARGUMENTS, 2), "--api-key", KEY)
        assert "${API_KEY}" in looks.drop_in
        assert KEY not in looks.drop_in
        assert KEY not in repr(trials.events)
        assert "api_key" in trials.log  # SGLang prints its settings

    play(host, scenario)


def test_an_instance_of_a_template_is_tuned_alone(instance: UnitOnHost) -> None:
    arguments = " ".join(ARGUMENTS).replace("30000", "%i")
    instance.rig.install_unit("sglang@.service", sglang_unit(command=f"{PROGRAM} {arguments}"), start=False)
    instance.rig.run("systemctl", "start", instance.unit, check=True)
    looks = Looks(instance)

    async def scenario(trials: HostTrials) -> None:
        result = await trials.run(TRIAL, when={State.READY: looks.look})
        assert isinstance(result.outcome, Measured), result.outcome
        assert looks.argv == ("sglang", *with_steps(ARGUMENTS, 2))

    play(instance, scenario)


def test_an_override_of_the_owners_is_what_a_trial_changes_and_stays(host: UnitOnHost) -> None:
    override = f"/etc/systemd/system/{UNIT}.d/override.conf"
    own = (*ARGUMENTS, "--served-model-name", "qwen")
    host.rig.write(override, f"[Service]\nExecStart=\nExecStart={PROGRAM} {' '.join(own)}\n")
    host.rig.install_unit()
    looks = Looks(host)

    async def scenario(trials: HostTrials) -> None:
        result = await trials.run(TRIAL, when={State.READY: looks.look})
        assert isinstance(result.outcome, Measured), result.outcome
        assert looks.argv == ("sglang", *with_steps(own, 2))

    play(host, scenario)
    assert host.shows("DropInPaths") == override
    assert host.argv() == ("sglang", *own)


def test_quotes_backslashes_and_json_reach_the_server_as_the_owner_wrote_them(host: UnitOnHost) -> None:
    written = (
        r"""--chat-template "{\"role\": \"it's %%h\", \"n\": [1, 2]}" --tool-call-parser 'C:\\dir with $$HOME' """
        r"""--reasoning-parser "" --download-dir /models/${UNSET}x;y"""
    )
    meant = (
        *("--chat-template", '{"role": "it\'s %h", "n": [1, 2]}', "--tool-call-parser", "C:\\dir with $HOME"),
        *("--reasoning-parser", "", "--download-dir", "/models/x;y"),
    )
    host.rig.install_unit(text=sglang_unit(command=f"{PROGRAM} {' '.join(ARGUMENTS)} {written}"))
    looks = Looks(host)

    async def scenario(trials: HostTrials) -> None:
        assert trials.base.argv == (PROGRAM, *ARGUMENTS, *meant)
        result = await trials.run(TRIAL, when={State.READY: looks.look})
        assert isinstance(result.outcome, Measured), result.outcome
        assert looks.argv == ("sglang", *with_steps(ARGUMENTS, 2), *meant)

    play(host, scenario)
