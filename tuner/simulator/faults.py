"""Switches that make the simulated host misbehave, for tests of what watches it.

``TUNER_SIM_FAULTS`` is a comma list of ``name`` or ``name:value``; nothing is guessed.
"""

from __future__ import annotations

import difflib
import math
from dataclasses import dataclass

STAGES = ("args", "load_weights", "load_draft", "pool", "capture", "ready")
"""Where ``exit-at`` may strike: the start-up stages in the engine's own order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Faults:
    """What is wrong with this host; the default is a healthy one.

    Attributes:
        nccl_flake: share of the starts that fail with an NCCL error while loading.
        hang_loading: the weights never finish loading.
        hang_serving_after_s: generation stops this long after ready, /health stays 200; None: never.
        slow_gpu: every step takes this many times as long.
        no_newline: the log has no line ends.
        log_flood_bytes: extra log written while loading.
        die_serving_after_s: a rank dies this long after ready; None: never.
        exit_at: the start-up stage (see ``STAGES``) at which the process exits without a word; None: never.
        frightening_log: a healthy server that keeps warning about KV retraction.
        foreign_gpu_after_s: somebody else's process computes on GPU 0 for a while, from this long after
            the host's first server is ready; None: never.
        throttle_after_s: the same, the GPUs being too hot.
        linger_s: how long a killed process's memory stays taken; None: as long as the host's speed says.
    """

    nccl_flake: float = 0.0
    hang_loading: bool = False
    hang_serving_after_s: float | None = None
    slow_gpu: float = 1.0
    no_newline: bool = False
    log_flood_bytes: int = 0
    die_serving_after_s: float | None = None
    exit_at: str | None = None
    frightening_log: bool = False
    foreign_gpu_after_s: float | None = None
    throttle_after_s: float | None = None
    linger_s: float | None = None


class FaultSyntaxError(ValueError):
    """The fault list has an unknown name or an impossible value; the message says which."""


_VALUES = {
    "nccl-flake": "a share from 0 to 1",
    "hang-loading": None,
    "hang-serving": "seconds",
    "slow-gpu": "a factor of 1 or more",
    "no-newline": None,
    "log-flood": "megabytes",
    "die-serving": "seconds",
    "exit-at": "one of " + ", ".join(STAGES),
    "frightening-log": None,
    "foreign-gpu": "seconds",
    "throttle": "seconds",
    "linger": "seconds",
}


def parse(text: str) -> Faults:
    """Read a comma list of faults.

    Raises:
        FaultSyntaxError: an unknown or repeated name, a missing, surplus or impossible value.
    """
    given: dict[str, str] = {}
    for item in filter(None, (part.strip() for part in text.split(","))):
        name, colon, value = item.partition(":")
        if name not in _VALUES:
            near = difflib.get_close_matches(name, _VALUES, n=1)
            hint = f"; did you mean {near[0]}" if near else ""
            raise FaultSyntaxError(f"unknown fault {name!r}{hint} (known: {', '.join(_VALUES)})")
        if name in given:
            raise FaultSyntaxError(f"fault {name} is given twice")
        wanted = _VALUES[name]
        if wanted is None and colon:
            raise FaultSyntaxError(f"fault {name} takes no value, got {value!r}")
        if wanted is not None and not value:
            raise FaultSyntaxError(f"fault {name} needs a value: {wanted}")
        given[name] = value
    if "exit-at" in given and given["exit-at"] not in STAGES:
        raise FaultSyntaxError(f"fault exit-at: {given['exit-at']!r} is not {_VALUES['exit-at']}")
    flake = _number(given, "nccl-flake", low=0.0, high=1.0)
    slow = _number(given, "slow-gpu", low=1.0)
    flood = _number(given, "log-flood", low=0.0)
    return Faults(
        nccl_flake=0.0 if flake is None else flake,
        hang_loading="hang-loading" in given,
        hang_serving_after_s=_number(given, "hang-serving", low=0.0),
        slow_gpu=1.0 if slow is None else slow,
        no_newline="no-newline" in given,
        log_flood_bytes=0 if flood is None else round(flood * 1_000_000),
        die_serving_after_s=_number(given, "die-serving", low=0.0),
        exit_at=given.get("exit-at"),
        frightening_log="frightening-log" in given,
        foreign_gpu_after_s=_number(given, "foreign-gpu", low=0.0),
        throttle_after_s=_number(given, "throttle", low=0.0),
        linger_s=_number(given, "linger", low=0.0),
    )


def start_flakes(share: float, start: int) -> bool:
    """Whether the ``start``-th start (from 1) of a host is one of the failing ``share``.

    Spread evenly: after n starts exactly floor(n * share) have failed, so "one in five" is
    the 5th, the 10th, and so on, and a test knows which.
    """
    return math.floor(start * share + 1e-9) > math.floor((start - 1) * share + 1e-9)


def _number(given: dict[str, str], name: str, *, low: float, high: float = math.inf) -> float | None:
    if name not in given:
        return None
    try:
        value = float(given[name])
    except ValueError:
        raise FaultSyntaxError(f"fault {name}: {given[name]!r} is not {_VALUES[name]}") from None
    if not low <= value <= high or math.isinf(value):
        raise FaultSyntaxError(f"fault {name}: {given[name]!r} is not {_VALUES[name]}")
    return value
