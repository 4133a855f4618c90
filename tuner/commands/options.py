"""The options of the command line, each written once."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from tuner.config.study_file import HIGHEST_SEED
from tuner.model.ruling import Word


class Format(enum.Enum):
    """How the front is printed."""

    TABLE = "table"
    JSON = "json"
    CSV = "csv"


class FindingsFormat(enum.Enum):
    """How doctor's findings are printed."""

    TABLE = "table"
    JSON = "json"


class WordsFormat(enum.Enum):
    """How a story or a verdict is printed."""

    TEXT = "text"
    JSON = "json"


Named = Annotated[str | None, typer.Argument(metavar="STUDY", help="Name of the study: studies/STUDY.toml.")]
Study = Annotated[str | None, typer.Option("--study", help="The same as an option.")]
Root = Annotated[Path, typer.Option("--root", help="The folder that holds studies/ and search_spaces/.")]
Trials = Annotated[int | None, typer.Option(min=1, help="Trials that count, instead of the file's.")]
Sampler = Annotated[str | None, typer.Option(help="Sampler, instead of the file's.")]
Seed = Annotated[int | None, typer.Option(min=0, max=HIGHEST_SEED, help="Seed, instead of the file's.")]
PromptsFrom = Annotated[
    str | None,
    typer.Option("--prompts", metavar="SET|FILE", help="A shipped set or a file of prompts, instead of the file's."),
]
Speed = Annotated[
    float | None, typer.Option(min=0.01, help="How many times faster than real a simulated server loads.")
]
Hosts = Annotated[int | None, typer.Option(min=1, max=16, help="How many simulated hosts.")]
Host = Annotated[
    str | None, typer.Option(help="This one of the study's hosts only; with --unit any host, user@host:port.")
]
Unit = Annotated[
    str | None,
    typer.Option(help="Tune this systemd unit of --host (of this machine without it) and nothing else."),
]
Sudo = Annotated[bool, typer.Option("--sudo", help="With --unit: what needs root goes through sudo -n.")]
Tunnel = Annotated[bool, typer.Option("--tunnel", help="With --unit: the load goes through SSH.")]
NewKey = Annotated[
    bool, typer.Option("--accept-new-host-key", help="Take the key of a host not met before, once, and show it.")
]
RayAddress = Annotated[str | None, typer.Option(help="Use this Ray cluster instead of starting one.")]
Plain = Annotated[bool, typer.Option("--plain", help="Plain lines, even on a terminal.")]
AsFormat = Annotated[Format, typer.Option("--format", help="How to print it.")]
AsFindings = Annotated[FindingsFormat, typer.Option("--format", help="How to print it.")]
AsWords = Annotated[WordsFormat, typer.Option("--format", help="How to print it.")]
TrialNumber = Annotated[str, typer.Argument(metavar="TRIAL", help="Number of the trial, as status shows it.")]
LogFile = Annotated[str, typer.Argument(metavar="FILE", help="The log; - reads standard input.")]
Engine = Annotated[
    str | None,
    typer.Option("--engine", help="That wrote the log; without it the log's own words tell."),
]
ExitCode = Annotated[
    int | None, typer.Option("--exit", help="How the server ended, if you know: 1, 137 (signal 9), -9 (signal 9).")
]
Signal = Annotated[
    str | None, typer.Option("--signal", help="The signal that ended it, if you know: 9, KILL, SIGKILL.")
]
TheStudy = Annotated[str, typer.Option("--study", help="Name of the study: studies/STUDY.toml.")]
Settings = Annotated[
    list[str], typer.Argument(metavar="NAME=VALUE...", help="Settings, by full or short name: steps=10.")
]
Again = Annotated[bool, typer.Option("--again", help="Also where this configuration was tried before.")]
Why = Annotated[str, typer.Option("--why", help="What you saw; kept with the trial.")]
Running = Annotated[str | None, typer.Option("--host", help="The trial on this host, where several run.")]
RunningTrial = Annotated[int | None, typer.Option("--trial", min=0, help="The trial of this number, likewise.")]
Finished = Annotated[int, typer.Argument(metavar="TRIAL", min=0, help="Number of the trial, as status shows it.")]


class EndsAs(enum.Enum):
    """What a person says of a trial that runs."""

    INFEASIBLE = Word.INFEASIBLE.value
    RETRY = Word.RETRY.value


AbortAs = Annotated[
    EndsAs,
    typer.Option("--as", help="infeasible: the configuration is at fault; retry: it is not, and runs again."),
]
SaidAs = Annotated[
    Word, typer.Option("--as", help="As abort; measured: take back what somebody said of a measured trial before.")
]
HERE = Path()
_ONCE = frozenset({"accept_new_host_key"})
"""A key that was accepted is known: the next time it must be the same."""


def given_again(parameters: Mapping[str, object]) -> dict[str, object]:
    """Return the options of a command as they are to be given when it goes on; by parameter name before."""
    return {f"--{name.replace('_', '-')}": value for name, value in parameters.items() if name not in _ONCE}
