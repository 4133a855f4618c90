"""The golden set: every death of every version, in several shapes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import count

from tuner.model.outcome import Cause
from writing import alive, arguments, endings, faults, llamacpp, memory
from writing.case import Case, Death, Line
from writing.shapes import NOISE, SHAPES, interleaved, stamped
from writing.startup import stage_at, startup

DEATHS = (*memory.DEATHS, *arguments.DEATHS, *faults.DEATHS, *endings.DEATHS, *alive.DEATHS)
_RANKS = ("TP0", "TP1", "TP2", "TP3")
_LIVES = 3
_SIGNALLED = Line("SIGQUIT received. signum=3, frame=<frame at 0x7f3a>. It usually means one child failed.")
_ROTATING = tuple(shape for shape in SHAPES if shape != "plain")


def cases() -> tuple[Case, ...]:
    """Return the whole set, in a fixed order."""
    turns = count()
    sglang = (case for death in DEATHS for family in death.families for case in _of(death, family, turns))
    return (*sglang, *llamacpp.cases(turns))


def _of(death: Death, family: str, turns: Iterator[int]) -> Iterator[Case]:
    turn = next(turns)
    alone = [*startup(family, death.at, death.traits), *death.lines, *_told(death, family)]
    shapes = ["plain", *(_ROTATING[(2 * turn + step) % len(_ROTATING)] for step in range(2))]
    for shape in shapes:
        yield _case(death, family, shape, SHAPES[shape](stamped(alone, has_ms=turn % 2 == 1)))
    if death.told != "parent":
        together = interleaved(startup(family, death.at, death.traits, _RANKS), seed=turn)
        noisy = [*together, *death.lines, *NOISE, *_told(death, family)]
        case = _case(death, family, "ranks", SHAPES[_ROTATING[turn % len(_ROTATING)]](stamped(noisy, step_s=0.3)))
        if _ROTATING[turn % len(_ROTATING)] == "beheaded":
            case = replace(case, expected=replace(case.expected, stage=None))
        yield replace(case, without=case.without | {Cause.COLLECTIVE})
    if not death.silent and family == death.families[len(death.name) % len(death.families)]:
        case = _case(death, family, "loop", SHAPES["journald"](stamped(alone * _LIVES)))
        ending = replace(case.ending, restarts=_LIVES - 1)
        yield replace(case, ending=ending, without=case.without | {Cause.CRASH_LOOP})


def _case(death: Death, family: str, shape: str, log: bytes) -> Case:
    is_known = shape != "beheaded" and death.expected.stage is not None
    stage = stage_at(death.at, death.traits) if is_known else None
    return Case(
        name=f"sglang-{family}-{death.name}-{shape}",
        engine="sglang",
        family=family,
        shape=shape,
        log=log,
        ending=death.ending,
        expected=replace(death.expected, stage=stage),
        decisive=() if death.silent else death.decisive or (death.expected.evidence,),
        without=death.without,
        fatal=True if _told(death, family) else False if death.expected.cause is Cause.HEALTHY else None,
    )


def _told(death: Death, family: str) -> list[Line]:
    """Return what the parent says of a dead child."""
    told, _, code = death.told.partition(":")
    match told:
        case "race":
            return [_noticed(family, code or "-3")]
        case "poll":
            return _polled(family, code)
        case "child":
            return _signalled(family, is_serving=death.at in ("bound", "ready", "serving"))
        case _:
            return []


def _noticed(family: str, code: str) -> Line:
    if family == "0.5.9":
        return Line("Rank 0 scheduler is dead. Please check if there are relevant logs.")
    text = (
        f"RuntimeError: Rank 0 scheduler died during initialization (exit code: {code}). If exit code is -9 (SIGKILL), "
        "a common cause is the OS OOM killer. Run `dmesg -T | grep -i oom` to check."
    )
    return Line(f"Traceback (most recent call last):\n{text}", None)


def _polled(family: str, code: str) -> list[Line]:
    if family == "0.5.9":  # it did not poll its children
        return []
    crashed = f"Subprocess scheduler_0 (pid=4241) crashed with exit code {code}. Triggering SIGQUIT for cleanup..."
    return [Line(crashed), _SIGNALLED]


def _signalled(family: str, *, is_serving: bool) -> list[Line]:
    if not is_serving:
        process = "proces" if family == "0.5.9" else "process"
        return [Line(f"Received sigquit from a child {process}. It usually means the child failed.")]
    dumped = [Line("Pyspy dump for PID 4242:\nThread 4242 (idle): 'MainThread'")] if family == "0.5.23" else []
    return [_SIGNALLED, *dumped]
