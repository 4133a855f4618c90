"""Names from outside that end up in a command on a host: logins, units, URLs.

Everything here returns the value in its full form or raises ValueError with what is wrong, to be
put behind the name of the key or option. What could be read as an option of ``ssh`` or
``systemctl`` is refused.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import urlsplit

from tuner.config.problems import LONGEST_NAME, NAME, quoted

HIGHEST_PORT = 65535
_HOST = re.compile(r"[A-Za-z0-9_:][A-Za-z0-9_.:%+-]*")
_USER = re.compile(r"[A-Za-z0-9_.][A-Za-z0-9_.@+\\-]*")
_UNIT = re.compile(r"(?P<prefix>[A-Za-z0-9_:\\][A-Za-z0-9_.:\\-]*)(?P<at>@(?P<instance>[A-Za-z0-9_.:\\@-]*))?")
_UNIT_TYPES = frozenset(
    {"socket", "target", "timer", "path", "mount", "automount", "swap", "slice", "scope", "device", "snapshot"}
)
_LONGEST_UNIT = 255
"""UNIT_NAME_MAX of systemd, less the final NUL."""
_NOT_IN_A_NAME = re.compile(r"[^a-z0-9_.-]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """Where to log in; None: as OpenSSH's configuration says."""

    host: str
    user: str | None = None
    port: int | None = None


def parse_address(text: str) -> Address:
    """Read ``[user@]host[:port]``; an IPv6 address with a port stands in brackets.

    Raises:
        ValueError: it is none.
    """
    if "://" in text or "/" in text:
        raise ValueError(f"is {quoted(text)}, but must be [user@]host[:port], without // and path")
    user, at, place = text.rpartition("@")
    host, port = _split_port(place)
    if at and not _USER.fullmatch(user):
        raise ValueError(f"is {quoted(text)}, but {quoted(user)} is no user name: write user@host")
    if not _HOST.fullmatch(host):
        raise ValueError(f"is {quoted(text)}, but must be [user@]host[:port], or a Host of ssh_config")
    if port is None:
        return Address(host=host, user=user or None)
    if not (port.isascii() and port.isdigit() and 1 <= int(port) <= HIGHEST_PORT):
        raise ValueError(f"is {quoted(text)}, but the port must be a number from 1 to {HIGHEST_PORT}")
    return Address(host=host, user=user or None, port=int(port))


def _split_port(place: str) -> tuple[str, str | None]:
    if place.startswith("["):
        host, bracket, rest = place[1:].partition("]")
        if not bracket or (rest and not rest.startswith(":")):
            return "", None
        return host, rest[1:] if rest else None
    if place.count(":") > 1:  # an IPv6 address as it is
        return place, None
    host, colon, port = place.partition(":")
    return host, port if colon else None


def check_host(text: str) -> str:
    """Return an address as it was written.

    Raises:
        ValueError: it is none.
    """
    parse_address(text)
    return text


def check_user(text: str) -> str:
    """Return the name of a user of the host.

    Raises:
        ValueError: it is none.
    """
    if not _USER.fullmatch(text):
        raise ValueError(f"is {quoted(text)}, but must be the name of a user of the host")
    return text


def check_jump(text: str) -> str:
    """Return jump hosts, as ``ssh -J`` takes them.

    Raises:
        ValueError: one of them is no address.
    """
    try:
        for part in text.split(","):
            parse_address(part)
    except ValueError:
        raise ValueError(
            f"is {quoted(text)}, but must be [user@]host[:port], several separated by commas, as ssh -J takes it"
        ) from None
    return text


def unit_name(text: str) -> str:
    """Return the full name of a service, ``.service`` added where it has no type, as systemctl does.

    Raises:
        ValueError: it is no name, of another type, or a template without an instance.
    """
    stem, dot, kind = text.rpartition(".")
    if dot and kind in _UNIT_TYPES:
        raise ValueError(f"is {quoted(text)}, a {kind}: name the .service that runs the server")
    full = text if dot and kind == "service" else f"{text}.service"
    stem = full.removesuffix(".service")
    match = _UNIT.fullmatch(stem)
    if match is None or len(full) > _LONGEST_UNIT:
        raise ValueError(f"is {quoted(text)}, but must be the name of a unit, as systemctl list-units shows it")
    if match["at"] and not match["instance"]:
        raise ValueError(f"is {quoted(text)}, a template: name an instance of it, {match['prefix']}@NAME.service")
    return full


def check_base_url(text: str) -> str:
    """Return the URL of a server without its last slash.

    Raises:
        ValueError: it is not the http or https address of a server.
    """
    wrong = ValueError(f"is {quoted(text)}, but must be the address of the server, http://host:port")
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError:
        raise wrong from None
    odd = parts.username is not None or parts.query or parts.fragment or port == 0
    if parts.scheme not in ("http", "https") or not parts.hostname or odd or not text.isprintable() or " " in text:
        raise wrong
    return text.rstrip("/")


def name_from(host: str) -> str:
    """Make a host's name in tuner out of its address; empty when nothing of it can stand in a name."""
    name = re.sub(r"\.\.+", ".", _NOT_IN_A_NAME.sub("-", host.lower())).strip("-._")[:LONGEST_NAME]
    return name if NAME.fullmatch(name) else ""
