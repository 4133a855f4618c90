"""A person's word on a repeat, or on a trial that was measured again, stays sensible."""

from __future__ import annotations

from tuner.model.order import AbortOrder, TryOrder, VerdictOrder
from tuner.model.outcome import Infeasible, Interrupted, Measured, Outcome, TrialState
from tuner.model.repeat import Purpose, Repeat
from tuner.model.ruling import Ruling, Word
from tuner.model.space import Assignment
from tuner.runtime.steering import Flight, Steering
from tuner.testing.fake_campaign import optimizer_of, spec
from tuner.testing.fake_optimizer import FakeOptimizer
from tuner.testing.results import infeasible, measured, result_of

LATER_S = 4e9
CONFIRMS = Repeat(of=0, purpose=Purpose.CONFIRMATION)


def ruling(word: Word) -> Ruling:
    return Ruling(order="1", word=word, why="load crashed", who="me@here", at_s=LATER_S)


def wheel_of(*again: Outcome, trials: int = 6) -> tuple[Steering, FakeOptimizer]:
    """Build a study whose trial 0 measured 120 and 1000 and was measured again to these ends."""
    study = spec()
    optimizer = optimizer_of(study)
    proposal = optimizer.propose("host0")
    assert proposal is not None
    optimizer.tell(result_of(proposal, measured(120, 1000), study="s", host="host0"))
    for outcome in again:
        optimizer.tell(result_of(optimizer.repeat(CONFIRMS, "host0"), outcome, study="s", host="host0"))
    wheel = Steering(
        study="s", space=study.space, baseline=study.baseline, trials=trials, optimizer=optimizer, flights={}
    )
    return wheel, optimizer


def test_a_repeat_that_says_nothing_is_not_counted_and_its_trial_is_what_the_others_say() -> None:
    wheel, optimizer = wheel_of(measured(100, 1000))
    answer = wheel.obey(VerdictOrder(ruling=ruling(Word.RETRY), trial=1)).answer
    assert answer.done
    assert "is not counted, and it is run again where that is needed now" in answer.text
    assert "trial 0, which it measured again, is measured, single request 120.0 tok/s" in answer.text
    assert isinstance(optimizer.rows()[1].outcome, Interrupted)
    assert len(optimizer.rows()) == 2, "the search does not run it"


def test_a_repeat_that_a_person_calls_infeasible_takes_its_trial_off_the_front() -> None:
    wheel, optimizer = wheel_of(measured(100, 1000))
    answer = wheel.obey(VerdictOrder(ruling=ruling(Word.INFEASIBLE), trial=1)).answer
    assert answer.done
    assert "trial 0, which it measured again, is infeasible, ruled while judging" in answer.text
    assert isinstance(optimizer.rows()[0].outcome, Infeasible)


def test_a_trial_condemned_by_its_repeat_names_the_repeat_to_correct() -> None:
    wheel, _ = wheel_of(infeasible())
    answer = wheel.obey(VerdictOrder(ruling=ruling(Word.MEASURED), trial=0)).answer
    assert not answer.done
    assert answer.text.endswith("its repeat, trial 1, died: if that was not its fault, say so of 1")


def test_ending_a_repeat_does_not_promise_that_the_search_runs_it_again() -> None:
    wheel, optimizer = wheel_of()
    proposal = optimizer.repeat(CONFIRMS, "host0")
    flight = Flight(
        number=proposal.number,
        host="host0",
        ladder=(1, 4),
        began_s=0.0,
        repeat=CONFIRMS,
        state=TrialState.MEASURING,
        level=4,
    )
    wheel.flights = {proposal.number: flight}
    answer = wheel.obey(AbortOrder(ruling=ruling(Word.RETRY), host=None, trial=None)).answer
    assert answer.done
    assert "is not counted, and it is run again where that is needed; its server is being stopped" in answer.text


def test_a_configuration_whose_repeat_runs_can_be_tried_again_as_a_trial_of_the_search() -> None:
    wheel, optimizer = wheel_of()
    optimizer.repeat(CONFIRMS, "host0")
    order = TryOrder(order="1", who="me@here", at_s=LATER_S, values=Assignment.of({"batch": 8}), again=True)
    answer = wheel.obey(order).answer
    assert answer.text.startswith("queued as trial 2, place 1 (next) of the queue")


def test_repeats_spend_nothing_of_the_budget_that_a_person_is_told_of() -> None:
    wheel, optimizer = wheel_of(measured(1, 1), measured(1, 1), trials=2)
    order = TryOrder(order="1", who="me@here", at_s=LATER_S, values=Assignment.of({"batch": 3}))
    assert "of the study are done" not in wheel.obey(order).answer.text
    assert isinstance(optimizer.rows()[0].outcome, Measured)
