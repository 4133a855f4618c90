"""Proves that a server which answers is the one that was started, as it was asked for."""

from __future__ import annotations

import math
from collections.abc import Mapping

from tuner.errors import HostFault
from tuner.model.outcome import Cause, Verdict
from tuner.model.space import Assignment, Value
from tuner.model.trial import Effective
from tuner.model.workload import Workload
from tuner.ports import ControlClient, EngineAdapter


def mismatch(asked: Assignment, effective: Effective) -> str | None:
    """Say which setting runs otherwise than asked; None when every reported one agrees.

    A setting that the server does not report (None) proves nothing and is passed over.
    """
    running: Mapping[str, Value | None] = dict(effective.settings)
    for name, value in asked.items():
        actual = running.get(name)
        if actual is not None and not _same(value, actual):
            return f"{name}={actual} runs, {name}={value} was asked"
    return None


def _same(asked: Value, actual: Value) -> bool:
    if isinstance(asked, str) or isinstance(actual, str):
        return str(asked) == str(actual)
    return math.isclose(asked, actual, rel_tol=1e-6)


def mismatch_verdict(problem: str) -> Verdict:
    """Build the verdict for a server that rewrote its own settings."""
    return Verdict(
        cause=Cause.CONFIGURATION_MISMATCH,
        config_fault=True,
        evidence=(problem,),
        advice="the server changed this setting by itself; the assignment cannot be had with this base command",
    )


async def read_effective(engine: EngineAdapter, control: ControlClient) -> Effective:
    """Ask the server what it really runs.

    Raises:
        HostFault: it does not say.
    """
    replies = [await control.call(call) for call in engine.info_calls()]
    for call, reply in zip(engine.info_calls(), replies, strict=True):
        if reply.status != 200:
            raise HostFault(
                f"{call.path} answered {reply.status or reply.error}: the configuration cannot be read back"
            )
    return engine.effective(replies)


async def generates(engine: EngineAdapter, control: ControlClient, workload: Workload, *, seed: int) -> str | None:
    """Ask for a real generation; None when it came back, else what came instead."""
    call = engine.generation_call(
        "Count slowly from one to ten.", max_tokens=8, workload=workload, stream=False, seed=seed
    )
    reply = await control.call(call)
    if reply.status != 200:
        return f"a generation answered {reply.status or reply.error}"
    tokens = engine.generated_tokens(reply)
    return None if tokens else "a generation came back without tokens"
