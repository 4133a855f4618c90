"""People steer a campaign: what they ask is carried out, refused in a line, or done only once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

import pytest

from tuner.errors import EvidenceError, TooManyFaults
from tuner.model.order import AbortOrder, Answer, Order, TryOrder, VerdictOrder
from tuner.model.outcome import Cause, Faulted, Infeasible, Interrupted, Measured, TrialState, violation
from tuner.model.ruling import Ruling, Word
from tuner.model.space import Assignment, Value
from tuner.model.trial import Remark, StateEntered, TrialEvent, TrialFinished
from tuner.runtime.campaign import counted
from tuner.runtime.roster import FAULTS_IN_A_ROW
from tuner.runtime.steering import Flight, Steering
from tuner.testing.fake_campaign import FakeOrders, Notes, campaign, inline, optimizer_of, spec
from tuner.testing.fake_host import Start
from tuner.testing.fake_optimizer import FakeOptimizer
from tuner.testing.results import faulted, infeasible, interrupted, measured, result_of

LATER_S = 4e9
"""After everything that a fake clock shows."""


def trying(order: str = "1", *, again: bool = False, **values: Value) -> TryOrder:
    return TryOrder(order=order, who="me@here", at_s=LATER_S, values=Assignment.of(values), again=again)


def ruling(word: Word, order: str = "1", at_s: float = LATER_S) -> Ruling:
    return Ruling(order=order, word=word, why="load crashed", who="me@here", at_s=at_s)


def steering(*, trials: int | None = 6) -> Steering:
    study = spec()
    return Steering(study="s", space=study.space, baseline=study.baseline, trials=trials, optimizer=optimizer_of(study))


def take(optimizer: FakeOptimizer, outcome: object = None) -> int:
    proposal = optimizer.propose("host0")
    assert proposal is not None
    if isinstance(outcome, Measured | Infeasible | Faulted | Interrupted):
        optimizer.tell(result_of(proposal, outcome, study="s", host="host0"))
    return proposal.number


def optimizer_in(wheel: Steering) -> FakeOptimizer:
    assert isinstance(wheel.optimizer, FakeOptimizer)
    return wheel.optimizer


# -- try -----------------------------------------------------------------------------


def test_values_that_are_not_given_are_those_of_the_baseline_and_the_place_in_the_queue_is_told() -> None:
    wheel = steering()
    take(optimizer_in(wheel))
    first, second = wheel.obey(trying("1", batch=3)), wheel.obey(trying("2", draft=2))
    assert first.answer == Answer(done=True, text="queued as trial 1, place 1 (next) of the queue: batch=3 draft=0")
    assert second.answer == Answer(done=True, text="queued as trial 2, place 2 of the queue: batch=8 draft=2")
    assert first.remark == "me@here asks to try batch=3 draft=0: trial 1"


def test_what_the_engine_refuses_is_answered_with_its_rule_and_nothing_is_queued() -> None:
    wheel = steering()
    answer = wheel.obey(trying(draft=9)).answer
    assert not answer.done
    assert answer.text.startswith("study s cannot run batch=8 draft=9: draft=9 is not a whole number")
    assert len(wheel.optimizer.rows()) == 1


@pytest.mark.parametrize(
    ("outcome", "words"),
    [
        (measured(120.5, 1582.25), "measured, single request 120.5 tok/s, aggregate 1582.2 tok/s"),
        (infeasible(state=TrialState.WARMING_UP), "infeasible, oom_serving while warming up"),
    ],
)
def test_what_has_counted_is_answered_with_its_result_unless_a_person_insists(
    outcome: Measured | Infeasible, words: str
) -> None:
    wheel = steering()
    take(optimizer_in(wheel), outcome)
    answer = wheel.obey(trying(batch=8)).answer
    assert answer == Answer(done=False, text=f"batch=8 draft=0 was trial 0: {words}; --again runs it once more")
    assert wheel.obey(trying(batch=8, again=True)).answer.done
    assert wheel.optimizer.rows()[1].outcome is None


def test_an_order_to_try_that_comes_twice_queues_once() -> None:
    wheel = steering()
    take(optimizer_in(wheel), measured(1, 1))
    assert wheel.obey(trying(batch=8, again=True)).answer.done
    again = wheel.obey(trying(batch=8, again=True))
    assert again.answer == Answer(done=True, text="batch=8 draft=0 is trial 1 already: place 1 (next) of the queue")
    assert again.remark == ""
    take(optimizer_in(wheel))
    assert "cut off on host0" in wheel.obey(trying(batch=8, again=True)).answer.text


def test_where_the_budget_is_spent_the_answer_says_so_with_the_remedy() -> None:
    wheel = steering(trials=1)
    take(optimizer_in(wheel), measured(1, 1))
    assert wheel.obey(trying(batch=3)).answer.text.endswith("so it waits for a run with more: --trials 2")


# -- abort ---------------------------------------------------------------------------


def flying(wheel: Steering, *hosts: str) -> Steering:
    flights = {}
    for host in hosts:
        number = take(optimizer_in(wheel))
        flights[number] = Flight(
            number=number, host=host, ladder=(1, 8, 64), began_s=100.0 + number, state=TrialState.MEASURING, level=8
        )
    return replace(wheel, flights=flights, stop_limits_s={"host0": 120.0})


def test_a_trial_that_is_ruled_infeasible_is_graded_as_a_death_where_it_was() -> None:
    wheel = flying(steering(), "host0")
    deed = wheel.obey(AbortOrder(ruling=ruling(Word.INFEASIBLE)))
    assert deed.flight is wheel.flights[0]
    outcome = deed.flight.ruled
    assert isinstance(outcome, Infeasible)
    assert (outcome.verdict.cause, outcome.verdict.config_fault) == (Cause.RULED, True)
    assert (outcome.state, outcome.level) == (TrialState.MEASURING, 8)
    assert outcome.violation == violation(TrialState.MEASURING, level_index=1, levels=3)
    assert outcome.verdict.evidence[0] == "load crashed"
    assert "me@here" in outcome.verdict.evidence[1]
    assert deed.flight.ending.is_set()
    assert "server is being stopped, which has 120 s for that" in deed.answer.text
    assert optimizer_in(wheel).study.ruled == {0: outcome}, "kept before anything else is done"


@pytest.mark.parametrize(
    ("order", "words"),
    [
        (AbortOrder(ruling=ruling(Word.RETRY)), "2 trials run; now trial 0 on host0, trial 1 on host1: say which"),
        (AbortOrder(ruling=ruling(Word.RETRY), host="gpu7"), "no trial runs on host gpu7; now trial 0 on host0"),
        (AbortOrder(ruling=ruling(Word.RETRY), trial=7), "trial 7 does not exist; now trial 0 on host0"),
        (AbortOrder(ruling=ruling(Word.RETRY, at_s=50.0), trial=0), "what ran when the order was given has ended"),
    ],
)
def test_an_abort_that_does_not_name_one_running_trial_is_refused_with_what_runs(order: Order, words: str) -> None:
    wheel = flying(steering(), "host0", "host1")
    deed = wheel.obey(order)
    assert not deed.answer.done
    assert words in deed.answer.text
    assert all(flight.ruled is None for flight in wheel.flights.values())


def test_a_trial_is_ended_by_one_person_only() -> None:
    wheel = flying(steering(), "host0", "host1")
    assert wheel.obey(AbortOrder(ruling=ruling(Word.RETRY), host="host1")).answer.done
    second = wheel.obey(AbortOrder(ruling=ruling(Word.INFEASIBLE, "2"), trial=1)).answer
    assert second == Answer(done=False, text="trial 1 is being ended already: interrupted")


def test_an_abort_of_what_has_ended_or_waits_says_so_with_the_remedy() -> None:
    wheel = steering()
    take(optimizer_in(wheel), measured(1, 1))
    wheel.obey(trying(batch=3))
    assert "python -m tuner verdict 0" in wheel.obey(AbortOrder(ruling=ruling(Word.RETRY), trial=0)).answer.text
    assert "trial 1 waits" in wheel.obey(AbortOrder(ruling=ruling(Word.RETRY), trial=1)).answer.text
    assert wheel.obey(AbortOrder(ruling=ruling(Word.RETRY))).answer.text == "study s: no trial runs"


# -- verdict -------------------------------------------------------------------------


def test_a_finished_trial_is_corrected_once_however_often_the_order_comes() -> None:
    wheel = steering()
    take(optimizer_in(wheel), measured(9, 9))
    order = VerdictOrder(ruling=ruling(Word.INFEASIBLE), trial=0)
    deed = wheel.obey(order)
    assert deed.is_correction
    assert deed.answer.text == (
        "trial 0, measured, single request 9.0 tok/s, aggregate 9.0 tok/s, is infeasible "
        "(as if it had died while judging: violation 0.75) now"
    )
    repeated = wheel.obey(order)
    assert repeated.answer.done
    assert not repeated.is_correction
    assert len(wheel.optimizer.rows()[0].corrections) == 1


@pytest.mark.parametrize(
    ("outcome", "word", "words"),
    [
        (measured(9, 9), Word.MEASURED, "nobody has overruled what it measured"),
        (infeasible(), Word.INFEASIBLE, "it is infeasible already (oom_serving)"),
        (infeasible(), Word.MEASURED, "nobody has overruled"),
        (faulted(), Word.RETRY, "was queued again"),
        (interrupted(), Word.RETRY, "was queued again"),
        (None, Word.RETRY, "trial 0 has not ended"),
    ],
)
def test_a_word_that_does_not_fit_how_a_trial_ended_is_refused(outcome: object, word: Word, words: str) -> None:
    wheel = steering()
    take(optimizer_in(wheel), outcome)
    before = wheel.optimizer.rows()
    answer = wheel.obey(VerdictOrder(ruling=ruling(word), trial=0)).answer
    assert not answer.done
    assert words in answer.text
    assert wheel.optimizer.rows() == before


def test_a_verdict_on_a_trial_that_does_not_exist_names_the_last_one() -> None:
    answer = steering().obey(VerdictOrder(ruling=ruling(Word.RETRY), trial=7)).answer
    assert answer == Answer(done=False, text="study s has no trial 7; the last one is 0")


# -- in a campaign -------------------------------------------------------------------


def steered(
    act: Callable[[FakeOrders, TrialEvent], None], *, trials: int = 4, hosts: int = 1
) -> tuple[Notes, FakeOptimizer, FakeOrders]:
    """Run a campaign in which ``act`` is told every event, and may give orders."""
    study = spec(trials=trials, hosts=hosts)
    executor, _ = inline(study, Start())
    orders = FakeOrders()
    notes, optimizer = Notes(orders=orders, on_event=lambda event: act(orders, event)), optimizer_of(study)

    async def main() -> bool:
        return await campaign(study, executor, notes, optimizer).run()

    assert asyncio.run(main())
    return notes, optimizer, orders


def when(state: TrialState, order: Order, level: int | None = None) -> Callable[[FakeOrders, TrialEvent], None]:
    """Give an order when the first trial enters a state."""
    given: list[Order] = []

    def act(orders: FakeOrders, event: TrialEvent) -> None:
        if isinstance(event, StateEntered) and (event.state, event.level) == (state, level) and not given:
            given.append(order)
            orders.give(order)

    return act


def test_what_a_person_asks_to_try_runs_next() -> None:
    _, optimizer, orders = steered(when(TrialState.LOADING, trying(batch=3, draft=2)))
    assert optimizer.rows()[1].assignment == Assignment.of({"batch": 3, "draft": 2})
    assert isinstance(optimizer.rows()[1].outcome, Measured)
    assert orders.answers["1"].done


def test_an_abort_ends_the_trial_with_the_persons_verdict_and_the_campaign_goes_on() -> None:
    order = AbortOrder(ruling=ruling(Word.INFEASIBLE))
    notes, optimizer, orders = steered(when(TrialState.MEASURING, order, level=4))
    outcome = optimizer.rows()[0].outcome
    assert isinstance(outcome, Infeasible)
    assert (outcome.verdict.cause, outcome.state, outcome.level) == (Cause.RULED, TrialState.MEASURING, 4)
    assert orders.answers["1"].done
    assert counted(optimizer.rows()) == 4
    mine = [event for number, event in notes.events if number == 0]
    assert [event.text for event in mine if isinstance(event, Remark)][-1].endswith("UTC: load crashed")
    assert isinstance(mine[-1], TrialFinished)
    assert mine[-1].result.outcome == outcome
    assert isinstance(mine[-2], StateEntered)
    assert mine[-2].detail == "infeasible"


def test_a_trial_that_is_aborted_for_a_retry_runs_again_at_once_and_does_not_count() -> None:
    order = AbortOrder(ruling=ruling(Word.RETRY))
    _, optimizer, _ = steered(when(TrialState.SOAKING, order, level=4))
    first, second = optimizer.rows()[:2]
    assert first.outcome == Interrupted(state=TrialState.SOAKING, why="me@here: load crashed")
    assert second.assignment == first.assignment
    assert isinstance(second.outcome, Measured)
    assert counted(optimizer.rows()) == 4


def test_a_retry_is_no_fault_of_the_host_and_no_proof_that_it_works() -> None:
    order = AbortOrder(ruling=ruling(Word.RETRY))
    study = spec(trials=2)
    executor, _ = inline(study, [*[Start(refuses="no")] * (FAULTS_IN_A_ROW - 1), Start(), Start(refuses="no"), Start()])
    orders = FakeOrders()
    act = when(TrialState.MEASURING, order, level=1)
    notes = Notes(orders=orders, on_event=lambda event: act(orders, event))
    with pytest.raises(TooManyFaults, match="no host is left after 3 faults in a row"):
        asyncio.run(campaign(study, executor, notes, optimizer_of(study)).run())


def test_only_the_trial_that_is_meant_ends() -> None:
    order = AbortOrder(ruling=ruling(Word.INFEASIBLE), host="host1")
    _, optimizer, _ = steered(when(TrialState.MEASURING, order, level=4), hosts=2)
    ended = [row for row in optimizer.rows() if isinstance(row.outcome, Infeasible)]
    assert [row.host for row in ended] == ["host1"]


def test_an_abort_of_the_baseline_does_not_end_the_study() -> None:
    _, optimizer, _ = steered(when(TrialState.DEPLOYING, AbortOrder(ruling=ruling(Word.INFEASIBLE))))
    assert optimizer.rows()[0].baseline
    assert counted(optimizer.rows()) == 4


def test_a_verdict_during_a_run_changes_the_rows_and_gives_the_budget_back() -> None:
    given: list[str] = []

    def act(orders: FakeOrders, event: TrialEvent) -> None:
        if isinstance(event, TrialFinished) and event.result.number == 1 and not given:
            given.append("")
            orders.give(VerdictOrder(ruling=ruling(Word.RETRY), trial=0))

    notes, optimizer, orders = steered(act)
    assert orders.answers["1"].done
    first = optimizer.rows()[0]
    assert isinstance(first.outcome, Interrupted)
    assert isinstance(first.corrections[0].before, Measured)
    again = [row for row in optimizer.rows() if row.assignment == first.assignment and row.number]
    assert [type(row.outcome) for row in again] == [Measured]
    assert counted(optimizer.rows()) == 4
    assert any("now retry, ruled by me@here" in text for text in notes.remarks)


def test_an_order_that_cannot_be_kept_as_evidence_ends_the_run_with_that_error() -> None:
    study = spec(trials=4)
    executor, hosts = inline(study, Start())
    orders = FakeOrders()
    give = when(TrialState.MEASURING, AbortOrder(ruling=ruling(Word.INFEASIBLE)), level=1)

    def act(event: TrialEvent) -> None:
        if isinstance(event, Remark) and "ruled by" in event.text:
            raise EvidenceError("the disk is full")
        give(orders, event)

    notes, optimizer = Notes(orders=orders, on_event=act), optimizer_of(study)
    with pytest.raises(EvidenceError, match="the disk is full"):
        asyncio.run(campaign(study, executor, notes, optimizer).run())
    assert [host.service.gpu_bytes for host in hosts] == [0]
    outcome = optimizer.rows()[0].outcome
    assert isinstance(outcome, Infeasible)
    assert outcome.verdict.cause is Cause.RULED
