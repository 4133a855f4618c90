"""The command line; all it prints goes through :mod:`tuner.cli_print`.

Exit codes: 0 done · 1 a bug · 2 a wrong file or option · 3 something a run needs is
missing · 4 too many faults · 5 the log of a death says no cause · 6 a level that was
measured has failed requests or no result · 130 interrupted.
"""

from __future__ import annotations

import contextlib
import os
import sys
import traceback
from collections.abc import Sequence
from typing import Annotated, TextIO, cast

import typer
from rich.console import Console
from typer.exceptions import Abort, TyperException

from tuner import __version__
from tuner.cli_print import data, print_findings, print_front, print_table, prose
from tuner.commands.measure import measure
from tuner.commands.options import (
    HERE,
    AbortAs,
    Again,
    AsFindings,
    AsFormat,
    AsWords,
    Engine,
    ExitCode,
    FindingsFormat,
    Finished,
    Format,
    Host,
    Hosts,
    LogFile,
    Named,
    NewKey,
    Plain,
    PromptsFrom,
    RayAddress,
    Root,
    Running,
    RunningTrial,
    SaidAs,
    Sampler,
    Seed,
    Settings,
    Signal,
    Speed,
    Study,
    Sudo,
    TheStudy,
    TrialNumber,
    Trials,
    Tunnel,
    Unit,
    Why,
    WordsFormat,
    given_again,
)
from tuner.commands.steering import abort_trial, correct_trial, try_settings
from tuner.commands.studies import (
    chosen,
    confirmed_of,
    directory_of,
    hosts_for,
    inheriting,
    left_behind,
    load,
    running_driver,
)
from tuner.config.overrides import Overrides
from tuner.errors import EvidenceError, HostFault, PreflightError, TooManyFaults, TunerError, UsageError
from tuner.model.ruling import Word
from tuner.screen.again import command_again, dashboard_program
from tuner.screen.findings import is_ready, summary_lines
from tuner.screen.live import LiveScreen
from tuner.screen.pipe import PatientOutput
from tuner.screen.plain import PlainScreen
from tuner.screen.plan import command_lines, ending_lines, plan_lines
from tuner.screen.status import status_line, status_table

BUG = 1
NOT_READY = 3
NO_CAUSE = 5
INTERRUPTED = 130
_EXIT_CODES: tuple[tuple[type[TunerError], int], ...] = (
    (UsageError, 2),
    (PreflightError, 3),
    (EvidenceError, 3),
    (HostFault, 3),
    (TooManyFaults, 4),
)
app = typer.Typer(name="tuner", add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)


def _show_version(value: bool) -> None:
    if value:
        data(__version__)
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
    prompts: PromptsFrom = None,
    speed: Speed = None,
    hosts: Hosts = None,
    host: Host = None,
    unit: Unit = None,
    sudo: Sudo = False,
    tunnel: Tunnel = False,
    accept_new_host_key: NewKey = False,
    ray_address: RayAddress = None,
    plain: Plain = False,
) -> int:
    """Run a study, or take up one that was interrupted.

    Ctrl-C once ends the running trials, cleans up, restores the hosts and saves; the same command
    goes on later. Twice restores the hosts without waiting for their servers to answer; three times, or
    twice where there is nothing to restore, leaves at once.
    """
    overrides = Overrides(
        trials=trials,
        sampler=sampler,
        seed=seed,
        prompts=prompts,
        speed=speed,
        simulated_hosts=hosts,
        host=host,
        unit=unit,
        sudo=sudo,
        tunnel=tunnel,
        accept_new_host_key=accept_new_host_key,
    )
    name = chosen(named, study)
    console = Console(stderr=True)
    # Where the final front goes to a file, the last one drawn is all that the terminal shows.
    front_stays = not sys.stdout.isatty()
    live = console.is_terminal and not plain
    screen = LiveScreen(console, front_stays=front_stays) if live else PlainScreen(prose)
    with inheriting(root, name, overrides, PlainScreen(prose)) as heir:
        spec = load(root, name, overrides, prose, heir=heir)
        from tuner.wiring.advice import advice_of  # noqa: PLC0415  see below
        from tuner.wiring.study import run_study  # noqa: PLC0415  seconds, only where it is needed

        advice = advice_of(root, name, overrides)
        with screen:
            summary = run_study(spec, screen, ray_address=ray_address, restored=heir.taken.clear, advice=advice)
    gains = print_front(summary.directory, name, Format.TABLE)
    # Out of the context, so that no option that is added later is forgotten.
    again = None if summary.complete else command_again(name, given_again(context.params), os.environ)
    width = console.width if console.is_terminal else None
    for line in ending_lines(spec, gains, again=again, viewer=dashboard_program(), width=width):
        prose(line)
    return 0 if summary.complete else INTERRUPTED


@app.command()
def validate(  # noqa: PLR0913, PLR0917  each is an option
    named: Named = None,
    study: Study = None,
    root: Root = HERE,
    trials: Trials = None,
    sampler: Sampler = None,
    seed: Seed = None,
    prompts: PromptsFrom = None,
    speed: Speed = None,
    hosts: Hosts = None,
    host: Host = None,
    unit: Unit = None,
    sudo: Sudo = False,
    tunnel: Tunnel = False,
    accept_new_host_key: NewKey = False,
) -> int:
    """Print trial 0's command and the plan; change nothing. A unit's command line is read from its host."""
    overrides = Overrides(
        trials=trials,
        sampler=sampler,
        seed=seed,
        prompts=prompts,
        speed=speed,
        simulated_hosts=hosts,
        host=host,
        unit=unit,
        sudo=sudo,
        tunnel=tunnel,
        accept_new_host_key=accept_new_host_key,
    )
    spec = load(root, chosen(named, study), overrides, prose)
    from tuner.engines import engine  # noqa: PLC0415  see run

    scrub = engine(spec.engine).scrub
    for line in [*command_lines(spec.base), "", *plan_lines(spec)]:
        data(scrub(line))
    from tuner.search.anew import check_terms  # noqa: PLC0415  see run

    check_terms(spec)  # last: what is wrong with the results folder is no reason to hide the plan
    return 0


@app.command()
def doctor(  # noqa: PLR0913, PLR0917  each is an option
    named: Named = None,
    study: Study = None,
    root: Root = HERE,
    host: Host = None,
    unit: Unit = None,
    sudo: Sudo = False,
    tunnel: Tunnel = False,
    accept_new_host_key: NewKey = False,
    as_format: AsFindings = FindingsFormat.TABLE,
) -> int:
    """Check the hosts of a study without changing them; say of each row that failed what to do."""
    name = chosen(named, study)
    overrides = Overrides(host=host, unit=unit, sudo=sudo, tunnel=tunnel, accept_new_host_key=accept_new_host_key)
    hosts_for(root, name, overrides)
    from tuner.wiring.doctor import examine  # noqa: PLC0415  see run

    findings = examine(root, name, overrides)
    print_findings(findings, as_format)
    for text in summary_lines(findings):
        prose(text)
    return 0 if is_ready(findings) else NOT_READY


@app.command()
def restore(  # noqa: PLR0913, PLR0917  each is an option
    named: Named = None,
    study: Study = None,
    root: Root = HERE,
    host: Host = None,
    unit: Unit = None,
    sudo: Sudo = False,
    tunnel: Tunnel = False,
    accept_new_host_key: NewKey = False,
) -> int:
    """Put back what ran on the hosts of a study before tuner came, and prove that it answers."""
    name = chosen(named, study)
    overrides = Overrides(host=host, unit=unit, sudo=sudo, tunnel=tunnel, accept_new_host_key=accept_new_host_key)
    hosts_for(root, name, overrides)
    from tuner.wiring.restore import restore_hosts  # noqa: PLC0415  see run

    for line in restore_hosts(root, name, overrides, PlainScreen(prose)):
        data(line)
    return 0


@app.command()
def status(named: Named = None, study: Study = None, root: Root = HERE) -> int:
    """Print what runs and what is finished, also during a run."""
    from tuner.search.rows import read_study as read_stored  # noqa: PLC0415  seconds, only where it is needed

    name = chosen(named, study)
    directory = directory_of(root, name)
    stored = read_stored(directory, name)
    driver = running_driver(directory)
    data(
        status_line(
            name,
            stored.rows,
            trials=stored.trials,
            simulated=stored.simulated,
            driver=driver,
            confirmed=confirmed_of(stored),
        )
    )
    print_table(status_table(stored.rows, stored.parameters, running=driver is not None))
    left = None if driver else left_behind(directory)
    if left is not None:
        prose(left)
    return 0


@app.command()
def front(named: Named = None, study: Study = None, root: Root = HERE, as_format: AsFormat = Format.TABLE) -> int:
    """Print the Pareto front found so far, also during a run."""
    name = chosen(named, study)
    print_front(directory_of(root, name), name, as_format)
    return 0


@app.command()
def explain(
    trial: TrialNumber,
    named: Named = None,
    study: Study = None,
    root: Root = HERE,
    as_format: AsWords = WordsFormat.TEXT,
) -> int:
    """Tell the story of a trial: what was asked, what ran, what became of it and why; also during a run."""
    from tuner.commands.explain import explain as story_of  # noqa: PLC0415  see run
    from tuner.screen.story import story_json, story_lines  # noqa: PLC0415

    name = chosen(named, study)
    story = story_of(directory_of(root, name), name, trial)
    if as_format is WordsFormat.JSON:
        data(story_json(story))
    else:
        for line in story_lines(story):
            data(line)
    return 0


@app.command()
def diagnose(
    file: LogFile,
    engine_name: Engine = None,
    exit_code: ExitCode = None,
    signal: Signal = None,
    as_format: AsWords = WordsFormat.TEXT,
) -> int:
    """Say why the server died that wrote a log, and whose fault it was; exit code 5: the log says no cause."""
    from tuner.commands.diagnose import diagnose as judge  # noqa: PLC0415  see run
    from tuner.commands.diagnose import ending_of  # noqa: PLC0415
    from tuner.commands.log_input import LogInput  # noqa: PLC0415
    from tuner.screen.verdict import diagnosis_json, diagnosis_lines  # noqa: PLC0415

    log = LogInput(file)
    if log.waits_for_a_person:
        prose("reading what you type or paste; Ctrl-D ends it")
    diagnosis = judge(log, engine_name=engine_name, ending=ending_of(exit_code, signal))
    if as_format is WordsFormat.JSON:
        data(diagnosis_json(diagnosis))
    else:
        for line in diagnosis_lines(diagnosis):
            data(line)
    return 0 if diagnosis.found else NO_CAUSE


app.command()(measure)


@app.command("try")
def try_(settings: Settings, study: TheStudy, root: Root = HERE, again: Again = False) -> int:
    """Queue a configuration that the study runs next, also during a run; what is not named is as in trial 0."""
    data(try_settings(root, study, settings, again=again))
    return 0


@app.command()
def abort(
    study: TheStudy,
    ends_as: AbortAs,
    why: Why,
    root: Root = HERE,
    host: Running = None,
    trial: RunningTrial = None,
) -> int:
    """End the trial that runs, with your verdict; its server is stopped and its host cleaned as always."""
    data(abort_trial(root, study, Word(ends_as.value), why, host=host, trial=trial))
    return 0


@app.command()
def verdict(trial: Finished, study: TheStudy, word: SaidAs, why: Why, root: Root = HERE) -> int:
    """Correct how a finished trial ended; what it was before is kept with it."""
    data(correct_trial(root, study, trial, word, why))
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


def _failed(message: str, code: int) -> int:
    """Say in one line what is wrong."""
    prose(f"tuner: error: {' '.join(message.split())}")
    return code
