"""Addresses, units and URLs: what is taken, and that nothing passes which a program could take for an option."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tuner.config.address import (
    Address,
    check_base_url,
    check_jump,
    check_user,
    name_from,
    parse_address,
    unit_name,
)
from tuner.config.problems import check_name


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("gpu01", Address(host="gpu01")),
        ("user@gpu01", Address(host="gpu01", user="user")),
        ("user@gpu01:2222", Address(host="gpu01", user="user", port=2222)),
        ("gpu01.example.com:22", Address(host="gpu01.example.com", port=22)),
        ("root@10.0.0.7", Address(host="10.0.0.7", user="root")),
        ("2001:db8::7", Address(host="2001:db8::7")),
        ("u@[2001:db8::7]", Address(host="2001:db8::7", user="u")),
        ("u@[2001:db8::7]:2222", Address(host="2001:db8::7", user="u", port=2222)),
        ("u@fe80::1%eth0", Address(host="fe80::1%eth0", user="u")),
        ("me@example.com@gpu01", Address(host="gpu01", user="me@example.com")),
        ("DOMAIN\\me@gpu01", Address(host="gpu01", user="DOMAIN\\me")),
        ("my_alias", Address(host="my_alias")),
    ],
)
def test_an_address_is_read_as_ssh_reads_it(text: str, address: Address) -> None:
    assert parse_address(text) == address


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "must be [user@]host[:port]"),
        ("user@", "must be [user@]host[:port]"),
        ("@gpu01", '"" is no user name'),
        ("-oProxyCommand=x", "must be [user@]host[:port]"),
        ("-l@gpu01", '"-l" is no user name'),
        ("user@-x", "must be [user@]host[:port]"),
        ("gpu01 rm", "must be [user@]host[:port]"),
        ("gpu01\n", "must be [user@]host[:port]"),
        ("gpu01:0", "the port must be a number from 1 to 65535"),
        ("gpu01:65536", "the port must be a number from 1 to 65535"),
        ("gpu01:", "the port must be a number from 1 to 65535"),
        ("gpu01:٣", "the port must be a number from 1 to 65535"),
        ("[::1", "must be [user@]host[:port]"),
        ("[::1]22", "must be [user@]host[:port]"),
        ("ssh://gpu01", "without // and path"),
        ("gpu01/x", "without // and path"),
    ],
)
def test_what_is_no_address_is_refused(text: str, words: str) -> None:
    with pytest.raises(ValueError, match=r"^is ") as caught:
        parse_address(text)
    assert words in str(caught.value)


@given(st.text())
def test_no_part_of_an_address_is_an_option_or_several_words(text: str) -> None:
    try:
        address = parse_address(text)
    except ValueError:
        return
    for part in (address.host, address.user):
        assert part is None or (part and part[0] != "-" and part.isprintable() and " " not in part)


@pytest.mark.parametrize("text", ["bastion", "u@bastion:22,gpu-jump", "none"])
def test_jump_hosts_are_taken_as_ssh_takes_them(text: str) -> None:
    assert check_jump(text) == text


@pytest.mark.parametrize("text", ["", "a,,b", "a, b", "-x", "u@a:99999"])
def test_what_is_no_jump_host_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="several separated by commas, as ssh -J takes it"):
        check_jump(text)


@pytest.mark.parametrize("text", ["", "-root", "a b", "a:b"])
def test_what_is_no_user_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="must be the name of a user of the host"):
        check_user(text)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("sglang-qwen.service", "sglang-qwen.service"),
        ("sglang-qwen", "sglang-qwen.service"),
        ("sglang.v2", "sglang.v2.service"),
        ("sglang@gpu0", "sglang@gpu0.service"),
        ("sglang@gpu0.service", "sglang@gpu0.service"),
        ("sglang@a@b.service", "sglang@a@b.service"),
        (r"sglang@models-qwen\x2d3.service", r"sglang@models-qwen\x2d3.service"),
        ("a:b_c", "a:b_c.service"),
    ],
)
def test_a_unit_gets_its_full_name(text: str, name: str) -> None:
    assert unit_name(text) == name
    assert unit_name(name) == name


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("sglang.socket", "a socket: name the .service that runs the server"),
        ("multi-user.target", "a target: name the .service"),
        ("sglang@.service", "a template: name an instance of it, sglang@NAME.service"),
        ("sglang@", "a template: name an instance of it, sglang@NAME.service"),
        ("", "must be the name of a unit"),
        (".service", "must be the name of a unit"),
        ("@x", "must be the name of a unit"),
        (".x.service", "must be the name of a unit"),
        ("...", "must be the name of a unit"),
        ("-x.service", "must be the name of a unit"),
        ("a/b.service", "must be the name of a unit"),
        ("a b.service", "must be the name of a unit"),
        ("a*.service", "must be the name of a unit"),
        ("a.service\n", "must be the name of a unit"),
        ("ä.service", "must be the name of a unit"),
        ("x" * 255, "must be the name of a unit"),
    ],
)
def test_what_is_no_service_is_refused(text: str, words: str) -> None:
    with pytest.raises(ValueError, match=r"^is ") as caught:
        unit_name(text)
    assert words in str(caught.value)


@given(st.text(alphabet=st.sampled_from("ab@.-\\/ \n*:_%é") | st.characters()))
def test_a_unit_name_stays_one_path_component_and_no_option(text: str) -> None:
    try:
        name = unit_name(text)
    except ValueError:
        return
    assert name.isascii()
    assert name.isprintable()
    assert not set(name) & set(" /*?[%")
    assert not name.startswith(("-", "."))


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("http://gpu01:30000", "http://gpu01:30000"),
        ("https://gpu01/", "https://gpu01"),
        ("http://[::1]:30000", "http://[::1]:30000"),
        ("http://proxy/qwen/", "http://proxy/qwen"),
    ],
)
def test_a_base_url_loses_its_last_slash(text: str, url: str) -> None:
    assert check_base_url(text) == url


@pytest.mark.parametrize(
    "text",
    [
        "",
        "gpu01:30000",
        "ftp://gpu01",
        "http://",
        "http://u:p@gpu01",
        "http://gpu01:99999",
        "http://g:0",
        "http://g?x",
        "http://g#x",
        "http://a b",
        "http://g\n",
        "http://[::1",
    ],
)
def test_what_is_no_base_url_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"must be the address of the server, http://host:port"):
        check_base_url(text)


@pytest.mark.parametrize(
    ("host", "name"),
    [
        ("gpu01", "gpu01"),
        ("GPU01.Example.com", "gpu01.example.com"),
        ("2001:db8::7", "2001-db8-7"),
        ("::", ""),
        ("_x", "x"),
        ("a..b", "a.b"),
        ("h" * 300, "h" * 64),
    ],
)
def test_a_host_is_called_after_its_address(host: str, name: str) -> None:
    assert name_from(host) == name


@given(st.text())
def test_a_name_made_from_an_address_can_be_one_or_is_empty(host: str) -> None:
    name = name_from(host)
    assert not name or check_name(name, "the host name") is None
