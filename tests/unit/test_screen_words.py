"""How values are written for a reader."""

from __future__ import annotations

from datetime import UTC

import pytest

from tuner.model.names import short_names
from tuner.model.outcome import Faulted, Interrupted, TrialState
from tuner.screen.words import (
    duration,
    gain,
    outcome_words,
    rate,
    settings,
    state_words,
    time_of_day,
)
from tuner.testing.fake_run import MTP, infeasible, measured, mtp

MTP_NAMES = short_names([parameter.name for parameter in MTP.parameters])


def test_settings_stand_in_the_order_of_the_space() -> None:
    assert settings(mtp(3), MTP_NAMES) == "steps 3 · topk 1 · draft 4 · fraction 0.8"


def test_settings_that_do_not_apply_are_left_out() -> None:
    assert settings(mtp(0), MTP_NAMES) == "steps 0 · fraction 0.8"


@pytest.mark.parametrize(
    ("value", "text"), [(None, "-"), (0.0, "0.0"), (31.04, "31.0"), (234.4, "234"), (1204.4, "1,204")]
)
def test_rates_are_short_and_a_missing_one_is_not_zero(value: float | None, text: str) -> None:
    assert rate(value) == text


@pytest.mark.parametrize(
    ("value", "base", "text"), [(120.0, 100.0, "+20%"), (90.0, 100.0, "-10%"), (5.0, None, "-"), (5.0, 0.0, "-")]
)
def test_gains_are_percent_of_the_base(value: float, base: float | None, text: str) -> None:
    assert gain(value, base) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(-3.0, "0 s"), (4.9, "4 s"), (60.0, "1 min"), (161.0, "2 min 41 s"), (3600.0, "1 h"), (10961.0, "3 h 2 min")],
)
def test_durations_use_the_largest_unit_they_need(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_a_time_of_day_is_in_the_zone_asked_for() -> None:
    assert time_of_day(1_000_000.0, UTC) == "13:46:40"


def test_states_name_their_level_while_they_have_one() -> None:
    assert state_words(TrialState.MEASURING, 16) == "measuring 16"
    assert state_words(TrialState.WARMING_UP) == "warming up"
    assert state_words(TrialState.DONE, 64) == "done"


def test_outcomes_say_who_is_to_blame_and_what_comes_next() -> None:
    assert outcome_words(measured(234.2, 1979.0)) == "single request 234 tok/s, aggregate 1,979 tok/s at 32"
    assert outcome_words(infeasible()) == "infeasible: OOM serving while measuring 32"
    fault = Faulted(error="nvidia-smi\nis gone", state=TrialState.CLEANING)
    assert outcome_words(fault) == "host fault while cleaning, will run again: nvidia-smi is gone"
    assert outcome_words(Interrupted(state=TrialState.LOADING)) == "interrupted while loading, will run again"
