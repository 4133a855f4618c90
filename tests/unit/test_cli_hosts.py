"""The commands that touch real hosts, over fakes of what reads and restores them."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType

import pytest

from tuner.cli import main
from tuner.config.overrides import Overrides
from tuner.errors import PreflightError, RestoreFailed
from tuner.model.finding import Finding, RowVerdict
from tuner.model.study import HostSpec, UnitHostSpec
from tuner.model.trial import Command
from tuner.ports import RunObserver
from tuner.testing.project import Project
from tuner.wiring.units import Heir

CHECKOUT = Path(__file__).parents[2]
GPU = ("--host", "ops@gpu01", "--unit", "sglang-qwen")
OPTIONS = Overrides(host="ops@gpu01", unit="sglang-qwen", sudo=True)
BASE = (
    "/opt/sglang/bin/python -m sglang.launch_server --port 31000 --speculative-algorithm NEXTN "
    "--speculative-num-steps 2 --speculative-eagle-topk 1 --speculative-num-draft-tokens 3 "
    "--mem-fraction-static 0.85 --api-key s3cret-of-the-unit"
)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    shutil.copytree(CHECKOUT / "search_spaces", tmp_path / "search_spaces")
    (tmp_path / "studies").mkdir()
    Project(tmp_path).write(port=30000)
    return tmp_path


@pytest.fixture
def wired(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str, Callable[..., object]], None]:
    """Put a fake in the place of a function of ``tuner.wiring``, which the command line imports when it needs it."""

    def put(module: str, name: str, function: Callable[..., object]) -> None:
        fake = ModuleType(f"tuner.wiring.{module}")
        vars(fake).update({name: function, "Heir": Heir})
        monkeypatch.setitem(sys.modules, fake.__name__, fake)

    return put


Wired = Callable[[str, str, Callable[..., object]], None]


@dataclass
class Seen:
    """What a fake of ``read_base`` was asked for."""

    hosts: tuple[HostSpec, ...] = ()
    heir: Heir | None = None
    env: list[str] = field(default_factory=list)


def unit_runs(words: str, seen: Seen | None = None) -> Callable[..., Command]:
    def read_base(hosts: tuple[HostSpec, ...], _say: object, heir: Heir | None, env: list[str], _: object) -> Command:
        if seen is not None:
            seen.hosts, seen.heir, seen.env = hosts, heir, env
        return Command(argv=tuple(words.split()))

    return read_base


def test_validate_shows_what_the_unit_runs_and_that_the_file_has_another(
    root: Path, wired: Wired, capsys: pytest.CaptureFixture[str]
) -> None:
    seen = Seen()
    wired("units", "read_base", unit_runs(BASE, seen))
    assert main(["validate", "tiny", "--root", str(root), *GPU, "--sudo"]) == 0
    out, err = capsys.readouterr()
    assert "/opt/sglang/bin/python \\\n  -m sglang.launch_server" in out
    assert "s3cret" not in out + err
    assert "trial 0    steps 2 · topk 1 · draft 3 · fraction 0.85" in out
    assert "hosts      gpu01: sglang-qwen.service of ops@gpu01 over SSH, with sudo, load straight to its port" in out
    assert "SIMULATED" not in out
    assert err.splitlines() == [
        "reading sglang-qwen.service of gpu01",
        "trial 0 is what sglang-qwen.service runs; [server] command of studies/tiny.toml is not used",
    ]
    (host,) = seen.hosts
    assert isinstance(host, UnitHostSpec)
    assert host.sudo


@pytest.mark.parametrize("command", ["validate", "run"])
def test_a_unit_that_cannot_be_tuned_is_one_line_and_nothing_is_written(
    command: str, root: Path, wired: Wired, capsys: pytest.CaptureFixture[str]
) -> None:
    wired("units", "read_base", unit_runs("/usr/bin/python -m sglang.launch_server"))
    assert main([command, "tiny", "--root", str(root), *GPU]) == 2
    line = capsys.readouterr().err.splitlines()[-1]
    assert line.startswith("tuner: error: host gpu01, unit sglang-qwen.service: base command: pin --mem-fraction")
    assert not (root / "studies" / "tiny").exists()


def test_the_unit_is_asked_whether_its_files_win_over_what_the_study_sets(root: Path, wired: Wired) -> None:
    seen = Seen()
    wired("units", "read_base", unit_runs(BASE, seen))
    study = root / "studies" / "tiny.toml"
    study.write_text(study.read_text() + '\n[server.env]\nNCCL_DEBUG = "WARN"\n')
    assert main(["validate", "tiny", "--root", str(root), *GPU]) == 0
    assert seen.env == ["NCCL_DEBUG"]


@pytest.mark.parametrize("port", ["0", "http"])
def test_a_port_that_the_unit_cannot_have_names_the_unit(
    port: str, root: Path, wired: Wired, capsys: pytest.CaptureFixture[str]
) -> None:
    wired("units", "read_base", unit_runs(BASE.replace("31000", port)))
    assert main(["validate", "tiny", "--root", str(root), *GPU]) == 2
    line = capsys.readouterr().err.splitlines()[-1]
    assert line.startswith("tuner: error: host gpu01, unit sglang-qwen.service: ")
    assert "--port " in line


@pytest.mark.parametrize("command", ["validate", "run"])
def test_a_host_that_cannot_be_read_ends_with_3(
    command: str, root: Path, wired: Wired, capsys: pytest.CaptureFixture[str]
) -> None:
    def read_base(*_: object) -> Command:
        raise PreflightError("host gpu01: no route to host; see tuner doctor")

    wired("units", "read_base", read_base)
    assert main([command, "tiny", "--root", str(root), *GPU]) == 3
    assert capsys.readouterr().err.splitlines()[-1] == "tuner: error: host gpu01: no route to host; see tuner doctor"


def test_a_wrong_file_is_refused_before_any_host_is_touched(
    root: Path, wired: Wired, capsys: pytest.CaptureFixture[str]
) -> None:
    seen = Seen()
    wired("units", "read_base", unit_runs(BASE, seen))
    study = root / "studies" / "tiny.toml"
    study.write_text(study.read_text().replace('"sglang-mtp"', '"sglang-mpt"'))
    assert main(["run", "tiny", "--root", str(root), *GPU]) == 2
    assert "studies/tiny.toml: space: unknown space" in capsys.readouterr().err
    assert not seen.hosts


@pytest.mark.parametrize(("command", "inherits"), [("validate", False), ("run", True)])
def test_only_a_run_takes_over_what_a_killed_run_left(
    command: str, inherits: bool, root: Path, wired: Wired, capsys: pytest.CaptureFixture[str]
) -> None:
    seen = Seen()
    wired("units", "read_base", unit_runs("no engine of ours", seen))
    assert main([command, "tiny", "--root", str(root), *GPU]) == 2
    assert capsys.readouterr().err.count("\n") == 2
    assert (seen.heir is not None) is inherits
    if seen.heir is not None:
        assert (seen.heir.holder.study, seen.heir.holder.directory) == ("tiny", str(root / "studies" / "tiny"))


def finding(verdict: RowVerdict) -> Finding:
    return Finding(host="gpu01", check="permissions", verdict=verdict, detail="seen", lines=("ops ALL=(root) x",))


@pytest.mark.parametrize(
    ("verdict", "code"), [(RowVerdict.OK, 0), (RowVerdict.WARNING, 0), (RowVerdict.UNKNOWN, 0), (RowVerdict.FAILED, 3)]
)
def test_doctor_ends_with_3_when_a_row_failed(
    verdict: RowVerdict, code: int, root: Path, wired: Wired, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[tuple[object, ...]] = []

    def examine(*arguments: object) -> tuple[Finding, ...]:
        asked.append(arguments)
        return (finding(verdict),)

    wired("doctor", "examine", examine)
    assert main(["doctor", "--study", "tiny", "--root", str(root), *GPU, "--sudo"]) == code
    out, err = capsys.readouterr()
    assert out.splitlines()[0] == "gpu01"
    assert out.splitlines()[-1] == "    ops ALL=(root) x"
    assert err.startswith("gpu01: not ready: permissions" if code else "gpu01: ready")
    assert asked == [(root, "tiny", OPTIONS)]


def test_doctor_hands_its_findings_to_programs(root: Path, wired: Wired, capsys: pytest.CaptureFixture[str]) -> None:
    wired("doctor", "examine", lambda *_: (finding(RowVerdict.FAILED),))
    assert main(["doctor", "tiny", "--root", str(root), "--format", "json"]) == 3
    assert json.loads(capsys.readouterr().out)[0]["verdict"] == "failed"


def test_restore_says_what_it_did(root: Path, wired: Wired, capsys: pytest.CaptureFixture[str]) -> None:
    asked: list[tuple[object, ...]] = []

    def restore_hosts(root: Path, name: str, overrides: Overrides, observer: RunObserver) -> tuple[str, ...]:
        asked.append((root, name, overrides))
        observer.remark("removing the drop-in")
        return ("gpu01: sglang-qwen.service is as it was and answers",)

    wired("restore", "restore_hosts", restore_hosts)
    assert main(["restore", "tiny", "--root", str(root), *GPU, "--sudo"]) == 0
    out, err = capsys.readouterr()
    assert out == "gpu01: sglang-qwen.service is as it was and answers\n"
    assert err.endswith("removing the drop-in\n")
    assert asked == [(root, "tiny", OPTIONS)]


def test_a_host_that_could_not_be_restored_ends_with_3(
    root: Path, wired: Wired, capsys: pytest.CaptureFixture[str]
) -> None:
    def restore_hosts(*_: object) -> tuple[str, ...]:
        raise RestoreFailed("host gpu01: enablement differs")

    wired("restore", "restore_hosts", restore_hosts)
    assert main(["restore", "tiny", "--root", str(root)]) == 3
    assert capsys.readouterr().err == "tuner: error: host gpu01: enablement differs\n"


@pytest.mark.parametrize("command", ["run", "validate"])
@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--host", "ops@gpu01"), "--host ops@gpu01: for a host that is not in studies/tiny.toml, add --unit NAME"),
        (("--unit", "a@"), '--unit: is "a@", a template: name an instance of it'),
        (("--host", "g:x", "--unit", "a"), '--host: is "g:x", but the port must be a number'),
        (("--sudo",), "--sudo goes with --unit"),
        (("--unit", "a", "--tunnel"), "--tunnel is for a host reached over SSH"),
        (("--unit", "a", "--speed", "2"), "--speed is for simulated hosts; --unit names a real one"),
        (("--accept-new-host-key",), "--accept-new-host-key is for hosts reached over SSH; this run has none"),
    ],
)
def test_an_option_that_does_not_fit_is_refused(
    command: str, options: tuple[str, ...], words: str, root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([command, "tiny", "--root", str(root), *options]) == 2
    assert capsys.readouterr().err.startswith(f"tuner: error: {words}")
