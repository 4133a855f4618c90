"""Acceptance length and step time, and when they are not known."""

from __future__ import annotations

import pytest

from tuner.model.metric import Estimate
from tuner.model.record import Counters
from tuner.stats.speculation import acceptance_length, step_time_s


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
