"""The command line: the only place that prints. Prose goes to stderr, data to stdout.

Exit codes: 0 done · 1 a bug · 2 a wrong file or option · 3 something a run needs is
missing · 4 too many faults · 130 interrupted.
"""

from __future__ import annotations

import contextlib
import enum
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TextIO, cast

import typer
from rich.console import Console, RenderableType
from typer.exceptions import Abort, TyperException

from tuner import __version__
from tuner.config.problems import check_name, quoted, reading
from tuner.config.resolve import Overrides
from tuner.config.study_file import FOLDER as STUDIES
from tuner.config.study_file import HIGHEST_SEED, read_study
from tuner.errors import EvidenceError, HostFault, PreflightError, StudyFileError, TooManyFaults, TunerError, UsageError
from tuner.model.names import short_names
from tuner.model.study import StudySpec
from tuner.screen.again import command_again, dashboard_program
from tuner.screen.front_table import FrontTable
from tuner.screen.live import LiveScreen
from tuner.screen.pipe import PatientOutput
from tuner.screen.plain import PlainScreen
from tuner.screen.plan import command_lines, ending_lines, plan_lines
from tuner.screen.status import status_line, status_table

if TYPE_CHECKING:
    from tuner.search.rows import StoredStudy

BUG = 1
INTERRUPTED = 130
_EXIT_CODES: tuple[tuple[type[TunerError], int], ...] = (
    (UsageError, 2),
    (PreflightError, 3),
    (EvidenceError, 3),
    (HostFault, 3),
    (TooManyFaults, 4),
)
_PIPE_WIDTH = 240
"""Columns of a table that is not on a terminal: nothing is cut for whoever reads it."""

app = typer.Typer(name="tuner", add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)


class Format(enum.Enum):
    """How the front is printed."""

    TABLE = "table"
    JSON = "json"
    CSV = "csv"


Named = Annotated[str | None, typer.Argument(metavar="STUDY", help="Name of the study: studies/STUDY.toml.")]
Study = Annotated[str | None, typer.Option("--study", help="The same as an option.")]
Root = Annotated[Path, typer.Option("--root", help="The folder that holds studies/ and search_spaces/.")]
Trials = Annotated[int | None, typer.Option(min=1, help="Trials that count, instead of the file's.")]
Sampler = Annotated[str | None, typer.Option(help="Sampler, instead of the file's.")]
Seed = Annotated[int | None, typer.Option(min=0, max=HIGHEST_SEED, help="Seed, instead of the file's.")]
Speed = Annotated[
    float | None, typer.Option(min=0.01, help="How many times faster than real a simulated server loads.")
]
Hosts = Annotated[int | None, typer.Option(min=1, max=16, help="How many simulated hosts.")]
Host = Annotated[str | None, typer.Option(help="Run on this one of the study's hosts only.")]
RayAddress = Annotated[str | None, typer.Option(help="Use this Ray cluster instead of starting one.")]
Plain = Annotated[bool, typer.Option("--plain", help="Plain lines, even on a terminal.")]
AsFormat = Annotated[Format, typer.Option("--format", help="How to print it.")]
HERE = Path()


def _show_version(value: bool) -> None:
    if value:
        print(__version__)
        raise typer.Exit


@app.callback()
def _options(
    _version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print it.")
    ] = False,
) -> None:
    """Finds the settings of an LLM server with the best trade-off, overnight and unattended."""


@app.command()
def run(  # noqa: PLR0913, PLR0917  each is an option
    context: typer.Context,
    named: Named = None,
    study: Study = None,
    root: Root = HERE,
    trials: Trials = None,
    sampler: Sampler = None,
    seed: Seed = None,
    speed: Speed = None,
    hosts: Hosts = None,
    host: Host = None,
    ray_address: RayAddress = None,
    plain: Plain = False,
) -> int:
    """Run a study, or take up one that was interrupted.

    Ctrl-C once ends the running trials, cleans up and saves; the same command goes on later.
    Twice leaves at once.
    """
    overrides = Overrides(trials=trials, sampler=sampler, seed=seed, speed=speed, simulated_hosts=hosts, host=host)
    name = _chosen(named, study)
    spec = _load(root, name, overrides)
    from tuner.wiring.study import run_study  # noqa: PLC0415  see _load

    console = Console(stderr=True)
    # Where the final front goes to a file, the last one drawn is all that the terminal shows.
    front_stays = not sys.stdout.isatty()
    live = console.is_terminal and not plain
    screen = LiveScreen(console, front_stays=front_stays) if live else PlainScreen(_prose)
    with screen:
        summary = run_study(spec, screen, ray_address=ray_address)
    gains = _print_front(summary.directory, name, Format.TABLE)
    # Out of the context, so that no option that is added later is forgotten.
    given = {f"--{key.replace('_', '-')}": value for key, value in context.params.items()}
    again = None if summary.complete else command_again(name, given, os.environ)
    width = console.width if console.is_terminal else None
    for line in ending_lines(spec, gains, again=again, viewer=dashboard_program(), width=width):
        _prose(line)
    return 0 if summary.complete else INTERRUPTED


@app.command()
def validate(  # noqa: PLR0913, PLR0917  each is an option
    named: Named = None,
    study: Study = None,
    root: Root = HERE,
    trials: Trials = None,
    sampler: Sampler = None,
    seed: Seed = None,
    speed: Speed = None,
    hosts: Hosts = None,
    host: Host = None,
) -> int:
    """Print trial 0's command and the plan; touch nothing."""
    overrides = Overrides(trials=trials, sampler=sampler, seed=seed, speed=speed, simulated_hosts=hosts, host=host)
    spec = _load(root, _chosen(named, study), overrides)
    from tuner.engines import engine  # noqa: PLC0415  see _load

    scrub = engine(spec.engine).scrub
    for line in [*command_lines(spec.base), "", *plan_lines(spec)]:
        print(scrub(line))
    return 0


@app.command()
def status(named: Named = None, study: Study = None, root: Root = HERE) -> int:
    """Print what runs and what is finished, also during a run."""
    from tuner.search.rows import read_study as read_stored  # noqa: PLC0415  seconds, only where it is needed

    name = _chosen(named, study)
    directory = _directory(root, name)
    stored = read_stored(directory, name)
    driver = running_driver(directory)
    print(status_line(name, stored.rows, trials=stored.trials, simulated=stored.simulated, driver=driver))
    table = status_table(stored.rows, stored.parameters, running=driver is not None)
    _print_table(lambda _console: table)
    return 0


@app.command()
def front(named: Named = None, study: Study = None, root: Root = HERE, as_format: AsFormat = Format.TABLE) -> int:
    """Print the Pareto front found so far, also during a run."""
    name = _chosen(named, study)
    _print_front(_directory(root, name), name, as_format)
    return 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    with (
        contextlib.redirect_stdout(cast("TextIO", PatientOutput(sys.stdout))),
        contextlib.redirect_stderr(cast("TextIO", PatientOutput(sys.stderr))),
    ):
        try:
            return _done(given or ["--help"])
        finally:
            with contextlib.suppress(OSError):  # a full disk: said already, or soon by Python
                sys.stdout.flush()


def _done(given: list[str]) -> int:
    try:
        code = app(args=given, prog_name="tuner", standalone_mode=False)
        sys.stdout.flush()
    except TyperException as error:
        return _failed(error.format_message(), 2)
    except TunerError as error:
        return _failed(str(error), exit_code(error))
    except (KeyboardInterrupt, Abort):
        return _failed("interrupted", INTERRUPTED)
    except Exception:  # noqa: BLE001  the last place that can say what to do about a bug
        traceback.print_exc()
        return _failed(f"this is a bug in tuner {__version__}: please report it with the lines above", BUG)
    return code if isinstance(code, int) else 0


def exit_code(error: TunerError) -> int:
    """Return the exit code for an error; one that nobody foresaw at the top is a bug."""
    return next((code for kind, code in _EXIT_CODES if isinstance(error, kind)), BUG)


def running_driver(directory: Path) -> str | None:
    """Say which process runs the study in ``directory``; None: none does."""
    from tuner.search.lock import holder_of  # noqa: PLC0415  see _load

    return holder_of(directory)


def _chosen(named: str | None, study: str | None) -> str:
    """Return the study's name, which is given in one of two ways."""
    if named is not None and study is not None:
        raise UsageError(f"the study is named twice, {quoted(named)} and {quoted(study)}: give STUDY or --study STUDY")
    name = study if named is None else named
    if name is None:
        raise UsageError("no study is named: give STUDY or --study STUDY")
    return name


def _load(root: Path, study: str, overrides: Overrides) -> StudySpec:
    read_study(root, study)  # a wrong file is refused before the seconds that loading all parts takes
    from tuner.wiring.load import load_study  # noqa: PLC0415

    return load_study(root, study, overrides)


def _directory(root: Path, study: str) -> Path:
    """Return the folder of a study's results; the study's file may be gone by now."""
    refused = check_name(study, "the study name")
    if refused:
        raise StudyFileError(refused)
    with reading(quoted(str(root))):
        directory = root.resolve() / STUDIES / study
        if not directory.is_dir():
            read_study(root, study)  # says which studies there are
        return directory


def _print_front(directory: Path, study: str, as_format: Format) -> tuple[str, ...]:
    """Print the front; return what it gains against trial 0, as lines."""
    from tuner.report import front as fronts  # noqa: PLC0415  pulls in pandas
    from tuner.report import tables  # noqa: PLC0415
    from tuner.search.rows import read_study as read_stored  # noqa: PLC0415  pulls in Optuna

    stored = read_stored(directory, study)
    heading = fronts.Heading(
        study=stored.name, engine=stored.engine, parameters=stored.parameters, simulated=stored.simulated
    )
    if as_format is Format.JSON:
        print(tables.to_json(stored.rows, heading))
    elif as_format is Format.CSV:
        print(tables.to_csv(fronts.front_rows(stored.rows), heading), end="")
    else:
        _print_table(lambda console: _front_table(stored).fitted(console, console.width))
    return tables.gain_lines(stored.rows, heading)


def _front_table(stored: StoredStudy) -> FrontTable:
    from tuner.report.front import baseline_row, front_rows  # noqa: PLC0415

    return FrontTable(
        title=f"front of {stored.name}{' (SIMULATED)' if stored.simulated else ''}",
        names=short_names(stored.parameters),
        front=tuple(reversed(front_rows(stored.rows))),
        base=baseline_row(stored.rows),
        with_base=True,
        intervals=True,
    )


def _print_table(draw: Callable[[Console], RenderableType]) -> None:
    console = Console()
    if not console.is_terminal:
        console = Console(width=_PIPE_WIDTH)
    console.print(draw(console))


def _prose(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _failed(message: str, code: int) -> int:
    """Say in one line what is wrong."""
    _prose(f"tuner: error: {' '.join(message.split())}")
    return code
