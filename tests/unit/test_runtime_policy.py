"""Who is to blame: the rules of the design as a table, and how often they are wrong."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable
from dataclasses import replace

import pytest

from tuner.model.outcome import (
    BY_CHANCE,
    MEMORY_CAUSES,
    NEVER_THE_CONFIGURATION,
    Cause,
    Faulted,
    Infeasible,
    MemoryDirection,
    TrialState,
    Verdict,
    violation,
)
from tuner.model.space import Assignment
from tuner.runtime.endings import REMEMBERED, Endings
from tuner.runtime.policy import (
    Death,
    Elsewhere,
    HostEvidence,
    NextStep,
    RetryAfterCleaning,
    SetHostAside,
    next_step,
)

NCCL, UNKNOWN, CUDA, PORT, OOM = (
    Cause.COLLECTIVE,
    Cause.UNKNOWN,
    Cause.CUDA_FAULT,
    Cause.PORT_IN_USE,
    Cause.OOM_SERVING,
)
LOADING, WARMING, MEASURING, SOAKING = (
    TrialState.LOADING,
    TrialState.WARMING_UP,
    TrialState.MEASURING,
    TrialState.SOAKING,
)
RETRY, INFEASIBLE, FAULTED, ASIDE = RetryAfterCleaning, Infeasible, Faulted, SetHostAside
NOW = 9
"""Number of the trial that is judged."""


def died(cause: Cause, state: TrialState = LOADING, *, fault: bool | None = None, trial: int = NOW) -> Death:
    return Death(verdict=Verdict(cause=cause, config_fault=fault), state=state, trial=trial)


def steps(number: int) -> Assignment:
    return Assignment.of({"speculative_num_steps": number})


def other(number: int, *deaths: Death, condemned: bool = False) -> list[Elsewhere]:
    """Another configuration's trial that did not end well, or came to no verdict."""
    found = [Elsewhere(assignment=steps(number), trial=number, death=replace(death, trial=number)) for death in deaths]
    return [replace(entry, is_condemned=condemned) for entry in found]


def lived(number: int) -> list[Elsewhere]:
    """Another configuration that was measured."""
    return [Elsewhere(assignment=steps(number), trial=number)]


FLAKED = [*other(2, died(NCCL)), *lived(2)]
"""Steps 2 met NCCL once at its start, and was measured at the next."""

TABLE: list[tuple[str, list[Death], Death, list[Elsewhere], type[NextStep]]] = [
    # story, earlier deaths of this configuration, the last, other configurations on this host, what follows
    ("a cause that names the configuration", [], died(OOM, MEASURING, fault=True), [], INFEASIBLE),
    ("rejected arguments", [], died(Cause.REJECTED_ARGUMENTS, fault=True), [], INFEASIBLE),
    ("a flake, then a cause that names the configuration", [died(NCCL)], died(OOM, fault=True), FLAKED, INFEASIBLE),
    ("NCCL at the first start", [], died(NCCL), [], RETRY),
    ("nothing in the log", [], died(UNKNOWN), [], RETRY),
    ("a crash loop", [], died(Cause.CRASH_LOOP, MEASURING), [], RETRY),
    ("a port in use", [], died(PORT), [], RETRY),
    ("memory that was left over", [], died(Cause.LEFTOVER_MEMORY), [], RETRY),
    ("an operator at the unit", [], died(Cause.OPERATOR_STOP, MEASURING), [], RETRY),
    # two clean deaths
    ("silent twice at the same stage", [died(UNKNOWN)], died(UNKNOWN), [], INFEASIBLE),
    ("silent twice where others lived", [died(UNKNOWN)], died(UNKNOWN), [*lived(1), *lived(2)], INFEASIBLE),
    ("NCCL twice where others lived", [died(NCCL)], died(NCCL), lived(1), INFEASIBLE),
    ("NCCL, then silent, at the same stage", [died(NCCL)], died(UNKNOWN), lived(1), INFEASIBLE),
    ("a hang twice under load", [died(Cause.HANG, MEASURING)], died(Cause.HANG, MEASURING), lived(1), INFEASIBLE),
    ("at two stages", [died(NCCL)], died(UNKNOWN, MEASURING), [], RETRY),
    ("at three stages", [died(NCCL), died(UNKNOWN, WARMING)], died(UNKNOWN, SOAKING), [], FAULTED),
    ("in an earlier trial that was a fault, and now", [died(UNKNOWN, trial=5)], died(UNKNOWN), [], INFEASIBLE),
    # what never condemns
    ("a port in use twice", [died(PORT)], died(PORT), [], FAULTED),
    ("a port in use, then silent", [died(PORT)], died(UNKNOWN), [], RETRY),
    ("a port in use, then silent twice", [died(PORT), died(UNKNOWN)], died(UNKNOWN), [], INFEASIBLE),
    ("an operator twice", [died(Cause.OPERATOR_STOP)], died(Cause.OPERATOR_STOP), [], FAULTED),
    ("an operator in two trials", [died(Cause.OPERATOR_STOP, trial=5)], died(Cause.OPERATOR_STOP), [], RETRY),
    ("a model that is gone, twice", [died(Cause.MODEL_MISSING)], died(Cause.MODEL_MISSING), [], FAULTED),
    ("a person says: again", [], died(Cause.RULED, MEASURING, fault=False), [], FAULTED),
    ("a person says: infeasible", [], died(Cause.RULED, MEASURING, fault=True), [], INFEASIBLE),
    # the same cause has hit others here: the host is suspect
    ("NCCL where it has hit others", [], died(NCCL), FLAKED, RETRY),
    ("NCCL twice where it has hit others", [died(NCCL)], died(NCCL), FLAKED, RETRY),
    ("NCCL three times where it has hit others", [died(NCCL)] * 2, died(NCCL), FLAKED, FAULTED),
    ("the same, and once more", [died(NCCL, trial=5)] * 3, died(NCCL), FLAKED, RETRY),
    ("the same, and twice more", [*[died(NCCL, trial=5)] * 3, died(NCCL)], died(NCCL), FLAKED, INFEASIBLE),
    ("silent twice where others met NCCL", [died(UNKNOWN)], died(UNKNOWN), FLAKED, INFEASIBLE),
    ("NCCL here, then silent twice", [died(NCCL), died(UNKNOWN)], died(UNKNOWN), FLAKED, INFEASIBLE),
    (
        "NCCL under load where it hit others at the start",
        [died(NCCL, SOAKING)],
        died(NCCL, SOAKING),
        FLAKED,
        INFEASIBLE,
    ),
    (
        "NCCL twice where others were condemned for it, though some lived since",
        [died(NCCL)],
        died(NCCL),
        [*other(2, died(NCCL), died(NCCL), condemned=True), *lived(1)],
        RETRY,
    ),
    (
        "silent twice after another that was condemned for it, and one that lived since",
        [died(UNKNOWN)],
        died(UNKNOWN),
        [*lived(1), *other(8, died(UNKNOWN), died(UNKNOWN), condemned=True), *lived(2)],
        INFEASIBLE,
    ),
    (
        "silent twice after another that was, and one that came to its load since",
        [died(UNKNOWN)],
        died(UNKNOWN),
        [*other(8, died(UNKNOWN), died(UNKNOWN), condemned=True), *other(7, died(OOM, MEASURING, fault=True))],
        INFEASIBLE,
    ),
    # several in a row: the host, or one of its cards, is broken
    (
        "silent like the one before",
        [died(UNKNOWN)],
        died(UNKNOWN),
        [*lived(1), *other(8, died(UNKNOWN), died(UNKNOWN), condemned=True)],
        RETRY,
    ),
    (
        "silent like the one before, three times",
        [died(UNKNOWN)] * 2,
        died(UNKNOWN),
        [*lived(1), *other(8, died(UNKNOWN), died(UNKNOWN), condemned=True)],
        FAULTED,
    ),
    (
        "silent like the one before, however often",
        [died(UNKNOWN, trial=5)] * 6,
        died(UNKNOWN),
        other(8, died(UNKNOWN), died(UNKNOWN), condemned=True),
        RETRY,
    ),
    (
        "silent like two before",
        [],
        died(UNKNOWN),
        [*lived(1), *other(8, died(UNKNOWN), died(UNKNOWN), condemned=True), *other(7, *[died(UNKNOWN)] * 3)],
        ASIDE,
    ),
    (
        "silent like two before, one of which was measured in between",
        [],
        died(UNKNOWN),
        [*other(8, died(UNKNOWN)), *other(7, died(UNKNOWN)), *lived(7)],
        RETRY,
    ),
    (
        "silent like one before, that was tried twice",
        [],
        died(UNKNOWN),
        [*other(8, *[died(UNKNOWN)] * 3), *other(8, *[died(UNKNOWN)] * 3)],
        RETRY,
    ),
    ("CUDA faults after two silent ones", [], died(CUDA), [*other(8, died(UNKNOWN)), *other(7, died(UNKNOWN))], RETRY),
    (
        "out of memory like two before",
        [],
        died(OOM, fault=True),
        [*other(8, died(OOM, fault=True), condemned=True), *other(7, died(OOM, fault=True), condemned=True)],
        INFEASIBLE,
    ),
    (
        "silent after two that ran out of memory",
        [],
        died(UNKNOWN),
        [*other(8, died(OOM, fault=True), condemned=True), *other(7, died(OOM, fault=True), condemned=True)],
        RETRY,
    ),
    (
        "a CUDA fault under load like two before: deep speculation may do that",
        [died(CUDA, MEASURING)],
        died(CUDA, MEASURING),
        [*other(8, died(CUDA, MEASURING)), *other(7, died(CUDA, MEASURING))],
        RETRY,
    ),
    (
        "an operator like at two before",
        [],
        died(Cause.OPERATOR_STOP),
        [*other(8, *[died(Cause.OPERATOR_STOP)] * 2), *other(7, *[died(Cause.OPERATOR_STOP)] * 2)],
        RETRY,
    ),
    (
        "a model that is gone, like for two before",
        [],
        died(Cause.MODEL_MISSING),
        [*other(8, *[died(Cause.MODEL_MISSING)] * 2), *other(7, *[died(Cause.MODEL_MISSING)] * 2)],
        ASIDE,
    ),
]


@pytest.mark.parametrize(
    ("history", "last", "others", "expected"), [row[1:] for row in TABLE], ids=[r[0] for r in TABLE]
)
def test_what_follows_a_death(
    history: list[Death], last: Death, others: list[Elsewhere], expected: type[NextStep]
) -> None:
    step = next_step(history, last, HostEvidence(others=tuple(others)))
    assert type(step) is expected, step


# ---------------------------------------------------------------------------- what each step carries


def test_a_host_that_is_set_aside_is_the_trials_fault_and_the_doubtful_verdicts_are_named() -> None:
    others = [*other(7, died(CUDA), died(CUDA), condemned=True), *other(8, died(CUDA))]
    step = next_step([], died(CUDA), HostEvidence(others=tuple(others)))
    assert isinstance(step, SetHostAside)
    assert step.fault.set_aside
    assert "cuda_fault while loading, as other configurations before it (trials 7, 8)" in step.fault.error
    assert "the host is broken" in step.fault.error


def test_a_fault_that_is_the_trials_own_sets_no_host_aside() -> None:
    step = next_step([died(PORT)], died(PORT))
    assert isinstance(step, Faulted)
    assert not step.set_aside


@pytest.mark.parametrize("cause", sorted(NEVER_THE_CONFIGURATION, key=lambda cause: cause.value))
@pytest.mark.parametrize("state", list(TrialState))
def test_some_causes_never_condemn_a_configuration(cause: Cause, state: TrialState) -> None:
    history: list[Death] = []
    for _ in range(8):
        last = died(cause, state)
        assert not isinstance(next_step(history, last), Infeasible)
        history.append(last)


MEMORY = Verdict(
    cause=Cause.OOM_GRAPH_CAPTURE,
    config_fault=True,
    stage="capture",
    direction=MemoryDirection.FRACTION_TOO_HIGH,
    shortfall_bytes=2**30,
    viable_fraction=0.7,
    evidence=("torch.OutOfMemoryError: CUDA out of memory.",),
    advice="lower mem_fraction_static",
)
CROWDED = Death(verdict=MEMORY, state=LOADING, trial=NOW, missing=0.1, foreign=("4711 python train.py (10.0 GiB)",))
UNCLEAN = Death(verdict=MEMORY, state=LOADING, trial=NOW, missing=0.1, is_clean=False)


@pytest.mark.parametrize("spoiled", [CROWDED, UNCLEAN], ids=["crowded", "unclean"])
def test_memory_that_ran_out_beside_somebody_elses_is_no_verdict_however_often(spoiled: Death) -> None:
    history: list[Death] = []
    for expected in (RetryAfterCleaning, RetryAfterCleaning, Faulted):
        step = next_step(history, spoiled)
        assert type(step) is expected
        history.append(spoiled)
    assert isinstance(step, Faulted)
    assert step.verdict is not None
    dropped = step.verdict.config_fault, step.verdict.direction, step.verdict.shortfall_bytes
    assert (*dropped, step.verdict.viable_fraction) == (None, None, None, None)
    assert (step.verdict.cause, step.verdict.evidence) == (MEMORY.cause, MEMORY.evidence)
    assert "4711 python train.py" in step.error or "not clean" in step.error


def test_a_death_beside_somebody_else_does_not_count_towards_a_later_one() -> None:
    silent = died(Cause.OOM_GRAPH_CAPTURE)
    assert isinstance(next_step([CROWDED], silent), RetryAfterCleaning)


def test_what_memory_says_nothing_of_is_judged_although_somebody_held_some() -> None:
    refused = replace(died(Cause.REJECTED_ARGUMENTS, fault=True), foreign=CROWDED.foreign)
    assert isinstance(next_step([], refused), Infeasible)


def test_an_infeasible_outcome_says_where_it_died_and_how_far_off_it_was() -> None:
    last = replace(died(OOM, MEASURING, fault=True), level=16, level_index=2, levels=3, missing=0.2)
    step = next_step([], last)
    assert isinstance(step, Infeasible)
    assert (step.state, step.level) == (MEASURING, 16)
    assert step.violation == violation(MEASURING, level_index=2, levels=3, missing=0.2)
    at_capture = next_step([], Death(verdict=MEMORY, state=LOADING, missing=0.1))
    assert isinstance(at_capture, Infeasible)
    assert at_capture.violation == violation(LOADING, stage="capture", missing=0.1)


def test_rejected_arguments_are_graded_worst_wherever_they_are_noticed() -> None:
    step = next_step([], died(Cause.REJECTED_ARGUMENTS, fault=True))
    assert isinstance(step, Infeasible)
    assert step.violation == violation(TrialState.DEPLOYING)


def test_a_retry_says_why_and_whether_others_met_the_same() -> None:
    alone, together = next_step([], died(NCCL)), next_step([], died(NCCL), HostEvidence(others=tuple(FLAKED)))
    assert isinstance(alone, RetryAfterCleaning)
    assert isinstance(together, RetryAfterCleaning)
    assert alone.why == "collective while loading may be the host's fault"
    assert together.why == f"{alone.why}, which has hit other configurations here too"


def test_every_cause_is_known_to_be_memorys_or_not() -> None:
    said_to_be = {cause for cause in Cause if cause.value.startswith("oom_") or cause.value.startswith("kv_")}
    assert said_to_be == MEMORY_CAUSES
    assert not MEMORY_CAUSES & NEVER_THE_CONFIGURATION
    assert not BY_CHANCE & NEVER_THE_CONFIGURATION


# ---------------------------------------------------------------------------- what a session remembers


def test_a_session_tells_a_configurations_own_deaths_from_those_of_others() -> None:
    endings = Endings()
    endings.died(steps(1), died(NCCL, trial=1))
    endings.died(steps(2), died(UNKNOWN, trial=2))
    endings.lived(steps(1), 1)
    assert endings.deaths_of(steps(2)) == (died(UNKNOWN, trial=2),)
    assert [(entry.assignment, entry.death is None) for entry in endings.around(steps(2)).others] == [
        (steps(1), False),
        (steps(1), True),
    ]


def test_deaths_before_a_configuration_was_measured_are_not_held_against_it() -> None:
    endings = Endings()
    endings.died(steps(1), died(NCCL, trial=1))
    endings.lived(steps(1), 1)
    assert endings.deaths_of(steps(1)) == ()
    assert endings.around(steps(2)).doubts(died(NCCL))


def test_a_verdict_that_a_person_overruled_is_not_held_against_the_configuration() -> None:
    endings = Endings()
    endings.died(steps(1), died(UNKNOWN, trial=1))
    endings.died(steps(1), died(UNKNOWN, trial=1))
    endings.condemned(steps(1), LOADING)
    assert endings.deaths_of(steps(1)) == ()


def test_only_the_deaths_that_a_verdict_is_about_are_explained_by_it() -> None:
    endings = Endings()
    endings.died(steps(1), died(UNKNOWN, trial=1))
    endings.died(steps(1), died(OOM, MEASURING, fault=True, trial=1))
    endings.condemned(steps(1), MEASURING)
    assert [entry.is_condemned for entry in endings.around(steps(2)).others] == [False, True]
    assert endings.around(steps(2)).doubts(died(UNKNOWN)), "steps 1 died at its start, and then got beyond it"


def test_a_session_of_any_length_keeps_a_bounded_memory() -> None:
    endings = Endings()
    for number in range(10 * REMEMBERED):
        endings.died(steps(number), died(UNKNOWN, trial=number))
    assert len(endings.around(steps(-1)).others) == REMEMBERED
    endings.forget()
    assert endings.around(steps(-1)).others == ()


# ---------------------------------------------------------------------------- how often it is wrong


def trial(endings: Endings, number: int, starts: Iterable[bool]) -> str:
    """Run a sound configuration whose starts are good or fail by chance, to its end."""
    for is_good in starts:
        if is_good:
            endings.lived(steps(number), number)
            return "measured"
        last = died(NCCL, trial=number)
        step = next_step(endings.deaths_of(steps(number)), last, endings.around(steps(number)))
        endings.died(steps(number), last)
        if isinstance(step, Infeasible):
            endings.condemned(steps(number), LOADING)
        if not isinstance(step, RetryAfterCleaning):
            return type(step).__name__.lower()
    raise AssertionError("it was started for ever")


def chance(endings: Endings, end: str, *, p: float = 0.2) -> float:
    """Return the probability that a sound configuration's trial ends so, by going through all its courses."""
    total = 0.0
    for fails in range(7):
        known = Endings()
        for entry in endings.around(steps(-1)).others:
            if entry.death is None:
                known.lived(entry.assignment, entry.trial)
            else:
                known.died(entry.assignment, entry.death)
        if trial(known, 50, itertools.chain(itertools.repeat(False, fails), itertools.repeat(True))) == end:
            total += p**fails * (1 - p) if end == "measured" else p**fails
            if end != "measured":
                break
    return total


def test_the_chances_of_a_wrong_verdict_are_as_they_are_said_to_be() -> None:
    nothing, flaky = Endings(), Endings()
    trial(flaky, 1, [False, True])
    assert chance(nothing, "infeasible") == pytest.approx(0.04)
    assert chance(flaky, "infeasible") == 0.0, "in one trial; its next may"
    assert chance(flaky, "faulted") == pytest.approx(0.008)
    assert chance(flaky, "measured") == pytest.approx(0.992)


@pytest.mark.parametrize("seed", range(3))
def test_one_flaky_start_in_five_condemns_nothing_once_it_is_known(seed: int) -> None:
    dice = random.Random(seed)
    endings = Endings()
    trial(endings, 0, [False, True])
    ends = [trial(endings, number, iter(lambda: dice.random() >= 0.2, None)) for number in range(1, 301)]
    assert "infeasible" not in ends
    assert ends.count("measured") >= 290
    assert "sethostaside" not in ends


def test_every_fifth_start_failing_costs_starts_and_no_configuration() -> None:
    endings = Endings()
    starts = (number % 5 != 0 for number in itertools.count(1))
    assert {trial(endings, number, starts) for number in range(100)} == {"measured"}


def test_a_driver_that_breaks_at_night_sets_the_host_aside_with_its_third_configuration() -> None:
    endings = Endings()
    ends = [trial(endings, number, [number < 3] * 3) for number in range(6)]
    assert ends == ["measured", "measured", "measured", "infeasible", "faulted", "sethostaside"]
