"""Runs the client's test of itself."""

from __future__ import annotations

import asyncio

from tuner.engines import engine
from tuner.errors import MeasurementFault, PreflightError
from tuner.load.selftest import selftest
from tuner.model.selftest import SelfTest


def check_client() -> SelfTest:
    """Measure this machine's client against a server of its own on the loopback.

    Raises:
        PreflightError: that server cannot be started or does not answer.
    """
    try:
        return asyncio.run(selftest(engine("sglang")))
    except MeasurementFault as fault:
        raise PreflightError(str(fault)) from fault
