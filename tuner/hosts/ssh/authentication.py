"""Logging in: which of our keys are shown, in OpenSSH's order, and what is said when none is taken."""

from __future__ import annotations

import base64
import binascii
import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from tuner.errors import LoginRefused, TransportFault
from tuner.hosts.ssh.faults import ConnectionLost
from tuner.hosts.ssh.login import ResolvedLogin
from tuner.hosts.ssh.paramiko_edge import Agent, Link, PrivateKey, load_key

_PATIENT_KEYS = 3  # a host that hangs up after so many refusals has had enough of them (MaxAuthTries)
_OTHERS_MAY = 0o077


def log_in(link: Link, login: ResolvedLogin) -> None:
    """Log in with a key of the agent or of a file; nothing is ever asked of a person.

    Raises:
        LoginRefused: the host takes neither this user nor these keys.
        ConnectionLost: the connection was lost meanwhile.
    """
    methods = link.ask_methods(login.user)
    if methods is None:
        return
    if "publickey" not in methods or not login.public_key_allowed:
        asked = ", ".join(methods) if "publickey" not in methods else "a key, and PubkeyAuthentication is off"
        msg = f"{login.address}: the host wants {asked}, and tuner logs in by key only: allow user {login.user} a key"
        raise LoginRefused(msg)
    tried: list[str] = []
    unusable: list[str] = []
    with contextlib.ExitStack() as stack:
        for key in _keys(login, unusable, stack):
            tried.append(key.name)
            if _is_accepted(link, login, key, tried):
                return
    raise LoginRefused(_refusal(login, tried, unusable))


def _is_accepted(link: Link, login: ResolvedLogin, key: PrivateKey, tried: list[str]) -> bool:
    try:
        more = link.log_in(login.user, key)
    except LoginRefused as error:
        if link.is_alive:
            return False
        if len(tried) < _PATIENT_KEYS:
            msg = f"{login.address}: the connection was lost while logging in"
            raise ConnectionLost(msg) from error
        msg = (
            f"{login.address}: the host hung up after {len(tried)} keys ({', '.join(tried)}): "
            "name the right one with identity_file, and IdentitiesOnly in ssh_config"
        )
        raise LoginRefused(msg) from error
    if more:
        msg = f"{login.address}: after the key {key.name} the host wants {', '.join(more)} too, which tuner cannot give"
        raise LoginRefused(msg)
    return True


def _refusal(login: ResolvedLogin, tried: list[str], unusable: list[str]) -> str:
    keys = f"tried {', '.join(tried)}" if tried else "no key to try"
    rest = f"; not usable: {', '.join(unusable)}" if unusable else ""
    other = f"; tuner does not follow {', '.join(login.not_followed)} of ssh_config" if login.not_followed else ""
    return (
        f"{login.address}: the host does not let user {login.user} in ({keys}{rest}{other}): "
        "put the public key into its authorized_keys, or name another user or identity_file"
    )


def _keys(login: ResolvedLogin, unusable: list[str], stack: contextlib.ExitStack) -> Iterator[PrivateKey]:
    """Yield the keys as ssh(1) tries them: the agent's that are named, its others, then files."""
    agent = _agent_keys(login, unusable, stack)
    named = [_public_half(path) for path in login.identity_files]
    chosen = [key for blob in named for key in agent if blob is not None and key.blob == blob]
    yield from chosen
    if not login.identities_only:
        yield from (key for key in agent if key.blob not in named)
    offered = {key.blob for key in chosen}
    for path, blob in zip(login.identity_files, named, strict=True):
        if blob is not None and blob in offered:
            continue
        key = _file_key(path, login, unusable)
        if key is not None and key.blob not in offered:
            offered.add(key.blob)
            yield key


def _agent_keys(login: ResolvedLogin, unusable: list[str], stack: contextlib.ExitStack) -> list[PrivateKey]:
    if login.agent is None:
        return []
    try:
        agent = Agent(login.agent)
    except TransportFault as error:
        unusable.append(str(error))
        return []
    stack.callback(agent.close)
    return agent.keys()


def _file_key(path: str, login: ResolvedLogin, unusable: list[str]) -> PrivateKey | None:
    try:
        status = Path(path).stat()
    except OSError as error:
        if login.is_identity_named:
            unusable.append(f"{path} ({error.strerror})")
        return None
    if status.st_uid == os.getuid() and status.st_mode & _OTHERS_MAY:
        unusable.append(f"{path} (others may read it: chmod 600)")
        return None
    try:
        key = load_key(path)
    except TransportFault as error:
        unusable.append(f"{path} ({str(error).removeprefix(f'{path}: ')[:80]})")
        return None
    if key is None:
        unusable.append(f"{path} (has a passphrase: ssh-add it)")
    return key


def _public_half(path: str) -> bytes | None:
    """Read the ``.pub`` beside a private key, to know it in the agent; None: there is none."""
    for candidate in (f"{path}.pub", path):
        try:
            words = Path(candidate).read_bytes()[:65536].split()
            if len(words) >= 2 and words[0].startswith((b"ssh-", b"ecdsa-", b"sk-")):
                return base64.b64decode(words[1])
        except (OSError, binascii.Error):
            continue
    return None
