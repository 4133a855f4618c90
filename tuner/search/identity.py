"""What makes a study this study: rows measured under other terms must not be mixed with it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, Final

from tuner import __version__
from tuner.model.study import SimulatedHostSpec, StudySpec

TERMS: Final[Mapping[str, str]] = {
    "engine": "engine",
    "space": "search space or base command line",
    "workload": "workload",
    "prompts": "set of prompts",
    "objectives": "objectives",
    "simulated": "kind of host (simulated or real)",
    "profiles": "simulated hardware",
}
"""The attributes that must not change while a study lasts, and what a person calls them."""


def identity_of(spec: StudySpec) -> dict[str, Any]:
    """Return the user attributes that a study of ``spec`` carries in its database."""
    return {
        "engine": spec.engine,
        "space": fingerprint([[type(p).__name__, asdict(p)] for p in spec.space.parameters], asdict(spec.base)),
        "space_name": spec.space.name,
        "workload": fingerprint(asdict(spec.workload) | {"prompts": None}),
        # What the prompts say counts, not where they lie: a checkout may be moved.
        "prompts": spec.prompts_digest,
        "objectives": [[objective.name, objective.direction.value, objective.unit] for objective in spec.objectives],
        "simulated": spec.simulated,
        "profiles": sorted({host.profile for host in spec.hosts if isinstance(host, SimulatedHostSpec)}),
        "parameters": [parameter.name for parameter in spec.space.parameters],
        "sampler": spec.sampler,
        "tuner_version": __version__,
    }


def fingerprint(*parts: object) -> str:
    """Return a short digest of JSON values; equal for equal content, whatever the order of keys."""
    text = json.dumps(parts, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def difference(stored: Mapping[str, Any], spec: StudySpec) -> str | None:
    """Say which term of ``spec`` is not the stored study's; None when it is the same study."""
    wanted = identity_of(spec)
    for key, words in TERMS.items():
        if stored.get(key) != wanted[key]:
            shown = "" if key in ("space", "workload", "prompts") else f" ({stored.get(key)}, now {wanted[key]})"
            return f"was begun with another {words}{shown}"
    return None
