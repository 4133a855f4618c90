"""Prints how honest and how quick the rule is that ends a leg, on simulated servers whose truth is known.

The legs run through the product's own code (tuner.load.stopping); only the server and its time are
simulated (tuner.testing.fluid_server). Beside them: 1,000 fixed prompts divided by the time from the
first request to the last token, as known tools measure.

coverage   share of legs whose 95 % interval holds the truth
bias       mean of value / truth - 1
rmse       root of the mean square of the same
time, n    simulated seconds to an interval of ±2 %, and requests sent until then
stopped    share of legs that reached it within 1,000 requests' time
1000       time of 1,000 fixed prompts, and how far tokens / that time is from the truth
100        the same for 100 prompts a run, the habit of a quick look
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tuner.model.metric import Estimate
from tuner.ports import Leg
from tuner.testing.fluid_server import Fluid, Stopped, fixed, stop, truth

INTERVAL = 0.02
COVERAGE = (0.92, 0.98)
BIAS = 0.005
SHARE_OF_FIXED = {16: 1 / 5, 64: 1 / 2}
FIXED = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """What one cell of the table says."""

    fluid: Fluid
    legs: int
    coverage: float
    bias: float
    rmse: float
    half_width: float
    time_s: float
    requests: float
    stopped: float
    fixed_s: float
    fixed_error: float
    few_error: float

    @property
    def noise_of_coverage(self) -> float:
        """Two standard errors of a coverage of 95 % counted over these legs."""
        return 2 * math.sqrt(0.95 * 0.05 / self.legs)


def cells(noises: Sequence[float]) -> Iterator[Fluid]:
    """Return the servers: all at once, and with a cap of their own below the slots."""
    for concurrency, cap in ((1, None), (4, None), (16, None), (64, None), (16, 6), (64, 21)):
        for noise in noises:
            for varies in (False, True):
                yield Fluid(concurrency=concurrency, cap=cap, noise=noise, varies=varies)


def measure(fluid: Fluid, legs: int, truth_requests: int, seed: int) -> Row:
    """Run the legs of one cell."""
    known = truth(fluid, seed, truth_requests)
    fixed_s, fixed_rate = fixed(fluid, seed, FIXED)
    _, few_rate = fixed(fluid, seed, 100)
    leg = Leg(concurrency=fluid.concurrency, min_s=0.0, max_s=fixed_s, interval=INTERVAL, salt="")
    stops = [stop(fluid, leg, seed + 1 + number) for number in range(legs)]
    found = [estimate_of(fluid, one) for one in stops]
    errors = [one.value / known - 1 for one in found]
    wall_known = known if fluid.concurrency > 1 else truth_of_all(fluid, seed)
    return Row(
        fluid=fluid,
        legs=legs,
        coverage=sum(low_of(one) <= known <= high_of(one) for one in found) / legs,
        bias=math.fsum(errors) / legs,
        rmse=math.sqrt(math.fsum(error**2 for error in errors) / legs),
        half_width=math.fsum(one.half_width or math.inf for one in found) / legs,
        time_s=math.fsum(one.after_s for one in stops) / legs,
        requests=sum(one.requests for one in stops) / legs,
        stopped=sum(one.decision.is_converged for one in stops) / legs,
        fixed_s=fixed_s,
        fixed_error=fixed_rate / wall_known - 1,
        few_error=few_rate / wall_known - 1,
    )


def truth_of_all(fluid: Fluid, seed: int) -> float:
    """Return what a lone slot's tokens / all its time are in the long run, waits for first tokens included."""
    return fixed(fluid, seed + 1, 20_000)[1]


def estimate_of(fluid: Fluid, stopped: Stopped) -> Estimate:
    """Return what the leg reports: of a lone slot its decode speed, else the aggregate."""
    reading = stopped.decision.reading
    estimate = None if reading is None else (reading.single if fluid.concurrency == 1 else reading.aggregate)
    if estimate is None:
        raise SystemExit(f"a leg of {fluid} measured nothing")
    return estimate


def low_of(estimate: Estimate) -> float:
    """Return its lower end; without one nothing is left out."""
    return -math.inf if estimate.low is None else estimate.low


def high_of(estimate: Estimate) -> float:
    """Return its upper end."""
    return math.inf if estimate.high is None else estimate.high


HEADING = (
    "   c  cap noise length  coverage    bias    rmse  ±half    time      n stopped |    1000 error  share |  100 error"
)


def line(row: Row) -> str:
    """Return a row of the table."""
    fluid = row.fluid
    return (
        f"{fluid.concurrency:4} {'-' if fluid.cap is None else fluid.cap:>4} {fluid.noise:4.0%}  "
        f"{'varies' if fluid.varies else 'equal ':6} {row.coverage:9.1%} {row.bias:+7.2%} {row.rmse:7.2%} "
        f"{row.half_width:6.2%} {row.time_s:5.0f} s {row.requests:6.0f} {row.stopped:7.0%} |"
        f" {row.fixed_s:5.0f} s {row.fixed_error:+5.1%} {row.time_s / row.fixed_s:6.2f} | {row.few_error:+9.1%}"
    )


def bars(rows: list[Row], *, is_quick: bool) -> Iterator[tuple[str, bool]]:
    """Return each bar with what was seen, and whether it is met.

    A quick run has too few legs to tell a coverage of 95 % from one of 91 %: two standard errors
    are granted there, and the line says so.
    """
    slack = max(row.noise_of_coverage for row in rows) if is_quick else 0.0
    low, high = COVERAGE[0] - slack, min(1.0, COVERAGE[1] + slack)
    least, most = min(row.coverage for row in rows), max(row.coverage for row in rows)
    granted = f" (±{slack:.1%} for few legs)" if slack else ""
    yield (
        (
            f"coverage {least:.1%} to {most:.1%} in {len(rows)} rows; "
            f"wanted {COVERAGE[0]:.0%} to {COVERAGE[1]:.0%}{granted}"
        ),
        low <= least and most <= high,
    )
    bias = max(abs(row.bias) for row in rows)
    yield f"bias at most {bias:.2%}; wanted below {BIAS:.1%}", bias < BIAS
    for concurrency, wanted in SHARE_OF_FIXED.items():
        share = max(row.time_s / row.fixed_s for row in rows if row.fluid.concurrency == concurrency)
        yield (
            (
                f"time to ±{INTERVAL:.0%} at concurrency {concurrency}: at most {share:.2f} of {FIXED} prompts; "
                f"wanted {wanted:.2f}"
            ),
            share <= wanted,
        )


def main() -> int:
    """Print the table and the bars; 1 when one is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer legs: half a minute, coverage to ±3 %%")
    parser.add_argument("--seed", type=int, default=20261201)
    options = parser.parse_args()
    noises = (0.03,) if options.quick else (0.01, 0.03, 0.05)
    many, few, truth_requests = (200, 150, 10_000) if options.quick else (800, 500, 30_000)
    began_s = time.perf_counter()
    print(HEADING)
    rows = []
    for number, fluid in enumerate(cells(noises)):
        legs = few if fluid.concurrency >= 64 else many  # what a leg costs here grows with its requests
        rows.append(measure(fluid, legs, truth_requests, options.seed + number * 1_000_003))
        print(line(rows[-1]), flush=True)
    print(f"\n{many} legs a row, {few} at concurrency 64; {time.perf_counter() - began_s:.0f} s")
    judged = list(bars(rows, is_quick=options.quick))
    for text, is_met in judged:
        print(f"{'met    ' if is_met else 'NOT MET'}  {text}")
    return 0 if all(is_met for _, is_met in judged) else 1


if __name__ == "__main__":
    sys.exit(main())
