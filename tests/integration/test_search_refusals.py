"""Databases and folders that cannot be used: one line, the path, the remedy, nothing written."""

import contextlib
import inspect
import sqlite3
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import optuna.exceptions
import pytest
import sqlalchemy.exc

from tuner.errors import LedgerError, StudyUnwritable
from tuner.model.study import ProcessHostSpec, StudySpec
from tuner.model.trial import Command
from tuner.model.workload import Workload
from tuner.search import storage
from tuner.search.ledger import check_ledger, open_ledger
from tuner.search.rows import read_study
from tuner.search.storage import check_room, explained, mapped
from tuner.testing.draft_trees import canonical
from tuner.testing.specs import small_spec


def contents(place: Path) -> dict[str, bytes]:
    return {str(path.relative_to(place)): path.read_bytes() for path in place.rglob("*") if path.is_file()}


def refused(spec: StudySpec, match: str, kind: type[Exception] = LedgerError) -> None:
    place = Path(spec.directory)
    before = contents(place)
    for attempt in (check_ledger, lambda spec: open_ledger(spec, canonical)):
        with pytest.raises(kind, match=match) as caught:
            attempt(spec)
        assert spec.directory in str(caught.value)
        assert "\n" not in str(caught.value)
    assert contents(place) == before


def begun(place: Path) -> StudySpec:
    spec = small_spec(place)
    open_ledger(spec, canonical).close()
    (Path(spec.directory) / "lock").unlink()
    return spec


CHANGES: dict[str, tuple[Callable[[StudySpec], StudySpec], str]] = {
    "name": (lambda s: replace(s, name="other"), r"holds small, not study other; choose another study name"),
    "engine": (lambda s: replace(s, engine="vllm"), r"another engine \(draft-trees, now vllm\)"),
    "space": (
        lambda s: replace(s, space=replace(s.space, parameters=s.space.parameters[::-1])),
        "another search space or base command line",
    ),
    "base": (
        lambda s: replace(s, base=Command(argv=("serve", "--other"))),
        "another search space or base command line",
    ),
    "workload": (lambda s: replace(s, workload=Workload(output_tokens=64)), "another workload"),
    "prompts": (lambda s: replace(s, prompts_digest="of other texts"), "another set of prompts"),
    "host kind": (
        lambda s: replace(s, hosts=(ProcessHostSpec(name="here", state_dir="/x"),)),
        "was begun on the simulated host, and this is a real host",
    ),
    "profile": (
        lambda s: replace(s, hosts=tuple(replace(h, profile="larger") for h in s.hosts)),  # type: ignore[call-arg]
        r"another simulated hardware \(\['test'\], now \['larger'\]\)",
    ),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_study_begun_under_other_terms_is_refused(tmp_path: Path, change: str) -> None:
    spec = begun(tmp_path)
    alter, match = CHANGES[change]
    refused(alter(spec), match)


def test_more_trials_another_seed_and_faster_loading_are_the_same_study(tmp_path: Path) -> None:
    spec = begun(tmp_path)
    hosts = tuple(replace(host, speed=9.0) for host in spec.hosts)  # type: ignore[call-arg]
    open_ledger(replace(spec, trials=99, seed=1, sampler="tpe", hosts=hosts), canonical).close()


def test_the_same_prompts_in_a_checkout_that_was_moved_are_the_same_study(tmp_path: Path) -> None:
    spec = small_spec(tmp_path)
    there = replace(spec, workload=replace(spec.workload, prompts="/old/place/prompts.jsonl"), prompts_digest="d")
    open_ledger(there, canonical).close()
    check_ledger(replace(there, workload=replace(spec.workload, prompts="/new/place/prompts.jsonl")))


def test_an_onlooker_learns_how_many_trials_the_last_run_was_for(tmp_path: Path) -> None:
    spec = begun(tmp_path)
    assert read_study(spec.directory, spec.name).trials == spec.trials
    open_ledger(replace(spec, trials=4), canonical).close()
    assert read_study(spec.directory, spec.name).trials == 4


@pytest.mark.parametrize(
    ("content", "match"),
    [
        (b"this is no database at all, " * 99, "file is not a database; restore it from a copy"),
        (b"", "is not a study database; move it away"),
    ],
)
def test_a_file_that_is_no_study_is_refused(tmp_path: Path, content: bytes, match: str) -> None:
    spec = small_spec(tmp_path)
    Path(spec.directory).mkdir()
    (Path(spec.directory) / "study.db").write_bytes(content)
    refused(spec, match)


def test_a_damaged_study_is_refused(tmp_path: Path) -> None:
    spec = begun(tmp_path)
    path = Path(spec.directory) / "study.db"
    whole = path.read_bytes()
    path.write_bytes(whole[:4096] + b"\x5a" * (len(whole) - 4096))
    refused(spec, "malformed; restore it from a copy")


def test_somebody_elses_sqlite_file_is_refused(tmp_path: Path) -> None:
    spec = small_spec(tmp_path)
    Path(spec.directory).mkdir()
    with contextlib.closing(sqlite3.connect(Path(spec.directory) / "study.db")) as connection:
        connection.execute("CREATE TABLE notes (text)")
    refused(spec, "is not a study database")


def test_an_optuna_study_that_tuner_did_not_begin_is_refused(tmp_path: Path) -> None:
    spec = small_spec(tmp_path)
    Path(spec.directory).mkdir()
    with storage.open_storage(Path(spec.directory) / "study.db") as opened:
        optuna.create_study(study_name=spec.name, storage=opened)
    refused(spec, "another engine")
    with pytest.raises(LedgerError, match="was not begun by tuner"):
        read_study(spec.directory, spec.name)


def test_a_folder_below_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    refused(small_spec(tmp_path / "file"), "is not a folder; choose another folder")


def test_a_folder_that_cannot_be_made_is_refused() -> None:
    refused(replace(small_spec(Path("/proc/tuner")), directory="/proc/tuner/study"), "disk space left", StudyUnwritable)


def test_too_little_disk_space_is_refused_with_the_numbers(tmp_path: Path) -> None:
    with pytest.raises(
        StudyUnwritable, match=r"only \d+ MiB of disk space left, 1099511627776 MiB are needed; free some"
    ):
        check_room(tmp_path / "study", needed_bytes=2**60)
    assert list(tmp_path.iterdir()) == []


def test_a_running_study_is_refused_and_goes_on(tmp_path: Path) -> None:
    spec = small_spec(tmp_path)
    first = open_ledger(spec, canonical)
    with pytest.raises(LedgerError, match="is being run by process"):
        open_ledger(spec, canonical)
    assert first.propose("gpu01") is not None
    first.close()


def test_looking_at_a_study_that_is_not_there_says_how_to_begin_it(tmp_path: Path) -> None:
    with pytest.raises(LedgerError, match="does not exist; begin the study with: python -m tuner run --study small"):
        read_study(tmp_path, "small")
    assert list(tmp_path.iterdir()) == []


def test_what_a_driver_killed_while_beginning_left_is_begun_anew(tmp_path: Path) -> None:
    spec = small_spec(tmp_path)
    Path(spec.directory).mkdir()
    (Path(spec.directory) / "study.db.new").write_bytes(b"half of a databa")
    open_ledger(spec, canonical).close()
    assert sorted(path.name for path in Path(spec.directory).iterdir()) == ["lock", "study.db"]


@pytest.mark.parametrize("module", [optuna.exceptions, sqlalchemy.exc, sqlite3], ids=lambda module: module.__name__)
def test_every_error_of_the_libraries_below_is_mapped(module: object) -> None:
    errors = {
        thing
        for _, thing in inspect.getmembers(module, inspect.isclass)
        if issubclass(thing, Exception) and not issubclass(thing, Warning)
    }
    unmapped = {error.__name__ for error in errors if not issubclass(error, storage.FOREIGN)}
    # The first is for drivers that are no DBAPI, the second for several statements in one call.
    assert unmapped <= {"EmulatedDBAPIException", "Warning"}
    assert errors


@pytest.mark.parametrize(
    ("error", "kind", "remedy"),
    [
        (sqlite3.OperationalError("database or disk is full"), StudyUnwritable, "free some disk space"),
        (sqlite3.OperationalError("attempt to write a readonly database"), StudyUnwritable, "writable"),
        (sqlite3.OperationalError("unable to open database file"), StudyUnwritable, "writable"),
        (sqlite3.OperationalError("disk I/O error"), StudyUnwritable, "check the disk"),
        (sqlite3.OperationalError("database is locked"), LedgerError, "close the program that holds it"),
        (sqlite3.DatabaseError("file is not a database"), LedgerError, "restore it from a copy"),
        (sqlite3.DatabaseError("database disk image is malformed"), LedgerError, "restore it from a copy"),
        (OSError(28, "No space left on device"), StudyUnwritable, "free some disk space"),
        (OSError(30, "Read-only file system"), StudyUnwritable, "writable"),
        (PermissionError(13, "Permission denied"), StudyUnwritable, "writable"),
    ],
)
def test_an_error_is_explained_in_one_line_with_whose_fault_it_is_and_its_remedy(
    error: Exception, kind: type[Exception], remedy: str
) -> None:
    wrapped = sqlalchemy.exc.OperationalError("INSERT\nINTO x", {}, error)
    for shown in (error, wrapped):
        with pytest.raises(kind, match=remedy) as caught, mapped(Path("/data/study.db")):
            raise shown
        assert str(caught.value).startswith("/data/study.db: ")
        assert "\n" not in str(caught.value)
    place = Path("/data/study.db")
    assert str(explained(place, wrapped)) == str(explained(place, error))
