"""Proves that a server which answers is the one that was started, as it was asked for."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from tuner.errors import HostFault
from tuner.model.outcome import Cause, Verdict
from tuner.model.prompt import plain_prompt
from tuner.model.space import Assignment, Value
from tuner.model.trial import Effective
from tuner.model.workload import Workload
from tuner.ports import ControlClient, EngineAdapter

PROOF_TOKENS = 8
SILENT = "timed_out"
"""What a call ends with that got no answer in its time."""


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


@dataclass(frozen=True, slots=True, kw_only=True)
class NoGeneration:
    """What came instead of the generation that was asked for.

    Attributes:
        is_silent: nothing did, for as long as we waited.
    """

    text: str
    is_silent: bool = False


async def generates(engine: EngineAdapter, control: ControlClient, workload: Workload, *, seed: int) -> str | None:
    """Ask for a real generation; None when it came back, of whatever length, else what came instead."""
    problem, _ = await _generation(engine, control, workload, seed=seed, limit_s=None)
    return None if problem is None else problem.text


async def generates_exactly(
    engine: EngineAdapter, control: ControlClient, workload: Workload, *, seed: int, limit_s: float
) -> NoGeneration | None:
    """Ask for a generation, as :func:`generates`; its length must be what was asked for.

    It is waited for ``limit_s`` at most, and may be shorter only where the workload lets the server stop early.
    """
    problem, tokens = await _generation(engine, control, workload, seed=seed, limit_s=limit_s)
    if problem is not None:
        return problem
    if tokens > PROOF_TOKENS or (workload.ignore_eos and tokens < PROOF_TOKENS):
        return NoGeneration(text=f"a generation came back with {tokens} tokens, {PROOF_TOKENS} were asked for")
    return None


async def _generation(
    engine: EngineAdapter, control: ControlClient, workload: Workload, *, seed: int, limit_s: float | None
) -> tuple[NoGeneration | None, int]:
    call = engine.generation_call(
        plain_prompt("Count slowly from one to ten."),
        max_tokens=PROOF_TOKENS,
        workload=workload,
        stream=False,
        seed=seed,
    )
    if limit_s is not None:
        call = replace(call, timeout_s=min(call.timeout_s, limit_s))
    reply = await control.call(call)
    if reply.status != 200:
        text = f"a generation answered {reply.status or reply.error}"
        return NoGeneration(text=text, is_silent=reply.error == SILENT), 0
    tokens = engine.generated_tokens(reply)
    return (None, tokens) if tokens else (NoGeneration(text="a generation came back without tokens"), 0)
