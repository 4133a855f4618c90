"""``[[hosts]]`` tables: what each kind takes, and how what is wrong is said."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tuner.config.host_file import _KINDS, HostEntry, lease_terms, read_hosts
from tuner.model.lease import LeaseTerms
from tuner.model.study import HostCare, Reach, SshLogin

SSH = {"kind": "ssh", "address": "user@gpu01", "unit": "sglang-qwen.service"}
UNIT = {"kind": "systemd", "unit": "sglang-qwen"}
HERE = {"kind": "process"}
THERE = {"kind": "process", "address": "gpu01"}


def entry(table: dict[str, Any]) -> HostEntry:
    (host,), problems = read_hosts([table])
    assert not problems
    return host


def refusals(*tables: dict[str, Any]) -> list[str]:
    _, problems = read_hosts(tables)
    return [f"{problem.key}: {problem.text}" for problem in problems]


def test_a_unit_over_ssh_needs_an_address_and_a_unit() -> None:
    assert entry(SSH) == HostEntry(
        name="gpu01", login=SshLogin(host="gpu01", user="user"), unit="sglang-qwen.service", sudo=False
    )


def test_everything_about_a_unit_over_ssh_can_be_written() -> None:
    host = entry(
        {
            "kind": "ssh",
            "name": "big",
            "address": "gpu01",
            "user": "ops",
            "port": 2222,
            "jump": "me@bastion:22,inner",
            "identity_file": "~/.ssh/id_tuner",
            "ssh_config": "ssh_config",
            "known_hosts": "known_hosts",
            "unit": "sglang@a",
            "sudo": True,
            "cleanup_command": ["free-gpus", "--hard"],
            "gpu_indices": [0, 1],
            "base_url": "http://10.0.0.7:30000/",
            "wait_s": 60,
            "dead_man_s": 120,
        }
    )
    assert host == HostEntry(
        name="big",
        login=SshLogin(
            host="gpu01",
            user="ops",
            port=2222,
            jump="me@bastion:22,inner",
            identity_file="~/.ssh/id_tuner",
            config_file="ssh_config",
            known_hosts="known_hosts",
        ),
        unit="sglang@a.service",
        sudo=True,
        reach=Reach(base_url="http://10.0.0.7:30000"),
        care=HostCare(
            cleanup_command=("free-gpus", "--hard"),
            gpu_indices=(0, 1),
            wait_s=60.0,
            lease=LeaseTerms(lasts_s=120.0, renew_s=30.0),
        ),
    )


def test_a_unit_of_this_machine_needs_no_login() -> None:
    assert entry(UNIT) == HostEntry(name="here", unit="sglang-qwen.service")


def test_a_process_runs_here_or_where_its_address_says() -> None:
    assert entry(HERE) == HostEntry(name="here")
    assert entry(THERE) == HostEntry(name="gpu01", login=SshLogin(host="gpu01"), state_dir="/tmp/tuner")
    assert entry(THERE | {"state_dir": "/var/tmp/t"}).state_dir == "/var/tmp/t"


def test_a_tunnel_replaces_the_url() -> None:
    assert entry(SSH | {"tunnel": True}).reach == Reach(tunnel=True)


def test_a_lease_is_renewed_four_times_or_every_minute() -> None:
    assert lease_terms(900) == LeaseTerms() == entry(SSH).care.lease
    assert lease_terms(40).renew_s == 10
    assert lease_terms(3600).renew_s == 60


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({}, 'hosts[0].kind: is missing: one of "ssh", "systemd", "process"'),
        ({"kind": "shh"}, 'hosts[0].kind: unknown kind "shh"; did you mean "ssh"? (known: process, ssh, systemd)'),
        ({"kind": 3}, 'hosts[0].kind: unknown kind "3"'),
        ({"kind": "ssh", "address": "g"}, "hosts[0].unit: is missing"),
        ({"kind": "ssh", "unit": "a"}, "hosts[0].address: is missing"),
        ({"kind": "systemd"}, "hosts[0].unit: is missing"),
        (SSH | {"adress": "x"}, "hosts[0].adress: unknown key; did you mean address? (allowed here: kind, name, "),
        (SSH | {"unti": "x"}, "hosts[0].unti: unknown key; did you mean unit?"),
        (
            UNIT | {"address": "g"},
            'hosts[0].address: is for kind = "ssh" or "process", this is "systemd": leave it out',
        ),
        (UNIT | {"tunnel": True}, 'hosts[0].tunnel: is for kind = "ssh" or "process", this is "systemd"'),
        (HERE | {"unit": "a"}, 'hosts[0].unit: is for kind = "ssh" or "systemd", this is "process"'),
        (HERE | {"sudo": True}, 'hosts[0].sudo: is for kind = "ssh" or "systemd", this is "process"'),
        (SSH | {"state_dir": "/x"}, 'hosts[0].state_dir: is for kind = "process", this is "ssh"'),
        (HERE | {"user": "u"}, "hosts[0].user: is for a host with an address; this one is this machine: leave it out"),
        (HERE | {"tunnel": True}, "hosts[0].tunnel: is for a host with an address"),
        (HERE | {"state_dir": "/x"}, "hosts[0].state_dir: is for a host with an address"),
        (HERE | {"dead_man_s": 60}, "hosts[0].dead_man_s: is for a host with an address"),
        (THERE | {"state_dir": "x"}, 'hosts[0].state_dir: is "x", but must be an absolute folder on the host'),
        (THERE | {"state_dir": "/"}, 'hosts[0].state_dir: is "/", but must be an absolute folder on the host'),
        (THERE | {"state_dir": "/tmp/.."}, 'hosts[0].state_dir: is "/tmp/..", but must be an absolute folder'),
        (SSH | {"address": "-x"}, 'hosts[0].address: is "-x", but must be [user@]host[:port]'),
        (SSH | {"address": 3}, "hosts[0].address: is 3, but must be a text in quotes"),
        (SSH | {"user": "u"}, 'hosts[0].user: is given twice, here and in address "user@gpu01": leave one out'),
        (SSH | {"address": "g:22", "port": 22}, 'hosts[0].port: is given twice, here and in address "g:22"'),
        (SSH | {"port": 0}, "hosts[0].port: is 0, but must be at least 1"),
        (SSH | {"port": 65536}, "hosts[0].port: is 65536, but must be at most 65535"),
        (SSH | {"jump": "a b"}, 'hosts[0].jump: is "a b", but must be [user@]host[:port], several separated by commas'),
        (SSH | {"identity_file": ""}, "hosts[0].identity_file: must not be empty"),
        (SSH | {"unit": "a.socket"}, 'hosts[0].unit: is "a.socket", a socket: name the .service that runs the server'),
        (SSH | {"unit": "a@.service"}, 'hosts[0].unit: is "a@.service", a template: name an instance of it'),
        (SSH | {"base_url": "g:1"}, 'hosts[0].base_url: is "g:1", but must be the address of the server, http://'),
        (
            SSH | {"base_url": "http://g:1", "tunnel": True},
            "hosts[0].tunnel: and base_url exclude each other: the load goes one way; leave one out",
        ),
        (SSH | {"dead_man_s": 29}, "hosts[0].dead_man_s: is 29, but must be at least 30"),
        (SSH | {"wait_s": -1}, "hosts[0].wait_s: is -1, but must be at least 0"),
        (SSH | {"gpu_indices": [-1]}, "hosts[0].gpu_indices[0]: is -1, but must be at least 0"),
        (SSH | {"gpu_indices": [0, 0]}, "hosts[0].gpu_indices: is [0, 0], but must name each GPU once"),
        (SSH | {"cleanup_command": "free"}, 'hosts[0].cleanup_command: is "free", but must be a list'),
        (SSH | {"cleanup_command": [" "]}, 'hosts[0].cleanup_command[0]: is " ", but must be the program to start'),
        (SSH | {"cleanup_command": ["a", "\0"]}, "hosts[0].cleanup_command[1]: holds a NUL character"),
        (SSH | {"name": "Gpu"}, 'hosts[0].name: the host name "Gpu" is not allowed'),
        (SSH | {"address": "::"}, "hosts[0].name: is missing: the address makes no name"),
    ],
)
def test_a_wrong_host_is_refused_with_its_place(table: dict[str, Any], message: str) -> None:
    first, *_ = refusals(table)
    assert first.startswith(message)
    assert "\n" not in first


def test_the_same_unit_twice_is_refused_whoever_logs_in() -> None:
    other = SSH | {"address": "root@GPU01:22", "name": "other"}
    assert refusals(SSH, other) == [
        "hosts[1]: is the same server as hosts[0]: sglang-qwen.service on GPU01; leave one out"
    ]
    assert refusals(UNIT, UNIT | {"name": "b"}) == [
        "hosts[1]: is the same server as hosts[0]: sglang-qwen.service on this machine; leave one out"
    ]


def test_two_units_of_a_host_and_one_unit_of_two_hosts_are_different_servers() -> None:
    assert refusals(SSH, SSH | {"name": "b", "unit": "other"}) == []
    assert refusals(SSH, SSH | {"address": "gpu02"}) == []
    assert refusals(SSH, SSH | {"address": "user@gpu01:2222", "name": "b"}) == []


def test_two_processes_in_one_folder_of_a_host_are_refused() -> None:
    assert refusals(THERE, THERE | {"name": "b"}) == [
        "hosts[1]: is the same server as hosts[0]: /tmp/tuner on gpu01; leave one out"
    ]
    assert refusals(THERE, THERE | {"name": "b", "state_dir": "/tmp/b"}) == []


def test_names_are_unique() -> None:
    assert refusals(SSH, SSH | {"unit": "b"}) == ['hosts[1].name: "gpu01" is there twice: name one otherwise']


def test_units_and_processes_are_not_mixed() -> None:
    (line,) = refusals(SSH, HERE)
    assert line.startswith("hosts: are units and processes: the base command line would come from two places")


def test_a_wrong_host_does_not_hide_another() -> None:
    assert len(refusals(SSH | {"unti": 1}, HERE | {"unit": "a"})) == 2


def test_every_key_is_in_the_readme() -> None:
    readme = (Path(__file__).parents[2] / "README.md").read_text()
    keys = {key for model in _KINDS.values() for key in model.model_fields}
    assert not {key for key in keys if f"`{key}`" not in readme and f"`{key} = true`" not in readme}
