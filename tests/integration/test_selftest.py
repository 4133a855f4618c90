"""The self-test measures the client of this machine, whatever else runs on it."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

from tuner.engines import engine
from tuner.errors import MeasurementFault
from tuner.load.paced import paced_server
from tuner.load.selftest import selftest
from tuner.report.selftest_table import selftest_lines


def test_it_runs_each_load_against_a_server_of_its_own_and_finds_no_chunk_missing() -> None:
    result = asyncio.run(selftest(engine("sglang"), seconds=3.0))
    assert [step.streams for step in result.steps] == [1, 16, 64]
    assert result.stress
    for step in (*result.steps, *result.stress):
        assert step.exact.unlike == 0
        assert step.exact.requests == 4 * step.streams
        assert step.exact.late_p50_s is not None
        assert step.exact.late_p50_s > 0
        assert step.cpu_s_per_chunk is not None
        assert 1e-6 < step.cpu_s_per_chunk < 0.01
        assert step.got <= step.offered * 1.01
    last = result.stress[-1]
    assert last.bound is not None or len(result.stress) == 3 or last.got < 0.9 * last.offered
    assert selftest_lines(result)[-1].startswith("This machine can")


def test_a_server_that_cannot_start_is_said_at_once() -> None:
    async def start() -> None:
        async with paced_server("--core=100000"):
            pass

    with pytest.raises(MeasurementFault, match="ended before it listened"):
        asyncio.run(start())


def test_the_server_starts_from_any_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    async def address() -> str:
        async with paced_server() as server:
            return server.base_url

    assert Path(sys.executable).is_absolute()
    assert asyncio.run(address()).startswith("http://127.0.0.1:")
