"""Options of the command line that are laid over a study file."""

from __future__ import annotations

import math
import shlex
from dataclasses import dataclass
from pathlib import Path

from tuner.config.study_file import HIGHEST_SEED
from tuner.errors import UsageError


@dataclass(frozen=True, slots=True, kw_only=True)
class Overrides:
    """Options of the command line that replace what the file says; None leaves it.

    Attributes:
        prompts: a shipped set, or a file as the command line names it.
        simulated_hosts: how many simulated hosts.
        host: run on this one of the study's hosts only; together with ``unit`` an address of any host.
        unit: run on this unit of systemd, of ``host`` or of this machine, and on nothing else.
        sudo: with ``unit``: what needs root goes through sudo.
        tunnel: with ``unit``: the load goes through SSH.
        accept_new_host_key: take the key of a host that is not known yet.
    """

    trials: int | None = None
    sampler: str | None = None
    seed: int | None = None
    prompts: str | None = None
    speed: float | None = None
    simulated_hosts: int | None = None
    host: str | None = None
    unit: str | None = None
    sudo: bool = False
    tunnel: bool = False
    accept_new_host_key: bool = False


def command_on_hosts(command: str, study: str, over: Overrides | None, root: Path = Path()) -> str:
    """Return a command about the hosts of a run, ``restore`` or ``doctor``, as a shell takes it.

    Args:
        command: its name.
        study: its name.
        over: the options of the run, of which those that name its host are given again.
        root: the folder that holds ``studies/``; the current one is not named.
    """
    words = ["python", "-m", "tuner", command, "--study", study]
    if root != Path():
        words += ["--root", str(root)]
    for option, value in (("--host", over and over.host), ("--unit", over and over.unit)):
        if value:
            words += [option, value]
    words += [option for option, given in (("--sudo", over and over.sudo), ("--tunnel", over and over.tunnel)) if given]
    return shlex.join(words)


def check_numbers(over: Overrides) -> None:
    """Hold what the command line's own types do not.

    Raises:
        UsageError: a number is none, or too high.
    """
    if over.speed is not None and not (math.isfinite(over.speed) and over.speed > 0):
        raise UsageError(f"--speed: is {over.speed}, but must be a finite number above 0")
    if over.seed is not None and not 0 <= over.seed <= HIGHEST_SEED:
        raise UsageError(f"--seed: is {over.seed}, but must be a whole number from 0 to {HIGHEST_SEED}")
