"""Study files: what is read, and what is refused and how."""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from tuner.config.host_file import HostEntry
from tuner.config.study_file import SimulatedHosts, StudyFile, _WorkloadTable, parse_study, read_study, study_names
from tuner.errors import StudyFileError
from tuner.model.repeat import RepeatTerms
from tuner.model.workload import Workload

GOOD = """
engine = "sglang"
space = "sglang-mtp"
seed = 7

[server]
command = ["sglang", "serve", "--port", "30000"]
[server.env]
B = "2"
A = "1"

[workload]
output_tokens = 256
ladder = [1, 8]
[workload.simulated]
output_tokens = 64

[budget]
trials = 24

[search]
sampler = "tpe"

[simulated]
profile = "p"
hosts = 2
speed = 200
faults = ["nccl-flake:0.2"]
"""


def parse(content: dict[str, Any]) -> StudyFile:
    return parse_study(content, name="s", shown="studies/s.toml")


def refusal(content: dict[str, Any]) -> str:
    with pytest.raises(StudyFileError) as caught:
        parse(content)
    message = str(caught.value)
    assert "\n" not in message
    assert message.startswith("studies/s.toml: ")
    return message.removeprefix("studies/s.toml: ")


def changed(change: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
    content = tomllib.loads(GOOD)
    change(content)
    return content


def test_a_study_file_becomes_a_value() -> None:
    study = parse(tomllib.loads(GOOD))
    assert (study.engine, study.space, study.seed, study.trials, study.sampler) == (
        "sglang",
        "sglang-mtp",
        7,
        24,
        "tpe",
    )
    assert study.command == ("sglang", "serve", "--port", "30000")
    assert study.env == (("A", "1"), ("B", "2"))
    assert study.workload == Workload(output_tokens=256, ladder=(1, 8))
    assert study.simulated == SimulatedHosts(profile="p", count=2, speed=200.0, faults=("nccl-flake:0.2",))
    assert study.hosts == ()


def test_the_simulated_workload_is_laid_over_the_real_one() -> None:
    assert parse(tomllib.loads(GOOD)).simulated_workload == Workload(output_tokens=64, ladder=(1, 8))


def test_everything_optional_may_be_left_out() -> None:
    minimal = (
        'engine="e"\nspace="s"\n[server]\ncommand=["x"]\n[budget]\ntrials=1\n[[hosts]]\nkind="process"\nname="here"'
    )
    study = parse(tomllib.loads(minimal))
    assert study.workload == study.simulated_workload == Workload()
    assert (study.sampler, study.seed, study.simulated) == ("auto", 0, None)
    assert study.hosts == (HostEntry(name="here"),)


def test_a_study_of_units_needs_no_command() -> None:
    study = parse(changed(lambda c: (c.pop("server"), c.update(hosts=[{"kind": "systemd", "unit": "sglang"}]))))
    assert (study.command, study.env) == (None, ())
    assert study.hosts[0].unit == "sglang.service"


def test_every_field_of_a_workload_can_be_written() -> None:
    assert list(_WorkloadTable.model_fields) == [field.name for field in fields(Workload)]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda c: c.update(sede=3),
            "sede: unknown key; did you mean seed? (allowed here: engine, space, seed, server, ",
        ),
        (lambda c: c.update(trials=3), "trials: unknown key; did you mean budget.trials? (allowed here: "),
        (
            lambda c: c["budget"].update(trails=3),
            "budget.trails: unknown key; did you mean trials? (allowed here: trials, ",
        ),
        (
            lambda c: c["workload"]["simulated"].update(simulated={}),
            "workload.simulated.simulated: unknown key; did you mean workload.simulated? (allowed here: prompts, ",
        ),
        (
            lambda c: c["workload"].update(sokas=3),
            "workload.sokas: unknown key; did you mean soak_s? (allowed here: prompts,",
        ),
        (lambda c: c.pop("engine"), "engine: is missing"),
        (lambda c: c.pop("budget"), "budget: is missing"),
        (lambda c: c["budget"].update(trials="24"), 'budget.trials: is "24", but must be a whole number'),
        (lambda c: c["budget"].update(trials=0), "budget.trials: is 0, but must be at least 1"),
        (lambda c: c.update(budget=24), "budget: is 24, but must be a table"),
        (lambda c: c.update(seed=2**32), "seed: is 4294967296, but must be at most 4294967295"),
        (lambda c: c["simulated"].update(speed=float("inf")), "simulated.speed: is inf, but must be a finite number"),
        (lambda c: c.update(seed=-1), "seed: is -1, but must be at least 0"),
        (lambda c: c["server"].update(command="sglang serve"), 'server.command: is "sglang serve", but must be a list'),
        (lambda c: c["server"].update(command=[]), "server.command: must not be empty"),
        (lambda c: c["server"].update(command=[""]), 'server.command[0]: is "", but must be the program to start'),
        (lambda c: c["server"].update(command=[" "]), 'server.command[0]: is " ", but must be the program to start'),
        (
            lambda c: c["server"].update(command=["sglang serve", "--port", "1"]),
            'server.command[0]: must be the program alone, one word: split it into one text a word, ["sglang", ...]',
        ),
        (lambda c: c["server"].update(command=["a", 8]), "server.command[1]: is 8, but must be a text in quotes"),
        (lambda c: c["server"].update(command=["a", "b\0"]), "server.command[1]: holds a NUL character"),
        (lambda c: c["server"]["env"].update({"A=B": "x"}), 'server.env: "A=B" cannot name an environment variable'),
        (
            lambda c: c["workload"].update(ladder=[]),
            "workload.ladder: is [], but must start with 1, the single-request leg",
        ),
        (
            lambda c: c["workload"].update(ladder=[4, 8]),
            "workload.ladder: is [4, 8], but must start with 1, the single-",
        ),
        (
            lambda c: c["workload"].update(ladder=[1, 8, 8]),
            "workload.ladder: is [1, 8, 8], but must ascend without repeats",
        ),
        (
            lambda c: c["workload"].update(ladder=[1, 8, 4]),
            "workload.ladder: is [1, 8, 4], but must ascend without repeats",
        ),
        (
            lambda c: c["workload"]["simulated"].update(ladder=[2]),
            "workload.simulated.ladder: is [2], but must start with 1, the single-request leg",
        ),
        (
            lambda c: c["workload"].update(level_min_s=99),
            "workload.level_min_s: is 99, but level_max_s is only 60",
        ),
        (
            lambda c: c["workload"]["simulated"].update(level_max_s=2.0),
            "workload.simulated.level_min_s: is 10, but level_max_s is only 2",
        ),
        (lambda c: c["workload"].update(soak_s=-1.0), "workload.soak_s: is -1.0, but must be at least 0"),
        (lambda c: c["workload"].update(interval=0.0), "workload.interval: is 0.0, but must be above 0"),
        (lambda c: c["workload"].update(interval=2.0), "workload.interval: is 2.0, but must be at most 1"),
        (
            lambda c: c["workload"].update(level_max_s=float("nan")),
            "workload.level_max_s: is nan, but must be a finite",
        ),
        (lambda c: c["workload"].update(ignore_eos=1), "workload.ignore_eos: is 1, but must be true or false"),
        (lambda c: c["simulated"].pop("profile"), "simulated.profile: is missing"),
        (lambda c: c["simulated"].update(speed=0), "simulated.speed: is 0, but must be above 0"),
        (lambda c: c["simulated"].update(hosts=0), "simulated.hosts: is 0, but must be at least 1"),
        (lambda c: c.update(hosts=3), "hosts: is 3, but must be a list"),
        (
            lambda c: c.update(hosts={"kind": "ssh", "address": "gpu01"}),
            "hosts: is one table, but must be a list of them: write [[hosts]]",
        ),
        (lambda c: c.update(hosts=[3]), "hosts[0]: is 3, but must be a table"),
        (
            lambda c: (c["budget"].update(trials=0), c.update(hosts=[{"kind": "docker"}])),
            "budget.trials: is 0, but must be at least 1",
        ),
        (
            lambda c: (c["workload"].update(ladder=[2]), c.update(hosts=[{"kind": "docker"}])),
            "workload.ladder: is [2], but must start with 1, the single-request leg; hosts[0].kind: unknown kind",
        ),
        (
            lambda c: (c["budget"].update(trials=0), c["search"].update(sampler=3), c.update(seed="x")),
            'seed: is "x", but must be a whole number; budget.trials: is 0, but must be at least 1; search.sampler: ',
        ),
    ],
)
def test_a_wrong_study_file_is_refused_in_one_line(change: Callable[[dict[str, Any]], object], message: str) -> None:
    found = refusal(changed(change))
    assert found.startswith(message)


def test_a_long_value_is_shortened() -> None:
    found = refusal(changed(lambda c: c["budget"].update(trials="x" * 5000)))
    assert len(found) < 160


def test_a_missing_study_is_named_with_the_studies_there_are(tmp_path: Path) -> None:
    (tmp_path / "studies").mkdir()
    (tmp_path / "studies" / "qwen-mtp.toml").write_text(GOOD)
    assert study_names(tmp_path) == ("qwen-mtp",)
    with pytest.raises(StudyFileError) as caught:
        read_study(tmp_path, "qwen-mpt")
    expected = 'studies/qwen-mpt.toml: unknown study "qwen-mpt"; did you mean "qwen-mtp"? (known: qwen-mtp)'
    assert str(caught.value) == expected


@pytest.mark.parametrize("name", ["../x", "a/b", "/etc/passwd", "..", "Qwen", "qwen mtp", "a..b", "", "x\n"])
def test_a_study_name_cannot_leave_its_folder(tmp_path: Path, name: str) -> None:
    (tmp_path / "studies").mkdir()
    with pytest.raises(StudyFileError, match=r"the study name .* is not allowed") as caught:
        read_study(tmp_path, name)
    assert "\n" not in str(caught.value)


def test_a_folder_without_studies_says_where_to_run(tmp_path: Path) -> None:
    with pytest.raises(StudyFileError, match="has no folder studies/; run in the folder that has it, or name it with"):
        read_study(tmp_path, "qwen-mtp")


def test_a_syntax_error_names_its_line(tmp_path: Path) -> None:
    (tmp_path / "studies").mkdir()
    (tmp_path / "studies" / "s.toml").write_text('engine = "sglang"\nspace = sglang-mtp\n')
    with pytest.raises(StudyFileError, match=r"^studies/s.toml: is not valid TOML: .*line 2"):
        read_study(tmp_path, "s")


def test_a_program_in_a_folder_with_a_space_is_taken() -> None:
    study = parse(changed(lambda c: c["server"].update(command=["/opt/my tools/sglang", "serve"])))
    assert study.command is not None
    assert study.command[0] == "/opt/my tools/sglang"


@pytest.mark.parametrize(
    ("program", "first"),
    [
        ("python -m sglang.launch_server --api-key s3cret", "python"),
        ("/opt/bin/sglang serve", "/opt/bin/sglang"),
        ("python -m models/launch.py", "python"),
        ("sglang\tserve", "sglang"),
    ],
)
def test_a_whole_command_line_is_no_program_and_its_secrets_are_not_shown(program: str, first: str) -> None:
    line = refusal(changed(lambda c: c["server"].update(command=[program])))
    assert line.startswith("server.command[0]: must be the program alone, one word: split it")
    assert line.endswith(f'["{first}", ...]')


def test_every_key_of_the_workload_is_in_the_readme() -> None:
    readme = (Path(__file__).parents[2] / "README.md").read_text()
    assert not {item.name for item in fields(Workload) if f"`{item.name}`" not in readme}


def test_a_study_that_says_nothing_of_it_confirms_its_winners_twice_and_watches_the_baseline() -> None:
    assert parse(changed(lambda _: None)).repeats == RepeatTerms(confirmations=2, baseline_every=8, drift_limit=0.05)


def test_a_study_says_what_it_pays_for_being_sure() -> None:
    given = {"confirmations": 0, "baseline_every": 4, "drift_limit": 0.1, "most_repeats": 6}
    found = parse(changed(lambda c: c["budget"].update(given))).repeats
    assert found == RepeatTerms(confirmations=0, baseline_every=4, drift_limit=0.1, most=6)
    assert (found.limit(24), RepeatTerms().limit(24)) == (6, 24)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("confirmations", -1, "budget.confirmations: is -1, but must be at least 0"),
        ("baseline_every", 1.5, "budget.baseline_every: is 1.5, but must be a whole number"),
        ("drift_limit", 0, "budget.drift_limit: is 0, but must be above 0"),
        ("most_repeats", "all", 'budget.most_repeats: is "all", but must be a whole number'),
    ],
    ids=["confirmations", "baseline_every", "drift_limit", "most_repeats"],
)
def test_a_wrong_price_of_being_sure_is_refused(key: str, value: object, message: str) -> None:
    assert refusal(changed(lambda c: c["budget"].update({key: value}))).startswith(message)
