"""Logs of dead and of healthy servers, and what they must be read as."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

from tuner.engines import engine
from tuner.model.outcome import Cause, Ending, MemoryDirection, TrialState
from tuner.ports import LogReader

HERE = Path(__file__).parent
VERDICTS = {
    (name, case): verdict
    for name in ("sglang", "llamacpp")
    for case, verdict in tomllib.loads((HERE / f"{name}_logs" / "verdicts.toml").read_text()).items()
}


def log(name: str, case: str) -> str:
    return (HERE / f"{name}_logs" / f"{case}.log").read_text()


def read(name: str, text: str, piece: int = 0) -> LogReader:
    reader = engine(name).log_reader()
    for start in range(0, len(text), piece or len(text)):
        reader.feed(text[start : start + (piece or len(text))])
    return reader


@pytest.mark.parametrize(("name", "case"), VERDICTS, ids="-".join)
@pytest.mark.parametrize("piece", [0, 7], ids=["whole", "pieces"])
def test_a_log_is_read_as_the_death_it_shows(name: str, case: str, piece: int) -> None:
    verdict: dict[str, Any] = VERDICTS[name, case]
    reader = read(name, log(name, case), piece)
    assert reader.stage == verdict["stage"]
    found = reader.diagnose(
        Ending(
            exit_status=verdict.get("status"),
            exit_signal=verdict.get("signal"),
            state=TrialState.LOADING,
            signals_sent=tuple(verdict.get("sent", ())),
        )
    )
    assert found.cause is Cause(verdict["cause"])
    assert found.config_fault is verdict.get("config_fault")
    direction = verdict.get("direction")
    assert found.direction is (None if direction is None else MemoryDirection(direction))
    assert found.shortfall_bytes == verdict.get("shortfall_bytes")
    assert found.viable_fraction == verdict.get("viable_fraction")
    assert any(verdict["evidence"] in line for line in found.evidence)
    assert len(found.evidence) <= 10
    assert found.advice
    assert "sk-golden" not in "".join(found.evidence)


@pytest.mark.parametrize(("name", "case"), VERDICTS, ids="-".join)
def test_a_cause_that_names_the_configuration_is_known_before_the_death(name: str, case: str) -> None:
    verdict = VERDICTS[name, case]
    assert read(name, log(name, case)).is_configuration_fault is (verdict.get("config_fault") is True)


@pytest.mark.parametrize(("name", "case"), VERDICTS, ids="-".join)
def test_every_golden_log_has_a_verdict_and_every_verdict_a_log(name: str, case: str) -> None:
    logs = {path.stem for path in (HERE / f"{name}_logs").glob("*.log") if not path.stem.startswith("healthy")}
    assert logs == {case for other, case in VERDICTS if other == name}
    assert case in logs


@pytest.mark.parametrize("case", ["oom_kv_pool", "oom_under_load", "port_in_use", "watchdog_hang", "ambiguous_option"])
def test_waiting_ends_when_the_log_says_that_the_server_is_lost(case: str) -> None:
    assert read("sglang", log("sglang", case)).fatal


@pytest.mark.parametrize("name", ["sglang", "llamacpp"])
def test_a_healthy_server_with_frightening_lines_is_healthy(name: str) -> None:
    reader = read(name, log(name, "healthy_under_pressure"))
    assert reader.stage == "ready"
    assert not reader.fatal
    assert not reader.is_configuration_fault


def test_what_other_ranks_print_before_the_stage_moved_does_not_hide_the_first_cause() -> None:
    text = log("sglang", "oom_capture")
    noise = "torch.distributed.DistBackendError: NCCL error: remote process exited\n"
    found = read("sglang", text + noise).diagnose(
        Ending(exit_status=None, exit_signal=9, state=TrialState.LOADING, signals_sent=())
    )
    assert found.cause is Cause.OOM_GRAPH_CAPTURE


def test_a_crash_before_our_stop_stays_the_cause() -> None:
    found = read("sglang", log("sglang", "oom_under_load")).diagnose(
        Ending(exit_status=None, exit_signal=9, state=TrialState.MEASURING, signals_sent=(15,))
    )
    assert found.cause is Cause.OOM_SERVING


def test_nccl_noise_of_our_own_stop_is_our_own_stop() -> None:
    found = read("sglang", log("sglang", "nccl_at_start")).diagnose(
        Ending(exit_status=None, exit_signal=9, state=TrialState.LOADING, signals_sent=(15,))
    )
    assert found.cause is Cause.OWN_STOP


def test_a_sigterm_that_nobody_here_sent_is_an_operator_s() -> None:
    text = log("sglang", "oom_weights").split("[2026-10-14 02:11:12")[0]  # dies while loading: no handler, no line
    found = read("sglang", text).diagnose(
        Ending(exit_status=None, exit_signal=15, state=TrialState.LOADING, signals_sent=())
    )
    assert found.cause is Cause.OPERATOR_STOP


def test_a_second_start_in_the_same_log_begins_at_the_first_stage() -> None:
    text = log("sglang", "killed_without_a_word")
    again = text + text.split("Load weight end")[0]
    reader = read("sglang", again + "\ntorch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1 GiB.\n")
    found = reader.diagnose(Ending(exit_status=None, exit_signal=9, state=TrialState.LOADING, signals_sent=()))
    assert found.cause is Cause.OOM_WEIGHTS
