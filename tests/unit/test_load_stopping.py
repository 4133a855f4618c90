"""When a leg ends, on simulated servers whose truth is known: coverage, bias, cost, and odd servers."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from tuner.load.stopping import Decision, LegWatch
from tuner.model.metric import Estimate
from tuner.ports import Leg
from tuner.testing.fluid_server import Fluid, Run, fixed, stop, truth

LEG = Leg(concurrency=16, min_s=0.0, max_s=1e4, interval=0.02, salt="leg")


def leg(fluid: Fluid, max_s: float = 1e4) -> Leg:
    return replace(LEG, concurrency=fluid.concurrency, max_s=max_s)


def found(fluid: Fluid, decision: Decision) -> Estimate:
    assert decision.reading is not None
    estimate = decision.reading.single if fluid.concurrency == 1 else decision.reading.aggregate
    assert estimate is not None
    return estimate


def drive(fluid: Fluid, wanted: Leg, *, seed: int = 1, spread_s: float | None = None) -> Decision:
    run = Run(fluid, seed, spread_s=fluid.request_s if spread_s is None else spread_s)
    watch = LegWatch(wanted, request_timeout_s=300.0, began_s=0.0)
    while True:
        run.step()
        decision = watch.look(run.now_s, run.started_s, run.records, run.live())
        if decision.is_over:
            return decision


@pytest.mark.parametrize(
    "fluid",
    [
        Fluid(concurrency=1, noise=0.03),
        Fluid(concurrency=4, noise=0.05, varies=True),
        Fluid(concurrency=16, noise=0.05),
    ],
    ids=["1", "4-varies", "16-equal"],
)
def test_intervals_cover_the_truth_about_as_often_as_they_say(fluid: Fluid) -> None:
    known = truth(fluid, 77, 10_000)
    legs = 100
    stops = [found(fluid, stop(fluid, leg(fluid), seed).decision) for seed in range(legs)]
    covered = sum((one.low or 0.0) <= known <= (one.high or math.inf) for one in stops)
    assert 0.90 <= covered / legs <= 0.99  # scripts/bench_stopping counts more of them, in every cell
    assert abs(sum(one.value for one in stops) / legs / known - 1) < 0.005
    assert all((one.half_width or 1.0) <= LEG.interval for one in stops)


def test_a_narrow_interval_costs_a_fraction_of_a_thousand_prompts() -> None:
    sixteen, sixty_four = Fluid(concurrency=16, noise=0.03), Fluid(concurrency=64, noise=0.03)
    for fluid, share in ((sixteen, 1 / 5), (sixty_four, 1 / 2)):
        whole_s, _ = fixed(fluid, 3, 1000)
        assert stop(fluid, leg(fluid), 4).after_s <= share * whole_s


def test_tokens_by_the_clock_on_the_wall_are_too_few() -> None:
    fluid = Fluid(concurrency=16, noise=0.03, varies=True)
    assert -0.25 < fixed(fluid, 5, 64)[1] / truth(fluid, 5, 6_000) - 1 < -0.05


def test_a_leg_stops_at_the_fewest_batches_only_when_they_agree() -> None:
    quiet = found(LEG_16, drive(LEG_16, LEG))
    assert quiet.samples == 6
    noisy = Fluid(concurrency=4, noise=0.12, varies=True)
    assert found(noisy, drive(noisy, leg(noisy))).samples > 8


LEG_16 = Fluid(concurrency=16, noise=0.01)


def test_a_leg_that_is_not_narrow_in_its_time_says_so_and_keeps_its_value() -> None:
    fluid = Fluid(concurrency=4, noise=0.2, varies=True)
    decision = drive(fluid, leg(fluid, max_s=25.0))
    estimate = found(fluid, decision)
    assert not decision.is_converged
    assert (estimate.half_width or 0.0) > LEG.interval
    assert estimate.value == pytest.approx(truth(fluid, 6, 6_000), rel=0.2)


def test_a_leg_shorter_than_three_batches_has_a_value_without_being_converged() -> None:
    fluid = Fluid(concurrency=64, noise=0.03)
    decision = drive(fluid, leg(fluid, max_s=2.0))
    assert not decision.is_converged
    assert found(fluid, decision).value == pytest.approx(truth(fluid, 6, 6_000), rel=0.1)


def test_slots_that_all_start_at_once_are_measured_over_whole_waves() -> None:
    fluid = Fluid(concurrency=16, noise=0.01)
    estimate = found(fluid, drive(fluid, leg(fluid), spread_s=0.0))
    assert estimate.value == pytest.approx(truth(fluid, 6, 6_000), rel=0.005)


def test_a_server_that_runs_fewer_at_once_has_batches_of_whole_waves() -> None:
    fluid = Fluid(concurrency=64, cap=21, noise=0.01)
    decision = drive(fluid, leg(fluid))
    assert decision.reading is not None
    assert found(fluid, decision).value == pytest.approx(truth(fluid, 6, 6_000), rel=0.005)
    assert decision.reading.occupancy == pytest.approx(21 / 64, rel=0.05)


def test_a_server_that_stalls_after_good_batches_is_not_measured_by_them_alone() -> None:
    fluid = Fluid(concurrency=4, noise=0.01)
    run = Run(fluid, 1, spread_s=fluid.request_s)
    wanted = leg(fluid, max_s=60.0)
    watch = LegWatch(wanted, request_timeout_s=300.0, began_s=0.0)
    for _ in range(20):
        run.step()
        decision = watch.look(run.now_s, run.started_s, run.records, run.live())
    assert not decision.is_over
    decision = watch.look(run.now_s + 60.0, run.started_s, run.records, run.live())
    assert decision.is_over
    assert not decision.is_converged
    assert found(fluid, decision).value < 0.5 * truth(fluid, 6, 6_000)


def test_a_leg_without_a_single_request_is_given_up_in_the_end() -> None:
    watch = LegWatch(replace(LEG, max_s=10.0), request_timeout_s=5.0, began_s=100.0)
    assert watch.look(101.0, [], [], []) == Decision()
    assert watch.look(121.0, [], [], []) == Decision(is_over=True)


def test_the_tokens_of_settled_batches_are_those_of_one_reading_at_the_end() -> None:
    fluid = Fluid(concurrency=4, noise=0.05, varies=True)
    wanted = replace(leg(fluid), min_s=60.0, max_s=60.0)
    often, once = (LegWatch(wanted, request_timeout_s=300.0, began_s=0.0) for _ in range(2))
    run = Run(fluid, 2, spread_s=fluid.request_s)
    while run.now_s < 90.0:
        run.step()
        last = often.look(run.now_s, run.started_s, run.records, run.live())
        if last.is_over:
            break
    single = once.look(run.now_s, run.started_s, run.records, run.live())
    assert found(fluid, last).value == pytest.approx(found(fluid, single).value, rel=1e-3)
    assert last.reading is not None
    assert single.reading is not None
    assert last.reading.batches == single.reading.batches
