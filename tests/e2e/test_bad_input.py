"""Every wrong file or option: one line that names the place and the remedy, nothing written."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tuner.testing.project import Project, tree

SSH = 'kind = "ssh"\naddress = "user@gpu01"\nunit = "sglang"'


def in_study(old: str, new: str) -> Callable[[Project], None]:
    return lambda project: replace(project.root / "studies" / "tiny.toml", old, new)


def in_space(old: str, new: str) -> Callable[[Project], None]:
    return lambda project: replace(project.root / "search_spaces" / "sglang-mtp.toml", old, new)


def on_hosts(table: str) -> Callable[[Project], None]:
    return in_study("[simulated]", f"[[hosts]]\n{table}\n[simulated]")


def replace(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


@pytest.mark.parametrize(
    ("spoil", "place", "remedy"),
    [
        (in_study('"--port", "', '"--port", "9'), "studies/tiny.toml: server.command", "must be from 1 to 65535"),
        (in_study('"sglang", "serve"', '"sglang serve"'), "studies/tiny.toml: server.command[0]", "split it into"),
        (in_study("trials =", "trails ="), "studies/tiny.toml: budget.trails", "did you mean trials?"),
        (in_study("trials = 3", 'trials = "3"'), "studies/tiny.toml: budget.trials", "must be a whole number"),
        (in_study("seed = 3", "seed = 4294967296"), "studies/tiny.toml: seed", "must be at most 4294967295"),
        (
            in_study("faults = []", 'faults = ["nccl-flak:0.5"]'),
            "studies/tiny.toml: simulated.faults",
            "did you mean nccl-flake",
        ),
        (in_study("seed = 3", "seed = -3"), "studies/tiny.toml: seed", "must be at least 0"),
        (in_study("soak_s = 0.5", "soak_s = -0.5"), "studies/tiny.toml: workload.soak_s", "must be at least 0"),
        (in_study("ladder = [1, 8]", "ladder = [8, 1]"), "studies/tiny.toml: workload.ladder", "must start with 1"),
        (in_study("ladder = [1, 8]", "ladder = [1, 8, 4]"), "studies/tiny.toml: workload.ladder", "must ascend"),
        (in_study('engine = "sglang"', 'engine = "sgl"'), "studies/tiny.toml: engine", "known: llamacpp, sglang"),
        (in_study('"sglang-mtp"', '"sglang-mpt"'), "studies/tiny.toml: space", 'did you mean "sglang-mtp"?'),
        (in_study('"sglang-mtp"', '"../sglang-mtp"'), "studies/tiny.toml: space", "without a path"),
        (in_study('"sglang-mtp"', '"llamacpp-cpu"'), "studies/tiny.toml: space", 'is of engine "llamacpp"'),
        (
            in_study('"--mem-fraction-static", "0.8"', '"--mem-fraction-static", "0.97"'),
            "studies/tiny.toml: server.command",
            "mem_fraction_static=0.97 is outside 0.6 to 0.95",
        ),
        (
            in_study('"--mem-fraction-static", "0.8", ', ""),
            "studies/tiny.toml: server.command",
            "--mem-fraction-static",
        ),
        (in_study('"--speculative-num-steps", "3"', '"--speculative-num-steps", "x"'), "server.command", "steps"),
        (in_study("[budget]", "[budget"), "studies/tiny.toml: is not valid TOML", "at line "),
        (
            on_hosts('kind = "shh"'),
            "studies/tiny.toml: hosts[0].kind",
            'did you mean "ssh"? (known: process, ssh, systemd)',
        ),
        (on_hosts('kind = "ssh"\nunit = "a"'), "studies/tiny.toml: hosts[0].address", "is missing"),
        (on_hosts(f'{SSH}\nunti = "a"'), "studies/tiny.toml: hosts[0].unti", "did you mean unit?"),
        (on_hosts(f"{SSH}\ntunnel = true\nbase_url = 'http://g:1'"), "hosts[0].tunnel", "leave one out"),
        (on_hosts(SSH.replace("@gpu01", "@-oProxyCommand=x")), "hosts[0].address", "must be [user@]host[:port]"),
        (on_hosts(SSH.replace('"sglang"', '"sglang.socket"')), "hosts[0].unit", "name the .service"),
        (on_hosts(f'{SSH}\nidentity_file = "~/no such key"'), "hosts[0].identity_file", "there is no such file under"),
        (on_hosts(f"{SSH}\ndead_man_s = 5"), "hosts[0].dead_man_s", "must be at least 30"),
        (on_hosts(f'{SSH}\n[[hosts]]\n{SSH}\nname = "b"'), "hosts[1]", "is the same server as hosts[0]"),
        (on_hosts(f'{SSH}\n[[hosts]]\nkind = "process"'), "studies/tiny.toml: hosts", "are units and processes"),
        (on_hosts('kind = "systemd"\nunit = "a"\naddress = "g"'), "hosts[0].address", 'this is "systemd"'),
        (in_study("4gpu", "5gpu"), "studies/tiny.toml: simulated.profile", "did you mean"),
        (in_space("low = 0\nhigh = 16", "low = 16\nhigh = 0"), "parameters.speculative_num_steps", "inverted"),
        (in_space("low = 0\nhigh = 16", "low = 3\nhigh = 3"), "parameters.speculative_num_steps", "range is empty"),
        (in_space("num_steps]", "num_stepz]"), "parameters.speculative_num_stepz", 'mean "speculative_num_steps"?'),
        (in_space("step = 0.01", "stepp = 0.01"), "parameters.mem_fraction_static.stepp", "did you mean step?"),
    ],
)
def test_a_wrong_file_is_refused(project: Project, spoil: Callable[[Project], None], place: str, remedy: str) -> None:
    spoil(project)
    line = project.refused("run", "--study", "tiny")
    assert place in line
    assert remedy in line


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("run",), "give STUDY or --study STUDY"),
        (("run", "tiny", "--study", "tiny"), "give STUDY or --study STUDY"),
        (("run", "--study", "tiny", "--trails", "3"), "No such option: --trails"),
        (("run", "--study", "tiny", "--trials", "0"), "--trials"),
        (("run", "--study", "tiny", "--trials", "many"), "--trials"),
        (("runn", "--study", "tiny"), "No such command 'runn'"),
        (("run", "--study", "tinny"), 'did you mean "tiny"? (known: tiny)'),
        (("run", "--study", "../tiny"), 'the study name "../tiny" is not allowed'),
        (("status", "--study", "../tiny"), 'the study name "../tiny" is not allowed'),
        (("front", "--study", "tinny"), 'did you mean "tiny"?'),
        (("front", "--study", "tiny", "--format", "xml"), "--format"),
        (("run", "--study", "tiny", "--sampler", "tep"), '--sampler: unknown sampler "tep"; did you mean "tpe"?'),
        (("run", "--study", "tiny", "--speed", "inf"), "--speed: is inf, but must be a finite number above 0"),
        (("run", "--study", "tiny", "--host", "sim7"), '--host: unknown host "sim7"'),
        (
            ("run", "--study", "tiny", "--host", "user@gpu01"),
            "--host user@gpu01: for a host that is not in studies/tiny",
        ),
        (
            ("doctor", "--study", "tiny", "--host", "user@gpu01"),
            "add --unit NAME, the systemd unit that runs the server",
        ),
        (
            ("restore", "--study", "tiny", "--host", "-x", "--unit", "a"),
            '--host: is "-x", but must be [user@]host[:port]',
        ),
        (("validate", "tiny", "--host", "g", "--unit", "a@"), '--unit: is "a@", a template: name an instance'),
        (("run", "tiny", "--sudo"), "--sudo goes with --unit"),
        (("run", "tiny", "--accept-new-host-key"), "--accept-new-host-key is for hosts reached over SSH"),
        (("doctor", "tiny", "--format", "csv"), "--format"),
        (("run", "--study", "tiny", "--root", "elsewhere"), "has no folder studies/"),
        (("validate", "--study", "tinny"), 'did you mean "tiny"?'),
    ],
)
def test_a_wrong_option_is_refused(project: Project, arguments: tuple[str, ...], words: str) -> None:
    assert words in project.refused(*arguments)


@pytest.mark.parametrize("command", ["run", "status", "front"])
def test_an_unreadable_database_is_refused(project: Project, command: str) -> None:
    project.results.mkdir()
    (project.results / "study.db").write_bytes(b"this is not a database, although long enough to be one" * 100)
    assert "studies/tiny/study.db" in project.refused(command, "--study", "tiny")


@pytest.mark.parametrize("command", ["status", "front"])
def test_a_study_that_never_ran_says_how_to_begin(project: Project, command: str) -> None:
    project.results.mkdir()
    assert "tuner run --study tiny" in project.refused(command, "--study", "tiny")


def test_validate_prints_trial_0_and_the_plan_and_touches_nothing(project: Project) -> None:
    before = tree(project.root)
    done = project.tuner("validate", "--study", "tiny", "--trials", "7")
    assert (done.returncode, done.stderr) == (0, "")
    assert re.search(r"^sglang serve \\\n  --model-path Qwen/", done.stdout)
    assert "  --mem-fraction-static 0.8 \\\n" in done.stdout
    assert "planted-s3cret" not in done.stdout
    assert "study      tiny (SIMULATED)" in done.stdout
    assert "trials     7, sampler auto, seed 3" in done.stdout
    assert tree(project.root) == before


def test_without_a_command_tuner_says_what_it_can_do(project: Project) -> None:
    done = project.tuner()
    assert done.returncode == 0
    assert "validate" in done.stdout


def unread(project: Project, *arguments: str, lines: int = 0) -> tuple[int, str]:
    """Run tuner into a pipe whose reader leaves after ``lines``; return its exit code and its prose."""
    reading, writing = os.pipe()
    if not lines:
        os.close(reading)
    with subprocess.Popen(
        [sys.executable, "-m", "tuner", *arguments], cwd=project.root, stdout=writing, stderr=subprocess.PIPE, text=True
    ) as process:
        os.close(writing)
        if lines:
            with os.fdopen(reading) as reader:
                for _ in range(lines):
                    assert reader.readline()
        _, prose = process.communicate()
    return process.returncode, prose


@pytest.mark.parametrize("arguments", [("validate", "tiny"), ("--help",), ("--version",), ()], ids=" ".join)
def test_a_reader_that_leaves_is_no_bug(project: Project, arguments: tuple[str, ...]) -> None:
    assert unread(project, *arguments) == (0, "")
    assert unread(project, *arguments, lines=1) == (0, "")


def test_a_refusal_is_said_also_when_nobody_reads_the_output(project: Project) -> None:
    code, prose = unread(project, "validate", "tinny")
    assert code == 2
    assert 'did you mean "tiny"?' in prose
