"""Where a run takes place: the file's hosts, or the one the command line names."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

from tuner.config.overrides import Overrides
from tuner.config.places import hosts_of
from tuner.config.study_file import parse_study
from tuner.errors import UsageError
from tuner.model.study import HostCare, HostSpec, ProcessHostSpec, Reach, SshLogin, UnitHostSpec

STUDY = """
engine = "toy"
space = "toy"
[server]
command = ["toy"]
[budget]
trials = 1
[simulated]
profile = "p"
"""
SSH = {"kind": "ssh", "address": "user@gpu01", "unit": "a", "gpu_indices": [1], "base_url": "http://g:1"}
OTHER = {"kind": "ssh", "address": "gpu02", "unit": "a"}


def hosts(root: Path, tables: list[dict[str, Any]] | None = None, **options: Any) -> tuple[HostSpec, ...]:  # noqa: ANN401  of Overrides
    content = tomllib.loads(STUDY) | ({"hosts": tables} if tables else {})
    study = parse_study(content, name="s", shown="studies/s.toml")
    return hosts_of(study, Overrides(**options), root=root, directory=root / "studies" / "s")


def refusal(root: Path, tables: list[dict[str, Any]] | None = None, **options: Any) -> str:  # noqa: ANN401  of Overrides
    with pytest.raises(UsageError) as caught:
        hosts(root, tables, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_host_of_the_file_becomes_a_specification(tmp_path: Path) -> None:
    assert hosts(tmp_path, [SSH]) == (
        UnitHostSpec(
            name="gpu01",
            unit="a.service",
            login=SshLogin(host="gpu01", user="user"),
            reach=Reach(base_url="http://g:1"),
            care=HostCare(gpu_indices=(1,)),
        ),
    )


def test_a_process_keeps_its_state_with_the_study_or_on_its_host(tmp_path: Path) -> None:
    here, there = hosts(tmp_path, [{"kind": "process"}, {"kind": "process", "address": "g"}])
    assert here == ProcessHostSpec(name="here", state_dir=str(tmp_path / "studies" / "s" / "hosts" / "here"))
    assert there == ProcessHostSpec(name="g", state_dir="/tmp/tuner", login=SshLogin(host="g"))


def test_one_of_the_hosts_can_be_chosen(tmp_path: Path) -> None:
    (host,) = hosts(tmp_path, [SSH, OTHER], host="gpu02")
    assert host.name == "gpu02"


def test_any_host_with_a_unit_can_be_tried_on_any_study(tmp_path: Path) -> None:
    expected = UnitHostSpec(name="gpu9", unit="sglang-qwen.service", login=SshLogin(host="gpu9", user="me", port=2222))
    for tables in (None, [OTHER], [{"kind": "process"}]):
        assert hosts(tmp_path, tables, host="me@gpu9:2222", unit="sglang-qwen") == (expected,)


def test_options_of_a_first_try_are_laid_over_its_host(tmp_path: Path) -> None:
    (host,) = hosts(tmp_path, host="gpu9", unit="x", sudo=True, tunnel=True, accept_new_host_key=True)
    assert host == UnitHostSpec(
        name="gpu9",
        unit="x.service",
        login=SshLogin(host="gpu9", accept_new_host_key=True),
        sudo=True,
        reach=Reach(tunnel=True),
    )


def test_a_unit_alone_is_of_this_machine(tmp_path: Path) -> None:
    assert hosts(tmp_path, unit="x", sudo=True) == (UnitHostSpec(name="here", unit="x.service", sudo=True),)


def test_another_unit_of_a_host_of_the_file_keeps_its_login_and_care(tmp_path: Path) -> None:
    (host,) = hosts(tmp_path, [SSH, OTHER], host="gpu01", unit="b", sudo=True)
    (before, _) = hosts(tmp_path, [SSH, OTHER])
    assert isinstance(host, UnitHostSpec)
    assert isinstance(before, UnitHostSpec)
    assert (host.unit, host.sudo) == ("b.service", True)
    assert (host.login, host.care, host.reach) == (before.login, before.care, before.reach)
    (through,) = hosts(tmp_path, [{**SSH, "ray_node": "10.0.0.7"}], host="gpu01", unit="b", tunnel=True)
    assert isinstance(through, UnitHostSpec)
    assert through.reach == Reach(tunnel=True, ray_node="10.0.0.7")


def test_a_new_key_is_taken_of_every_host_over_ssh(tmp_path: Path) -> None:
    for host in hosts(tmp_path, [SSH, OTHER], accept_new_host_key=True):
        assert isinstance(host, UnitHostSpec)
        assert host.login is not None
        assert host.login.accept_new_host_key


def test_files_of_a_login_are_found_from_the_root_or_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "key").touch()
    (tmp_path / "config").touch()
    table = OTHER | {"identity_file": "~/key", "ssh_config": "config", "known_hosts": "not/yet"}
    (host,) = hosts(tmp_path, [table])
    assert isinstance(host, UnitHostSpec)
    assert host.login == SshLogin(
        host="gpu02",
        identity_file=str(tmp_path / "home" / "key"),
        config_file=str(tmp_path / "config"),
        known_hosts=str(tmp_path / "not" / "yet"),
    )


def test_the_null_device_stands_for_no_ssh_config(tmp_path: Path) -> None:
    (host,) = hosts(tmp_path, [OTHER | {"ssh_config": "/dev/null"}])
    assert isinstance(host, UnitHostSpec)
    assert host.login is not None
    assert host.login.config_file == "/dev/null"


@pytest.mark.parametrize("written", ["nowhere", "~nobody-of-this-name/key", "."])
@pytest.mark.parametrize("key", ["identity_file", "ssh_config"])
def test_a_missing_file_of_a_login_is_named(tmp_path: Path, key: str, written: str) -> None:
    line = refusal(tmp_path, [SSH, OTHER | {key: written}])
    assert line.startswith(f'studies/s.toml: hosts[1].{key}: is "{written}": there is no such file under ')


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"host": "u@g"}, "--host u@g: for a host that is not in studies/s.toml, add --unit NAME, the systemd unit"),
        ({"host": "gpu03"}, '--host: unknown host "gpu03"; did you mean "gpu02"? (known: gpu01, gpu02); for a host'),
        ({"host": "u@g:x", "unit": "a"}, '--host: is "u@g:x", but the port must be a number'),
        ({"host": "g", "unit": "a.timer"}, '--unit: is "a.timer", a timer: name the .service that runs the server'),
        ({"unit": "a", "tunnel": True}, "--tunnel is for a host reached over SSH"),
        ({"sudo": True}, "--sudo goes with --unit; for a host of studies/s.toml write sudo = true there"),
        ({"host": "gpu01", "tunnel": True}, "--tunnel goes with --unit; for a host of studies/s.toml write tunnel ="),
        ({"unit": "a", "speed": 2.0}, "--speed is for simulated hosts; --unit names a real one"),
        ({"unit": "a", "simulated_hosts": 2}, "--hosts is for simulated hosts; --unit names a real one"),
        (
            {"unit": "a", "accept_new_host_key": True},
            "--accept-new-host-key is for hosts reached over SSH; this run has none",
        ),
    ],
)
def test_an_option_that_does_not_fit_is_refused(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    assert refusal(tmp_path, [SSH, OTHER], **options).startswith(message)


def test_a_simulated_study_has_no_host_keys(tmp_path: Path) -> None:
    assert refusal(tmp_path, accept_new_host_key=True).startswith("--accept-new-host-key is for hosts reached over SSH")
