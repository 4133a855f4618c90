"""known_hosts files: which lines are about a host, and what they say of its key."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest

from tuner.hosts.ssh import known_hosts
from tuner.hosts.ssh.known_hosts import Entry, HostKey, Standing, judge, kinds_known, lookup_name, parse

GOOD = HostKey("ssh-ed25519", b"good")
OTHER = HostKey("ssh-ed25519", b"other")
RSA = HostKey("ssh-rsa", b"rsa")


def line(hosts: str, key: HostKey, marker: str = "") -> str:
    return f"{marker} {hosts} {key.kind} {base64.b64encode(key.blob).decode()} comment\n".lstrip()


def entries(*lines: str) -> tuple[Entry, ...]:
    return tuple(parse("".join(lines), "/kh"))


@pytest.mark.parametrize(
    ("hosts", "name", "is_named"),
    [
        ("gpu", "gpu", True),
        ("GPU", "gpu", True),
        ("gpu", "gpu1", False),
        ("a,gpu,b", "gpu", True),
        ("gpu*", "gpu17", True),
        ("gpu?", "gpu17", False),
        ("*.lab,!bad.lab", "good.lab", True),
        ("*.lab,!bad.lab", "bad.lab", False),
        ("!bad.lab,*.lab", "bad.lab", False),
        ("[gpu]:2222", "[gpu]:2222", True),
        ("[gpu]:2222", "gpu", False),
        ("gpu", "[gpu]:2222", False),
        ("[gpu]:22", "g:22", False),
        ("[10.0.0.*]:2222", "[10.0.0.7]:2222", True),
    ],
)
def test_a_line_is_about_the_hosts_that_it_lists(hosts: str, name: str, is_named: bool) -> None:
    (entry,) = entries(line(hosts, GOOD))
    assert entry.names(name) is is_named


@pytest.mark.parametrize(
    ("hashed", "name"),
    [  # as ssh-keygen -H made them
        ("|1|YuWK1NyK+kQqNM+bFLKXzekwr3o=|BUUOB2kcko669asViEpuUtFgrIs=", "gpu01"),
        ("|1|aZpgcB5P/bzF+/CTPozzqd3N4Wc=|bZ4mPFKADjQPxi2DzmvzrtEXaEs=", "[gpu02]:2222"),
    ],
)
def test_a_hashed_line_is_about_its_host_alone(hashed: str, name: str) -> None:
    (entry,) = entries(line(hashed, GOOD))
    assert entry.names(name)
    assert not entry.names("gpu02")


@pytest.mark.parametrize("hosts", ["|1|", "|1|a|b", "|1|!|!", "|1|a|b|c"])
def test_a_hash_that_is_broken_is_about_nobody(hosts: str) -> None:
    (entry,) = entries(line(hosts, GOOD))
    assert not entry.names("gpu")


@pytest.mark.parametrize(
    "text", ["# comment\n", "\n", "gpu\n", "gpu ssh-ed25519\n", "gpu ssh-ed25519 !!!\n", "@new * ssh-rsa AAAA\n"]
)
def test_what_is_no_line_of_known_hosts_is_passed_over(text: str) -> None:
    assert entries(text) == ()


@pytest.mark.parametrize(
    ("lines", "standing"),
    [
        ((), Standing.UNKNOWN),
        ((line("elsewhere", GOOD),), Standing.UNKNOWN),
        ((line("gpu", GOOD),), Standing.KNOWN),
        ((line("gpu", OTHER), line("gpu", GOOD)), Standing.KNOWN),
        ((line("gpu", OTHER),), Standing.CHANGED),
        ((line("gpu", RSA),), Standing.CHANGED),  # another type is no reason to believe
        ((line("gpu", GOOD), line("*", GOOD, "@revoked")), Standing.REVOKED),
        ((line("gpu", GOOD), line("*", OTHER, "@revoked")), Standing.KNOWN),
        ((line("*", OTHER, "@cert-authority"),), Standing.CERTIFIED),
        ((line("*", OTHER, "@cert-authority"), line("gpu", GOOD)), Standing.KNOWN),
    ],
)
def test_a_key_is_what_the_lines_say_of_it(lines: tuple[str, ...], standing: Standing) -> None:
    assert judge(entries(*lines), "gpu", GOOD).standing is standing


def test_a_key_in_the_file_of_revoked_keys_is_revoked(tmp_path: Path) -> None:
    file = tmp_path / "revoked"
    file.write_text(line("", GOOD).strip() + "\n")
    revoked = known_hosts.read_revoked(str(file))
    assert judge(entries(line("gpu", GOOD)), "gpu", GOOD, revoked).standing is Standing.REVOKED
    file.write_bytes(b"SSHKRL\n\0...")
    with pytest.raises(ValueError, match="list of public keys"):
        known_hosts.read_revoked(str(file))


def test_the_types_known_of_a_host_are_asked_for_first() -> None:
    known = entries(line("gpu", RSA), line("gpu", GOOD), line("gpu", OTHER), line("x", HostKey("ecdsa", b"x")))
    assert kinds_known(known, "gpu") == ("ssh-rsa", "ssh-ed25519")


@pytest.mark.parametrize(
    ("hostname", "port", "alias", "name"),
    [
        ("GPU", 22, None, "gpu"),
        ("GPU", 2222, None, "[gpu]:2222"),
        ("gpu", 2222, "Prod", "prod"),
        ("::1", 22, None, "::1"),
    ],
)
def test_a_host_is_looked_up_by_its_name_port_or_alias(hostname: str, port: int, alias: str | None, name: str) -> None:
    assert lookup_name(hostname, port, alias) == name


@pytest.mark.parametrize("hashed", [False, True])
def test_a_key_is_remembered_once_at_the_end_of_the_file(tmp_path: Path, hashed: bool) -> None:
    file = tmp_path / "folder" / "known_hosts"
    assert known_hosts.remember(file, "[gpu]:2222", GOOD, hashed=hashed)
    assert not known_hosts.remember(file, "[gpu]:2222", GOOD, hashed=hashed)
    assert known_hosts.remember(file, "other", OTHER, hashed=hashed)
    read = known_hosts.read_entries([str(file), str(tmp_path / "missing")])
    assert [entry.place for entry in read] == [f"{file}:1", f"{file}:2"]
    assert judge(read, "[gpu]:2222", GOOD).standing is Standing.KNOWN
    assert judge(read, "other", OTHER).standing is Standing.KNOWN
    assert ("gpu" in file.read_text()) is not hashed
    assert file.stat().st_mode & 0o777 == 0o600


def test_a_fingerprint_reads_as_ssh_keygen_shows_it() -> None:
    assert GOOD.fingerprint == "SHA256:dw5gdiTWiSZcpsRIhNCAfZsFTSPEc8EGxyvp3gi3N2w (ssh-ed25519)"
