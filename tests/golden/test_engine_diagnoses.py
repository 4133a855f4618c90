"""Logs of dead and of healthy servers, and what they must be read as."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from writing.case import SGLANG, Case
from writing.cases import cases
from writing.folder import folder
from writing.judging import differences, fed, judged, mutilated

from tuner.engines import engine
from tuner.model.outcome import Cause, Ending, TrialState

HERE = Path(__file__).parent
WRITTEN = cases()
KEPT = tuple(case for name in ("sglang", "llamacpp") for case in folder(HERE / f"{name}_logs", name))
ALL = (*WRITTEN, *KEPT)
PLAIN = tuple(case for case in WRITTEN if case.shape == "plain")
# One death of one version each: enough to see that a way of shipping changes nothing.
FEW = tuple({case.expected.cause: case for case in PLAIN if case.engine == "sglang"}.values())


def by_death(wanted: tuple[Case, ...]) -> dict[str, list[Case]]:
    """Group cases by their name without the shape: one test says which death it is about."""
    grouped: dict[str, list[Case]] = defaultdict(list)
    for case in wanted:
        grouped[case.name.removesuffix(f"-{case.shape}")].append(case)
    return grouped


DEATHS = by_death(ALL)
MORTAL = by_death(tuple(case for case in WRITTEN if case.decisive))


def told(wanted: list[Case], piece: int = 0) -> list[str]:
    return [f"{case.name}: {'; '.join(told)}" for case in wanted if (told := differences(case, judged(case, piece)))]


@pytest.mark.parametrize("death", DEATHS)
def test_a_log_is_read_as_the_death_it_shows(death: str) -> None:
    assert told(DEATHS[death]) == []


@pytest.mark.parametrize("death", DEATHS)
def test_a_log_that_arrives_in_pieces_is_read_as_the_same_death(death: str) -> None:
    shortest = min(DEATHS[death], key=lambda case: len(case.log))
    assert told([shortest], piece=7) == []
    assert told(DEATHS[death], piece=997) == []


@pytest.mark.parametrize("death", DEATHS)
def test_waiting_ends_when_the_log_says_that_the_server_is_lost_and_not_before(death: str) -> None:
    # A line that has not ended may yet become another.
    known = [case for case in DEATHS[death] if case.fatal is not None and case.shape != "unfinished"]
    assert [case.name for case in known if fed(case).fatal is not case.fatal] == []


@pytest.mark.parametrize("death", MORTAL)
def test_without_its_decisive_line_a_death_is_unknown_or_the_next_cause_never_health(death: str) -> None:
    for case in MORTAL[death]:
        left = mutilated(case)
        assert left.log != case.log, case.name
        found = judged(left)
        assert found.cause in case.without, f"{case.name}: {found.cause} by {found.evidence}"
        if found.cause is Cause.UNKNOWN:
            assert found.config_fault is None


@pytest.mark.parametrize("family", [*SGLANG, "2026.10"])
def test_every_cause_of_a_version_is_shown_by_three_logs_or_more(family: str) -> None:
    counts: dict[Cause, int] = defaultdict(int)
    for case in WRITTEN:
        counts[case.expected.cause] += case.family == family
    assert {cause for cause, count in counts.items() if 0 < count < 3} == set()


def test_every_cause_that_a_log_can_show_is_shown_in_every_version_of_sglang() -> None:
    elsewhere = {
        Cause.FAILED_REQUESTS,
        Cause.CONFIGURATION_MISMATCH,
        Cause.OUTSIDE_LIMITS,
        Cause.RULED,
    }  # no log tells them
    for family in SGLANG:
        assert {case.expected.cause for case in WRITTEN if case.family == family} == set(Cause) - elsewhere


# ---------------------------------------------------------------- what must not matter


def with_noise(case: Case, dice: random.Random) -> bytes:
    """Put harmless lines between the lines."""
    noise = (
        b"Loading safetensors checkpoint shards:  50% Completed | 20/39 [00:05<00:05,  3.8it/s]\n",
        b'INFO:     127.0.0.1:51240 - "GET /health HTTP/1.1" 503 Service Unavailable\n',
        b"/usr/lib/python3.12/site-packages/x.py:3: FutureWarning: a tensor of memory is out of date\n",
        b"[2026-10-14 02:11:09 TP2] Using default MoE kernel config. Performance might be sub-optimal! Error: none\n",
        b"\n",
        b"NCCL version 2.27.3+cuda12.9\n",
    )
    lines = case.log.splitlines(keepends=True)
    starts = [number for number, line in enumerate(lines) if line.startswith(b"[20")]  # never inside a traceback
    for start in sorted(dice.sample(starts, min(6, len(starts))), reverse=True):
        lines.insert(start, dice.choice(noise))
    return b"".join(lines)


def with_other_stamps(case: Case, dice: random.Random) -> bytes:
    stamp = dice.choice((b"[2027-01-31 23:59:59.001", b"[1999-12-31 00:00:00", b"[2026-10-14 14:11:01,220"))
    return b"".join(
        stamp + line[20:] if line.startswith(b"[20") and line[20:21] in b" ]" else line
        for line in case.log.splitlines(keepends=True)
    )


def with_other_ranks(case: Case, dice: random.Random) -> bytes:
    rank = dice.choice((b" DP0 TP0]", b" TP0 PP0]", b" DP3 TP7 EP7]", b" TP12]"))
    return case.log.replace(b" TP0]", rank)


def with_colours(case: Case, dice: random.Random) -> bytes:
    """Put colours between words, anywhere."""
    colours = (b"\x1b[31m", b"\x1b[0m", b"\x1b[1;38;5;208m", b"\x1b[K")
    words = case.log.split(b" ")
    for _ in range(40):
        place = dice.randrange(len(words))
        words[place] = dice.choice(colours) + words[place]
    return b" ".join(words)


def with_shipper(case: Case, dice: random.Random) -> bytes:
    prefix = dice.choice(
        (
            b"2026-10-14T02:11:01.104512345Z ",
            b"2026-10-14T02:11:01+09:00 stdout F ",
            b"sglang-1  | ",
            b"Okt 14 04:11:01 gpu-07.example.org sglang[4200]: ",
            b"<30>1 2026-10-14T02:11:01Z gpu-07 sglang 4200 - - ",
            b"[pod/sglang-0/server] ",
        )
    )
    return b"".join(prefix + line for line in case.log.splitlines(keepends=True))


def with_repetition(case: Case, dice: random.Random) -> bytes:
    """Send some lines several times."""
    return b"".join(line * dice.choice((1, 1, 2, 3)) for line in case.log.splitlines(keepends=True))


WAYS: tuple[Callable[[Case, random.Random], bytes], ...] = (
    with_noise,
    with_other_stamps,
    with_other_ranks,
    with_colours,
    with_shipper,
    with_repetition,
)


@pytest.mark.parametrize("way", WAYS)
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True)
@given(case=st.sampled_from(FEW), seed=st.integers(0, 2**32), piece=st.sampled_from((0, 13, 4096)))
def test_how_a_log_comes_to_us_never_changes_a_verdict(
    way: Callable[[Case, random.Random], bytes], case: Case, seed: int, piece: int
) -> None:
    changed = replace(case, log=way(case, random.Random(seed)))
    assert differences(changed, judged(changed, piece)) == []


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True)
@given(case=st.sampled_from(FEW), seed=st.integers(0, 2**32))
def test_all_that_can_happen_to_a_log_at_once_never_changes_a_verdict(case: Case, seed: int) -> None:
    dice = random.Random(seed)
    changed = case
    for way in (with_noise, with_other_ranks, with_other_stamps, with_repetition, with_shipper, with_colours):
        changed = replace(changed, log=way(changed, dice))
    assert differences(changed, judged(changed)) == []


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True)
@given(case=st.sampled_from(PLAIN), end=st.floats(0, 1))
def test_a_healthy_server_is_never_found_in_a_log_whose_server_has_ended(case: Case, end: float) -> None:
    cut = replace(case, log=case.log[: int(end * len(case.log))], ending=replace(case.ending, has_ended=True))
    assert judged(cut).cause is not Cause.HEALTHY


@settings(max_examples=20, deadline=None, derandomize=True)
@given(log=st.binary(max_size=400), status=st.sampled_from((None, 1, 2)), signal=st.sampled_from((None, 9)))
@pytest.mark.parametrize("name", ["sglang", "llamacpp"])
def test_no_cause_is_found_in_noise(name: str, log: bytes, status: int | None, signal: int | None) -> None:
    reader = engine(name).log_reader()
    reader.feed(log.decode("utf-8", "replace"))
    assert not reader.fatal
    assert reader.diagnose(Ending(exit_status=status, exit_signal=signal)).cause is Cause.UNKNOWN


# ---------------------------------------------------------------- who is first


def kept(name: str) -> str:
    return (HERE / "sglang_logs" / f"{name}.log").read_text()


def read(text: str, **ending: int | tuple[int, ...] | TrialState) -> Cause:
    reader = engine("sglang").log_reader()
    reader.feed(text)
    return reader.diagnose(Ending(**ending)).cause  # type: ignore[arg-type]


def test_what_other_ranks_print_before_the_stage_moved_does_not_hide_the_first_cause() -> None:
    noise = "torch.distributed.DistBackendError: NCCL error: remote process exited\n"
    assert read(kept("oom_capture") + noise, exit_signal=9) is Cause.OOM_GRAPH_CAPTURE


def test_a_crash_before_our_stop_stays_the_cause() -> None:
    found = read(kept("oom_under_load"), exit_signal=9, state=TrialState.MEASURING, signals_sent=(15,))
    assert found is Cause.OOM_VERIFY_WORKSPACE


def test_nccl_noise_of_our_own_stop_is_our_own_stop() -> None:
    assert read(kept("own_stop") + kept("nccl_at_start").split("\n", 1)[1], exit_signal=9, signals_sent=(15,)) is (
        Cause.OWN_STOP
    )


def test_a_sigterm_that_nobody_here_sent_is_an_operator_s() -> None:
    text = kept("oom_weights").split("[2026-10-14 02:11:12")[0]  # dies while loading: no handler, no line
    assert read(text, exit_signal=15, state=TrialState.LOADING) is Cause.OPERATOR_STOP


def test_a_second_start_in_the_same_log_begins_at_the_first_stage() -> None:
    text = kept("killed_without_a_word")
    error = "\ntorch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1 GiB.\n"
    assert read(text + text.split("Load weight end")[0] + error, exit_signal=9) is Cause.OOM_WEIGHTS


def test_the_first_life_s_death_is_the_cause_and_not_what_it_left_for_the_next() -> None:
    """Ten steps: dead under load, then no memory for the weights of each automatic restart."""
    text = kept("oom_under_load") + kept("oom_weights") * 3
    assert read(text, exit_signal=9) is Cause.OOM_VERIFY_WORKSPACE
