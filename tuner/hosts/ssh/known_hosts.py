"""Whether a host proves to be the one that is known: known_hosts files, as sshd(8) describes them.

Read by ourselves and not by the SSH library, which knows neither ``@revoked`` nor ``@cert-authority`` nor
patterns, and takes any of several names for the same.
"""

from __future__ import annotations

import base64
import binascii
import fcntl
import fnmatch
import hashlib
import hmac
import os
import secrets
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

_KRL_MAGIC = b"SSHKRL\n\0"


@dataclass(frozen=True, slots=True)
class HostKey:
    """A public key of a host; two of them are the same key when they are equal."""

    kind: str
    blob: bytes

    @property
    def fingerprint(self) -> str:
        """As ``ssh-keygen -l`` shows it."""
        digest = base64.b64encode(hashlib.sha256(self.blob).digest()).decode().rstrip("=")
        return f"SHA256:{digest} ({self.kind})"


class Marker(Enum):
    """What a line says of its key."""

    KNOWN = ""
    REVOKED = "@revoked"
    AUTHORITY = "@cert-authority"


@dataclass(frozen=True, slots=True)
class Entry:
    """A line of a known_hosts file."""

    marker: Marker
    hosts: str
    key: HostKey
    place: str  # file:line

    def names(self, name: str) -> bool:
        """Whether the line is about this host."""
        return _hashed_matches(self.hosts, name) if self.hosts.startswith("|1|") else _listed(self.hosts, name)


class Standing(Enum):
    """What the files say of the key a host showed."""

    KNOWN = "known"
    UNKNOWN = "unknown"  # nothing is known of the host
    CHANGED = "changed"  # another key is known
    REVOKED = "revoked"
    CERTIFIED = "certified"  # only an authority's word is known, which is not checked here


@dataclass(frozen=True, slots=True)
class Judgement:
    """A standing, and the lines it rests on."""

    standing: Standing
    entries: tuple[Entry, ...] = ()


def lookup_name(hostname: str, port: int, alias: str | None = None) -> str:
    """Return the name by which known_hosts knows a host."""
    if alias is not None:
        return alias.lower()
    return hostname.lower() if port == 22 else f"[{hostname.lower()}]:{port}"


def read_entries(paths: Iterable[str]) -> tuple[Entry, ...]:
    """Read known_hosts files; files that are missing are empty, lines that are none are passed over.

    Raises:
        OSError: a file is there and cannot be read.
    """
    return tuple(entry for path in paths for entry in parse(_text(path), path))


def _text(path: str) -> str:
    try:
        return Path(path).read_bytes().decode(errors="replace")
    except (FileNotFoundError, NotADirectoryError):
        return ""


def parse(text: str, path: str) -> Iterator[Entry]:
    """Read the lines of a known_hosts file."""
    for number, line in enumerate(text.splitlines(), 1):
        words = line.split()
        marker = Marker.KNOWN
        if words and words[0].startswith("@"):
            try:
                marker = Marker(words.pop(0))
            except ValueError:
                continue
        if len(words) < 3 or words[0].startswith("#"):
            continue
        try:
            blob = base64.b64decode(words[2], validate=True)
        except (binascii.Error, ValueError):
            continue
        yield Entry(marker, words[0], HostKey(words[1], blob), f"{path}:{number}")


def read_revoked(path: str | None) -> frozenset[bytes]:
    """Read ``RevokedHostKeys``: public keys, one a line.

    Raises:
        OSError: it cannot be read: then no key may be taken, as with ssh.
        ValueError: it is a key revocation list, which only OpenSSH reads.
    """
    if path is None:
        return frozenset()
    content = Path(path).read_bytes()
    if content.startswith(_KRL_MAGIC):
        msg = "a binary key revocation list cannot be read: use a list of public keys"
        raise ValueError(msg)
    # The same lines as in known_hosts, without the names of hosts.
    lines = "\n".join(f"* {line}" for line in content.decode(errors="replace").splitlines())
    return frozenset(entry.key.blob for entry in parse(lines, path))


def kinds_known(entries: Iterable[Entry], name: str) -> tuple[str, ...]:
    """Return the types of key that are known of a host, to ask it for one of these."""
    kinds = (entry.key.kind for entry in entries if entry.marker is Marker.KNOWN and entry.names(name))
    return tuple(dict.fromkeys(kinds))


def judge(entries: Iterable[Entry], name: str, key: HostKey, revoked: frozenset[bytes] = frozenset()) -> Judgement:
    """Say what the files know of the key that a host showed."""
    about = tuple(entry for entry in entries if entry.names(name))
    banned = tuple(entry for entry in about if entry.marker is Marker.REVOKED and entry.key.blob == key.blob)
    if banned or key.blob in revoked:
        return Judgement(Standing.REVOKED, banned)
    known = tuple(entry for entry in about if entry.marker is Marker.KNOWN)
    same = tuple(entry for entry in known if entry.key == key)
    if same:
        return Judgement(Standing.KNOWN, same)
    if known:
        return Judgement(Standing.CHANGED, known)
    authorities = tuple(entry for entry in about if entry.marker is Marker.AUTHORITY)
    return Judgement(Standing.CERTIFIED, authorities) if authorities else Judgement(Standing.UNKNOWN)


def remember(path: Path, name: str, key: HostKey, *, hashed: bool) -> bool:
    """Add a key to the user's file, unless it is there already.

    Returns whether it was added. One write at the end of the file under a lock: what others add at the same
    time stays whole.

    Raises:
        OSError: the file cannot be written.
    """
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    handle = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    with os.fdopen(handle, "r+b") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        content = file.read()
        if judge(parse(content.decode(errors="replace"), str(path)), name, key).standing is Standing.KNOWN:
            return False
        start = b"" if not content or content.endswith(b"\n") else b"\n"
        shown = _hash(name) if hashed else name
        line = f"{shown} {key.kind} {base64.b64encode(key.blob).decode()}\n"
        os.write(file.fileno(), start + line.encode())
    return True


def _hash(name: str) -> str:
    salt = secrets.token_bytes(20)
    digest = hmac.new(salt, name.encode(), hashlib.sha1).digest()
    return f"|1|{base64.b64encode(salt).decode()}|{base64.b64encode(digest).decode()}"


def _hashed_matches(hosts: str, name: str) -> bool:
    parts = hosts.split("|")
    if len(parts) != 4:
        return False
    try:
        salt, digest = base64.b64decode(parts[2]), base64.b64decode(parts[3])
    except (binascii.Error, ValueError):
        return False
    return hmac.compare_digest(hmac.new(salt, name.encode(), hashlib.sha1).digest(), digest)


def _listed(hosts: str, name: str) -> bool:
    """Match a list of patterns; one that is negated and matches rules the whole line out."""
    is_listed = False
    for pattern in hosts.lower().split(","):
        # Only * and ? mean something; fnmatch would read the brackets of [host]:port as a set.
        shell_pattern = pattern.removeprefix("!").replace("[", "[[]")
        if fnmatch.fnmatchcase(name, shell_pattern):
            if pattern.startswith("!"):
                return False
            is_listed = True
    return is_listed
