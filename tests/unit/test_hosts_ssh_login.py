"""What ``ssh -G`` prints, read; nothing is run here."""

from __future__ import annotations

import os
import pwd

import pytest

from tuner.errors import TransportFault
from tuner.hosts.ssh.login import arguments, expand, jump_chain, parse, parse_jump, settle
from tuner.hosts.ssh.stream import proxy_arguments
from tuner.hosts.ssh.tunnel import configuration
from tuner.model.study import SshLogin

HOME = pwd.getpwuid(os.getuid()).pw_dir
PRINTED = """\
host gpu
user me
hostname 10.0.0.7
port 2201
addressfamily inet
hashknownhosts yes
identitiesonly yes
pubkeyauthentication true
hostkeyalias gpux
identityfile ~/my keys/%r_id
identityfile /x/${KEYS}/k
globalknownhostsfile /etc/ssh/ssh_known_hosts /etc/ssh/ssh_known_hosts2
userknownhostsfile /tmp/a b/kh /root/.ssh/%h_kh
connecttimeout 7
revokedhostkeys none
proxyjump a@b:33,[::1]:44
"""


def settled(text: str = PRINTED, *, environment: dict[str, str] | None = None, login: SshLogin | None = None):  # noqa: ANN201
    return settle(login or SshLogin(host="gpu"), parse(text), environment or {"KEYS": "mine"})


def test_everything_that_decides_about_a_connection_is_read() -> None:
    login = settled()
    assert (login.host, login.hostname, login.port, login.user) == ("gpu", "10.0.0.7", 2201, "me")
    assert login.identity_files == (f"{HOME}/my keys/me_id", "/x/mine/k")
    assert login.known_hosts == ("/tmp/a b/kh", "/root/.ssh/10.0.0.7_kh")
    assert login.system_known_hosts == ("/etc/ssh/ssh_known_hosts", "/etc/ssh/ssh_known_hosts2")
    assert (login.host_key_alias, login.family, login.connect_timeout_s) == ("gpux", "inet", 7.0)
    assert login.identities_only
    assert login.is_identity_named
    assert login.hash_known_hosts
    assert login.public_key_allowed
    assert login.revoked_keys is None


def test_an_address_names_user_host_port_and_alias() -> None:
    assert settled().address == "me@10.0.0.7:2201 (gpu)"
    assert settled("hostname gpu\nuser me\nport 22\n").address == "me@gpu"


def test_ssh_own_default_keys_are_not_somebodys_choice() -> None:
    assert not settled(
        "hostname gpu\nidentityfile ~/.ssh/id_rsa\nidentityfile ~/.ssh/id_ed25519_sk\n"
    ).is_identity_named
    assert settled("hostname gpu\nidentityfile ~/.ssh/gpu\n").is_identity_named


@pytest.mark.parametrize(
    ("printed", "socket"),
    [
        ("", "/run/agent"),
        ("identityagent none", None),
        ("identityagent SSH_AUTH_SOCK", "/run/agent"),
        ("identityagent $OTHER", "/run/other"),
        ("identityagent ${OTHER}", "/run/other"),
        ("identityagent ~/a.sock", f"{HOME}/a.sock"),
    ],
)
def test_the_agent_is_the_one_that_ssh_would_ask(printed: str, socket: str | None) -> None:
    environment = {"SSH_AUTH_SOCK": "/run/agent", "OTHER": "/run/other"}
    assert settled(f"hostname gpu\n{printed}\n", environment=environment).agent == socket


def test_known_hosts_that_are_given_replace_the_users_and_not_the_machines() -> None:
    login = settled(login=SshLogin(host="gpu", known_hosts="~/kh"))
    assert login.known_hosts == (f"{HOME}/kh",)
    assert len(login.system_known_hosts) == 2


def test_ways_to_log_in_that_are_not_followed_are_named() -> None:
    printed = "hostname gpu\ncertificatefile ~/x-cert.pub\npkcs11provider none\n"
    assert settled(printed).not_followed == ("certificatefile",)


@pytest.mark.parametrize(
    ("value", "expanded"),
    [
        ("%h-%p-%r-%n-%%", "10.0.0.7-2201-me-gpu-%"),
        ("%k", "gpux"),
        ("%d/x", f"{HOME}/x"),
        ("~", HOME),
        ("~other/x", "~other/x"),
        ("a~/b", "a~/b"),
    ],
)
def test_tokens_and_the_home_folder_are_expanded(value: str, expanded: str) -> None:
    assert expand(value, settled(), {}) == expanded


@pytest.mark.parametrize("value", ["/x/%Z", "/x/${NOT_SET}"])
def test_what_cannot_be_expanded_is_named(value: str) -> None:
    with pytest.raises(TransportFault, match="gpu: ssh_config has"):
        expand(value, settled(), {})


@pytest.mark.parametrize(
    ("text", "login"),
    [
        ("bastion", SshLogin(host="bastion")),
        ("me@bastion:2222", SshLogin(host="bastion", user="me", port=2222)),
        ("ssh://me@bastion:2222", SshLogin(host="bastion", user="me", port=2222)),
        ("[::1]:44", SshLogin(host="::1", port=44)),
        ("me@fe80::1", SshLogin(host="fe80::1", user="me")),
        ("me@example.com@bastion", SshLogin(host="bastion", user="me@example.com")),
    ],
)
def test_a_jump_host_is_read_as_ssh_reads_it(text: str, login: SshLogin) -> None:
    assert parse_jump(text, "gpu") == login


@pytest.mark.parametrize("text", ["", "@bastion", "bastion:x", "[::1", "a:b:c:z"])
def test_a_jump_host_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(TransportFault, match="is not"):
        parse_jump(text, "gpu")


def test_a_chain_of_jump_hosts_keeps_its_order() -> None:
    assert jump_chain("a, b:1,c") == ["a", "b:1", "c"]
    assert jump_chain(None) == []


def test_a_login_becomes_options_of_ssh() -> None:
    login = SshLogin(host="gpu", user="me", port=7, jump="a,b", identity_file="~/k", config_file="/c")
    expected = ("-F", "/c", "-l", "me", "-p", "7", "-J", "a,b", "-i", os.path.expanduser("~/k"))  # noqa: PTH111
    assert arguments(login) == expected
    assert arguments(SshLogin(host="gpu")) == ()


def test_a_proxy_command_becomes_words_with_their_tokens_expanded() -> None:
    login = settled(PRINTED + "proxycommand exec nc -X connect '%h' %p\n")
    assert proxy_arguments(login) == ("nc", "-X", "connect", "10.0.0.7", "2201")


@pytest.mark.parametrize("command", ["nc %h %p | tee log", "a; b", "sh -c 'nc $HOST'", "'", "a `b`", "exec"])
def test_a_proxy_command_that_needs_a_shell_is_refused_with_a_remedy(command: str) -> None:
    with pytest.raises(TransportFault, match="put it into a script"):
        proxy_arguments(settled(PRINTED + f"proxycommand {command}\n"))


def test_a_tunnels_configuration_has_every_hop_and_nothing_that_asks() -> None:
    hop = settled("hostname bastion\nuser other\nport 22\n", login=SshLogin(host="b"))
    login = settled("hostname fe80::1%eth0\nuser me\nport 22\nidentityfile /k %%\nuserknownhostsfile /kh\n")
    text = configuration(type(login)(**{**{name: getattr(login, name) for name in login.__slots__}, "via": hop}))
    assert 'HostName "fe80::1%%eth0"' in text
    assert 'IdentityFile "/k %%"' in text
    assert 'ProxyJump "tuner-hop-1"' in text
    assert text.count("\nHost tuner-hop-") == 2
    assert "BatchMode yes" in text
    assert "StrictHostKeyChecking yes" in text


def test_a_value_that_no_ssh_config_can_hold_is_refused() -> None:
    with pytest.raises(TransportFault, match="rename it"):
        configuration(settled('hostname gpu\nidentityfile /a"b\n'))
