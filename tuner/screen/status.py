"""A study as its database shows it to an onlooker."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.table import Table

from tuner.model.names import short_names
from tuner.model.outcome import Faulted, Infeasible, Measured
from tuner.model.repeat import Purpose
from tuner.model.study import TrialRow
from tuner.screen.words import NOT_MEASURED, counted, duration, outcome_words, repeat_words, settings

if TYPE_CHECKING:
    from tuner.runtime.repeats import Progress


def status_line(
    name: str,
    rows: Sequence[TrialRow],
    *,
    trials: int | None,
    simulated: bool,
    driver: str | None,
    confirmed: Progress | None = None,
) -> str:
    """Say how far a study is, and who runs it now.

    Args:
        name: of the study.
        rows: all its trials.
        trials: how many are to count; None: the database does not say.
        simulated: whether they come from the simulated host.
        driver: who runs it; None: nobody does.
        confirmed: how far the confirmations are; None: not known.
    """
    measured = sum(row.counts and isinstance(row.outcome, Measured) for row in rows)
    infeasible = sum(row.counts and isinstance(row.outcome, Infeasible) for row in rows)
    faults = sum(isinstance(row.outcome, Faulted) for row in rows)
    badge = " (SIMULATED)" if simulated else ""
    done = (
        counted(measured + infeasible, "trial")
        if trials is None
        else f"{measured + infeasible} of {counted(trials, 'trial')}"
    )
    counts = f"{done} done, {measured} measured, {infeasible} infeasible"
    if faults:
        counts += f", {counted(faults, 'fault')}"
    counts += _repeats(rows, confirmed)
    who = f"run by {driver}" if driver else "not running"
    return f"{name}{badge}: {counts}; {who}"


def _repeats(rows: Sequence[TrialRow], confirmed: Progress | None) -> str:
    done = [row for row in rows if row.repeat is not None and isinstance(row.outcome, (Measured, Infeasible))]
    confirmations = sum(row.repeat is not None and row.repeat.purpose is Purpose.CONFIRMATION for row in done)
    total = confirmations if confirmed is None else confirmed.done + confirmed.left
    parts = [f"{confirmations} of {counted(total, 'confirmation')}"] if total else []
    parts += [counted(len(done) - confirmations, "other repeat")] if len(done) > confirmations else []
    return "".join(f", {part}" for part in parts)


def status_table(rows: Sequence[TrialRow], parameters: Sequence[str], *, running: bool) -> Table:
    """List all trials, one a line.

    Args:
        rows: the trials.
        parameters: names in the order of the space.
        running: whether a driver is there; without one a trial under way was cut off.
    """
    names = short_names(parameters)
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("trial", justify="right", no_wrap=True)
    table.add_column("host", no_wrap=True)
    table.add_column("took", justify="right", no_wrap=True)
    table.add_column("settings")
    table.add_column("outcome")
    for row in rows:
        took = NOT_MEASURED if row.duration_s is None else duration(row.duration_s)
        host = row.host or NOT_MEASURED
        table.add_row(str(row.number), host, took, settings(row.assignment, names), _outcome(row, running=running))
    return table


def _outcome(row: TrialRow, *, running: bool) -> str:
    again = "" if row.repeat is None else f"{repeat_words(row.repeat)}: "
    return f"{again}{_end(row, running=running)}"


def _end(row: TrialRow, *, running: bool) -> str:
    if row.outcome is not None:
        several = f" (over {counted(len(row.starts), 'start')})" if len(row.starts) > 1 else ""
        return f"{outcome_words(row.outcome)}{several}"
    if row.host is None:
        return "waiting"
    return "running" if running else "cut off, will run again"
