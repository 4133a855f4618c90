"""``tuner restore``: puts the hosts of a study back by hand."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from pathlib import Path

from tuner.config.overrides import Overrides
from tuner.config.study_file import FOLDER, read_study
from tuner.engines import engine
from tuner.errors import TunerError
from tuner.hosts.systemd.lease import LeaseFolder
from tuner.hosts.systemd.paths import drop_in_path
from tuner.hosts.systemd.root import Root
from tuner.hosts.systemd.tenancy import lease_folder
from tuner.hosts.systemd.unit import read_unit
from tuner.model.host import Original
from tuner.model.lease import Holder
from tuner.model.study import HostSpec, UnitHostSpec
from tuner.ports import RunObserver
from tuner.runtime.stay import Proof, Stay
from tuner.search.lock import driving
from tuner.wiring import taken
from tuner.wiring.holder import holder_of
from tuner.wiring.host import build_host
from tuner.wiring.load import hosts_of
from tuner.wiring.reach import way_to


def restore_hosts(root: Path, name: str, overrides: Overrides | None, observer: RunObserver) -> tuple[str, ...]:
    """Restore every host of a study that is somebody's, all at the same time.

    Returns:
        One line a host.

    Raises:
        UsageError: the study file or an option is wrong, or a run of the study is under way.
        LeaseHeld, HostFault: a host could not be restored; the others were, and ``observer`` knows of them.
    """
    hosts = tuple(host for host in hosts_of(root, name, overrides) if host.is_owned)
    if not hosts:
        return (f"{name}: none of its hosts is somebody's: there is nothing to restore",)
    with driving(root.resolve() / FOLDER / name):
        return give_back(hosts, root, name, observer)


def give_back(hosts: Sequence[HostSpec], root: Path, name: str, observer: RunObserver) -> tuple[str, ...]:
    """Restore hosts of a study whose driver this process is.

    Raises:
        LeaseHeld, HostFault: see :func:`restore_hosts`.
    """
    study = read_study(root, name)
    directory = root.resolve() / FOLDER / name
    proof = Proof(engine=engine(study.engine), workload=study.workload, seed=study.seed)
    ended = asyncio.run(_restore_all(hosts, holder_of(name, str(directory)), proof, observer))
    taken.forget(
        directory,
        [host.name for host, outcome in zip(hosts, ended, strict=True) if not isinstance(outcome, TunerError)],
    )
    errors = [outcome for outcome in ended if isinstance(outcome, TunerError)]
    lines = tuple(outcome for outcome in ended if isinstance(outcome, str))
    if errors:
        for text in (*lines, *map(str, errors[1:])):
            observer.remark(text)
        raise errors[0]
    return lines


async def _restore_all(
    hosts: Iterable[HostSpec], holder: Holder, proof: Proof, observer: RunObserver
) -> list[str | TunerError]:
    return list(await asyncio.gather(*(_restore(host, holder, proof, observer) for host in hosts)))


async def _restore(host: HostSpec, holder: Holder, proof: Proof, observer: RunObserver) -> str | TunerError:
    """Take the host, whatever a killed run left there, and leave it as it was before that run."""

    def remark(text: str) -> None:
        observer.remark(f"host {host.name}: {text}")

    try:
        if isinstance(host, UnitHostSpec) and (words := await _untouched(host)) is not None:
            return f"host {host.name}: nothing to put back: {words}"
        stay = Stay(build_host(host, holder))
        await stay.enter(remark)
        remark("putting back what was there before")
        original = await stay.leave(proof, remark)
    except TunerError as error:
        return error
    return f"host {host.name}: {_words(host, original)}"


async def _untouched(host: UnitHostSpec) -> str | None:
    """Say what runs where no run has left anything; None: one has, or systemd does not know the unit.

    Raises:
        HostFault, PreflightError: the host cannot be looked at.
    """
    way = way_to(host)
    try:
        unit = await read_unit(way.transport, host.unit, Root(way.transport, sudo=host.sudo))
        folder = LeaseFolder(way.transport, lease_folder(host.unit), place=host.unit, sudo=host.sudo)
        is_left = drop_in_path(host.unit) in unit.drop_in_paths or (await folder.look()).exists
        return None if is_left or not unit.is_found else f"{host.unit} is {unit.active_state} without a trial's drop-in"
    finally:
        await way.transport.close()


def _words(host: HostSpec, original: Original | None) -> str:
    if not isinstance(host, UnitHostSpec):
        return "nothing of tuner's is left"
    if original is not None and original.was_running:
        return f"{host.unit} runs as it did before, and answers"
    return f"{host.unit} is as it was before: stopped"
