"""Which environment variables of a trial the files of its unit would win over: pure."""

from __future__ import annotations

from collections.abc import Collection

from tuner.hosts.systemd.unit import Unit


def overridden(unit: Unit, names: Collection[str]) -> str | None:
    """Say which of ``names`` a trial cannot set, and what to do; None: it can set all of them."""
    files = sorted({name for name, _ in unit.file_environment} & set(names))
    if not files:
        return None
    return (
        f"in unit {unit.name}, {', '.join(files)} comes from an EnvironmentFile=, which wins over what a trial sets: "
        "remove it there, or from the study's [server.env]"
    )
