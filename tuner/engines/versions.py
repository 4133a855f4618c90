"""Which releases of each engine its adapter was checked against. A new engine is one line in ``TESTED``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

Release = tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TestedRange:
    """The oldest and the newest release whose command line, log and HTTP were read."""

    oldest: str
    newest: str


TESTED: Mapping[str, TestedRange] = MappingProxyType({"sglang": TestedRange(oldest="0.5.9", newest="0.5.23")})

DISTRIBUTIONS: Mapping[str, str] = MappingProxyType({"sglang": "sglang", "llamacpp": "xllamacpp"})
"""The Python package whose version is the engine's, for an engine that is one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """What is to be thought of a version.

    Attributes:
        is_tested: inside the range, or of an engine that has none.
        text: the version and the range, for a reader.
        remedy: empty where nothing is to be done.
    """

    is_tested: bool
    text: str
    remedy: str = ""


def judge(engine: str, version: str | None) -> Judgement:
    """Compare a version with the range that the adapter was checked against.

    Args:
        engine: name in the engine registry.
        version: as the server or its package says; None: it could not be found out.
    """
    tested = TESTED.get(engine)
    if tested is None:
        known = version or "unknown"
        return Judgement(is_tested=True, text=f"{engine} {known}; the adapter is not tied to releases")
    span = f"the adapter was checked against {tested.oldest} to {tested.newest}"
    number = None if version is None else release(version)
    if version is None or number is None:
        shown = "unknown" if version is None else f"{version!r}, which is no release number"
        return Judgement(
            is_tested=False,
            text=f"{engine} version {shown}; {span}",
            remedy="start the server once, so that it can be asked, and compare by hand",
        )
    low, high = release(tested.oldest), release(tested.newest)
    if low is not None and number < low:
        return Judgement(
            is_tested=False,
            text=f"{engine} {version}; {span}",
            remedy=f"upgrade to {tested.oldest} or later, or mistrust its diagnoses",
        )
    if high is not None and number > high:
        return Judgement(
            is_tested=False,
            text=f"{engine} {version}; {span}",
            remedy="newer than what was checked: look at the first trials' flags and diagnoses yourself",
        )
    return Judgement(is_tested=True, text=f"{engine} {version}; {span}")


def release(version: str) -> Release | None:
    """Return the release segment (PEP 440) as three numbers; None: it does not begin with one.

    Suffixes (post1, rc1, +cu128) do not matter: flags change with releases.
    """
    found = re.match(r"v?(\d+(?:\.\d+)*)", version.strip())
    if found is None:
        return None
    numbers = [int(part) for part in found[1].split(".")][:3]
    return tuple(numbers + [0] * (3 - len(numbers)))
