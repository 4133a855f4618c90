"""What makes a study this study: rows measured under other terms must not be mixed with it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, Final

from tuner import __version__
from tuner.model.secrets import masked
from tuner.model.space import describe
from tuner.model.study import SimulatedHostSpec, StudySpec
from tuner.model.workload import Workload

TERMS: Final[Mapping[str, str]] = {
    "simulated": "kind of host",
    "engine": "engine",
    "space": "search space or base command line",
    "workload": "workload",
    "prompts": "set of prompts",
    "objectives": "objectives",
    "constraints": "constraints",
    "profiles": "simulated hardware",
}
"""The attributes that must not change while a study lasts, and what a person calls them; the plainest first."""
DETAILS: Final = "details"
"""The attribute with what the digests are made of, so that a difference can be named."""
_LATER: Final[Mapping[str, object]] = {
    "api": "completions",
    "top_p": None,
    "top_k": None,
    "min_p": None,
    "presence_penalty": None,
    "thinking": None,
}
"""Keys of ``[workload]`` that older studies do not have, and the value that they were measured with."""
_ABSENT: Final[Mapping[str, object]] = {"constraints": []}
"""What a term was in studies that are older than it."""
_LONGEST = 4
"""Keys named at most."""


def identity_of(spec: StudySpec) -> dict[str, Any]:
    """Return the user attributes that a study of ``spec`` carries in its database."""
    return {
        "engine": spec.engine,
        "space": fingerprint([[type(p).__name__, asdict(p)] for p in spec.space.parameters], asdict(spec.base)),
        "space_name": spec.space.name,
        "workload": _workload_digest(spec.workload),
        # What the prompts say counts, not where they lie: a checkout may be moved.
        "prompts": spec.prompts_digest,
        "objectives": [[objective.name, objective.direction.value, objective.unit] for objective in spec.objectives],
        "constraints": sorted(constraint.text for constraint in spec.constraints),
        "simulated": spec.simulated,
        "profiles": sorted({host.profile for host in spec.hosts if isinstance(host, SimulatedHostSpec)}),
        DETAILS: _details(spec),
        "parameters": [parameter.name for parameter in spec.space.parameters],
        "sampler": spec.sampler,
        "tuner_version": __version__,
    }


def fingerprint(*parts: object) -> str:
    """Return a short digest of JSON values; equal for equal content, whatever the order of keys."""
    text = json.dumps(parts, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _details(spec: StudySpec) -> dict[str, dict[str, Any]]:
    """Return, by term, what a person can change, key by key; of a command only digests, without its secrets."""
    command = masked(spec.base)
    return {
        "space": {
            **{f"{spec.space.name}.{parameter.name}": describe(parameter) for parameter in spec.space.parameters},
            **{flag: fingerprint(words) for flag, words in _flags(command.argv).items()},
            **{name: fingerprint(value) for name, value in command.env},
        },
        "workload": _workload(spec.workload),
    }


def _workload_digest(workload: Workload) -> str:
    return fingerprint(_terms(workload) | {"prompts": None})


def _terms(workload: Workload) -> dict[str, Any]:
    """Return its fields; a study that was begun before one of ``_LATER`` was there had its value, and stays itself."""
    content = asdict(workload) | {"api": workload.api.value}
    return {key: value for key, value in content.items() if key not in _LATER or value != _LATER[key]}


def _workload(workload: Workload) -> dict[str, Any]:
    """Return its keys as JSON has them, to be compared with what comes back from the database."""
    content: dict[str, Any] = json.loads(json.dumps(asdict(workload) | {"api": workload.api.value}))
    return {key: value for key, value in content.items() if key != "prompts"}


def _flags(argv: Sequence[str]) -> dict[str, list[str]]:
    """Split a command line at its flags; what comes before the first is under ``command``."""
    found: dict[str, list[str]] = {"command": []}
    flag = "command"
    for word in argv:
        if word.startswith("-"):
            flag, _, value = word.partition("=")
            found.setdefault(flag, []).append(value)
        else:
            found[flag].append(word)
    return found


def kind_difference(stored: Mapping[str, Any], *, simulated: bool) -> str | None:
    """Say that a study's results are of the other kind of host; None: they are not."""
    began = stored.get("simulated")
    if began is None or began == simulated:  # None: tuner did not begin it, which shows in the other terms
        return None
    kinds = ("a real host", "the simulated host")
    return f"was begun on {kinds[bool(began)]}, and this is {kinds[simulated]}"


def workload_difference(stored: Mapping[str, Any], workload: Workload) -> str | None:
    """Say how a study's workload differs from the one it was begun with; None: it does not."""
    if stored.get("workload") == _workload_digest(workload):
        return None
    began = stored.get(DETAILS, {}).get("workload", {})
    filled = {**began, **{key: value for key, value in _LATER.items() if key not in began}} if began else {}
    named = _changed(filled, _workload(workload), shown=True)
    return "was begun with another workload" + (f" ({named})" if named else "")


def difference(stored: Mapping[str, Any], spec: StudySpec) -> str | None:
    """Say which term of ``spec`` is not the stored study's; None when it is the same study."""
    wanted = identity_of(spec)
    for key, words in TERMS.items():
        if stored.get(key, _ABSENT.get(key)) == wanted[key]:
            continue
        if key == "simulated" and key not in stored:
            continue
        if key == "simulated":
            return kind_difference(stored, simulated=spec.simulated)
        if key == "workload":
            return workload_difference(stored, spec.workload)
        if key == "space":
            named = _changed(stored.get(DETAILS, {}).get(key, {}), wanted[DETAILS][key], shown=False)
        else:
            named = "" if key == "prompts" else f"{stored.get(key)}, now {wanted[key]}"
        return f"was begun with another {words}" + (f" ({named})" if named else "")
    return None


def _changed(before: Mapping[str, Any], now: Mapping[str, Any], *, shown: bool) -> str:
    """Name the keys that differ, with their values where these are ``shown``; empty: nothing is known of them."""
    if not before:
        return ""
    missing = object()
    keys = [key for key in {**before, **now} if before.get(key, missing) != now.get(key, missing)]
    named = [f"{key} {before.get(key)}, now {now.get(key)}" if shown else key for key in keys[:_LONGEST]]
    more = [f"and {len(keys) - _LONGEST} more"] if len(keys) > _LONGEST else []
    return "; ".join([*named, *more])
