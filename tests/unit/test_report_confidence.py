"""How sure a front is, in words."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tuner.model.metric import OBJECTIVES
from tuner.model.outcome import Measured, Outcome
from tuner.model.repeat import Purpose, Repeat, RepeatTerms
from tuner.model.study import TrialRow
from tuner.report.confidence import chances, confidence_lines
from tuner.report.front import Heading, front_rows
from tuner.report.tables import gain_lines, record, to_csv
from tuner.runtime.repeats import Repeats
from tuner.screen.status import status_line
from tuner.screen.words import repeat_words
from tuner.stats.repeats import settled
from tuner.testing import fake_run
from tuner.testing.results import infeasible, measured

HEADING = Heading(study="s", engine="sglang", parameters=("speculative_num_steps",), simulated=False)


def rows(*entries: tuple[Outcome | None, int | None, Purpose | None]) -> tuple[TrialRow, ...]:
    """Build trials: outcome, and what each measures again, why."""
    raw: list[TrialRow] = []
    for number, (outcome, of, purpose) in enumerate(entries):
        values = None
        if isinstance(outcome, Measured):
            values = (outcome.single_request_throughput.value, outcome.aggregate_throughput.value)
        origin = number if of is None else of
        raw.append(
            replace(
                fake_run.row(number, fake_run.mtp(origin + 1), outcome),
                host="a",
                baseline=origin == 0,
                values=values,
                repeat=None if of is None or purpose is None else Repeat(of=of, purpose=purpose),
                finished_s=60.0 * (number + 1),
            )
        )
    return settled(raw, OBJECTIVES)


def plain(outcome: Outcome | None) -> tuple[Outcome | None, None, None]:
    return (outcome, None, None)


LUCKY = rows(
    plain(measured(100, 1000)),
    plain(measured(230, 950)),
    plain(measured(200, 940)),
    (measured(101, 1001), 0, Purpose.LEVEL),
    (measured(170, 900), 1, Purpose.CONFIRMATION),
    (measured(172, 900), 1, Purpose.CONFIRMATION),
    (measured(201, 941), 2, Purpose.CONFIRMATION),
    (measured(199, 939), 2, Purpose.CONFIRMATION),
)


def test_nothing_is_said_where_nothing_was_measured_again() -> None:
    assert confidence_lines(LUCKY[:3], HEADING) == ()


def test_who_led_by_luck_is_named_with_both_values() -> None:
    lines = confidence_lines(LUCKY, HEADING)
    assert lines[0] == "front: 2 of 2 members measured again on fresh starts, 5 starts in all"
    assert (
        "trial 1 led by luck and is off the front: first single-request throughput 230.0, together 172.0 tok/s, "
        "aggregate throughput 950.0, together 916.7 tok/s"
    ) in lines
    assert [row.number for row in front_rows(LUCKY)] == [2, 0][::-1]


def test_the_level_of_a_host_is_told_with_its_interval() -> None:
    (line,) = (line for line in confidence_lines(LUCKY, HEADING) if line.startswith("a, the baseline"))
    assert line.startswith("a, the baseline from first to last of 2 times: single-request throughput +1.0 % (")


def test_a_configuration_that_died_when_it_was_confirmed_is_told_clearly() -> None:
    found = rows(plain(measured(100, 1000)), plain(measured(230, 950)), (infeasible(), 1, Purpose.CONFIRMATION))
    assert (
        "trial 1 is not safe and off the front: it was measured, but a fresh start of it, trial 2, died (oom serving)"
    ) in confidence_lines(found, HEADING)
    assert any("1 infeasible" in line for line in gain_lines(found, HEADING))


def test_hosts_that_differ_are_compared_by_their_baselines() -> None:
    both = rows(plain(measured(100, 1000)), (measured(90, 900), 0, Purpose.LEVEL))
    lines = confidence_lines((both[0], replace(both[1], host="b")), HEADING)
    assert "the baseline's single-request throughput by host, against their mean: a +5.3 %, b -5.3 %" in lines


def test_tables_name_what_a_trial_measures_again_and_how_likely_it_belongs_to_the_front() -> None:
    likely = chances(LUCKY, HEADING)
    assert likely[2] > 0.9
    assert likely[1] < 0.5 < likely[0]
    assert set(likely) == {0, 1, 2}
    first = record(LUCKY[2], HEADING, likely[2])
    assert (first["repeat_of"], first["starts"], first["front_probability"]) == (None, 3, round(likely[2], 4))
    again = record(LUCKY[4], HEADING)
    assert (again["repeat_of"], again["purpose"], again["starts"]) == (1, "confirmation", 1)
    header, *lines = to_csv(LUCKY, HEADING, likely).splitlines()
    assert "repeat_of,purpose" in header
    assert len(lines) == len(LUCKY)


def test_the_status_tells_confirmations_apart_from_trials_of_the_search() -> None:
    terms = RepeatTerms(confirmations=3, baseline_every=8)
    progress = Repeats(terms=terms, trials=3, objectives=OBJECTIVES).progress(LUCKY)
    line = status_line("s", LUCKY, trials=3, simulated=False, driver=None, confirmed=replace(progress, left=2))
    assert line == "s: 3 of 3 trials done, 3 measured, 0 infeasible, 4 of 6 confirmations, 1 other repeat; not running"


@pytest.mark.parametrize(
    ("purpose", "words"),
    [
        (Purpose.LEVEL, "the baseline, trial 0, again"),
        (Purpose.CONFIRMATION, "confirms trial 0"),
        (Purpose.DRIFT, "trial 0 again after a drift"),
    ],
    ids=["level", "confirmation", "drift"],
)
def test_a_repeat_says_what_it_is(purpose: Purpose, words: str) -> None:
    assert repeat_words(Repeat(of=0, purpose=purpose)) == words
