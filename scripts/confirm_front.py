"""Whether the front that a study reports, confirmed on fresh starts, holds the truth within its intervals.

Whole studies of the shipped search space are run by tuner's own campaign, sampler, database and confirmations. The
server is the simulated host's own: its memory plan, its physics and its scheduler, step by step, but in virtual
time, so that a night takes a minute. Each start of a server is faster or slower than the last by ``--spread``, as
real ones are. The truth is what the same equations give over a window fifteen times as long, without that spread,
the mean over starts. Prints a line a member of each front and the share that is held; exit status 1 below 90 %.

    scripts/confirm_front [--seeds N] [--spread S]
"""

from __future__ import annotations

import argparse
import asyncio
import math
import random
import sys
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

from tuner.engines import engine
from tuner.hosts.clock import SystemClock
from tuner.model.metric import Estimate
from tuner.model.outcome import Cause, Infeasible, Measured, Outcome, TrialState, Verdict, violation
from tuner.model.repeat import RepeatTerms
from tuner.model.space import Assignment
from tuner.model.study import SimulatedHostSpec, StudySpec
from tuner.model.trial import Command, TrialEvent, TrialFinished, TrialRequest, TrialResult
from tuner.report.front import Heading
from tuner.report.tables import gain_lines
from tuner.runtime.campaign import Campaign
from tuner.search.ledger import open_ledger
from tuner.simulator import arguments, memory, profile
from tuner.simulator.request import Request, Sampling, persona
from tuner.simulator.scheduler import Hooks, OutOfWorkspace, Scheduler
from tuner.stats.intervals import batch_means, ratio_of_sums
from tuner.stats.repeats import own_outcome, standings
from tuner.testing.silent_run import NoEvidence, Unwatched
from tuner.wiring.load import load_study

ROOT = Path(__file__).resolve().parents[1]
BAR = 0.9
LADDER = (1, 4, 16, 32, 64)
TOKENS = 128
PROMPT_TOKENS = 60
WINDOW_S = 6.0
LONGER = 15
BATCHES = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What a leg measured, tok/s."""

    single: Estimate
    aggregate: Estimate


class Server:
    """One start of a server in virtual time.

    Args:
        command: its whole command line.
        slow: every step takes this many times as long.
        seed: of its requests and its noise.
    """

    def __init__(self, command: Command, *, slow: float, seed: int) -> None:
        shape = profile.load("qwen3.5-122b-a10b-4gpu")
        args = arguments.parse(command.argv[2:], shape)
        self.plan = memory.plan(shape, args, shape.gpu.memory_bytes)
        self._shape = shape
        self._random = random.Random(seed)  # noqa: S311  noise, not a secret
        self._ended: list[Request] = []
        self._now_s = 0.0
        self._sent = 0
        self._scheduler = Scheduler(
            profile=shape,
            args=args,
            plan=self.plan,
            rng=random.Random(seed + 1),  # noqa: S311
            slow=slow,
            hooks=Hooks(log=lambda _: None, finished=self._ended.append),
        )

    def leg(self, concurrency: int, *, longer: int = 1) -> Reading:
        """Keep ``concurrency`` requests in flight over a window that opens when as many have ended.

        Raises:
            OutOfWorkspace: the server died of it.
        """
        self._ended.clear()
        for _ in range(concurrency):
            self._send()
        while len(self._ended) < concurrency:
            self._step()
        self._ended.clear()
        begun_s, length_s = self._now_s, WINDOW_S * longer
        batches = BATCHES * longer
        edges, counts = [begun_s + length_s * (i + 1) / batches for i in range(batches)], [self._tokens()]
        for edge in edges:
            while self._now_s < edge:
                before_s, before = self._now_s, self._tokens()
                self._step()
            share = (edge - before_s) / (self._now_s - before_s)
            counts.append(before + share * (self._tokens() - before))
        rates = [after - before for before, after in pairwise(counts)]
        aggregate = batch_means(rates, length_s / batches)
        done = [each for each in self._ended if each.first_s is not None and each.last_s is not None]
        single = ratio_of_sums(
            [each.generated - 1 for each in done], [(each.last_s or 0.0) - (each.first_s or 0.0) for each in done]
        )
        for request in self._scheduler.pending:
            self._scheduler.abort(request, "the leg is over")
        if aggregate is None or single is None:
            raise AssertionError("a leg without a request that ended")
        return Reading(single=single, aggregate=aggregate)

    def _tokens(self) -> float:
        return float(self._scheduler.decoded_tokens)

    def _send(self) -> None:
        self._sent += 1
        tokens = tuple(self._random.randrange(10**9) for _ in range(PROMPT_TOKENS))
        sampling = Sampling(max_new_tokens=TOKENS, ignore_eos=True, temperature=0.0)
        who = persona(tokens, sampling, seed=0, profile=self._shape)
        self._scheduler.submit(
            Request(
                rid=str(self._sent),
                tokens=tokens,
                sampling=sampling,
                natural_tokens=who.natural_tokens,
                difficulty=who.difficulty,
                rng=who.rng,
                streamed=True,
                changed=lambda: None,
                arrived_s=self._now_s,
            )
        )

    def _step(self) -> None:
        step = self._scheduler.plan_step()
        if step is None:
            raise AssertionError("a closed loop is never idle")
        self._now_s += step.seconds
        before = len(self._ended)
        self._scheduler.complete(step, self._now_s)
        for _ in range(len(self._ended) - before):
            self._send()


def measure(command: Command, *, slow: float, seed: int, longer: int = 1) -> Outcome:
    """Run the ladder on one start."""
    server = Server(command, slow=slow, seed=seed)
    if server.plan.failure is not None:
        return _dead(TrialState.LOADING, None, server.plan.failure.stage)
    readings: dict[int, Reading] = {}
    for index, level in enumerate(LADDER):
        try:
            readings[level] = server.leg(level, longer=longer)
        except OutOfWorkspace:
            return _dead(TrialState.MEASURING, index, "")
    peak = max(readings, key=lambda level: readings[level].aggregate.value)
    return Measured(
        single_request_throughput=readings[1].single,
        aggregate_throughput=readings[peak].aggregate,
        peak_concurrency=peak,
    )


def _dead(state: TrialState, index: int | None, stage: str) -> Infeasible:
    verdict = Verdict(cause=Cause.OOM_SERVING, config_fault=True, stage=stage)
    level = None if index is None else LADDER[index]
    grade = violation(state, level_index=index, levels=len(LADDER), stage=stage)
    return Infeasible(verdict=verdict, state=state, level=level, violation=grade)


class VirtualHosts:
    """An Executor whose trials take no time."""

    def __init__(self, seed: int, spread: float) -> None:
        self._seed = seed
        self._spread = spread

    async def open(self) -> None:
        """Nothing is to be taken."""

    async def run(self, host: str, request: TrialRequest) -> AsyncIterator[TrialEvent]:
        """Run a trial; the last event is TrialFinished."""
        rng = random.Random(self._seed * 100_003 + request.number)  # noqa: S311
        slow = math.exp(rng.gauss(0.0, self._spread))
        outcome = measure(request.command, slow=slow, seed=rng.randrange(2**31))
        await asyncio.sleep(0)
        at_s = 600.0 * (request.number + 1)  # ten minutes each
        result = TrialResult(
            study=request.study,
            number=request.number,
            host=host,
            assignment=request.assignment,
            outcome=outcome,
            started_s=at_s - 600.0,
            finished_s=at_s,
            attempts=1,
            identity=None,
            effective=None,
            legs=(),
            duration_s=600.0,
        )
        yield TrialFinished(at_s=at_s, result=result)

    async def stop(self, host: str) -> None:
        """Trials are over before anybody asks."""

    async def release(self, host: str) -> None:
        """Nothing is to be restored."""

    async def probe(self, host: str) -> None:
        """It can always be used."""

    async def close(self) -> None:
        """Nothing is to be given back."""

    def hurry(self) -> bool:
        """Nothing is to be restored."""
        return False


@dataclass(slots=True)
class Count:
    """Of members, and of their values, that are held by their intervals."""

    members: int = 0
    held_members: int = 0
    values: int = 0
    held_values: int = 0
    first_values: int = 0

    def share(self) -> float:
        """Return the share of members whose every value is held."""
        return self.held_members / max(1, self.members)


def holds(estimate: Estimate, truth: float) -> bool:
    """Whether the interval reaches to the truth."""
    return estimate.low is not None and estimate.high is not None and estimate.low <= truth <= estimate.high


class Truth:
    """What a configuration gives in the long run; worked out once each."""

    def __init__(self, spec: StudySpec) -> None:
        self._spec = spec
        self._known: dict[Assignment, tuple[float, float]] = {}

    def of(self, assignment: Assignment) -> tuple[float, float]:
        """Return single-request and peak aggregate throughput, tok/s."""
        if assignment not in self._known:
            command = engine(self._spec.engine).command(self._spec.base, assignment)
            outcome = measure(command, slow=1.0, seed=99, longer=LONGER)
            if not isinstance(outcome, Measured):
                self._known[assignment] = (math.nan, math.nan)
            else:
                pair = (outcome.single_request_throughput.value, outcome.aggregate_throughput.value)
                self._known[assignment] = pair
        return self._known[assignment]


async def study(spec: StudySpec, seed: int, spread: float, truth: Truth, count: Count) -> None:
    """Run one study and compare its front with the truth."""
    adapter = engine(spec.engine)
    ledger = open_ledger(spec, adapter.canonical)
    try:
        campaign = Campaign(
            spec=spec,
            engine=adapter,
            optimizer=ledger,
            executor=VirtualHosts(seed, spread),
            evidence=NoEvidence(),
            observer=Unwatched(),
            clock=SystemClock(),
        )
        await campaign.run()
        rows = ledger.rows()
    finally:
        ledger.close()
    repeats = sum(row.repeat is not None for row in rows)
    print(f"\nseed {seed}: {sum(row.counts for row in rows)} trials and {repeats} repeats")
    print("trial  starts  belongs   single tok/s          truth   aggregate tok/s         truth   first start")
    for each in sorted(standings(rows, spec.objectives), key=lambda each: each.row.values or ()):
        if not each.is_member:
            continue
        outcome, first = each.row.outcome, own_outcome(each.row)
        if not isinstance(outcome, Measured) or not isinstance(first, Measured):
            raise TypeError("a member of the front was measured")
        single, aggregate = truth.of(each.row.assignment)
        pairs = ((outcome.single_request_throughput, single), (outcome.aggregate_throughput, aggregate))
        held = [holds(value, known) for value, known in pairs]
        count.members += 1
        count.held_members += all(held)
        count.values += len(held)
        count.held_values += sum(held)
        firsts = ((first.single_request_throughput, single), (first.aggregate_throughput, aggregate))
        alone = [holds(value, known) for value, known in firsts]
        count.first_values += sum(alone)
        cells = "   ".join(_cell(value, known, ok) for (value, known), ok in zip(pairs, held, strict=True))
        print(f"{each.row.number:>5}  {each.repeats + 1:>6}  {each.chance:>7.0%}   {cells}   {_marks(alone)}")
    heading = Heading.of(spec)
    for line in gain_lines(rows, heading):
        print(f"  {line}")


def _cell(value: Estimate, truth: float, ok: bool) -> str:
    half = 0.0 if value.high is None else value.high - value.value
    return f"{value.value:>7,.1f} ±{half:>5.1f} {'holds' if ok else 'MISSES'} {truth:>7,.1f}"


def _marks(held: Sequence[bool]) -> str:
    return " ".join("holds" if ok else "misses" for ok in held)


def spec_of(folder: Path, seed: int) -> StudySpec:
    """Return the shipped study as a night on real hosts would run it."""
    shipped = load_study(ROOT, "qwen-mtp")
    hosts = [host for host in shipped.hosts if isinstance(host, SimulatedHostSpec)]
    return replace(
        shipped,
        hosts=tuple(hosts[:1]),
        seed=seed,
        repeats=RepeatTerms(confirmations=2, baseline_every=8),
        directory=str(folder / f"seed{seed}"),
    )


def main(options: Mapping[str, float]) -> int:
    """Run the studies; return the exit status."""
    count = Count()
    with tempfile.TemporaryDirectory(prefix="confirm-front-") as folder:
        truth = Truth(spec_of(Path(folder), 0))
        for seed in range(1, int(options["seeds"]) + 1):
            asyncio.run(study(spec_of(Path(folder), seed), seed, options["spread"], truth, count))
    print(
        f"\n{count.held_members} of {count.members} members ({count.share():.0%}) with every value within its interval;"
        f" {count.held_values} of {count.values} values ({count.held_values / max(1, count.values):.0%})."
        f"\nBy their first starts alone: {count.first_values} of {count.values} values"
        f" ({count.first_values / max(1, count.values):.0%})."
        f"\n{BAR:.0%} of the members wanted: {'met' if count.share() >= BAR else 'NOT met'}"
    )
    return 0 if count.share() >= BAR else 1


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Compare confirmed fronts with the simulated host's own truth.")
    parser.add_argument("--seeds", type=int, default=3, help="studies to run (3)")
    parser.add_argument("--spread", type=float, default=0.02, help="how much starts differ, relative (0.02)")
    given = parser.parse_args()
    sys.exit(main({"seeds": given.seeds, "spread": given.spread}))
