"""How far a trial was from feasible: ordered by how far it got, then by how much memory was missing."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tuner.model.outcome import LOADING_STAGES, Cause, TrialState, Verdict, missing_share, violation

GIB = 2**30
LADDER = 5

Place = tuple[TrialState, int | None, str]

COURSE: list[Place] = [
    (TrialState.DEPLOYING, None, ""),
    *((TrialState.LOADING, None, stage) for stage in LOADING_STAGES),
    (TrialState.WARMING_UP, None, "ready"),
    *((TrialState.MEASURING, index, "ready") for index in range(LADDER)),
    (TrialState.SOAKING, None, "ready"),
]
"""Every place where a trial may die, in order."""

SHARES = st.none() | st.floats(allow_nan=True, allow_infinity=True)
KNOWN = st.floats(min_value=1e-9, max_value=1.0)


def grade(place: Place, missing: float | None = None) -> float:
    state, index, stage = place
    return violation(state, level_index=index, levels=LADDER, stage=stage, missing=missing)


@given(st.integers(1, len(COURSE) - 1), SHARES, SHARES)
def test_who_died_earlier_is_worse_however_much_memory_was_missing(
    later: int, before: float | None, after: float | None
) -> None:
    assert grade(COURSE[later - 1], before) > grade(COURSE[later], after)


@given(st.sampled_from(list(TrialState)), st.integers(0, 9), st.text(max_size=9), SHARES)
def test_every_grade_is_above_zero_and_at_most_four(
    state: TrialState, index: int, stage: str, missing: float | None
) -> None:
    assert 0.0 < violation(state, level_index=index, levels=10, stage=stage, missing=missing) <= 4.0


@given(st.sampled_from(COURSE[1:]), KNOWN, KNOWN)
def test_more_missing_memory_is_worse_at_the_same_place(place: Place, one: float, another: float) -> None:
    less, more = sorted((one, another))
    assert grade(place, less) <= grade(place, more)
    if more > less * 1.01:
        assert grade(place, less) < grade(place, more)


@given(st.sampled_from(COURSE))
def test_what_is_not_known_counts_as_a_tenth_of_a_gpu(place: Place) -> None:
    assert grade(place, None) == pytest.approx(grade(place, 0.1))
    assert grade(place, -0.3) == grade(place, None)
    assert grade(place, float("nan")) == grade(place, None)


@pytest.mark.parametrize(
    ("place", "low", "high"),
    [
        (COURSE[0], 4.0, 4.0),
        ((TrialState.LOADING, None, ""), 3.0, 4.0),
        ((TrialState.READY, None, "ready"), 2.0, 3.0),
        ((TrialState.MEASURING, 0, "ready"), 1.8, 2.0),
        ((TrialState.MEASURING, LADDER - 1, "ready"), 1.0, 1.2),
        ((TrialState.JUDGING, None, "ready"), 0.0, 1.0),
    ],
)
def test_grades_lie_where_the_table_says(place: Place, low: float, high: float) -> None:
    for missing in (None, 1e-6, 0.1, 1.0, 99.0):
        assert low <= grade(place, missing) <= high


def test_grades_that_older_studies_hold_keep_their_order_among_the_new() -> None:
    old = [4.0, 3.0, 2.0, 2.0 - 0.5 / 5.5, 2.0 - 4.5 / 5.5, 1.0]
    assert old == sorted(old, reverse=True)
    for was, now in itertools.product((3.0, 2.0, 1.0), (grade(place) for place in COURSE)):
        assert was != now
    assert grade((TrialState.LOADING, None, "ready")) > 3.0 > grade((TrialState.WARMING_UP, None, "ready"))
    assert grade((TrialState.WARMING_UP, None, "ready"), 1e-9) > 2.0 > grade((TrialState.MEASURING, 0, "ready"), 1.0)


# ---------------------------------------------------------------------------- how much was missing


def said(*, shortfall_bytes: int | None = None, viable_fraction: float | None = None) -> Verdict:
    return Verdict(
        cause=Cause.KV_POOL_TOO_SMALL,
        config_fault=True,
        shortfall_bytes=shortfall_bytes,
        viable_fraction=viable_fraction,
    )


@pytest.mark.parametrize(
    ("verdict", "gpu_bytes", "fraction", "share"),
    [
        (said(), 80 * GIB, 0.8, None),
        (said(shortfall_bytes=8 * GIB), 80 * GIB, 0.8, 0.1),
        (said(shortfall_bytes=8 * GIB), None, 0.8, None),
        (said(shortfall_bytes=8 * GIB), 0, 0.8, None),
        (said(viable_fraction=0.75), 80 * GIB, 0.5, 0.25),
        (said(viable_fraction=0.75), None, 0.5, 0.25),
        (said(viable_fraction=0.75), 80 * GIB, None, None),
        (said(viable_fraction=0.75), 80 * GIB, 0.8, None),
        (said(shortfall_bytes=8 * GIB, viable_fraction=0.75), 80 * GIB, 0.5, 0.25),
        (said(shortfall_bytes=40 * GIB, viable_fraction=0.75), 80 * GIB, 0.5, 0.5),
        (said(shortfall_bytes=0), 80 * GIB, 0.5, None),
    ],
)
def test_what_was_missing_is_a_share_of_one_gpu(
    verdict: Verdict, gpu_bytes: int | None, fraction: float | None, share: float | None
) -> None:
    assert missing_share(verdict, gpu_bytes=gpu_bytes, fraction=fraction) == share
