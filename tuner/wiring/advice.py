"""How the person named a study's hosts, so that remedies are written the same way."""

from __future__ import annotations

from pathlib import Path

from tuner.config.overrides import Overrides, command_on_hosts
from tuner.hosts.checks.advice import Advice


def advice_of(root: Path, name: str, overrides: Overrides | None) -> Advice:
    """Return how remedies about a study's hosts are written.

    Args:
        root: the folder that holds ``studies/``, as it was given.
        name: of the study.
        overrides: options of the command line.
    """
    return Advice(
        by_options=overrides is not None and overrides.unit is not None,
        restore=command_on_hosts("restore", name, overrides, root),
        doctor=command_on_hosts("doctor", name, overrides, root),
    )
