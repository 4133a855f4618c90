"""What is measured again, and when: decisions from the trials alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import pytest

from tuner.model.metric import OBJECTIVES, Estimate
from tuner.model.outcome import Interrupted, Measured, Outcome, TrialState
from tuner.model.repeat import Purpose, Repeat, RepeatTerms
from tuner.model.space import Assignment
from tuner.model.study import TrialRow
from tuner.runtime.repeats import GIVEN_UP_AFTER, NEAR_MOST, Repeats
from tuner.stats.repeats import settled
from tuner.testing.results import estimate, faulted, infeasible, measured

TERMS = RepeatTerms(confirmations=2, baseline_every=3)
RUNNING = None


class Study:
    """Rows as they come about; a host's clock moves on ten minutes with each."""

    def __init__(self, terms: RepeatTerms = TERMS, trials: int = 6) -> None:
        self.repeats = Repeats(terms=terms, trials=trials, objectives=OBJECTIVES)
        self.raw: list[TrialRow] = []

    @property
    def rows(self) -> tuple[TrialRow, ...]:
        return settled(self.raw, OBJECTIVES)

    def add(self, outcome: Outcome | None, *, host: str = "a", repeat: Repeat | None = None) -> int:
        number = len(self.raw)
        of = number if repeat is None else repeat.of
        values = None
        if isinstance(outcome, Measured):
            values = (outcome.single_request_throughput.value, outcome.aggregate_throughput.value)
        self.raw.append(
            TrialRow(
                number=number,
                assignment=Assignment.of({"steps": of}),
                outcome=outcome,
                host=host,
                baseline=of == 0,
                values=values,
                capacity=None,
                duration_s=None if outcome is None else 600.0,
                repeat=repeat,
                finished_s=None if outcome is None else 600.0 * (number + 1),
            )
        )
        return number

    def search(self, outcomes: Sequence[Outcome], host: str = "a") -> None:
        for outcome in outcomes:
            self.add(outcome, host=host)

    def play(self, truth: dict[int, Outcome], hosts: Sequence[str] = ("a",), most: int = 60) -> list[Repeat]:
        """Carry out everything that is wanted after the search, one at a time, in turn on the hosts."""
        done: list[Repeat] = []
        for turn in range(most):
            repeat = self.repeats.at_the_end(self.rows, hosts[turn % len(hosts)])
            if repeat is None:
                if self.repeats.is_done(self.rows, hosts):
                    return done
                continue
            done.append(repeat)
            self.add(truth[repeat.of], host=hosts[turn % len(hosts)], repeat=repeat)
        raise AssertionError("it does not end")


BASE = measured(100, 1000)
FAST, WIDE, POOR = measured(200, 900), measured(90, 1500), measured(50, 500)


def level(of: int = 0) -> Repeat:
    return Repeat(of=of, purpose=Purpose.LEVEL)


def test_a_host_measures_the_baseline_again_after_so_many_trials_of_its_own() -> None:
    study = Study()
    study.search([BASE, FAST])
    assert study.repeats.during_search(study.rows, "a") is None
    study.search([POOR, POOR], host="b")
    study.search([infeasible()])
    assert study.repeats.during_search(study.rows, "a") == level()
    assert study.repeats.during_search(study.rows, "b") is None
    study.add(RUNNING, repeat=level())
    assert study.repeats.during_search(study.rows, "a") is None, "it is under way"


def test_faults_are_no_level_and_after_three_in_a_row_nobody_asks_again() -> None:
    study = Study()
    study.search([BASE, FAST, POOR])
    for _ in range(GIVEN_UP_AFTER):
        assert study.repeats.during_search(study.rows, "a") == level()
        study.add(faulted(), repeat=level())
    assert study.repeats.during_search(study.rows, "a") is None


def test_an_interrupted_repeat_is_asked_for_again() -> None:
    study = Study()
    study.search([BASE, FAST, POOR])
    for _ in range(5):
        study.add(Interrupted(state=TrialState.LOADING), repeat=level())
    assert study.repeats.during_search(study.rows, "a") == level()


def test_without_a_measured_baseline_there_is_no_level_but_winners_are_confirmed_all_the_same() -> None:
    study = Study()
    study.search([infeasible(), FAST, WIDE, POOR])
    assert study.repeats.during_search(study.rows, "a") is None
    done = study.play({1: FAST, 2: WIDE})
    assert {each.of for each in done} == {1, 2}
    assert all(each.purpose is Purpose.CONFIRMATION for each in done)


def test_at_the_end_a_host_measures_its_level_while_others_still_search_and_confirms_nothing_yet() -> None:
    study = Study()
    study.search([BASE, FAST, WIDE])
    study.add(RUNNING, host="b")
    assert study.repeats.at_the_end(study.rows, "a") == level()
    study.add(BASE, repeat=level())
    assert study.repeats.at_the_end(study.rows, "a") is None


def test_members_are_confirmed_on_fresh_starts_in_turn_with_the_baseline_between() -> None:
    study = Study()
    study.search([BASE, FAST, WIDE, POOR])
    done = study.play({0: BASE, 1: FAST, 2: WIDE})
    assert done[0] == level()
    confirmed = [each.of for each in done if each.purpose is Purpose.CONFIRMATION]
    assert sorted(confirmed) == [1, 1, 2, 2], "the baseline has been measured often enough by then"
    assert confirmed[:2] == [1, 2], "everybody's first comes before anybody's second"
    levels = [index for index, each in enumerate(done) if each.of == 0]
    assert all(after - before <= 3 for before, after in pairwise(levels)), "sqrt(3) apart"
    assert 3 not in confirmed, "a configuration that is far off is not worth it"
    assert study.repeats.progress(study.rows).left == 0


def test_a_lucky_winner_falls_off_the_front_and_who_takes_its_place_is_confirmed_too() -> None:
    study = Study()
    lucky, second = measured(230, 900), measured(212, 890)
    study.search([BASE, lucky, second, POOR])
    study.play({0: BASE, 1: measured(190, 850), 2: second})
    rows = study.rows
    assert rows[1].values is not None
    assert rows[1].values[0] == 190, "its starts disagree: the middle one counts"
    assert [len(rows[number].starts) for number in (1, 2)] == [3, 3]


def test_near_misses_are_few_and_the_likeliest() -> None:
    study = Study(terms=RepeatTerms(confirmations=1))
    crowd = [measured(100 - 0.01 * index, 1000 - 0.1 * index) for index in range(12)]
    study.search([POOR, *crowd])
    progress = study.repeats.progress(study.rows)
    assert progress.left == 1 + NEAR_MOST
    first = study.repeats.at_the_end(study.rows, "a")
    assert first == Repeat(of=1, purpose=Purpose.CONFIRMATION)


def test_all_repeats_together_stay_within_what_the_study_pays_for() -> None:
    study = Study(terms=replace(TERMS, most=3))
    study.search([BASE, FAST, WIDE, POOR])
    assert study.repeats.progress(study.rows).left == 3
    assert len(study.play({0: BASE, 1: FAST, 2: WIDE})) == 3


def test_a_winner_that_dies_when_it_is_confirmed_counts_as_infeasible_and_is_not_run_again() -> None:
    study = Study()
    study.search([BASE, FAST, WIDE, POOR])
    study.play({0: BASE, 1: infeasible(), 2: WIDE})
    row = study.rows[1]
    assert type(row.outcome) is type(infeasible())
    assert row.own == FAST
    assert row.values is None
    assert sum(each.repeat is not None and each.repeat.of == 1 for each in study.raw) == 1


def slower(outcome: Measured, share: float) -> Measured:
    def moved(value: Estimate) -> Estimate:
        return estimate(value.value * (1 - share))

    return replace(
        outcome,
        single_request_throughput=moved(outcome.single_request_throughput),
        aggregate_throughput=moved(outcome.aggregate_throughput),
    )


def test_a_host_that_became_slower_measures_again_what_it_measured_when_it_was_faster() -> None:
    """And what is far off at any level is left alone; the old values are not used any more."""
    study = Study(trials=12)
    study.search([BASE, FAST, POOR])
    study.add(slower(BASE, 0.1), repeat=level())
    study.search([slower(WIDE, 0.2)])
    done = study.play({0: slower(BASE, 0.2), 1: slower(FAST, 0.2), 4: slower(WIDE, 0.2)})
    drifted = [each.of for each in done if each.purpose is Purpose.DRIFT]
    assert drifted == [0, 1, 4], "the last one too: the line falls by more than 5 % from it to the end"
    rows = study.rows
    for number, truth in ((0, BASE), (1, FAST)):
        values = rows[number].values
        assert values is not None
        assert values[0] == pytest.approx(0.8 * truth.single_request_throughput.value)
        assert number not in rows[number].starts


def test_a_drift_below_the_limit_changes_nothing() -> None:
    study = Study(trials=12)
    study.search([BASE, FAST, POOR])
    study.add(slower(BASE, 0.02), repeat=level())
    study.search([slower(WIDE, 0.04)])
    done = study.play({0: slower(BASE, 0.04), 1: FAST, 4: WIDE})
    assert all(each.purpose is not Purpose.DRIFT for each in done)


def test_a_study_that_pays_for_nothing_repeats_nothing() -> None:
    study = Study(terms=RepeatTerms())
    study.search([BASE, FAST, WIDE])
    assert study.repeats.is_done(study.rows, ["a", "b"])
    assert study.repeats.during_search(study.rows, "a") is None
