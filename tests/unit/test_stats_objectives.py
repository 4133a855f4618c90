"""Values of objectives and constraints, from the legs of a trial."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tuner.model.account import GpuUse, Spread
from tuner.model.metric import OBJECTIVES, Estimate
from tuner.model.metric_text import constraint_of, metric_of
from tuner.model.outcome import Cause, Faulted, Infeasible, Measured, TrialState, limit_violation, violation
from tuner.model.record import LegResult, RequestRecord, RequestStatus
from tuner.stats.objectives import GoodShare, bounds_of, estimate_of, good_share, graded, level_of
from tuner.testing.results import estimate, measured

BOUNDS = metric_of("goodput(ttft_s <= 1, tpot_s <= 0.02)").bounds
SHARES = {(BOUNDS, 1): GoodShare(kept=10, offered=10), (BOUNDS, 64): GoodShare(kept=15, offered=60)}


def leg(concurrency: int, single: float, aggregate: float, requests_per_s: float, p95: float) -> LegResult:
    waits = Spread(mean=p95 / 2, p50=p95 / 2, p90=p95 * 0.9, p95=p95, p99=p95 * 1.2, samples=40)
    return LegResult(
        concurrency=concurrency,
        single_request_throughput=estimate(single),
        aggregate_throughput=estimate(aggregate),
        window_s=10.0,
        offered=40,
        completed=40,
        failed=0,
        converged=True,
        ttft_s=waits,
        requests_per_s=estimate(requests_per_s),
        gpu=GpuUse(joules_per_token=1000 / aggregate),
    )


LEGS = (leg(1, 234, 200, 2.0, 0.1), leg(16, 150, 1979, 8.0, 0.5), leg(64, 40, 1800, 7.0, 3.1))


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("single_request_throughput", 234),
        ("single_request_throughput@64", 40),
        ("aggregate_throughput", 1979),
        ("aggregate_throughput@64", 1800),
        ("requests_per_s", 8.0),
        ("p95(ttft_s)", 3.1),
        ("p95(ttft_s)@16", 0.5),
        ("mean(ttft_s)@1", 0.05),
        ("joules_per_token", 1000 / 1979),
        ("goodput(ttft_s <= 1, tpot_s <= 0.02)", 2.0),
        ("goodput(ttft_s <= 1, tpot_s <= 0.02)@64", 7.0 / 4),
        ("good_share(ttft_s <= 1, tpot_s <= 0.02)", 0.25),
    ],
)
def test_a_metric_is_of_the_level_named_or_of_its_own(text: str, value: float) -> None:
    found = estimate_of(metric_of(text), LEGS, SHARES)
    assert found is not None
    assert found.value == pytest.approx(value)


@pytest.mark.parametrize(
    "text", ["p95(e2e_s)", "p50(tpot_s)@1", "p95(ttft_s)@32", "goodput(ttft_s <= 5)", "good_share(e2e_s <= 1)@64"]
)
def test_what_was_not_measured_is_none_and_never_zero(text: str) -> None:
    assert estimate_of(metric_of(text), LEGS, SHARES) is None
    assert estimate_of(metric_of(text), (), {}) is None


def test_energy_is_none_where_no_gpu_says_its_power() -> None:
    legs = tuple(replace(each, gpu=None) for each in LEGS)
    assert estimate_of(metric_of("joules_per_token"), legs, {}) is None


def test_a_metric_of_the_best_level_has_no_level_of_its_own() -> None:
    assert level_of(metric_of("goodput(ttft_s <= 1)"), (1, 16, 64), 16) is None
    assert level_of(metric_of("requests_per_s"), (1, 16, 64), 16) == 16
    assert level_of(metric_of("p50(icl_s)"), (1, 16, 64), 16) == 64


# ---------------------------------------------------------------------------- requests within bounds


def request(
    ttft_s: float, tpot_s: float, *, status: RequestStatus = RequestStatus.OK, inside: bool = True
) -> RequestRecord:
    first, last = 100.0 + ttft_s, 100.0 + ttft_s + 100 * tpot_s
    return RequestRecord(
        concurrency=4,
        slot=0,
        prompt_id="a",
        sent_s=100.0,
        first_s=first,
        last_s=last,
        ended_s=last,
        tokens=101,
        first_chunk_tokens=1,
        prompt_tokens=5,
        chunk_s=(first, last),
        chunk_tokens=(1, 101),
        status=status,
        in_window=inside,
    )


def test_a_request_is_good_only_if_it_keeps_every_bound() -> None:
    requests = [request(0.5, 0.01), request(1.5, 0.01), request(0.5, 0.03), request(0.9, 0.019)]
    assert good_share(requests, BOUNDS) == GoodShare(kept=2, offered=4)


def test_only_complete_requests_of_the_window_are_counted() -> None:
    others = [request(0.1, 0.01, inside=False), request(0.1, 0.01, status=RequestStatus.CUT)]
    assert good_share([*others, request(2.0, 0.01)], BOUNDS) == GoodShare(kept=0, offered=1)
    assert good_share(others, BOUNDS) is None


def test_equal_bounds_are_counted_once() -> None:
    named = [metric_of("goodput(ttft_s <= 1)"), metric_of("good_share(ttft_s <= 1)@4"), metric_of("requests_per_s")]
    assert len(bounds_of(named)) == 1


@given(st.integers(1, 500), st.data())
def test_the_interval_of_a_share_holds_it_and_stays_between_none_and_all(offered: int, data: st.DataObject) -> None:
    kept = data.draw(st.integers(0, offered))
    share = GoodShare(kept=kept, offered=offered).estimate
    assert share.low is not None
    assert share.high is not None
    assert 0.0 <= share.low <= share.value <= share.high <= 1.0
    assert share.high - share.low > 0.0


def test_the_interval_of_a_share_is_wilsons() -> None:
    share = GoodShare(kept=15, offered=60).estimate
    assert (share.low, share.high) == (pytest.approx(0.1578, abs=1e-4), pytest.approx(0.3723, abs=1e-4))


# ---------------------------------------------------------------------------- what they make of a trial


def grade(
    *constraints: str, metrics: tuple[str, ...] = (), legs: tuple[LegResult, ...] = LEGS
) -> Measured | Infeasible | Faulted:
    limits = [constraint_of(each) for each in constraints]
    wanted = [metric_of(each) for each in metrics] + [each.metric for each in limits]
    plain = {each.name for each in OBJECTIVES}
    wanted = [each for each in wanted if each.text not in plain]
    return graded(measured(234, 1979), metrics=wanted, constraints=limits, legs=legs, shares=SHARES)


def test_a_trial_within_its_limits_is_measured_with_every_value() -> None:
    outcome = grade("p95(ttft_s)@16 <= 2", "single_request_throughput >= 200", metrics=("requests_per_s",))
    assert isinstance(outcome, Measured)
    assert outcome.estimate("p95(ttft_s)@16").value == 0.5
    assert outcome.estimate("requests_per_s") == estimate(8.0)
    assert outcome.estimate("single_request_throughput").value == 234


def test_a_trial_outside_a_limit_is_infeasible_and_keeps_what_it_measured() -> None:
    outcome = grade("p95(ttft_s)@64 <= 2", "single_request_throughput >= 200")
    assert isinstance(outcome, Infeasible)
    assert outcome.verdict.cause is Cause.OUTSIDE_LIMITS
    assert outcome.verdict.evidence == ("p95(ttft_s)@64 is 3.1, at most 2 s",)
    assert outcome.measured is not None
    assert outcome.measured.aggregate_throughput.value == 1979
    assert outcome.violation == limit_violation(0.55)


def test_more_limits_broken_and_more_broken_is_worse() -> None:
    limits = [["p95(ttft_s) <= 2"], ["p95(ttft_s) <= 2", "requests_per_s >= 9"], ["p95(ttft_s) <= 1"]]
    ends = [grade(*each) for each in limits]
    grades = [end.violation for end in ends if isinstance(end, Infeasible)]
    assert len(grades) == 3
    assert grades == sorted(set(grades))


def test_a_trial_without_a_wanted_value_is_a_fault_that_names_it() -> None:
    outcome = grade(metrics=("joules_per_token",), legs=tuple(replace(each, gpu=None) for each in LEGS))
    assert isinstance(outcome, Faulted)
    assert outcome.error.startswith("joules_per_token was not measured: the host did not say")
    assert isinstance(grade("p95(e2e_s) <= 3"), Faulted)


@given(st.floats(min_value=1e-9, max_value=1e12), st.floats(min_value=1e-9, max_value=1e12))
def test_a_broken_limit_is_above_feasible_below_every_death_and_worse_the_further(one: float, another: float) -> None:
    less, more = sorted((one, another))
    assert 0.0 < limit_violation(less) <= limit_violation(more) <= 0.5
    assert limit_violation(float("inf")) < violation(TrialState.SOAKING, missing=1e-9)


def test_combined_values_replace_those_that_are_named_only() -> None:
    first = Measured(
        single_request_throughput=estimate(1.0),
        aggregate_throughput=estimate(2.0),
        peak_concurrency=4,
        others=(("requests_per_s", estimate(3.0)), ("p95(ttft_s)", estimate(4.0))),
    )
    again = Estimate(value=9.0, low=None, high=None, samples=2)
    changed = first.with_estimates({"aggregate_throughput": again, "requests_per_s": again})
    assert changed.estimate("aggregate_throughput") == changed.estimate("requests_per_s") == again
    assert (changed.estimate("single_request_throughput"), changed.estimate("p95(ttft_s)")) == (
        estimate(1.0),
        estimate(4.0),
    )
