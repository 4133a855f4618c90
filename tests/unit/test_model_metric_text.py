"""Metrics and constraints as people write them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tuner.model.metric import BOUNDED, QUANTITIES, STATISTICS, Bound, Constraint, Direction, Metric
from tuner.model.metric_text import MetricTextError, constraint_of, metric_of, objective_of

NUMBERS = st.integers(0, 10**6).map(lambda value: value / 1000)


@st.composite
def metrics(draw: st.DrawFn) -> Metric:
    name = draw(st.sampled_from(sorted(QUANTITIES)))
    kind = QUANTITIES[name]
    chosen = draw(st.sets(st.sampled_from(BOUNDED), min_size=1)) if kind.has_bounds else set()
    return Metric(
        quantity=name,
        statistic=draw(st.sampled_from(STATISTICS)) if kind.is_spread else None,
        bounds=tuple(Bound(quantity=each, most=draw(NUMBERS)) for each in BOUNDED if each in chosen),
        at=draw(st.none() | st.integers(1, 4096)),
    )


@given(metrics())
def test_every_metric_comes_back_from_its_text(metric: Metric) -> None:
    assert metric_of(metric.text) == metric
    assert metric_of(f"  {metric.text.replace(' ', '')} ") == metric


@given(metrics(), st.booleans(), NUMBERS)
def test_every_constraint_comes_back_from_its_text(metric: Metric, at_most: bool, limit: float) -> None:
    constraint = Constraint(metric=metric, at_most=at_most, limit=limit)
    assert constraint_of(constraint.text) == constraint


@given(st.text(max_size=60))
def test_any_text_is_read_or_refused_in_one_line(text: str) -> None:
    said = []
    for read in (metric_of, constraint_of):
        try:
            read(text)
        except MetricTextError as error:
            said.append(str(error))
    assert [len(each.splitlines()) for each in said] == [1] * len(said)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("p59(ttft_s)", "did you mean p99?"),
        ("singel_request_throughput", "did you mean single_request_throughput?"),
        ("ttft_s", "write which you mean, such as p95(ttft_s)"),
        ("p95 ttft_s", "needs ( and one of ttft_s"),
        ("p95(ttft)", "did you mean ttft_s?"),
        ("p95(goodput)", "unknown quantity of p95 'goodput'"),
        ("p95(ttft_s", "needs ) at its end"),
        ("p95(ttft_s)@x", "a whole number such as @16"),
        ("joules_per_token@0", "a whole number such as @16"),
        ("joules_per_token@1.5", "a whole number such as @16"),
        ("p95(ttft_s) <= 2", "conditions on it go to [[constraints]]"),
        ("", "needs a metric (single_request_throughput"),
        ("goodput", "such as goodput(ttft_s <= 1, tpot_s <= 0.02)"),
        ("goodput(icl_s <= 1)", "unknown bound of goodput 'icl_s'"),
        ("goodput(ttft_s <= 1, ttft_s <= 2)", "bounds ttft_s twice"),
        ("goodput(ttft_s >= 1)", "needs <= and a time in seconds"),
        ("§", "needs a metric"),
    ],
    ids=lambda text: text.replace(" ", "") if len(text) < 20 else "",
)
def test_a_wrong_metric_is_refused_with_what_to_write(text: str, said: str) -> None:
    with pytest.raises(MetricTextError) as refused:
        metric_of(text)
    assert said in str(refused.value)
    assert f'"{text}", character ' in str(refused.value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("p95(ttft_s)", "needs <= or >= and a limit at its end"),
        ("p95(ttft_s) < 2", "needs <= or >= and a limit, not '<'"),
        ("p95(ttft_s) <= fast", "needs a number, 0 or more, not 'fast'"),
        ("p95(ttft_s) <= -1", "needs a number, 0 or more, not '-'"),
        ("p95(ttft_s) <= 1e999", "needs a finite number"),
        ("p95(ttft_s) <= 2 and more", "give each a [[constraints]] of its own"),
        ("200 <= single_request_throughput", "needs a metric"),
    ],
    ids=["no limit", "less", "a word", "negative", "endless", "two", "turned round"],
)
def test_a_wrong_constraint_is_refused_with_what_to_write(text: str, said: str) -> None:
    with pytest.raises(MetricTextError) as refused:
        constraint_of(text)
    assert said in str(refused.value)


def test_bounds_in_another_order_are_the_same_metric() -> None:
    assert metric_of("goodput(tpot_s <= 0.02, ttft_s <= 1)") == metric_of("goodput(ttft_s <= 1.0, tpot_s <= 2e-2)")


def test_an_objective_takes_unit_and_direction_from_the_registry_unless_told_otherwise() -> None:
    waits = objective_of(metric_of("p95(ttft_s)@16"))
    assert (waits.name, waits.direction, waits.unit) == ("p95(ttft_s)@16", Direction.MINIMIZE, "s")
    assert objective_of(metric_of("p95(ttft_s)"), Direction.MAXIMIZE).direction is Direction.MAXIMIZE


def test_what_is_outside_a_limit_is_told_with_both_numbers() -> None:
    upper, lower = constraint_of("p95(ttft_s)@64 <= 2"), constraint_of("single_request_throughput >= 200")
    assert upper.words(3.1) == "p95(ttft_s)@64 is 3.1, at most 2 s"
    assert lower.words(150.0) == "single_request_throughput is 150, at least 200 tok/s"
    assert upper.exceedance(3.0) == pytest.approx(0.5)
    assert lower.exceedance(150.0) == pytest.approx(0.25)
    assert (upper.exceedance(2.0), lower.exceedance(200.0)) == (0.0, 0.0)
    assert constraint_of("good_share(ttft_s <= 1) <= 0").exceedance(0.5) == 0.5
