"""Two processes and real SQLite: a command, and a stand-in for the driver that holds the study."""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tuner.engines import engine
from tuner.errors import LedgerError, PreflightError
from tuner.model.order import AbortOrder, TryOrder, VerdictOrder
from tuner.model.outcome import Infeasible, Interrupted, Measured
from tuner.model.ruling import Ruling, Word
from tuner.model.space import Assignment
from tuner.model.study import StudySpec
from tuner.runtime.steering import Flight, Steering
from tuner.search.ledger import OptunaLedger, open_ledger
from tuner.search.rows import read_study
from tuner.steer.inbox import Inbox
from tuner.testing.project import Project
from tuner.testing.results import measured, result_of
from tuner.wiring.load import load_study
from tuner.wiring.steer import give, new_id

CHECKOUT = Path(__file__).parents[2]


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Project]:
    """A project whose study has one measured trial."""
    shutil.copytree(CHECKOUT / "search_spaces", tmp_path / "search_spaces")
    (tmp_path / "studies").mkdir()
    made = Project(tmp_path)
    made.write()
    ledger = opened(made)
    proposal = ledger.propose("sim0")
    assert proposal is not None
    ledger.tell(result_of(proposal, measured(120, 1500), study="tiny", host="sim0"))
    ledger.close()
    yield made
    for process in made.started:
        process.communicate()


def spec_of(project: Project) -> StudySpec:
    return load_study(project.root, project.name)


def opened(project: Project) -> OptunaLedger:
    spec = spec_of(project)
    return open_ledger(spec, engine(spec.engine).canonical)


def trying(steps: int) -> TryOrder:
    values = Assignment.of({"speculative_num_steps": steps})
    return TryOrder(order=new_id(), who="me@here", at_s=time.time(), values=values)


def ruling(word: Word) -> Ruling:
    return Ruling(order=new_id(), word=word, why="load crashed", who="me@here", at_s=time.time())


async def drive(project: Project, ledger: OptunaLedger, flights: dict[int, Flight], *arguments: str) -> tuple[int, str]:
    """Serve orders as a driver does, while a command runs in a process of its own."""
    spec = spec_of(project)
    inbox = Inbox(project.results)
    wheel = Steering(
        study=spec.name, space=spec.space, baseline=spec.baseline, trials=9, optimizer=ledger, flights=flights
    )

    async def serve() -> None:
        while True:
            order = await inbox.next()
            inbox.answer(order, wheel.obey(order).answer)

    serving = asyncio.ensure_future(serve())
    done = await asyncio.to_thread(project.tuner, *arguments)
    serving.cancel()
    await asyncio.wait([serving])
    return done.returncode, done.stdout + done.stderr


def test_the_driver_stays_the_only_writer_while_commands_of_others_come(project: Project) -> None:
    ledger = opened(project)
    proposal = ledger.propose("sim0")
    assert proposal is not None
    flights = {1: Flight(number=1, host="sim0", ladder=(1, 8), began_s=time.time() - 60)}
    code, said = asyncio.run(drive(project, ledger, flights, "try", "--study", "tiny", "steps=10"))
    assert (code, said[:40]) == (0, "queued as trial 2, place 1 (next) of the")
    why = ("--as", "infeasible", "--why", "load crashed")
    code, said = asyncio.run(drive(project, ledger, flights, "abort", "--study", "tiny", *why))
    assert code == 0, said
    assert isinstance(flights[1].ruled, Infeasible)
    code, said = asyncio.run(drive(project, ledger, flights, "verdict", "0", "--study", "tiny", *why))
    assert code == 0, said
    assert isinstance(ledger.rows()[0].outcome, Infeasible), "the driver sees what it has written itself"
    ledger.close()
    resumed = opened(project)
    assert resumed.settle() == ()
    assert resumed.rows()[1].outcome == flights[1].ruled
    resumed.close()


def test_a_driver_that_does_not_look_is_told_of_and_an_abort_is_withdrawn(project: Project) -> None:
    ledger = opened(project)
    places = {"root": project.root, "study": "tiny", "directory": project.results}
    with pytest.raises(PreflightError, match=r"has not answered in 0.2 s; the order lies in .*orders and is carried"):
        give(trying(5), **places, patience_s=0.2)  # type: ignore[arg-type]  # of a dict
    with pytest.raises(PreflightError, match="the order was withdrawn and nothing was done: try again"):
        give(AbortOrder(ruling=ruling(Word.RETRY)), **places, patience_s=0.2)  # type: ignore[arg-type]
    assert [path.suffix for path in (project.results / "orders").iterdir()] == [".order"]
    ledger.close()
    answer = give(trying(6), **places)  # type: ignore[arg-type]
    assert answer.text.startswith("queued as trial 2, place 2 of the queue"), "the one before was carried out first"


def test_an_order_that_a_killed_driver_had_carried_out_but_not_answered_is_done_once(project: Project) -> None:
    inbox = Inbox(project.results)
    orders = [trying(5), VerdictOrder(ruling=ruling(Word.RETRY), trial=0)]
    spec = spec_of(project)
    killed = opened(project)
    wheel = Steering(study="tiny", space=spec.space, baseline=spec.baseline, trials=9, optimizer=killed)
    for order in orders:
        inbox.put(order)
        assert wheel.obey(order).answer.done
    before = killed.rows()
    killed.close()
    answer = give(trying(6), root=project.root, study="tiny", directory=project.results)
    assert answer.done
    after = read_study(project.results, "tiny").rows
    assert after[: len(before)] == before
    assert len(after) == len(before) + 1
    assert isinstance(after[0].outcome, Interrupted)
    assert inbox.first() is None


def test_a_correction_without_a_run_rewrites_the_result_files(project: Project) -> None:
    order = VerdictOrder(ruling=ruling(Word.INFEASIBLE), trial=0)
    give(order, root=project.root, study="tiny", directory=project.results)
    assert [row["outcome"] for row in project.trials()] == ["infeasible"]
    assert len((project.results / "front.csv").read_text().splitlines()) == 1
    assert (project.results / "front.png").stat().st_size > 0
    back = VerdictOrder(ruling=ruling(Word.MEASURED), trial=0)
    give(back, root=project.root, study="tiny", directory=project.results)
    assert isinstance(read_study(project.results, "tiny").rows[0].outcome, Measured)
    assert len((project.results / "front.csv").read_text().splitlines()) == 2


def test_a_study_that_has_not_begun_takes_no_orders(project: Project) -> None:
    (project.root / "studies" / "other").mkdir()
    with pytest.raises(LedgerError, match="study other has not begun: python -m tuner run --study other"):
        give(trying(5), root=project.root, study="other", directory=project.root / "studies" / "other")
    assert list((project.root / "studies" / "other").iterdir()) == []
