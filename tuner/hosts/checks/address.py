"""Whether the load can reach the address on which the server listens."""

from __future__ import annotations

from collections.abc import Sequence
from ipaddress import ip_address
from urllib.parse import urlsplit

from tuner.hosts.checks.advice import TABLE, Advice
from tuner.hosts.checks.row import Row, failed, ok
from tuner.model.study import Reach

_FLAG = "--host"
_DEFAULT = "127.0.0.1"
"""Of SGLang, llama.cpp's server and most others."""
_LOOPBACK_NAMES = frozenset({"localhost", "ip6-localhost"})
_EVERYWHERE = frozenset({"0.0.0.0", "::", "*"})  # noqa: S104 - compared with, never bound


def listen_address(argv: Sequence[str]) -> str:
    """Return what follows ``--host`` in a server's command line; the last one counts."""
    found = _DEFAULT
    for word, following in zip(argv, (*argv[1:], ""), strict=True):
        if word == _FLAG and following:
            found = following
        elif word.startswith(f"{_FLAG}="):
            found = word.partition("=")[2]
    return found.strip("[]")


def is_loopback(address: str) -> bool:
    """Whether only the host itself reaches ``address``."""
    if address in _LOOPBACK_NAMES:
        return True
    try:
        return ip_address(address).is_loopback
    except ValueError:
        return False


def leads_to(asked: str, listen: str) -> bool:
    """Whether a connection to ``asked`` reaches a server that listens on ``listen``.

    Of an address that is not loopback, nothing more can be known from here: another of the host's.
    """
    if listen in _EVERYWHERE:
        return True
    if is_loopback(listen) != is_loopback(asked):
        return False
    return not is_loopback(listen) or _same(asked) == _same(listen)


def other_port(base_url: str | None, port: int) -> str:
    """Say that a URL names another port than the server's command line; empty: it does not.

    That is right where something stands before the server, and a slip of the pen elsewhere.
    """
    if base_url is None:
        return ""
    parts = urlsplit(base_url)
    named = parts.port or {"http": 80, "https": 443}.get(parts.scheme)
    return "" if named == port else f"base_url names port {named}, the server's command line {port}"


def address_row(listen: str, reach: Reach, host: str, port: int, advice: Advice = TABLE) -> Row:
    """Decide whether the study's way to the server leads there.

    Args:
        listen: the server's ``--host``.
        reach: the study's way to it.
        host: the address at which the load looks for it.
        port: of the server's command line.
        advice: how remedies are written down.
    """
    check = "address"
    if reach.base_url is not None:  # something may stand before the server
        other = other_port(reach.base_url, port)
        return ok(
            check, f"the server listens on {listen}, to be reached at {reach.base_url}{'; ' if other else ''}{other}"
        )
    asked = _DEFAULT if reach.tunnel else host
    way = "ssh -L" if reach.tunnel else asked
    if leads_to(asked, listen):
        return ok(check, f"the server listens on {listen}, reached through {way}")
    seen = f"the server listens on {listen} only, which {way} does not lead to"
    if is_loopback(listen) and not reach.tunnel and _same(listen) == _DEFAULT:
        return failed(check, seen, f"{advice.tunnel}, or give the server --host 0.0.0.0")
    base_url = advice.key(f'base_url = "http://{listen}:{port}"')
    return failed(check, seen, f"write {base_url}, or give the server another --host")


def _same(address: str) -> str:
    return _DEFAULT if address in _LOOPBACK_NAMES else address
