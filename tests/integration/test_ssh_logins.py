"""Host keys and our own keys, jump hosts and proxies: over a real sshd, as OpenSSH's users expect."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tuner.errors import HostKeyRefused, LoginRefused, TransportFault
from tuner.hosts.ssh.transport import SshTransport
from tuner.model.study import SshLogin
from tuner.testing.sshd import Sshd, make_key, sshd_program

pytestmark = pytest.mark.skipif(sshd_program() is None, reason="openssh-server is not installed")


@pytest.fixture(autouse=True)
def no_agent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)


@pytest.fixture
def sshd(tmp_path: Path) -> Iterator[Sshd]:
    with Sshd(tmp_path / "sshd") as sshd:
        yield sshd


def say(login: SshLogin, word: str = "in") -> SshTransport:
    """Log in, run a command, and return the transport, closed."""

    async def scenario() -> SshTransport:
        transport = SshTransport(login)
        try:
            assert (await transport.run(("echo", word))).stdout == f"{word}\n"
        finally:
            await transport.close()
        return transport

    return asyncio.run(scenario())


def fingerprint(sshd: Sshd) -> str:
    done = subprocess.run(("ssh-keygen", "-l", "-f", str(sshd.host_key)), capture_output=True, text=True, check=True)
    return done.stdout.split()[1]


def test_what_is_given_goes_before_ssh_config(sshd: Sshd, tmp_path: Path) -> None:
    config = tmp_path / "config"
    config.write_text("Host *\n  Port 1\n  User nobody\n  IdentityFile /nowhere\n")
    login = SshLogin(
        host=sshd.address,
        user=sshd.user,
        port=sshd.port,
        identity_file=str(sshd.identity),
        config_file=str(config),
        known_hosts=str(sshd.known_hosts),
    )
    assert say(login).accepted_key is None


def test_an_unknown_host_is_refused_with_its_fingerprint_and_the_remedy(sshd: Sshd) -> None:
    sshd.known_hosts.write_text("")
    with pytest.raises(HostKeyRefused) as refused:
        say(sshd.login)
    message = str(refused.value)
    assert fingerprint(sshd) in message
    assert str(sshd.known_hosts) in message
    assert "--accept-new-host-key" in message
    assert "\n" not in message
    assert sshd.known_hosts.read_text() == ""
    assert "Accepted" not in sshd.log.read_text()  # our key was not even shown


def test_an_unknown_host_is_taken_once_when_asked_to_and_known_to_ssh_then(sshd: Sshd) -> None:
    sshd.known_hosts.write_text("[elsewhere]:1 ssh-ed25519 AAAA")  # without a line's end
    sshd.known_hosts.chmod(0o600)
    accepting = replace(sshd.login, accept_new_host_key=True)
    accepted = say(accepting).accepted_key
    assert accepted is not None
    assert fingerprint(sshd) in accepted
    content = sshd.known_hosts.read_text()
    assert content.startswith(f"[elsewhere]:1 ssh-ed25519 AAAA\n[{sshd.address}]:{sshd.port} ssh-ed25519 ")
    assert say(accepting).accepted_key is None
    assert say(sshd.login).accepted_key is None
    assert sshd.known_hosts.read_text() == content
    argv = ("ssh", "-F", str(sshd.config), "-o", "BatchMode=yes", "-o", "StrictHostKeyChecking=yes", "gpu", "true")
    assert subprocess.run(argv, check=False).returncode == 0


def test_a_known_hosts_file_that_is_made_is_the_users_alone_and_can_be_hashed(sshd: Sshd, tmp_path: Path) -> None:
    sshd.config.write_text(sshd.config.read_text() + "  HashKnownHosts yes\n")
    made = tmp_path / "new" / "known_hosts"
    login = replace(sshd.login, known_hosts=str(made), accept_new_host_key=True)
    say(login)
    assert made.stat().st_mode & 0o777 == 0o600
    assert made.read_text().startswith("|1|")
    assert say(replace(login, accept_new_host_key=False)).accepted_key is None


def test_a_key_that_has_changed_is_refused_even_if_new_ones_are_taken(sshd: Sshd) -> None:
    known = sshd.known_hosts.read_text()
    sshd.change_host_key()
    sshd.restart()
    with pytest.raises(HostKeyRefused, match=r"is not the one that is known.*ssh-keygen -R"):
        say(replace(sshd.login, accept_new_host_key=True))
    assert sshd.known_hosts.read_text() == known


def test_a_host_with_several_keys_is_asked_for_the_one_that_is_known(tmp_path: Path) -> None:
    rsa, ecdsa = tmp_path / "rsa", tmp_path / "ecdsa"
    make_key(rsa, "rsa")
    make_key(ecdsa, "ecdsa")
    with Sshd(tmp_path / "sshd", options=f"HostKey {rsa}\nHostKey {ecdsa}\n") as sshd:
        for key in (rsa, ecdsa):
            kind, blob = key.with_suffix(".pub").read_text().split()[:2]
            sshd.known_hosts.write_text(f"[{sshd.address}]:{sshd.port} {kind} {blob}\n")
            say(sshd.login)


def test_revoked_and_certified_keys_are_told_apart(sshd: Sshd) -> None:
    line = sshd.known_hosts.read_text()
    sshd.known_hosts.write_text(line + "@revoked * " + line.split(" ", 1)[1])
    with pytest.raises(HostKeyRefused, match="is revoked"):
        say(sshd.login)
    sshd.known_hosts.write_text("@cert-authority " + line)
    with pytest.raises(HostKeyRefused, match="certificate authority"):
        say(sshd.login)


def test_a_host_key_alias_is_looked_up_in_place_of_the_address(sshd: Sshd) -> None:
    sshd.config.write_text(sshd.config.read_text() + "  HostKeyAlias Production\n")
    sshd.known_hosts.write_text("production " + sshd.known_hosts.read_text().split(" ", 1)[1])
    say(sshd.login)


def test_a_wrong_key_is_refused_with_user_host_and_the_keys_that_were_tried(sshd: Sshd, tmp_path: Path) -> None:
    other = tmp_path / "other"
    make_key(other)
    config = tmp_path / "config"
    config.write_text(sshd.config.read_text().replace(str(sshd.identity), str(other)))
    with pytest.raises(LoginRefused) as refused:
        say(replace(sshd.login, config_file=str(config)))
    assert str(refused.value).startswith(f"{sshd.user}@127.0.0.1:{sshd.port} (gpu)")
    assert str(other) in str(refused.value)
    assert "authorized_keys" in str(refused.value)


def test_a_wrong_user_is_refused_and_named(sshd: Sshd) -> None:
    with pytest.raises(LoginRefused, match="does not let user nobody-at-all in"):
        say(replace(sshd.login, user="nobody-at-all"))


def test_a_key_with_a_passphrase_needs_the_agent_and_nobody_is_asked(sshd: Sshd, tmp_path: Path) -> None:
    locked = tmp_path / "locked"
    make_key(locked, passphrase="secret")
    sshd.authorized.write_text(locked.with_suffix(".pub").read_text())
    sshd.config.write_text(sshd.config.read_text().replace(str(sshd.identity), str(locked)))
    with pytest.raises(LoginRefused, match=r"locked \(has a passphrase: ssh-add it\)"):
        say(sshd.login)


def test_a_key_that_others_may_read_is_not_used_as_with_ssh(sshd: Sshd) -> None:
    sshd.identity.chmod(0o644)
    with pytest.raises(LoginRefused, match="chmod 600"):
        say(sshd.login)


def test_an_identity_file_that_is_missing_is_named_at_once(sshd: Sshd) -> None:
    with pytest.raises(TransportFault, match="/nowhere/id does not exist"):
        say(replace(sshd.login, identity_file="/nowhere/id"))


@pytest.mark.parametrize("kind", ["rsa", "ecdsa"])
def test_keys_of_other_types_log_in_too(sshd: Sshd, tmp_path: Path, kind: str) -> None:
    key = tmp_path / kind
    make_key(key, kind)
    sshd.authorized.write_text(key.with_suffix(".pub").read_text())
    say(replace(sshd.login, identity_file=str(key)))


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[dict[str, str]]:
    if shutil.which("ssh-agent") is None:
        pytest.skip("ssh-agent is not installed")
    socket = tmp_path / "agent"
    process = subprocess.Popen(("ssh-agent", "-D", "-a", str(socket)), stdout=subprocess.DEVNULL)
    while not socket.exists():
        assert process.poll() is None
    yield {**os.environ, "SSH_AUTH_SOCK": str(socket)}
    process.terminate()
    process.wait()


def test_the_agent_logs_in_with_a_key_that_has_no_file_here(
    sshd: Sshd, agent: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    sshd.config.write_text(sshd.config.read_text().replace("IdentitiesOnly yes", "IdentitiesOnly no"))
    subprocess.run(("ssh-add", "-q", str(sshd.identity)), env=agent, check=True)
    sshd.identity.unlink()
    sshd.identity.with_suffix(".pub").unlink()
    with pytest.raises(LoginRefused):
        say(sshd.login)
    monkeypatch.setenv("SSH_AUTH_SOCK", agent["SSH_AUTH_SOCK"])
    say(sshd.login)


def test_an_agent_named_in_ssh_config_is_asked_for_the_named_key_first(
    sshd: Sshd, agent: dict[str, str], tmp_path: Path
) -> None:
    for number in range(7):  # more than the host bears (MaxAuthTries 6)
        make_key(tmp_path / f"other{number}")
        subprocess.run(("ssh-add", "-q", str(tmp_path / f"other{number}")), env=agent, check=True)
    sshd.config.write_text(
        sshd.config.read_text().replace("IdentitiesOnly yes", f"IdentityAgent {agent['SSH_AUTH_SOCK']}")
    )
    subprocess.run(("ssh-add", "-q", str(sshd.identity)), env=agent, check=True)
    say(sshd.login)  # the key's own .pub is known, so it is the first to be shown
    subprocess.run(("ssh-add", "-q", "-d", str(sshd.identity)), env=agent, check=True)
    with pytest.raises(LoginRefused, match=r"hung up after \d keys.*IdentitiesOnly"):
        say(sshd.login)


def test_a_host_behind_a_jump_host_is_reached_through_it(sshd: Sshd, tmp_path: Path) -> None:
    with Sshd(tmp_path / "jump", "127.0.0.2", "bastion") as jump:
        config = tmp_path / "config"
        config.write_text(f"{jump.config.read_text()}{sshd.config.read_text()}  ProxyJump bastion\n")
        login = replace(sshd.login, config_file=str(config))
        say(login)
        assert f"from {jump.address}" in sshd.log.read_text() or "from 127.0.0.1" in sshd.log.read_text()
        assert "Accepted publickey" in jump.log.read_text()
        jump.known_hosts.write_text("")
        with pytest.raises(HostKeyRefused, match="bastion"):
            say(login)
        accepted = say(replace(login, accept_new_host_key=True)).accepted_key
        assert accepted is not None
        assert jump.address in accepted


def test_two_jump_hosts_in_a_row_are_passed_in_their_order(sshd: Sshd, tmp_path: Path) -> None:
    with (
        Sshd(tmp_path / "first", "127.0.0.2", "first") as first,
        Sshd(tmp_path / "second", "127.0.0.3", "second") as second,
    ):
        config = tmp_path / "config"
        config.write_text("".join(host.config.read_text() for host in (first, second, sshd)))
        say(replace(sshd.login, config_file=str(config), jump=f"first,{second.user}@second:{second.port}"))
        for jump in (first, second):
            assert jump.log.read_text().count("Accepted publickey") == 1


def test_a_jump_host_that_may_not_forward_is_named(sshd: Sshd, tmp_path: Path) -> None:
    with Sshd(tmp_path / "jump", "127.0.0.2", "bastion", options="AllowTcpForwarding no\n") as jump:
        config = tmp_path / "config"
        config.write_text(f"{jump.config.read_text()}{sshd.config.read_text()}  ProxyJump bastion\n")
        with pytest.raises(TransportFault, match=rf"bastion.*to 127.0.0.1:{sshd.port} from there"):
            say(replace(sshd.login, config_file=str(config)))


def test_a_proxy_command_is_run_without_a_shell_and_ends_with_the_connection(sshd: Sshd, tmp_path: Path) -> None:
    relay = tmp_path / "relay"
    relay.write_text(
        "#!/usr/bin/env python3\n"
        "import os, select, socket, sys\n"
        f"open('{tmp_path}/pid', 'w').write(str(os.getpid()))\n"
        "s = socket.create_connection((sys.argv[1], int(sys.argv[2])))\n"
        "while True:\n"
        "    for r in select.select([0, s], [], [])[0]:\n"
        "        b = os.read(0, 65536) if r == 0 else s.recv(65536)\n"
        "        if not b: sys.exit()\n"
        "        s.sendall(b) if r == 0 else os.write(1, b)\n"
    )
    relay.chmod(0o700)
    sshd.config.write_text(f"{sshd.config.read_text()}  ProxyCommand {relay} %h %p\n")
    say(sshd.login)
    assert not Path(f"/proc/{(tmp_path / 'pid').read_text()}").exists()


def test_a_proxy_command_that_ends_at_once_is_a_lost_connection_in_one_line(sshd: Sshd) -> None:
    sshd.config.write_text(f"{sshd.config.read_text()}  ProxyCommand false\n")
    with pytest.raises(TransportFault) as fault:
        say(sshd.login)
    assert "\n" not in str(fault.value)


def test_a_configuration_that_ssh_refuses_is_cited(sshd: Sshd) -> None:
    sshd.config.write_text("Host gpu\n  NoSuchOption yes\n")
    with pytest.raises(TransportFault, match=r"ssh refuses its configuration: .*nosuchoption"):
        say(sshd.login)


def test_a_machine_without_ssh_is_told_what_to_install(sshd: Sshd, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(TransportFault, match="install openssh-client"):
        say(sshd.login)


def test_a_name_that_is_not_known_is_said_so(sshd: Sshd) -> None:
    with pytest.raises(TransportFault, match=r"name no-such-host.invalid is not known"):
        say(replace(sshd.login, host="no-such-host.invalid"))
