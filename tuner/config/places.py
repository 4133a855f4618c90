"""Where a study runs: its own hosts, the one the command line names, or the simulated ones."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Final

from tuner.config.address import parse_address, unit_name
from tuner.config.host_file import HERE, HostEntry, entry_of
from tuner.config.overrides import Overrides
from tuner.config.problems import Problem, failure, quoted, reading, unknown
from tuner.config.study_file import StudyFile
from tuner.errors import UsageError
from tuner.model.study import HostSpec, ProcessHostSpec, SimulatedHostSpec, UnitHostSpec

_ADD_UNIT: Final = "add --unit NAME, the systemd unit that runs the server there"


def hosts_of(study: StudyFile, over: Overrides, *, root: Path, directory: Path) -> tuple[HostSpec, ...]:
    """Return the hosts of a run.

    Args:
        study: as read.
        over: options of the command line.
        root: absolute; files of a login are found relative to it.
        directory: absolute folder of the study's results.

    Raises:
        StudyFileError: the study has no hosts, or a file of a login is missing.
        UsageError: an option does not fit.
    """
    disks = directory / "hosts"
    hosts: tuple[HostSpec, ...]
    if over.unit is not None:
        _refuse_for_real_hosts(over, "--unit names a real one")
        hosts = (_placed(_entry_of_options(study, over, over.unit, root), disks),)
    else:
        _check_options_of_a_unit(study, over)
        hosts = _hosts_of_file(study, over, root, disks)
    return _with_new_keys(hosts) if over.accept_new_host_key else hosts


def _hosts_of_file(study: StudyFile, over: Overrides, root: Path, disks: Path) -> tuple[HostSpec, ...]:
    hosts: tuple[HostSpec, ...]
    if study.hosts:
        _refuse_for_real_hosts(over, f"{study.shown} names its own [[hosts]]")
        hosts = tuple(_placed(_with_files(study, index, entry, root), disks) for index, entry in enumerate(study.hosts))
    else:
        hosts = _simulated_hosts(study, over, disks)
    if over.host is None:
        return hosts
    chosen = tuple(host for host in hosts if host.name == over.host)
    if not chosen:
        names = [host.name for host in hosts]
        text = f"--host {over.host}: " if "@" in over.host else f"--host: {unknown('host', over.host, names)}; "
        raise UsageError(f"{text}for a host that is not in {study.shown}, {_ADD_UNIT}")
    return chosen


def _check_options_of_a_unit(study: StudyFile, over: Overrides) -> None:
    for key, given in (("sudo", over.sudo), ("tunnel", over.tunnel)):
        if given:
            raise UsageError(f"--{key} goes with --unit; for a host of {study.shown} write {key} = true there")


def _refuse_for_real_hosts(over: Overrides, why: str) -> None:
    for option, value in (("--speed", over.speed), ("--hosts", over.simulated_hosts)):
        if value is not None:
            raise UsageError(f"{option} is for simulated hosts; {why}")


def _entry_of_options(study: StudyFile, over: Overrides, unit: str, root: Path) -> HostEntry:
    """Return the host that the command line names: one of the file, or any other."""
    try:
        full = unit_name(unit)
    except ValueError as error:
        raise UsageError(f"--unit: {error}") from error
    entry = _named_entry(study, over, full, root)
    if over.tunnel and entry.login is None:
        raise UsageError("--tunnel is for a host reached over SSH; the server of this machine needs none")
    return entry


def _named_entry(study: StudyFile, over: Overrides, unit: str, root: Path) -> HostEntry:
    if over.host is None:
        return HostEntry(name=HERE, unit=unit, sudo=over.sudo)
    for index, entry in enumerate(study.hosts):
        if entry.name == over.host:  # its login, its GPUs and its care hold for another unit too
            # A worker placed near its host stays there.
            reach = replace(entry.reach, tunnel=True, base_url=None) if over.tunnel else entry.reach
            known = _with_files(study, index, entry, root)
            return replace(known, unit=unit, sudo=entry.sudo or over.sudo, state_dir=None, reach=reach)
    try:
        return entry_of(parse_address(over.host), unit=unit, sudo=over.sudo, tunnel=over.tunnel)
    except ValueError as error:
        raise UsageError(f"--host: {error}") from error


def _with_files(study: StudyFile, index: int, entry: HostEntry, root: Path) -> HostEntry:
    """Make the paths of a login absolute, and hold that what must be there is."""
    login = entry.login
    if login is None:
        return entry

    def path_of(key: str, written: str | None, *, must_exist: bool = True) -> str | None:
        if written is None:
            return None
        place = f"hosts[{index}].{key}"
        with reading(f"{study.shown}: {place} {quoted(written)}"):
            path = _expanded(written, root)
            # The null device is OpenSSH's way of naming no file at all.
            if path is not None and (path.is_file() or path == Path(os.devnull) or not must_exist):
                return str(path)
        text = f"is {quoted(written)}: there is no such file under {root}; write its path from there, or with ~"
        raise failure(study.shown, [Problem(key=place, text=text)])

    found = replace(
        login,
        identity_file=path_of("identity_file", login.identity_file),
        config_file=path_of("ssh_config", login.config_file),
        # It is made when the first key is accepted.
        known_hosts=path_of("known_hosts", login.known_hosts, must_exist=False),
    )
    return replace(entry, login=found)


def _expanded(written: str, root: Path) -> Path | None:
    try:
        return root / Path(written).expanduser()
    except RuntimeError:  # ~nobody: no such user
        return None


def _placed(entry: HostEntry, disks: Path) -> HostSpec:
    if entry.unit is not None:
        return UnitHostSpec(
            name=entry.name,
            unit=entry.unit,
            login=entry.login,
            sudo=entry.sudo,
            reach=entry.reach,
            care=entry.care,
        )
    return ProcessHostSpec(
        name=entry.name,
        state_dir=entry.state_dir or str(disks / entry.name),
        login=entry.login,
        reach=entry.reach,
        care=entry.care,
    )


def _with_new_keys(hosts: tuple[HostSpec, ...]) -> tuple[HostSpec, ...]:
    """Let every host that is reached over SSH be a new one."""
    changed: list[HostSpec] = []
    for host in hosts:
        if isinstance(host, SimulatedHostSpec) or host.login is None:
            changed.append(host)
        else:
            changed.append(replace(host, login=replace(host.login, accept_new_host_key=True)))
    if tuple(changed) == hosts:
        raise UsageError("--accept-new-host-key is for hosts reached over SSH; this run has none")
    return tuple(changed)


def _simulated_hosts(study: StudyFile, over: Overrides, disks: Path) -> tuple[HostSpec, ...]:
    if study.simulated is None:
        text = 'is missing: name where to run ([[hosts]] kind = "ssh"), or add [simulated] with a profile'
        raise failure(study.shown, [Problem(key="hosts", text=text)])
    count = study.simulated.count if over.simulated_hosts is None else over.simulated_hosts
    return tuple(
        SimulatedHostSpec(
            name=f"sim{index}",
            address=f"127.0.0.{index + 1}",
            state_dir=str(disks / f"sim{index}"),
            profile=study.simulated.profile,
            speed=study.simulated.speed if over.speed is None else over.speed,
            faults=study.simulated.faults,
        )
        for index in range(count)
    )
