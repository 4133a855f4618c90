"""Acceptance length and step time, and when they are not known."""

from __future__ import annotations

import pytest

from tuner.model.account import Speculation
from tuner.model.metric import Estimate
from tuner.model.record import Counters
from tuner.stats.classes import class_results
from tuner.stats.speculation import acceptance_length, accepted_at, draft_share, speculation, step_time_s, summed
from tuner.testing.requests import request


def counters(generated: float | None, steps: float | None) -> Counters:
    return Counters(generated_tokens=generated, verify_steps=steps)


def throughput(value: float) -> Estimate:
    return Estimate(value=value, low=None, high=None, samples=1)


def test_the_acceptance_length_is_that_of_the_leg_and_not_of_the_server_s_life() -> None:
    assert acceptance_length(counters(1000, 1000), counters(1400, 1100)) == 4.0


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (None, counters(1, 1)),
        (counters(1, 1), None),
        (counters(None, 1), counters(5, 2)),
        (counters(1, 1), counters(5, None)),
        (counters(1, 1), counters(5, 1)),
        (counters(900, 300), counters(40, 400)),
        (counters(10, 300), counters(40, 10)),
    ],
    ids=["no first", "no last", "no tokens", "no steps", "no step in between", "tokens fell", "steps fell"],
)
def test_what_was_not_counted_has_no_acceptance_length(before: Counters | None, after: Counters | None) -> None:
    assert acceptance_length(before, after) is None


def test_the_step_time_is_the_other_half_of_the_throughput() -> None:
    assert step_time_s(2.8, throughput(280.0)) == pytest.approx(0.01)


def test_without_acceptance_or_throughput_there_is_no_step_time() -> None:
    assert step_time_s(None, throughput(280.0)) is None
    assert step_time_s(2.8, None) is None
    assert step_time_s(2.8, throughput(0.0)) is None


def test_a_position_was_accepted_in_every_step_that_accepted_more() -> None:
    assert accepted_at((10, 20, 30, 40)) == pytest.approx((0.9, 0.7, 0.4))
    assert accepted_at((10,)) == ()
    assert accepted_at(()) == ()
    assert accepted_at((0, 0)) == ()


def test_histograms_of_different_lengths_are_summed() -> None:
    assert summed([(1, 2), (1, 0, 5), ()]) == (2, 2, 5)
    assert summed([]) == ()


def test_the_share_of_drafts_is_accepted_of_proposed() -> None:
    assert draft_share(2.9, (10, 20, 30, 40), 3) == pytest.approx(2.0 / 3)
    assert draft_share(2.5, (), 3) == pytest.approx(0.5)  # without a histogram the bonus token is taken off
    assert draft_share(2.5, (1, 1), None) is None


def test_a_leg_s_length_comes_from_its_counters_and_the_rest_from_its_replies() -> None:
    before = counters(1000, 1000)
    after = Counters(generated_tokens=1400, verify_steps=1100, drafts_a_step=3)
    records = [request(verify_steps=25, accepted=(0, 0, 0, 25)), request(verify_steps=25, accepted=(25,))]
    assert speculation(records, throughput(400.0), before=before, after=after) == Speculation(
        acceptance_length=4.0,
        accepted_at=(0.5, 0.5, 0.5),
        verify_steps=100,
        draft_share=0.5,
        step_time_s=pytest.approx(0.01),
    )


def test_without_counters_the_replies_say_it_and_without_either_nobody_does() -> None:
    found = speculation([request(tokens=101, verify_steps=25)], None)
    assert found == Speculation(acceptance_length=101 / 25, verify_steps=25)
    assert speculation([request()], None) is None
    assert speculation([], None) is None


def test_each_class_of_prompts_has_its_own_speed_and_its_own_drafts() -> None:
    chat = request(prompt_class="chat", verify_steps=50, accepted=(25, 25))
    code = request(prompt_class="code", last_s=0.6, verify_steps=25, accepted=(0, 0, 0, 25))
    found = class_results([code, chat, chat])
    assert [(each.name, each.requests) for each in found] == [("chat", 2), ("code", 1)]
    speeds = [each.single_request_throughput.value for each in found if each.single_request_throughput]
    assert speeds == [pytest.approx(100.0), pytest.approx(200.0)]
    assert [each.speculation.accepted_at for each in found if each.speculation] == [(0.5,), (1.0, 1.0, 1.0)]


def test_prompts_without_a_class_have_no_results_of_one() -> None:
    assert class_results([request()]) == ()
