"""What every Optimizer must do; a test class inherits it and says how to open one.

The optimizer under test works on ``draft_trees.SMALL_SPACE`` with its baseline and rules, in a
study called ``suite``.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tuner.errors import AssignmentRejected
from tuner.model.outcome import (
    Cause,
    Faulted,
    Infeasible,
    Interrupted,
    Measured,
    MemoryDirection,
    Outcome,
    TrialState,
)
from tuner.model.repeat import Purpose, Repeat
from tuner.model.ruling import Correction, Ruling, Word, corrected, ended_by
from tuner.model.space import Assignment
from tuner.ports import Optimizer, Proposal
from tuner.testing.draft_trees import SMALL_BASELINE, SMALL_COUNT, canonical
from tuner.testing.results import faulted, infeasible, interrupted, measured, result_of

STUDY = "suite"
SPARE = Assignment.of({"steps": 2, "topk": 2, "draft": 4, "fraction": 0.9})


def ruling(word: Word, order: str = "0001") -> Ruling:
    """Return a person's word."""
    return Ruling(order=order, word=word, why="load crashed", who="me@here", at_s=1_000_000.0)


class OptimizerSuite:
    """Inherit as ``TestX(OptimizerSuite)`` and override :meth:`open`."""

    def open(self, place: Path) -> Optimizer:
        """Open the study kept in ``place``, an empty folder at first; called again to resume."""
        raise NotImplementedError

    @pytest.fixture
    def optimizer(self, tmp_path: Path) -> Iterator[Optimizer]:
        """A new study."""
        opened = self.open(tmp_path)
        yield opened
        opened.close()

    @staticmethod
    def take(optimizer: Optimizer, host: str = "gpu01") -> Proposal:
        """Propose, and insist on an answer."""
        proposal = optimizer.propose(host)
        assert proposal is not None
        return proposal

    def end(self, optimizer: Optimizer, outcome: Outcome) -> Proposal:
        """Run one trial to ``outcome``."""
        proposal = self.take(optimizer)
        optimizer.tell(result_of(proposal, outcome, study=STUDY))
        return proposal

    def test_trial_zero_is_the_baseline(self, optimizer: Optimizer) -> None:
        """Every result is against what runs today."""
        proposal = self.take(optimizer)
        assert (proposal.number, proposal.assignment, proposal.baseline) == (0, SMALL_BASELINE, True)
        assert not self.take(optimizer, "gpu02").baseline

    def test_every_canonical_assignment_is_proposed_once_and_then_none(self, optimizer: Optimizer) -> None:
        """No two trials launch the same server, and nothing is left out."""
        seen: list[Assignment] = []
        while (proposal := optimizer.propose("gpu01")) is not None:
            seen.append(proposal.assignment)
            outcome = infeasible() if len(seen) % 3 == 0 else measured(100 + len(seen), 1000 - len(seen))
            optimizer.tell(result_of(proposal, outcome, study=STUDY))
        assert all(canonical(assignment) == assignment for assignment in seen)
        assert len(seen) == len(set(seen)) == SMALL_COUNT

    def test_hosts_never_run_the_same_assignment_at_once(self, optimizer: Optimizer) -> None:
        """What runs elsewhere is taken."""
        taken = [self.take(optimizer, f"gpu{host:02}").assignment for host in range(SMALL_COUNT)]
        assert len(set(taken)) == SMALL_COUNT
        assert optimizer.propose("gpu99") is None

    @pytest.mark.parametrize("outcome", [faulted(), interrupted()], ids=["faulted", "interrupted"])
    def test_what_was_not_the_configurations_fault_runs_again(self, optimizer: Optimizer, outcome: Outcome) -> None:
        """Under a new number, and the baseline is still the baseline."""
        first = self.end(optimizer, outcome)
        again = self.take(optimizer)
        assert again.assignment == first.assignment
        assert again.number > first.number
        assert again.baseline
        assert optimizer.rows()[first.number].values is None

    def test_an_infeasible_assignment_never_runs_again(self, optimizer: Optimizer) -> None:
        """Neither proposed nor by being queued."""
        dead = self.end(optimizer, infeasible()).assignment
        optimizer.enqueue(dead)
        seen = []
        while (proposal := optimizer.propose("gpu01")) is not None:
            seen.append(proposal.assignment)
        assert dead not in seen

    def test_a_queued_assignment_is_next_in_its_canonical_form(self, optimizer: Optimizer) -> None:
        """Topk 1 forces draft; what was typed is not what runs."""
        self.end(optimizer, measured(100, 1000))
        optimizer.enqueue(Assignment.of({"steps": 2, "topk": 1, "draft": 4, "fraction": 0.9}))
        proposal = self.take(optimizer)
        assert proposal.assignment == Assignment.of({"steps": 2, "topk": 1, "draft": 3, "fraction": 0.9})

    def test_the_queue_keeps_its_order(self, optimizer: Optimizer) -> None:
        """First in, first out."""
        self.end(optimizer, measured(100, 1000))
        queued = [SPARE, Assignment.of({"steps": 0, "fraction": 0.8}), Assignment.of({"steps": 0, "fraction": 0.9})]
        for assignment in queued:
            optimizer.enqueue(assignment)
        assert [self.take(optimizer).assignment for _ in queued] == queued

    def test_queueing_what_waits_or_runs_changes_nothing(self, optimizer: Optimizer) -> None:
        """A retry and a person may ask for the same."""
        running = self.take(optimizer).assignment
        optimizer.enqueue(running)
        optimizer.enqueue(SPARE)
        optimizer.enqueue(SPARE)
        assert [row.assignment for row in optimizer.rows()] == [running, SPARE]

    def test_queueing_what_the_engine_refuses_is_an_error(self, optimizer: Optimizer) -> None:
        """The rule is the message, and nothing is queued."""
        with pytest.raises(AssignmentRejected, match="draft=2"):
            optimizer.enqueue(Assignment.of({"steps": 2, "topk": 2, "draft": 2, "fraction": 0.9}))
        assert len(optimizer.rows()) == 1

    @pytest.mark.parametrize(
        "outcome", [measured(1, 1), infeasible(), faulted(), interrupted()], ids=lambda o: type(o).__name__
    )
    def test_a_trial_is_told_exactly_once(self, optimizer: Optimizer, outcome: Outcome) -> None:
        """The second telling is an error and changes nothing."""
        proposal = self.end(optimizer, outcome)
        before = optimizer.rows()
        with pytest.raises(ValueError, match=f"trial {proposal.number}"):
            optimizer.tell(result_of(proposal, measured(2, 2), study=STUDY))
        assert optimizer.rows() == before

    def test_only_a_running_trial_can_be_told(self, optimizer: Optimizer) -> None:
        """Not one that waits, was never proposed, or is another assignment."""
        waiting = Proposal(number=0, assignment=SMALL_BASELINE, baseline=True)
        with pytest.raises(ValueError, match="trial 0"):
            optimizer.tell(result_of(waiting, measured(1, 1), study=STUDY))
        with pytest.raises(ValueError, match="trial 7"):
            optimizer.tell(result_of(Proposal(number=7, assignment=SPARE, baseline=False), faulted(), study=STUDY))
        number = self.take(optimizer).number
        with pytest.raises(ValueError, match="trial 0"):
            optimizer.tell(
                result_of(Proposal(number=number, assignment=SPARE, baseline=False), measured(1, 1), study=STUDY)
            )
        assert optimizer.rows()[0].outcome is None

    def test_a_row_says_what_was_told(self, optimizer: Optimizer) -> None:
        """All of it, in the words it was told in."""
        outcomes: list[Outcome] = [
            measured(120.5, 1582.25, peak_concurrency=32),
            infeasible(Cause.OOM_GRAPH_CAPTURE, state=TrialState.LOADING, direction=MemoryDirection.FRACTION_TOO_HIGH),
            infeasible(Cause.HANG, state=TrialState.MEASURING, level=16),
            Faulted(error="gpu01: NCCL; look at the fabric", state=TrialState.LOADING, verdict=infeasible().verdict),
        ]
        proposals = [self.end(optimizer, outcome) for outcome in outcomes]
        for proposal, outcome in zip(proposals, outcomes, strict=True):
            row = optimizer.rows()[proposal.number]
            assert (row.number, row.assignment, row.outcome) == (proposal.number, proposal.assignment, outcome)
            assert (row.host, row.duration_s, row.baseline) == ("gpu01", 60.0, proposal.baseline)
            assert row.capacity is not None
            assert row.capacity.max_total_num_tokens == 295_931
            assert row.capacity.available_gpu_mem_bytes is None
            assert row.values == ((120.5, 1582.25) if isinstance(outcome, Measured) else None)

    def test_rows_tell_waiting_from_running(self, optimizer: Optimizer) -> None:
        """A waiting trial has no host yet."""
        self.take(optimizer, "gpu07")
        optimizer.enqueue(SPARE)
        running, waiting = optimizer.rows()
        assert (running.outcome, running.host, running.baseline) == (None, "gpu07", True)
        assert (waiting.outcome, waiting.host, waiting.baseline) == (None, None, False)

    def test_after_a_killed_driver_running_trials_run_again_and_finished_ones_do_not(self, tmp_path: Path) -> None:
        """And settling a settled study changes nothing."""
        killed = self.open(tmp_path)
        done = self.end(killed, measured(100, 1000))
        lost = [self.take(killed, host) for host in ("gpu01", "gpu02")]
        killed.close()
        resumed = self.open(tmp_path)
        assert resumed.settle() == tuple(proposal.number for proposal in lost)
        assert resumed.settle() == ()
        assert [isinstance(resumed.rows()[p.number].outcome, Interrupted) for p in lost] == [True, True]
        again = [self.take(resumed, host) for host in ("gpu01", "gpu02")]
        assert [p.assignment for p in again] == [p.assignment for p in lost]
        rest = []
        while (proposal := resumed.propose("gpu01")) is not None:
            rest.append(proposal.assignment)
        assert done.assignment not in rest
        assert len({*rest, *(p.assignment for p in again)}) == len(rest) + len(again) == SMALL_COUNT - 1
        resumed.close()

    def test_what_was_queued_survives_the_driver(self, tmp_path: Path) -> None:
        """A queue in memory only would lose the retries."""
        first = self.open(tmp_path)
        self.end(first, measured(100, 1000))
        first.enqueue(SPARE)
        first.close()
        second = self.open(tmp_path)
        assert second.settle() == ()
        assert self.take(second).assignment == SPARE
        second.close()

    def overrule(self, optimizer: Optimizer, number: int, word: Word) -> Outcome:
        """Correct a finished trial, as a person's order does."""
        row = optimizer.rows()[number]
        assert row.outcome is not None
        outcome = corrected(ruling(word), row.outcome, row.corrections)
        assert not isinstance(outcome, str), outcome
        optimizer.correct(number, outcome, Correction(ruling=ruling(word), before=row.outcome))
        return outcome

    @pytest.mark.parametrize("before", [measured(1, 1), infeasible()], ids=lambda o: type(o).__name__)
    def test_what_has_counted_runs_again_where_a_person_insists(self, optimizer: Optimizer, before: Outcome) -> None:
        """As a trial of its own, also when a host faults on the way."""
        first = self.end(optimizer, before)
        optimizer.enqueue(first.assignment)
        assert len(optimizer.rows()) == 1
        optimizer.enqueue(first.assignment, again=True)
        optimizer.enqueue(first.assignment, again=True)
        assert self.end(optimizer, faulted()).assignment == first.assignment
        assert self.end(optimizer, measured(2, 2)).assignment == first.assignment
        assert [row.number for row in optimizer.rows() if isinstance(row.outcome, Measured)][-1] == 2
        assert self.take(optimizer).assignment != first.assignment

    def test_a_persons_word_on_a_running_trial_outlives_the_driver(self, tmp_path: Path) -> None:
        """It was heard; that the driver was killed while the host was cleaned changes nothing."""
        killed = self.open(tmp_path)
        lost = [self.take(killed, host) for host in ("gpu01", "gpu02")]
        words = [ended_by(ruling(word), state=TrialState.MEASURING, level=8, ladder=(1, 8)) for word in list(Word)[:2]]
        for proposal, outcome in zip(lost, words, strict=True):
            killed.rule(proposal.number, outcome)
        assert [row.outcome for row in killed.rows()] == [None, None]
        killed.close()
        resumed = self.open(tmp_path)
        assert resumed.settle() == (lost[1].number,)
        assert [row.outcome for row in resumed.rows()[:2]] == words
        assert self.take(resumed).assignment == lost[1].assignment
        resumed.close()

    def test_only_a_running_trial_can_be_ended_by_a_person(self, optimizer: Optimizer) -> None:
        """Not one that waits, is finished, or does not exist."""
        outcome = ended_by(ruling(Word.INFEASIBLE), state=TrialState.LOADING)
        with pytest.raises(ValueError, match="trial 0"):
            optimizer.rule(0, outcome)
        self.end(optimizer, measured(1, 1))
        with pytest.raises(ValueError, match="trial 0"):
            optimizer.rule(0, outcome)
        with pytest.raises(ValueError, match="trial 9"):
            optimizer.rule(9, outcome)

    def test_a_finished_trial_that_is_ruled_infeasible_has_no_values_and_never_runs_again(
        self, optimizer: Optimizer
    ) -> None:
        """Its reason and what it was before are kept."""
        before = measured(999, 9999)
        proposal = self.end(optimizer, before)
        outcome = self.overrule(optimizer, proposal.number, Word.INFEASIBLE)
        row = optimizer.rows()[proposal.number]
        assert (row.outcome, row.values) == (outcome, None)
        assert row.corrections == (Correction(ruling=ruling(Word.INFEASIBLE), before=before),)
        optimizer.enqueue(proposal.assignment)
        assert self.take(optimizer).assignment != proposal.assignment

    @pytest.mark.parametrize("before", [measured(9, 9), infeasible()], ids=lambda o: type(o).__name__)
    def test_a_finished_trial_that_is_to_be_tried_again_is_next(self, optimizer: Optimizer, before: Outcome) -> None:
        """And does not count any more."""
        proposal = self.end(optimizer, before)
        self.overrule(optimizer, proposal.number, Word.RETRY)
        row = optimizer.rows()[proposal.number]
        assert isinstance(row.outcome, Interrupted)
        assert row.values is None
        assert self.take(optimizer).assignment == proposal.assignment

    def test_an_overruling_can_be_taken_back(self, optimizer: Optimizer) -> None:
        """What was measured is there again, and what was queued for it is not run."""
        before = measured(120.5, 1582.25)
        proposal = self.end(optimizer, before)
        self.overrule(optimizer, proposal.number, Word.INFEASIBLE)
        self.overrule(optimizer, proposal.number, Word.RETRY)
        assert self.overrule(optimizer, proposal.number, Word.MEASURED) == before
        row = optimizer.rows()[proposal.number]
        assert (row.outcome, row.values) == (before, (120.5, 1582.25))
        assert [each.ruling.word for each in row.corrections] == [Word.INFEASIBLE, Word.RETRY, Word.MEASURED]
        assert self.take(optimizer).assignment != proposal.assignment

    def test_a_fault_that_a_person_calls_infeasible_is_not_tried_again(self, optimizer: Optimizer) -> None:
        """Its configuration was queued already."""
        proposal = self.end(optimizer, faulted())
        self.overrule(optimizer, proposal.number, Word.INFEASIBLE)
        assert self.take(optimizer).assignment != proposal.assignment

    def test_a_correction_survives_the_driver(self, tmp_path: Path) -> None:
        """Rows are the same after the study is opened again."""
        first = self.open(tmp_path)
        self.overrule(first, self.end(first, measured(100, 1000)).number, Word.INFEASIBLE)
        before = first.rows()
        first.close()
        second = self.open(tmp_path)
        assert second.rows() == before
        second.close()

    def test_a_correction_of_something_else_is_refused(self, optimizer: Optimizer) -> None:
        """Somebody decided on what they saw; if it was not that, nothing changes."""
        number = self.end(optimizer, measured(1, 1)).number
        outcome = ended_by(ruling(Word.INFEASIBLE), state=TrialState.SOAKING)
        before = optimizer.rows()
        for trial in (number, 7):
            with pytest.raises(ValueError, match=f"trial {trial}"):
                optimizer.correct(trial, outcome, Correction(ruling=ruling(Word.INFEASIBLE), before=faulted()))
        assert optimizer.rows() == before

    def again(self, optimizer: Optimizer, of: int, outcome: Outcome) -> Proposal:
        """Measure a trial once more, to confirm it."""
        proposal = optimizer.repeat(Repeat(of=of, purpose=Purpose.CONFIRMATION), "gpu01")
        optimizer.tell(result_of(proposal, outcome, study=STUDY))
        return proposal

    def test_a_repeat_is_a_trial_of_its_own_with_the_configuration_of_another(self, optimizer: Optimizer) -> None:
        """And it runs the base command as it stands where that one did."""
        first = self.end(optimizer, measured(100, 1000))
        repeat = Repeat(of=first.number, purpose=Purpose.LEVEL)
        proposal = optimizer.repeat(repeat, "gpu02")
        assert (proposal.number, proposal.assignment, proposal.baseline) == (1, first.assignment, True)
        assert proposal.repeat == repeat
        row = optimizer.rows()[1]
        assert (row.repeat, row.host, row.outcome, row.counts) == (repeat, "gpu02", None, False)

    def test_what_is_measured_again_shows_the_mean_of_its_starts(self, optimizer: Optimizer) -> None:
        """Each start keeps what it measured itself."""
        self.end(optimizer, measured(120, 900))
        for value in (100, 110):
            self.again(optimizer, 0, measured(value, 900))
        row, *repeats = optimizer.rows()
        assert row.values == pytest.approx((110, 900))
        assert row.starts == (0, 1, 2)
        assert row.own == measured(120, 900)
        assert [each.values for each in repeats] == [(100.0, 900.0), (110.0, 900.0)]
        assert row.counts
        assert not any(each.counts for each in repeats)

    def test_the_search_goes_on_as_if_nothing_were_measured_again(self, optimizer: Optimizer) -> None:
        """The space is still walked once, also while a repeat runs or has failed."""
        seen = [self.end(optimizer, measured(100, 1000)).assignment]
        self.again(optimizer, 0, measured(101, 1001))
        self.again(optimizer, 0, faulted())
        self.again(optimizer, 0, interrupted())
        optimizer.repeat(Repeat(of=0, purpose=Purpose.CONFIRMATION), "gpu09")
        while (proposal := optimizer.propose("gpu01")) is not None:
            seen.append(proposal.assignment)
            optimizer.tell(result_of(proposal, measured(90, 900), study=STUDY))
        assert len(seen) == len(set(seen)) == SMALL_COUNT

    def test_a_configuration_that_dies_when_it_is_measured_again_is_infeasible(self, optimizer: Optimizer) -> None:
        """What it measured first is kept, and a person may say that the death was not its fault."""
        self.end(optimizer, measured(100, 1000))
        dead = self.again(optimizer, 0, infeasible())
        row = optimizer.rows()[0]
        assert isinstance(row.outcome, Infeasible)
        assert (row.values, row.own) == (None, measured(100, 1000))
        assert f"trial {dead.number}" in row.outcome.verdict.advice
        self.overrule(optimizer, dead.number, Word.RETRY)
        row = optimizer.rows()[0]
        assert (row.outcome, row.values) == (measured(100, 1000), (100.0, 1000.0))
        assert self.take(optimizer).assignment != row.assignment, "it is not queued for that"

    def test_a_persons_word_stands_above_what_is_measured_again(self, optimizer: Optimizer) -> None:
        """Taking it back gives what its starts together say, and counts none of them twice."""
        self.end(optimizer, measured(120, 1000))
        self.again(optimizer, 0, measured(100, 1000))
        self.overrule(optimizer, 0, Word.INFEASIBLE)
        self.again_is_refused(optimizer, 0)
        assert optimizer.rows()[0].values is None
        self.overrule(optimizer, 0, Word.MEASURED)
        row = optimizer.rows()[0]
        assert row.values == pytest.approx((110, 1000))
        assert row.own == measured(120, 1000)

    @staticmethod
    def again_is_refused(optimizer: Optimizer, of: int) -> None:
        """Hold that a trial cannot be measured again, and that nothing is begun."""
        before = optimizer.rows()
        with pytest.raises(ValueError, match=f"trial {of}: was not measured"):
            optimizer.repeat(Repeat(of=of, purpose=Purpose.CONFIRMATION), "gpu01")
        assert optimizer.rows() == before

    def test_only_a_measured_trial_of_the_search_is_measured_again(self, optimizer: Optimizer) -> None:
        """Not one that died or does not exist, nor a repeat."""
        self.end(optimizer, measured(100, 1000))
        self.end(optimizer, infeasible())
        repeat = self.again(optimizer, 0, measured(100, 1000))
        for number in (1, repeat.number, 99, -1):
            self.again_is_refused(optimizer, number)

    def test_after_a_killed_driver_a_repeat_is_interrupted_and_nothing_is_queued(self, tmp_path: Path) -> None:
        """Whoever plans repeats sees that one is missing; what was measured counts once."""
        killed = self.open(tmp_path)
        self.end(killed, measured(120, 900))
        self.again(killed, 0, measured(100, 900))
        lost = killed.repeat(Repeat(of=0, purpose=Purpose.CONFIRMATION), "gpu01")
        killed.close()
        resumed = self.open(tmp_path)
        assert resumed.settle() == (lost.number,)
        assert resumed.settle() == ()
        rows = resumed.rows()
        assert isinstance(rows[lost.number].outcome, Interrupted)
        assert rows[0].values == pytest.approx((110, 900))
        assert self.take(resumed).assignment != rows[0].assignment
        resumed.close()

    def test_closing_twice_is_no_error(self, optimizer: Optimizer) -> None:
        """Clean-up runs from several places."""
        optimizer.close()
        optimizer.close()
