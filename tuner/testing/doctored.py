"""doctor's findings of a host of the rig, in this process, and what is true of all of them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace

from tuner.engines import ENGINES
from tuner.model.finding import Finding, RowVerdict
from tuner.model.lease import Holder
from tuner.model.study import ProcessHostSpec, UnitHostSpec
from tuner.ports import HostTransport
from tuner.testing.rig import HOME, PORT, UNIT, Rig
from tuner.wiring.doctor import Aim, check_host

NAME = "gpu01"
ME = Holder(owner="me@here", study="mtp", directory="/studies/mtp", machine="m1", pid=4711, since_s=1_796_000_000.0)
AIM = Aim(engine=ENGINES["sglang"], base=None, ladder=(1, 4, 16), asking=ME)
COMMAND = f"{HOME}/bin/sglang serve --model-path m --host 0.0.0.0 --port {PORT} --mem-fraction-static 0.8"
"""A server with no more than what a study needs."""


def spec(rig: Rig, user: str = "root", *, unit: str = UNIT, sudo: bool = False, **changes: object) -> UnitHostSpec:
    """Return a unit of ``rig`` as a study names it; ``changes`` are made to it."""
    return replace(
        UnitHostSpec(name=NAME, unit=unit, login=rig.login(user), sudo=sudo),
        **changes,  # type: ignore[arg-type]
    )


def look(host: UnitHostSpec | ProcessHostSpec, aim: Aim = AIM, over: HostTransport | None = None) -> dict[str, Finding]:
    """Return the findings by check; hold that each is made once, and says what to do where that is its matter."""
    findings = asyncio.run(check_host(host, aim, over))
    assert all(finding.host == NAME for finding in findings)
    checks = [finding.check for finding in findings]
    assert len(checks) == len(set(checks)), "a check is made once"
    for finding in findings:
        if finding.verdict in {RowVerdict.WARNING, RowVerdict.FAILED}:
            assert finding.remedy, f"{finding.check}: no remedy"
        if finding.verdict is RowVerdict.UNKNOWN:
            assert finding.detail.startswith("not looked at: ")
    return {finding.check: finding for finding in findings}


def failures(found: Mapping[str, Finding]) -> dict[str, str]:
    """Return what failed, with its detail."""
    return {check: finding.detail for check, finding in found.items() if finding.verdict is RowVerdict.FAILED}
