"""Where a login leads: asked of OpenSSH itself, so that its users find what they expect.

``ssh -G`` reads ssh_config(5) with everything in it: Host aliases, Match, Include, ProxyJump, IdentityFile.
What it prints is read here; some of it still has percent tokens in it, which ssh expands later.
"""

from __future__ import annotations

import hashlib
import os
import pwd
import re
import shlex
import shutil
import socket
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from tuner.errors import TransportFault
from tuner.model.study import SshLogin

Options = Mapping[str, tuple[str, ...]]
"""What ``ssh -G`` printed: option in lower case -> its lines."""

_ASK_TIMEOUT_S = 30.0  # a Match exec in the configuration may take its time
_MAX_JUMPS = 8
_OTHER_WAYS = ("certificatefile", "pkcs11provider")  # to log in, which only OpenSSH itself goes
_TOKEN = re.compile(r"%(.)|\$\{([^}]*)\}")
_SPACE_BEFORE_PATH = re.compile(r" (?=/)")  # ssh -G does not quote the paths that it has expanded


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedLogin:
    """A login with nothing left to decide.

    Attributes:
        host: as it was asked for: a Host alias, say.
        host_key_alias: the name known_hosts knows the host by; None: its host name.
        identity_files: private keys in the order in which they are tried; they need not exist.
        is_identity_named: somebody chose these keys, they are not OpenSSH's own defaults.
        agent: socket of the agent; None: no agent.
        known_hosts: the user's files; the first takes new keys.
        system_known_hosts: the machine's files.
        revoked_keys: file of revoked host keys.
        connect_timeout_s: None: the caller's own.
        family: ``any``, ``inet`` or ``inet6``.
        proxy_command: as ssh_config has it, percent tokens included.
        via: the jump host before this one.
        not_followed: options of ssh_config that only OpenSSH itself follows, for the message of a refusal.
    """

    host: str
    hostname: str
    port: int
    user: str
    host_key_alias: str | None = None
    identity_files: tuple[str, ...] = ()
    is_identity_named: bool = False
    identities_only: bool = False
    public_key_allowed: bool = True
    agent: str | None = None
    known_hosts: tuple[str, ...] = ()
    system_known_hosts: tuple[str, ...] = ()
    revoked_keys: str | None = None
    hash_known_hosts: bool = False
    connect_timeout_s: float | None = None
    family: str = "any"
    bind_address: str | None = None
    proxy_command: str | None = None
    via: ResolvedLogin | None = None
    accept_new_host_key: bool = False
    not_followed: tuple[str, ...] = ()

    @property
    def address(self) -> str:
        """The host as messages name it."""
        where = self.hostname if self.port == 22 else f"{self.hostname}:{self.port}"
        alias = "" if self.host in {self.hostname, f"{self.user}@{self.hostname}"} else f" ({self.host})"
        return f"{self.user}@{where}{alias}"


def resolve(login: SshLogin) -> ResolvedLogin:
    """Ask OpenSSH where a login leads; blocks while ssh runs.

    Raises:
        TransportFault: ssh is missing or refuses its configuration, or the login cannot be followed.
    """
    return _resolve(login, 0)


def _resolve(login: SshLogin, jumps: int) -> ResolvedLogin:
    if jumps > _MAX_JUMPS:
        msg = f"{login.host}: more than {_MAX_JUMPS} jump hosts in a row: ProxyJump in ssh_config leads in a circle"
        raise TransportFault(msg)
    if login.identity_file is not None and not os.path.exists(os.path.expanduser(login.identity_file)):  # noqa: PTH110, PTH111 - as ssh does
        msg = f"{login.host}: identity file {login.identity_file} does not exist: name a private key that does"
        raise TransportFault(msg)
    options = parse(_ask(login))
    resolved = settle(login, options, os.environ)
    chain = [] if resolved.proxy_command else jump_chain(_one(options, "proxyjump"))
    if not chain:
        return resolved
    *before, last = chain
    # What a study says of its login holds for the whole way; user and port are the last host's alone.
    hop = parse_jump(last, login.host)
    hop = replace(login, host=hop.host, user=hop.user, port=hop.port, jump=",".join(before) or None)
    return replace(resolved, via=_resolve(hop, jumps + 1))


def arguments(login: SshLogin) -> tuple[str, ...]:
    """Return the options of ssh(1) that a login amounts to, without the host."""
    found: list[str] = []
    for flag, value in (
        ("-F", login.config_file),
        ("-l", login.user),
        ("-p", login.port),
        ("-J", login.jump),
        ("-i", login.identity_file),
    ):
        if value is not None:
            found += (flag, os.path.expanduser(str(value)) if flag in {"-F", "-i"} else str(value))  # noqa: PTH111
    return tuple(found)


def by_hand(login: SshLogin) -> str:
    """Return the command by which a person tries the same login."""
    return shlex.join(("ssh", *arguments(login), login.host))


def ssh_program() -> str:
    """Return OpenSSH's client.

    Raises:
        TransportFault: it is not installed.
    """
    program = shutil.which("ssh")
    if program is None:
        msg = "ssh is not installed on this machine: install openssh-client, tuner reads ssh_config through it"
        raise TransportFault(msg)
    return program


def _ask(login: SshLogin) -> str:
    argv = (ssh_program(), "-G", "-T", *arguments(login), "--", login.host)
    try:
        done = subprocess.run(
            argv, stdin=subprocess.DEVNULL, capture_output=True, timeout=_ASK_TIMEOUT_S, check=False, env=_environment()
        )
    except (OSError, subprocess.SubprocessError) as error:
        msg = f"{login.host}: {argv[0]} -G cannot be run: {error}"
        raise TransportFault(msg) from error
    if done.returncode != 0:
        said = " ".join(done.stderr.decode(errors="replace").split()) or f"status {done.returncode}"
        msg = f"{login.host}: ssh refuses its configuration: {said}"
        raise TransportFault(msg)
    return done.stdout.decode(errors="replace")


def _environment() -> dict[str, str]:
    return {**os.environ, "LC_ALL": "C"}


def parse(text: str) -> Options:
    """Read what ``ssh -G`` prints: an option and its value a line, some options several times."""
    found: dict[str, tuple[str, ...]] = {}
    for line in text.splitlines():
        key, _, value = line.partition(" ")
        if key:
            found[key.lower()] = (*found.get(key.lower(), ()), value)
    return found


def settle(login: SshLogin, options: Options, environment: Mapping[str, str]) -> ResolvedLogin:
    """Make a login of what ``ssh -G`` printed; the jump hosts are left to the caller.

    Raises:
        TransportFault: an option cannot be followed; the message names it.
    """
    hostname, port = _one(options, "hostname") or login.host, int(_one(options, "port") or 22)
    user, alias = _one(options, "user") or login.user or "", _one(options, "hostkeyalias")
    bare = ResolvedLogin(host=login.host, hostname=hostname, port=port, user=user, host_key_alias=alias)

    def path(value: str) -> str:
        return expand(value, bare, environment)

    timeout = _one(options, "connecttimeout")
    return replace(
        bare,
        identity_files=tuple(path(value) for value in options.get("identityfile", ()) if value != "none"),
        is_identity_named=login.identity_file is not None or not _is_default(options.get("identityfile", ())),
        identities_only=_one(options, "identitiesonly") == "yes",
        public_key_allowed=_one(options, "pubkeyauthentication") not in {"no", "false"},
        agent=_agent(options.get("identityagent", ("SSH_AUTH_SOCK",))[0], path, environment),
        known_hosts=_own_files(login) or _files(options, "userknownhostsfile", path),
        system_known_hosts=_files(options, "globalknownhostsfile", path),
        revoked_keys=path(value) if (value := _one(options, "revokedhostkeys")) else None,
        hash_known_hosts=_one(options, "hashknownhosts") == "yes",
        connect_timeout_s=float(timeout) if timeout else None,
        family=_one(options, "addressfamily") or "any",
        bind_address=_one(options, "bindaddress"),
        proxy_command=_one(options, "proxycommand"),
        accept_new_host_key=login.accept_new_host_key,
        not_followed=tuple(name for name in _OTHER_WAYS if _one(options, name)),
    )


def _one(options: Options, name: str) -> str | None:
    values = options.get(name, ())
    return values[0] if values and values[0] not in {"", "none"} else None


def _is_default(files: tuple[str, ...]) -> bool:
    return all(re.fullmatch(r"~/\.ssh/id_[a-z0-9_]+", file) for file in files)


def _own_files(login: SshLogin) -> tuple[str, ...]:
    return () if login.known_hosts is None else (_home_expanded(login.known_hosts),)


def _files(options: Options, name: str, path: Callable[[str], str]) -> tuple[str, ...]:
    value = _one(options, name)
    return tuple(path(part) for part in _SPACE_BEFORE_PATH.split(value)) if value else ()


def _agent(value: str, path: Callable[[str], str], environment: Mapping[str, str]) -> str | None:
    """Return the agent's socket."""
    if value == "none":
        return None
    if value == "SSH_AUTH_SOCK":
        return environment.get(value) or None
    if value.startswith("$") and not value.startswith("${"):
        return environment.get(value[1:]) or None
    return path(value)


def expand(value: str, login: ResolvedLogin, environment: Mapping[str, str]) -> str:
    """Expand ``~``, the percent tokens and the variables of ssh_config(5), as ssh does before it uses a value.

    Raises:
        TransportFault: a token or variable that is not known.
    """
    tokens = _tokens(login)

    def put(match: re.Match[str]) -> str:
        token, variable = match.groups()
        found = tokens.get(token) if token else environment.get(variable)
        if found is None:
            msg = f"{login.host}: ssh_config has {match.group()!r} in {value!r}, which is not known: write it out"
            raise TransportFault(msg)
        return found

    return _home_expanded(_TOKEN.sub(put, value))


def _tokens(login: ResolvedLogin) -> dict[str, str]:
    full = socket.gethostname()
    identity = f"{full}{login.hostname}{login.port}{login.user}"
    return {
        "%": "%",
        "d": _home(),
        "h": login.hostname,
        "i": str(os.getuid()),
        "j": "",
        "k": login.host_key_alias or login.host,
        "L": full.split(".")[0],
        "l": full,
        "n": login.host.rpartition("@")[2],
        "p": str(login.port),
        "r": login.user,
        "u": pwd.getpwuid(os.getuid()).pw_name,
        "C": hashlib.sha1(identity.encode(), usedforsecurity=False).hexdigest(),
    }


def _home() -> str:
    return pwd.getpwuid(os.getuid()).pw_dir  # ssh does not ask $HOME


def _home_expanded(path: str) -> str:
    return _home() + path[1:] if path == "~" or path.startswith("~/") else path


def jump_chain(value: str | None) -> list[str]:
    """Split ``ProxyJump``: the first host that is reached comes first."""
    return [part.strip() for part in value.split(",") if part.strip()] if value else []


def parse_jump(text: str, host: str) -> SshLogin:
    """Read ``[user@]host[:port]``, a host of IPv6 in brackets.

    Raises:
        TransportFault: it is none of that.
    """
    rest = text.removeprefix("ssh://")
    user, at, rest = rest.rpartition("@")
    match = re.fullmatch(r"(?:\[([^\]]+)\]|([^:\[\]]+))(?::(\d+))?", rest)
    if match is None:
        match = re.fullmatch(r"()([0-9A-Fa-f:]+)()", rest)  # IPv6 without brackets has no port
    if match is None or (at and not user):
        msg = f"{host}: jump host {text!r} is not [user@]host[:port]: correct it"
        raise TransportFault(msg)
    bracketed, plain, port = match.groups()
    return SshLogin(host=bracketed or plain, user=user or None, port=int(port) if port else None)
