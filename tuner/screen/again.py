"""The commands a reader is told to give next, as a shell takes them."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping
from pathlib import Path

SCRIPT = "TUNER_SCRIPT"
"""Environment variable in which scripts/run says under which name it was called."""

_NAMES = frozenset({"--named", "--study"})


def command_again(study: str, options: Mapping[str, object], environ: Mapping[str, str]) -> str:
    """Return the command that runs the study, as the reader gave it.

    Args:
        study: its name.
        options: of ``run`` with their values, the study's name may be among them; None, False and the
            current folder were not given.
        environ: of this process.
    """
    script = environ.get(SCRIPT)
    words = [script, study] if script else ["python", "-m", "tuner", "run", "--study", study]
    for option, value in options.items():
        if option in _NAMES:
            continue
        if value is True:
            words.append(option)
        elif value is not None and value is not False and value != Path():
            # 15 digits are what a float keeps of a number as it was typed.
            words += [option, f"{value:.15g}" if isinstance(value, float) else str(value)]
    return shlex.join(words)


def dashboard_program(python: Path = Path(sys.executable)) -> str:
    """Return optuna-dashboard as a shell finds it: the one of this environment, which need not be on PATH."""
    beside = python.with_name("optuna-dashboard")
    return shlex.quote(str(beside)) if beside.exists() else beside.name
