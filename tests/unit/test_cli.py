"""The command line's own decisions: exit codes, one-line errors, who runs a study."""

from __future__ import annotations

import inspect
import os
import sys
from pathlib import Path

import pytest

from tuner import __version__, errors
from tuner.cli import exit_code, main
from tuner.commands.options import given_again
from tuner.commands.studies import running_driver
from tuner.screen.again import SCRIPT, command_again, dashboard_program
from tuner.search.lock import StudyLock

COMMANDS = ["run", "validate", "doctor", "restore", "status", "front"]
EXPECTED = {
    errors.TunerError: 1,
    errors.MeasurementFault: 1,  # a trial takes it; at the top it is a bug
    errors.UsageError: 2,
    errors.StudyFileError: 2,
    errors.AssignmentRejected: 2,
    errors.LedgerError: 2,
    errors.PreflightError: 3,
    errors.EvidenceError: 3,
    errors.StudyUnwritable: 3,
    errors.HostFault: 3,
    errors.LeaseHeld: 3,
    errors.TransportFault: 3,
    errors.HostKeyRefused: 3,
    errors.LoginRefused: 3,
    errors.DirtyHost: 3,
    errors.LeaseLost: 3,
    errors.ServerInTheWay: 3,
    errors.RestoreFailed: 3,
    errors.ExecutorFault: 3,
    errors.TooManyFaults: 4,
}


def test_every_error_of_the_tree_has_its_exit_code() -> None:
    tree = {kind for _, kind in inspect.getmembers(errors, inspect.isclass) if issubclass(kind, errors.TunerError)}
    assert {kind: exit_code(kind("x")) for kind in tree} == EXPECTED


def test_the_version_is_data(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr() == (f"{__version__}\n", "")


def test_a_wrong_option_is_one_line_on_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "--study", "s", "--trails", "3"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("tuner: error: No such option: --trails")
    assert err.count("\n") == 1


def test_a_folder_without_studies_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["validate", "--study", "s", "--root", str(tmp_path)]) == 2
    assert f"{tmp_path}: has no folder studies/" in capsys.readouterr().err


def test_help_names_the_commands_and_exits_well(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    out, _ = capsys.readouterr()
    assert all(command in out for command in ("run", "validate", "doctor", "restore", "status", "front"))


def test_nobody_runs_a_study_without_a_lock_file(tmp_path: Path) -> None:
    assert running_driver(tmp_path) is None


def test_the_holder_of_the_lock_runs_the_study_until_it_lets_go(tmp_path: Path) -> None:
    lock = StudyLock.acquire(tmp_path)
    assert f"process {os.getpid()} since" in (running_driver(tmp_path) or "")
    lock.release()
    assert running_driver(tmp_path) is None


def test_looking_does_not_keep_a_driver_out(tmp_path: Path) -> None:
    StudyLock.acquire(tmp_path).release()
    running_driver(tmp_path)
    StudyLock.acquire(tmp_path).release()


def test_the_command_that_goes_on_is_the_one_the_reader_gave() -> None:
    assert command_again("s", {}, {}) == "python -m tuner run --study s"
    assert (
        command_again("s", {"--root": Path("/my studies")}, {}) == "python -m tuner run --study s --root '/my studies'"
    )
    assert command_again("s", {}, {SCRIPT: "../tuner/scripts/run"}) == "../tuner/scripts/run s"


def test_the_command_that_goes_on_has_the_options_that_were_given() -> None:
    given = {
        "--named": "s",
        "--study": None,
        "--root": Path(),
        "--trials": 2,
        "--seed": 0,
        "--speed": 20.0,
        "--sampler": None,
        "--ray-address": "a b:1",
        "--plain": True,
        "--other": False,
    }
    options = "--trials 2 --seed 0 --speed 20 --ray-address 'a b:1' --plain"
    assert command_again("s", given, {}) == f"python -m tuner run --study s {options}"
    assert command_again("s", given, {SCRIPT: "scripts/run"}) == f"scripts/run s {options}"
    assert "--speed 0.125" in command_again("s", {"--speed": 0.125}, {})


def test_a_run_that_goes_on_meets_its_host_again_but_takes_no_other_key() -> None:
    given = {"host": "u@g", "unit": "a", "sudo": True, "tunnel": False, "accept_new_host_key": True}
    again = command_again("s", given_again(given), {})
    assert again == "python -m tuner run --study s --host u@g --unit a --sudo"


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("words", [["s"], ["--study", "s"], ["--study=s"]])
def test_a_study_is_named_in_either_way(
    command: str, words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "studies").mkdir()
    assert main([command, *words, "--root", str(tmp_path)]) == 2
    assert capsys.readouterr().err.startswith('tuner: error: studies/s.toml: unknown study "s"')


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("words", [[], ["s", "--study", "s"]])
def test_a_study_is_named_once(command: str, words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([command, *words]) == 2
    err = capsys.readouterr().err
    assert err.endswith(": give STUDY or --study STUDY\n")
    assert err.count("\n") == 1


def test_the_dashboard_is_the_one_of_this_environment() -> None:
    beside = Path(sys.executable).with_name("optuna-dashboard")
    assert dashboard_program() == (str(beside) if beside.exists() else "optuna-dashboard")
    assert dashboard_program(Path("/nowhere/bin/python")) == "optuna-dashboard"


@pytest.mark.parametrize("name", ["s" * 65, "s" * 300, "s" * 5000])
@pytest.mark.parametrize("command", COMMANDS)
def test_a_name_that_no_file_can_have_is_refused(name: str, command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([command, "--study", name]) == 2
    err = capsys.readouterr().err
    assert "is too long: use at most 64 characters" in err
    assert err.count("\n") == 1


@pytest.mark.parametrize("command", COMMANDS)
def test_a_root_that_the_file_system_refuses_is_one_line(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([command, "--study", "s", "--root", "r" * 300]) == 2
    err = capsys.readouterr().err
    assert "cannot be read: File name too long" in err
    assert err.count("\n") == 1


@pytest.mark.parametrize("command", ["run", "validate"])
def test_a_seed_that_numpy_does_not_take_is_refused(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([command, "--study", "s", "--seed", "5000000000"]) == 2
    assert "'--seed': Input should be less than or equal to 4294967295" in capsys.readouterr().err
