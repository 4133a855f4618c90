"""Finds the study that a command is about."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from tuner.config.overrides import Overrides
from tuner.config.problems import check_name, quoted, reading
from tuner.config.study_file import FOLDER, read_study
from tuner.errors import StudyFileError, UsageError
from tuner.model.study import HostSpec, StudySpec, UnitHostSpec
from tuner.ports import RunObserver

if TYPE_CHECKING:
    from tuner.runtime.repeats import Progress
    from tuner.search.rows import StoredStudy
    from tuner.wiring.units import Heir


def chosen(named: str | None, study: str | None) -> str:
    """Return the study's name, which is given in one of two ways.

    Raises:
        UsageError: it is given twice, or not at all.
    """
    if named is not None and study is not None:
        raise UsageError(f"the study is named twice, {quoted(named)} and {quoted(study)}: give STUDY or --study STUDY")
    name = study if named is None else named
    if name is None:
        raise UsageError("no study is named: give STUDY or --study STUDY")
    return name


def hosts_for(root: Path, name: str, overrides: Overrides) -> tuple[HostSpec, ...]:
    """Return the hosts of a run.

    Raises:
        UsageError: what the file or an option says of them is wrong.
    """
    read_study(root, name)  # a wrong file is refused before the seconds that loading all parts takes
    from tuner.wiring.load import hosts_of  # noqa: PLC0415

    return hosts_of(root, name, overrides)


def load(
    root: Path, name: str, overrides: Overrides, say: Callable[[str], None], *, heir: Heir | None = None
) -> StudySpec:
    """Load a study and, where its hosts are units, read what they run.

    Args:
        root: the folder that holds ``studies/`` and ``search_spaces/``.
        name: of the study.
        overrides: options of the command line.
        say: takes lines of prose.
        heir: takes over what a killed run of this study left; None: nothing is changed anywhere.

    Raises:
        UsageError: a file or an option is wrong, or a unit cannot be tuned.
        PreflightError, HostFault: a unit cannot be read.
    """
    study, hosts = read_study(root, name), hosts_for(root, name, overrides)
    from tuner.wiring.load import base_remark, check_study, load_study, needs_unit  # noqa: PLC0415

    if not needs_unit(hosts):
        return load_study(root, name, overrides)
    check_study(root, name, overrides)
    from tuner.wiring.advice import advice_of  # noqa: PLC0415
    from tuner.wiring.units import read_base  # noqa: PLC0415

    say(f"reading {_units(hosts)}")
    base = read_base(hosts, say, heir, [name for name, _ in study.env], advice_of(root, name, overrides))
    spec = load_study(root, name, overrides, base)
    remark = base_remark(root, name, hosts)
    if remark is not None:
        say(remark)
    return spec


@contextlib.contextmanager
def inheriting(root: Path, name: str, overrides: Overrides, observer: RunObserver) -> Iterator[Heir]:
    """Be the study's driver, and leave no host behind that was taken over from a killed run.

    The heir's list of hosts is to be emptied once they have been given back.

    Raises:
        UsageError: the file or an option is wrong, or the study runs already.
        LeaseHeld, HostFault: a host that was taken over could not be restored.
    """
    is_owned = any(host.is_owned for host in hosts_for(root, name, overrides))
    from tuner.search.lock import driving  # noqa: PLC0415
    from tuner.wiring.holder import holder_of  # noqa: PLC0415
    from tuner.wiring.units import Heir  # noqa: PLC0415

    directory = root.resolve() / FOLDER / name
    heir = Heir(holder=holder_of(name, str(directory)))
    if not is_owned:  # the database's own lock is enough
        yield heir
        return
    with driving(directory):
        try:
            yield heir
        finally:
            if heir.taken:
                from tuner.wiring.restore import give_back  # noqa: PLC0415

                for line in give_back(heir.taken, root, name, observer):
                    observer.remark(line)


def _units(hosts: tuple[HostSpec, ...]) -> str:
    return ", ".join(f"{host.unit} of {host.name}" for host in hosts if isinstance(host, UnitHostSpec))


def directory_of(root: Path, name: str) -> Path:
    """Return the folder of a study's results; the study's file may be gone by now.

    Raises:
        StudyFileError: there is neither.
    """
    refused = check_name(name, "the study name")
    if refused:
        raise StudyFileError(refused)
    with reading(quoted(str(root))):
        directory = root.resolve() / FOLDER / name
        if not directory.is_dir():
            read_study(root, name)  # says which studies there are
        return directory


def running_driver(directory: Path) -> str | None:
    """Say which process runs the study in ``directory``; None: none does."""
    from tuner.search.lock import holder_of  # noqa: PLC0415  see load

    return holder_of(directory)


def left_behind(directory: Path) -> str | None:
    """Say which hosts a killed run of the study in ``directory`` may have left as they were then; None: none."""
    from tuner.wiring.taken import read  # noqa: PLC0415  see load

    found = read(directory)
    return None if found is None else found.words()


def confirmed_of(stored: StoredStudy) -> Progress | None:
    """Say how far the confirmations of a study are; None: it has no budget that is known."""
    if stored.trials is None:
        return None
    from tuner.runtime.repeats import Repeats  # noqa: PLC0415  see load

    repeats = Repeats(terms=stored.repeats, trials=stored.trials, objectives=stored.objectives)
    return repeats.progress(stored.rows)
