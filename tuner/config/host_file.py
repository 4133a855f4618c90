"""Reads the ``[[hosts]]`` tables of a study file: where it runs.

::

    [[hosts]]
    kind = "ssh"                    # a unit of systemd on a host reached over SSH
    address = "user@gpu01"          # or user@gpu01:2222, or a Host of ssh_config
    unit = "sglang-qwen.service"
    sudo = true

    [[hosts]]
    kind = "systemd"                # a unit of this machine

    [[hosts]]
    kind = "process"                # no systemd: here, or over SSH where there is an address
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Final

from pydantic import AfterValidator, Field, ValidationError

from tuner.config.address import (
    HIGHEST_PORT,
    Address,
    check_base_url,
    check_host,
    check_jump,
    check_user,
    name_from,
    parse_address,
    unit_name,
)
from tuner.config.problems import Problem, Table, check_name, problems_of, quoted, unknown
from tuner.model.lease import LeaseTerms
from tuner.model.study import HostCare, Reach, SshLogin

HERE = "here"
"""What this machine is called unless the study calls it something else."""
SHORTEST_DEAD_MAN_S = 30.0
"""A lease is renewed four times before it runs out, each over a network that may just be away."""
STATE_DIR = "/tmp/tuner"  # noqa: S108  one for all studies: the lease in it keeps two of them apart
_RENEW_S = 60.0


def lease_terms(dead_man_s: float) -> LeaseTerms:
    """Return the terms of a lease that runs out ``dead_man_s`` after the last sign of life."""
    return LeaseTerms(lasts_s=dead_man_s, renew_s=min(_RENEW_S, dead_man_s / 4))


@dataclass(frozen=True, slots=True, kw_only=True)
class HostEntry:
    """A host as the study file has it; its paths have not been looked up yet.

    Attributes:
        name: unique in the study.
        login: None: this machine. ``identity_file``, ``config_file`` and ``known_hosts`` as written.
        unit: None: a process.
        state_dir: of a process over SSH.
    """

    name: str
    login: SshLogin | None = None
    unit: str | None = None
    sudo: bool = False
    state_dir: str | None = None
    reach: Reach = field(default_factory=Reach)
    care: HostCare = field(default_factory=HostCare)


def entry_of(address: Address, *, unit: str, sudo: bool = False, tunnel: bool = False) -> HostEntry:
    """Return the host that the command line names, with everything else as it is by default."""
    login = SshLogin(host=address.host, user=address.user, port=address.port)
    return HostEntry(
        name=name_from(address.host) or "host", login=login, unit=unit, sudo=sudo, reach=Reach(tunnel=tunnel)
    )


class _HostTable(Table):
    kind: str
    name: str | None = None
    base_url: Annotated[str, AfterValidator(check_base_url)] | None = None
    cleanup_command: list[str] = Field(default_factory=list)
    gpu_indices: list[Annotated[int, Field(ge=0)]] = Field(default_factory=list)
    wait_s: float = Field(default=HostCare().wait_s, ge=0)
    dead_man_s: float = Field(default=LeaseTerms().lasts_s, ge=SHORTEST_DEAD_MAN_S)


class _LoginTable(_HostTable):
    address: Annotated[str, AfterValidator(check_host)] | None = None
    user: Annotated[str, AfterValidator(check_user)] | None = None
    port: int | None = Field(default=None, ge=1, le=HIGHEST_PORT)
    jump: Annotated[str, AfterValidator(check_jump)] | None = None
    identity_file: str | None = Field(default=None, min_length=1)
    ssh_config: str | None = Field(default=None, min_length=1)
    known_hosts: str | None = Field(default=None, min_length=1)
    tunnel: bool = False
    ray_node: Annotated[str, AfterValidator(check_host)] | None = None


class _UnitTable(_HostTable):
    unit: Annotated[str, AfterValidator(unit_name)]
    sudo: bool = False


class _SshTable(_UnitTable, _LoginTable):
    address: Annotated[str, AfterValidator(check_host)]


class _ProcessTable(_LoginTable):
    state_dir: str | None = None
    uses_gpus: bool = True


_KINDS: Final[Mapping[str, type[_HostTable]]] = {"ssh": _SshTable, "systemd": _UnitTable, "process": _ProcessTable}
_NEEDS_ADDRESS = frozenset(_LoginTable.model_fields) - frozenset(_HostTable.model_fields) - {"address"} | {
    "state_dir",
    "dead_man_s",
}


def read_hosts(tables: Iterable[Mapping[str, Any]]) -> tuple[tuple[HostEntry, ...], list[Problem]]:
    """Read the ``[[hosts]]`` of a study; with problems, the hosts are not all of them."""
    entries: dict[int, HostEntry] = {}
    problems: list[Problem] = []
    for index, content in enumerate(tables):
        found = _read_host(content, f"hosts[{index}]")
        if isinstance(found, HostEntry):
            entries[index] = found
        else:
            problems += found
    problems += _beside_each_other(entries)
    return tuple(entries.values()), problems


def _read_host(content: Mapping[str, Any], key: str) -> HostEntry | list[Problem]:
    kind = content.get("kind")
    if kind is None:
        return [Problem(key=f"{key}.kind", text=f"is missing: one of {_kinds()}")]
    if not isinstance(kind, str) or kind not in _KINDS:
        return [Problem(key=f"{key}.kind", text=unknown("kind", str(kind), _KINDS))]
    model = _KINDS[kind]
    misplaced = [Problem(key=f"{key}.{name}", text=text) for name, text in _misplaced(content, kind)]
    if misplaced:
        return misplaced
    try:
        table = model.model_validate(content)
    except ValidationError as error:
        return problems_of(error, model, key)
    problems = [Problem(key=f"{key}{place}", text=text) for place, text in _problems(table, content)]
    return problems or _entry(table)


def _kinds() -> str:
    return ", ".join(quoted(kind) for kind in _KINDS)


def _misplaced(content: Mapping[str, Any], kind: str) -> Iterator[tuple[str, str]]:
    """Name keys that are right for a host of another kind."""
    for name in content:
        if name in _KINDS[kind].model_fields:
            continue
        others = [other for other, model in _KINDS.items() if name in model.model_fields]
        if others:
            where = " or ".join(quoted(other) for other in others)
            yield name, f"is for kind = {where}, this is {quoted(kind)}: leave it out, or change the kind"


def _problems(table: _HostTable, content: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield what is wrong between keys, and in values that one key alone decides."""
    if isinstance(table, _LoginTable):
        yield from _login_problems(table, content)
    if isinstance(table, _ProcessTable) and table.state_dir is not None and not _is_absolute(table.state_dir):
        yield ".state_dir", f"is {quoted(table.state_dir)}, but must be an absolute folder on the host"
    name = _name(table)
    refused = check_name(name, "the host name") if name else "is missing: the address makes no name"
    if refused:
        yield ".name", refused
    if table.cleanup_command and not table.cleanup_command[0].strip():
        yield ".cleanup_command[0]", f"is {quoted(table.cleanup_command[0])}, but must be the program to start"
    for index, word in enumerate(table.cleanup_command):
        if "\0" in word:
            yield f".cleanup_command[{index}]", "holds a NUL character"
    if table.gpu_indices and isinstance(table, _ProcessTable) and not table.uses_gpus:
        yield ".gpu_indices", "and uses_gpus = false exclude each other: leave one out"
    if len(set(table.gpu_indices)) < len(table.gpu_indices):
        yield ".gpu_indices", f"is {quoted(table.gpu_indices)}, but must name each GPU once"


def _login_problems(table: _LoginTable, content: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    if table.address is None:
        for name in content:
            if name in _NEEDS_ADDRESS:
                yield f".{name}", "is for a host with an address; this one is this machine: leave it out"
        return
    address = parse_address(table.address)
    for name, twice in (("user", address.user), ("port", address.port)):
        if twice is not None and getattr(table, name) is not None:
            yield f".{name}", f"is given twice, here and in address {quoted(table.address)}: leave one out"
    if table.base_url is not None and table.tunnel:
        yield ".tunnel", "and base_url exclude each other: the load goes one way; leave one out"


def _is_absolute(folder: str) -> bool:
    return folder.startswith("/") and folder.strip("/") != "" and ".." not in folder.split("/") and folder.isprintable()


def _name(table: _HostTable) -> str:
    if table.name is not None:
        return table.name
    address = table.address if isinstance(table, _LoginTable) else None
    return HERE if address is None else name_from(parse_address(address).host)


def _entry(table: _HostTable) -> HostEntry:
    login = _login(table) if isinstance(table, _LoginTable) else None
    return HostEntry(
        name=_name(table),
        login=login,
        unit=table.unit if isinstance(table, _UnitTable) else None,
        sudo=isinstance(table, _UnitTable) and table.sudo,
        state_dir=(table.state_dir or STATE_DIR) if isinstance(table, _ProcessTable) and login is not None else None,
        reach=_reach(table),
        care=HostCare(
            cleanup_command=tuple(table.cleanup_command),
            gpu_indices=tuple(table.gpu_indices),
            uses_gpus=not isinstance(table, _ProcessTable) or table.uses_gpus,
            wait_s=table.wait_s,
            lease=lease_terms(table.dead_man_s),
        ),
    )


def _reach(table: _HostTable) -> Reach:
    if not isinstance(table, _LoginTable):
        return Reach(base_url=table.base_url)
    return Reach(base_url=table.base_url, tunnel=table.tunnel, ray_node=table.ray_node)


def _login(table: _LoginTable) -> SshLogin | None:
    if table.address is None:
        return None
    address = parse_address(table.address)
    return SshLogin(
        host=address.host,
        user=table.user if address.user is None else address.user,
        port=table.port if address.port is None else address.port,
        jump=table.jump,
        identity_file=table.identity_file,
        config_file=table.ssh_config,
        known_hosts=table.known_hosts,
    )


def _beside_each_other(entries: Mapping[int, HostEntry]) -> list[Problem]:
    problems = []
    names: set[str] = set()
    servers: dict[tuple[object, ...], int] = {}
    for index, entry in entries.items():
        key = f"hosts[{index}]"
        if entry.name in names:
            problems.append(Problem(key=f"{key}.name", text=f"{quoted(entry.name)} is there twice: name one otherwise"))
        names.add(entry.name)
        server = _server(entry)
        if server is not None and servers.setdefault(server, index) != index:
            text = f"is the same server as hosts[{servers[server]}]: {_words(entry)}; leave one out"
            problems.append(Problem(key=key, text=text))
    if len({entry.unit is None for entry in entries.values()}) > 1:
        text = "are units and processes: the base command line would come from two places; make two studies of them"
        problems.append(Problem(key="hosts", text=text))
    return problems


def _server(entry: HostEntry) -> tuple[object, ...] | None:
    """Return what two hosts cannot share; None: two of it can be told apart by their names."""
    where = None if entry.login is None else (entry.login.host.lower(), entry.login.port or 22)
    if entry.unit is None and where is None:
        return None
    return where, entry.unit, entry.state_dir


def _words(entry: HostEntry) -> str:
    where = "this machine" if entry.login is None else entry.login.host
    return f"{entry.unit or entry.state_dir} on {where}"
