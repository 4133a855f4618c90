"""A scripted run of a study, as its observer sees it: for the screens."""

from __future__ import annotations

from tuner.model.account import ClientHealth, Speculation
from tuner.model.metric import Estimate
from tuner.model.outcome import Cause, Infeasible, Measured, Outcome, TrialState, Verdict
from tuner.model.record import LegResult
from tuner.model.space import Assignment, ChoiceParameter, FloatParameter, IntParameter, SearchSpace, Value
from tuner.model.study import HostSpec, ProcessHostSpec, SimulatedHostSpec, StudySpec, TrialRow
from tuner.model.trial import Command, LegFinished, LegProgress, StateEntered, TrialEvent, TrialFinished, TrialResult
from tuner.model.workload import Workload
from tuner.ports import Proposal

MTP = SearchSpace(
    name="sglang-mtp",
    engine="sglang",
    parameters=(
        IntParameter(name="speculative_num_steps", low=0, high=16),
        ChoiceParameter(name="speculative_eagle_topk", choices=(1, 2, 4, 8), ordered=True),
        IntParameter(name="speculative_num_draft_tokens", low=2, high=64),
        FloatParameter(name="mem_fraction_static", low=0.6, high=0.95, step=0.01),
    ),
)


def mtp(steps: int, fraction: float = 0.8) -> Assignment:
    """Build a canonical assignment of :data:`MTP` at topk 1."""
    values: dict[str, Value] = {"speculative_num_steps": steps, "mem_fraction_static": fraction}
    if steps:
        values |= {"speculative_eagle_topk": 1, "speculative_num_draft_tokens": steps + 1}
    return Assignment.of(values)


def spec_of(
    *, hosts: int = 1, simulated: bool = True, trials: int = 24, space: SearchSpace = MTP, name: str = "qwen-mtp"
) -> StudySpec:
    """Build a study on ``hosts`` hosts."""
    places: tuple[HostSpec, ...] = tuple(
        SimulatedHostSpec(name=f"sim{i}", address=f"127.0.0.{i + 1}", state_dir=f"/state/sim{i}", profile="small")
        if simulated
        else ProcessHostSpec(name=f"host{i}", state_dir=f"/state/host{i}")
        for i in range(hosts)
    )
    return StudySpec(
        name=name,
        engine=space.engine,
        space=space,
        base=Command(argv=("sglang", "serve", "--port", "30000")),
        baseline=mtp(3),
        hosts=places,
        workload=Workload(),
        trials=trials,
        seed=1,
        sampler="auto",
        directory=f"/studies/{name}",
    )


def measured(single: float, aggregate: float) -> Measured:
    """Build the outcome of a trial that measured these, in tok/s."""
    return Measured(
        single_request_throughput=Estimate(value=single, low=single * 0.98, high=single * 1.02, samples=8),
        aggregate_throughput=Estimate(value=aggregate, low=aggregate * 0.98, high=aggregate * 1.02, samples=8),
        peak_concurrency=32,
    )


def infeasible(state: TrialState = TrialState.MEASURING, level: int | None = 32) -> Infeasible:
    """Build the outcome of a trial that ran out of memory while serving."""
    return Infeasible(
        verdict=Verdict(cause=Cause.OOM_SERVING, config_fault=True), state=state, level=level, violation=1.5
    )


def row(number: int, assignment: Assignment, outcome: Outcome | None, *, duration_s: float | None = 12.0) -> TrialRow:
    """Build a row of the study's database."""
    values = None
    if isinstance(outcome, Measured):
        values = (outcome.single_request_throughput.value, outcome.aggregate_throughput.value)
    return TrialRow(
        number=number,
        assignment=assignment,
        outcome=outcome,
        host="sim0",
        baseline=number == 0,
        values=values,
        capacity=None,
        duration_s=duration_s,
    )


def proposal(number: int, assignment: Assignment) -> Proposal:
    """Build a proposal; trial 0 is the base command."""
    return Proposal(number=number, assignment=assignment, baseline=number == 0)


def leg(at_s: float, concurrency: int, throughput: float) -> LegFinished:
    """Build a finished leg: ``throughput`` is the lone request's at 1, the aggregate above."""
    estimate = Estimate(value=throughput, low=None, high=None, samples=4)
    result = LegResult(
        concurrency=concurrency,
        single_request_throughput=estimate if concurrency == 1 else None,
        aggregate_throughput=estimate if concurrency > 1 else None,
        window_s=2.0,
        offered=8,
        completed=8,
        failed=0,
        converged=True,
        client=ClientHealth(cpu_share=0.1, lag_p99_s=0.001),
        speculation=Speculation(acceptance_length=3.9, step_time_s=0.016),
    )
    return LegFinished(at_s=at_s, unix_offset_s=0.0, leg=result, requests=())


def result(number: int, assignment: Assignment, outcome: Outcome, *, host: str = "sim0", at_s: float) -> TrialResult:
    """Build the end of a trial that took 12 s."""
    return TrialResult(
        study="qwen-mtp",
        number=number,
        host=host,
        assignment=assignment,
        outcome=outcome,
        started_s=at_s - 12,
        finished_s=at_s,
        attempts=1,
        identity=None,
        effective=None,
        legs=(),
        duration_s=12.0,
    )


def trial_events(started_s: float, end: TrialResult) -> tuple[TrialEvent, ...]:
    """Script a trial, one event a second: two legs done, the third under way, then its end."""
    states = (TrialState.CLEANING, TrialState.DEPLOYING, TrialState.LOADING, TrialState.READY, TrialState.WARMING_UP)
    events: list[TrialEvent] = [StateEntered(at_s=started_s + i, state=state) for i, state in enumerate(states)]
    at_s = started_s + len(events)
    events += [
        StateEntered(at_s=at_s, state=TrialState.MEASURING, level=1),
        leg(at_s + 1, 1, 234.2),
        StateEntered(at_s=at_s + 1, state=TrialState.MEASURING, level=4),
        leg(at_s + 2, 4, 712.4),
        StateEntered(at_s=at_s + 2, state=TrialState.MEASURING, level=16),
        LegProgress(at_s=at_s + 3, concurrency=16, elapsed_s=1.0, aggregate_throughput=1204.4),
        TrialFinished(at_s=at_s + 4, result=end),
    ]
    return tuple(events)
