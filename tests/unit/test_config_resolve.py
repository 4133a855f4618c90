"""A study file, the search space, the engine and the options of the command line put together."""

from __future__ import annotations

import os
import tomllib
from pathlib import Path
from typing import Any

import pytest

from tuner.config.resolve import Known, Overrides, needs_unit, resolve, resolve_hosts
from tuner.config.study_file import parse_study
from tuner.errors import StudyFileError, UsageError
from tuner.model.space import Assignment
from tuner.model.study import ProcessHostSpec, SimulatedHostSpec, StudySpec
from tuner.model.trial import Command

STUDY = """
engine = "toy"
space = "toy-space"
seed = 7

[server]
command = ["toy", "--width", "4"]

[workload]
output_tokens = 256
[workload.simulated]
output_tokens = 64

[budget]
trials = 24

[simulated]
profile = "small"
hosts = 2
speed = 200
faults = ["nccl-flake:0.2"]
"""
SPACE = 'engine = "toy"\n[parameters.width]\ntype = "int"\nlow = 1\nhigh = 8\n'
HERE = [{"kind": "process", "name": "here"}, {"kind": "process", "name": "there"}]


class Toy:
    """An engine whose one setting is the last word of its command."""

    parameters = frozenset({"width", "depth"})

    def settings_of(self, command: Command) -> Assignment:
        word = command.argv[-1]
        if not word.isdigit():
            raise UsageError(f"--width {word} is not a number")
        return Assignment.of({"width": int(word)})


KNOWN = Known(engines={"toy": Toy(), "other": Toy()}, samplers=("auto", "tpe"), profiles=("small", "large"))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "search_spaces").mkdir()
    (tmp_path / "search_spaces" / "toy-space.toml").write_text(SPACE)
    return tmp_path


def spec_of(root: Path, overrides: Overrides | None = None, **changes: object) -> StudySpec:
    study = parse_study(tomllib.loads(STUDY) | changes, name="s", shown="studies/s.toml")
    return resolve(study, root=root, known=KNOWN, overrides=overrides)


def refusal(root: Path, overrides: Overrides | None = None, **changes: object) -> str:
    with pytest.raises(UsageError) as caught:
        spec_of(root, overrides, **changes)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_without_hosts_a_study_runs_on_the_simulated_ones(root: Path) -> None:
    spec = spec_of(root)
    assert spec.simulated
    assert spec.hosts == tuple(
        SimulatedHostSpec(
            name=f"sim{index}",
            address=f"127.0.0.{index + 1}",
            state_dir=str(root / "studies" / "s" / "hosts" / f"sim{index}"),
            profile="small",
            speed=200.0,
            faults=("nccl-flake:0.2",),
        )
        for index in range(2)
    )
    assert spec.workload.output_tokens == 64
    assert spec.baseline == Assignment.of({"width": 4})
    assert spec.directory == str(root / "studies" / "s")


def test_with_hosts_a_study_runs_on_them_under_the_real_workload(root: Path) -> None:
    spec = spec_of(root, hosts=HERE)
    assert not spec.simulated
    assert spec.workload.output_tokens == 256
    assert spec.hosts[0] == ProcessHostSpec(name="here", state_dir=str(root / "studies" / "s" / "hosts" / "here"))


@pytest.mark.parametrize("speed", [float("nan"), float("inf"), 0.0, -1.0])
def test_a_speed_that_is_no_number_is_refused(root: Path, speed: float) -> None:
    assert refusal(root, Overrides(speed=speed)) == f"--speed: is {speed}, but must be a finite number above 0"


def test_a_seed_that_numpy_does_not_take_is_refused(root: Path) -> None:
    assert refusal(root, Overrides(seed=2**32)).startswith("--seed: is 4294967296, but must be a whole number from 0")
    assert spec_of(root, Overrides(seed=2**32 - 1)).seed == 2**32 - 1


def test_options_replace_what_the_file_says(root: Path) -> None:
    spec = spec_of(root, Overrides(trials=3, sampler="tpe", seed=0, speed=9.0, simulated_hosts=3, host="sim2"))
    assert (spec.trials, spec.sampler, spec.seed) == (3, "tpe", 0)
    (host,) = spec.hosts
    assert isinstance(host, SimulatedHostSpec)
    assert (host.name, host.address, host.speed) == ("sim2", "127.0.0.3", 9.0)


def test_a_relative_root_becomes_absolute(root: Path) -> None:
    relative = Path(os.path.relpath(root))
    assert spec_of(relative).directory == str(root / "studies" / "s")


def test_a_prompt_file_is_found_beside_the_studies(root: Path) -> None:
    (root / "ours.jsonl").write_text("{}\n")
    spec = spec_of(root, workload={"prompts": "ours.jsonl"})
    assert spec.workload.prompts == str(root / "ours.jsonl")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"engine": "tooy"}, 'studies/s.toml: engine: unknown engine "tooy"; did you mean "toy"? (known: other, toy)'),
        (
            {"space": "toy-spaec"},
            'studies/s.toml: space: unknown space "toy-spaec"; did you mean "toy-space"? (known: toy-space)',
        ),
        ({"space": "../x"}, 'studies/s.toml: space: the space name "../x" is not allowed'),
        (
            {"engine": "other"},
            'studies/s.toml: space: space "toy-space" is of engine "toy", the study is of "other"',
        ),
        (
            {"search": {"sampler": "tep"}},
            'studies/s.toml: search.sampler: unknown sampler "tep"; did you mean "tpe"? (known: auto, tpe)',
        ),
        (
            {"simulated": {"profile": "smal"}},
            'studies/s.toml: simulated.profile: unknown profile "smal"; did you mean "small"? (known: large, small)',
        ),
        (
            {"server": {"command": ["toy", "--width", "9"]}},
            "studies/s.toml: server.command: the baseline is outside the space: width=9 is outside 1 to 8; change the",
        ),
        (
            {"server": {"command": ["toy", "--width", "wide"]}},
            "studies/s.toml: server.command: --width wide is not a number",
        ),
        (
            {"workload": {"prompts": "none.jsonl"}},
            'studies/s.toml: workload.prompts: is "none.jsonl": there is no such file under ',
        ),
    ],
)
def test_what_does_not_fit_together_is_refused_in_one_line(
    root: Path, changes: dict[str, object], message: str
) -> None:
    assert refusal(root, **changes).startswith(message)


def test_a_parameter_the_engine_does_not_know_is_refused(root: Path) -> None:
    (root / "search_spaces" / "toy-space.toml").write_text(SPACE.replace("width", "widht"))
    assert refusal(root) == (
        "search_spaces/toy-space.toml: parameters.widht: toy: "
        'unknown parameter "widht"; did you mean "width"? (known: depth, width)'
    )


def test_a_wrong_space_is_named_by_its_own_file(root: Path) -> None:
    (root / "search_spaces" / "toy-space.toml").write_text(SPACE.replace("high = 8", "high = 0"))
    assert refusal(root).startswith("search_spaces/toy-space.toml: parameters.width: the range is inverted")


def test_a_study_without_any_host_says_what_to_add(root: Path) -> None:
    study = tomllib.loads(STUDY)
    del study["simulated"]
    with pytest.raises(StudyFileError, match=r"^studies/s.toml: hosts: is missing: name where to run"):
        resolve(parse_study(study, name="s", shown="studies/s.toml"), root=root, known=KNOWN)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            Overrides(host="user@gpu01"),
            "--host user@gpu01: for a host that is not in studies/s.toml, add --unit NAME, the systemd unit that runs",
        ),
        (
            Overrides(host="sim9"),
            '--host: unknown host "sim9"; did you mean "sim1"? (known: sim0, sim1); for a host that is not in',
        ),
        (Overrides(sampler="gpp"), '--sampler: unknown sampler "gpp" (known: auto, tpe)'),
    ],
)
def test_an_option_that_does_not_fit_is_refused(root: Path, overrides: Overrides, message: str) -> None:
    assert refusal(root, overrides).startswith(message)


@pytest.mark.parametrize(("option", "overrides"), [("--speed", {"speed": 2.0}), ("--hosts", {"simulated_hosts": 2})])
def test_options_of_simulated_hosts_are_refused_for_real_ones(
    root: Path, option: str, overrides: dict[str, Any]
) -> None:
    message = refusal(root, Overrides(**overrides), hosts=HERE)
    assert message == f"{option} is for simulated hosts; studies/s.toml names its own [[hosts]]"


GPU = [{"kind": "ssh", "address": "gpu01", "unit": "toy"}]
BASE = Command(argv=("toy", "--width", "5"))


def unit_spec(root: Path, base: Command | None = BASE, **changes: object) -> StudySpec:
    study = parse_study(tomllib.loads(STUDY) | {"hosts": GPU} | changes, name="s", shown="studies/s.toml")
    return resolve(study, root=root, known=KNOWN, base=base)


def test_a_unit_brings_its_own_base_command_line(root: Path) -> None:
    spec = unit_spec(root)
    assert spec.base == BASE
    assert spec.baseline == Assignment.of({"width": 5})
    assert not spec.simulated
    assert spec.workload.output_tokens == 256


def test_a_study_of_units_needs_no_command_and_its_environment_is_added(root: Path) -> None:
    base = Command(argv=BASE.argv, env=(("A", "unit"), ("C", "unit")))
    spec = unit_spec(root, base, server={"env": {"B": "file", "A": "file"}})
    assert spec.base == Command(argv=BASE.argv, env=(("A", "file"), ("B", "file"), ("C", "unit")))


def test_what_is_wrong_with_the_command_of_a_unit_names_the_unit(root: Path) -> None:
    with pytest.raises(UsageError) as caught:
        unit_spec(root, Command(argv=("toy", "--width", "wide")))
    assert str(caught.value) == "host gpu01, unit toy.service: --width wide is not a number"
    with pytest.raises(UsageError, match=r"^host gpu01, unit toy.service: the baseline is outside the space: width=9"):
        unit_spec(root, Command(argv=("toy", "--width", "9")))


def test_a_unit_that_was_not_read_yet_is_no_study(root: Path) -> None:
    with pytest.raises(UsageError, match=r"^study s: its base command line is the unit's, which has to be read first"):
        unit_spec(root, None)


def test_hosts_are_known_before_the_base_command_line(root: Path) -> None:
    study = parse_study(tomllib.loads(STUDY) | {"hosts": GPU}, name="s", shown="studies/s.toml")
    hosts = resolve_hosts(study, root=root, known=KNOWN)
    assert [host.name for host in hosts] == ["gpu01"]
    assert needs_unit(hosts)
    simulated = parse_study(tomllib.loads(STUDY), name="s", shown="studies/s.toml")
    assert not needs_unit(resolve_hosts(simulated, root=root, known=KNOWN))


def test_what_is_wrong_in_the_file_is_said_before_any_unit_is_read(root: Path) -> None:
    study = parse_study(tomllib.loads(STUDY) | {"hosts": GPU, "engine": "tooy"}, name="s", shown="studies/s.toml")
    with pytest.raises(UsageError, match=r"^studies/s.toml: engine: unknown engine"):
        resolve_hosts(study, root=root, known=KNOWN)


@pytest.mark.parametrize("server", [{}, {"env": {"A": "b"}}])
def test_a_study_without_units_needs_a_command(root: Path, server: dict[str, object]) -> None:
    assert refusal(root, server=server) == (
        "studies/s.toml: server.command: is missing: write the server's command line, "
        "or name the systemd unit that has it ([[hosts]] unit)"
    )


def test_objectives_and_limits_reach_the_study_and_their_levels_are_those_of_the_chosen_workload(root: Path) -> None:
    aims: dict[str, object] = {
        "objectives": [{"metric": "requests_per_s"}, {"metric": "p95(ttft_s)@4"}],
        "constraints": [{"require": "p95(ttft_s)@64 <= 2"}],
    }
    spec = spec_of(root, **aims)
    assert [each.name for each in spec.objectives] == ["requests_per_s", "p95(ttft_s)@4"]
    assert [each.text for each in spec.constraints] == ["p95(ttft_s)@64 <= 2"]
    said = refusal(root, workload={"simulated": {"ladder": [1, 4]}}, **aims)
    assert said.endswith("p95(ttft_s)@64 is of a level that is not measured; choose one of the ladder: 1 4")
