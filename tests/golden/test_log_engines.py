"""Every golden log shows by its own words which engine wrote it, whatever a shipper put around them."""

from __future__ import annotations

import pytest
from writing.cases import cases

from tuner.commands.log_engine import Guess
from tuner.engines import ENGINES

CASES = [case for case in cases() if case.log.strip()]


@pytest.mark.parametrize("engine", ENGINES)
def test_a_golden_log_is_known_as_its_engines(engine: str) -> None:
    logs = [case for case in CASES if case.engine == engine]
    assert logs
    for case in logs:
        guess = Guess(tuple(ENGINES))
        guess.feed(case.log.decode(errors="replace"))
        assert guess.engine(case.name) == engine, case.name
