"""The run on a terminal, redrawn in place."""

from __future__ import annotations

import textwrap
import threading
import time
from collections.abc import Callable, Sequence
from typing import Self

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from tuner.model.outcome import Measured
from tuner.model.study import StudySpec, TrialRow
from tuner.model.trial import TrialEvent, TrialResult
from tuner.ports import Proposal
from tuner.screen.front_table import FrontTable
from tuner.screen.view import HostView, LevelView, RunView
from tuner.screen.words import (
    NOT_MEASURED,
    SEPARATOR,
    counted,
    duration,
    outcome_words,
    rate,
    repeat_words,
    settings,
    state_words,
    time_of_day,
)

_FRONT_ROWS = 8
_TWO_PANELS_FROM = 110
"""Columns from which two hosts stand side by side."""
_LEVEL_WIDTH = 8
_REDRAWS_PER_S = 4
_REMARK_LINES = 4
_REMARK_INDENT = " " * len("12:03:44 ")


class LiveScreen:
    """A RunObserver that redraws ``console``; use it as a context manager."""

    def __init__(
        self,
        console: Console,
        *,
        now: Callable[[], float] = time.time,
        ticks: Callable[[], float] = time.monotonic,
        front_stays: bool = True,
    ) -> None:
        """Show the time by ``now`` (Unix); how long things take is counted by ``ticks`` (monotonic).

        ``front_stays`` False: after a run without an error somebody else prints the final front there.
        """
        self.view = RunView()
        self._now = now
        self._ticks = ticks
        self._front_stays = front_stays
        # Redrawing happens in rich's thread, feeding in the driver's.
        self._lock = threading.Lock()
        self._live = Live(console=console, get_renderable=self._draw, refresh_per_second=_REDRAWS_PER_S)

    def __enter__(self) -> Self:
        self._live.start()
        # rich hides the cursor; a process that leaves at once could not bring it back.
        self._live.console.show_cursor(True)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        with self._lock:
            self.view.ended = kind is None and not self._front_stays
        self._live.stop()

    def starting(self, what: str) -> None:
        """Show what the run waits for."""
        with self._lock:
            self.view.starting(what)

    def begin(self, spec: StudySpec, rows: tuple[TrialRow, ...]) -> None:
        """Show the study."""
        with self._lock:
            self.view.begin(spec, rows, self._ticks())

    def proposed(self, host: str, proposal: Proposal) -> None:
        """Show a host's new trial."""
        with self._lock:
            self.view.proposed(host, proposal, self._ticks())

    def event(self, host: str, number: int, event: TrialEvent) -> None:
        """Show how a trial moves on."""
        with self._lock:
            self.view.event(host, number, event, self._ticks())

    def told(self, result: TrialResult, rows: tuple[TrialRow, ...]) -> None:
        """Show the front and the counts as they are now."""
        with self._lock:
            self.view.told(result, rows)

    def corrected(self, text: str, rows: tuple[TrialRow, ...]) -> None:
        """Show what a person changed, and the front as it is now."""
        with self._lock:
            self.view.corrected(text, rows, self._now())

    def remark(self, text: str) -> None:
        """Show a line about the run as a whole."""
        with self._lock:
            self.view.remark(text, self._now())

    def _draw(self) -> RenderableType:
        return _Locked(RunScreen(self.view, self._ticks()), self._lock)


class _Locked:
    """Draws under a lock, completely, before rich takes the lines."""

    def __init__(self, screen: RunScreen, lock: threading.Lock) -> None:
        self._screen = screen
        self._lock = lock

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        with self._lock:
            drawn = console.render_lines(self._screen, options, pad=False, new_lines=True)
        for line in drawn:
            yield from line


class RunScreen:
    """A RunView at one moment (monotonic seconds), laid out for the width it is given."""

    def __init__(self, view: RunView, now_s: float) -> None:
        self._view = view
        self._now_s = now_s

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        view, width = self._view, options.max_width
        if view.spec is None:
            yield Text(f"{view.waiting or 'starting'} …", overflow="ellipsis", no_wrap=True)
            return
        yield self._head(view.spec, width)
        yield self._hosts(view.spec, width)
        front = view.front()
        if front and not view.ended:
            title = f"front so far: {counted(len(front), 'trial')}"
            shown = FrontTable(
                title=title,
                names=view.names,
                front=front,
                base=view.base(),
                most=_FRONT_ROWS,
                objectives=view.spec.objectives,
            )
            yield shown.fitted(console, width)
        for line in remark_lines(tuple(view.remarks), width):
            yield Text(line, style="dim", overflow="ellipsis", no_wrap=True)

    def _head(self, spec: StudySpec, width: int) -> RenderableType:
        view = self._view
        title = Text(spec.name, style="bold", overflow="ellipsis", no_wrap=True)
        if spec.simulated:
            title.append("  ")
            title.append(" SIMULATED ", style="black on yellow")
        title.append(f"  {spec.engine}, space {spec.space.name}, sampler {spec.sampler}", style="dim")
        facts = [f"{view.done} of {counted(spec.trials, 'trial')}", f"{view.left} left"]
        facts += [f"{view.infeasible} infeasible"] if view.infeasible else []
        confirmations = view.confirmed + view.unconfirmed
        facts += [f"{view.confirmed} of {confirmations} confirmed"] if confirmations else []
        facts += [counted(view.faults, "fault")] if view.faults else []
        facts.append(f"{duration(self._now_s - view.started_s)} gone")
        left_s = view.time_left_s(self._now_s)
        if left_s:
            facts.append(f"about {duration(left_s)} to go")
        bar = ProgressBar(total=spec.trials, completed=min(view.done, spec.trials), width=width)
        line = Table.grid()  # a bar alone does not end its line
        line.add_row(bar)
        return Group(title, line, Text(SEPARATOR.join(facts), overflow="ellipsis", no_wrap=True))

    def _hosts(self, spec: StudySpec, width: int) -> RenderableType:
        hosts = tuple(self._view.hosts.values())
        columns = 2 if len(hosts) > 1 and width >= _TWO_PANELS_FROM else 1
        inside = width // columns - 4  # the panel's border and padding
        panels = [self._panel(host, spec.workload.ladder, inside) for host in hosts]
        if columns == 1:
            return Group(*panels)
        grid = Table.grid(expand=True)
        grid.add_column(ratio=1)
        grid.add_column(ratio=1)
        for index in range(0, len(panels), columns):
            grid.add_row(*panels[index : index + columns])
        return grid

    def _panel(self, host: HostView, ladder: Sequence[int], inside: int) -> Panel:
        title = host.name if host.number is None else f"{host.name}{SEPARATOR}trial {host.number}"
        lines: list[RenderableType] = []
        if host.assignment is None:
            lines.append(Text("waiting for a trial", style="dim"))
        else:
            lines += [
                Text(line, overflow="ellipsis", no_wrap=True)
                for line in folded(settings(host.assignment, self._view.names), inside)
            ]
            lines.append(self._state(host))
            lines.append(ladder_table(ladder, host.levels, host.level, inside))
        return Panel(Group(*lines), title=title, title_align="left", border_style="cyan" if host.running else "dim")

    def _state(self, host: HostView) -> Text:
        if host.ended is not None:
            style = "green" if isinstance(host.ended, Measured) else "red"
            return Text(outcome_words(host.ended), style=style, overflow="ellipsis", no_wrap=True)
        assert host.state is not None
        text = Text(overflow="ellipsis", no_wrap=True)
        text.append(state_words(host.state, host.level), style="bold cyan")
        text.append(f"{SEPARATOR}{duration(self._now_s - host.state_since_s)}")
        text.append(f"{SEPARATOR}trial {duration(self._now_s - host.started_s)}", style="dim")
        base = "base command as it stands" if host.baseline else ""
        extra = host.detail or (base if host.repeat is None else repeat_words(host.repeat))
        if extra:
            text.append(f"{SEPARATOR}{' '.join(extra.split())}", style="dim")
        return text


def remark_lines(remarks: Sequence[tuple[float, str]], width: int) -> list[str]:
    """Write remarks, the last one below, in two lines each where one is too short.

    What to do about something stands at the end of its remark. When that takes too many lines
    in all, the oldest go: a screen that is too high loses its end.
    """
    lines: list[str] = []
    for at_s, text in reversed(remarks):
        line = f"{time_of_day(at_s)} {text}"
        first = textwrap.wrap(line, width, break_on_hyphens=False)[0]
        rest = line[len(first) :].lstrip()
        parts = [first, f"{_REMARK_INDENT}{rest}"] if rest else [first]
        if len(lines) + len(parts) > _REMARK_LINES:
            break
        lines = parts + lines
    return lines


def folded(text: str, width: int) -> list[str]:
    """Break ``text`` at its separators into lines of at most ``width`` where that is possible."""
    lines = [""]
    for piece in text.split(SEPARATOR):
        longer = f"{lines[-1]}{SEPARATOR}{piece}" if lines[-1] else piece
        if len(longer) <= width or not lines[-1]:
            lines[-1] = longer
        else:
            lines.append(piece)
    return lines


def ladder_table(ladder: Sequence[int], levels: dict[int, LevelView], current: int | None, width: int) -> Table:
    """Draw the ladder: concurrency above, tok/s below; as many levels around the current one as fit."""
    room = max(1, (width - _LEVEL_WIDTH) // _LEVEL_WIDTH)
    at = ladder.index(current) if current in ladder else len(levels) - 1
    first = max(0, min(at - room + 2, len(ladder) - room))
    shown = ladder[first : first + room]
    table = Table.grid(padding=(0, 0))
    for _ in range(len(shown) + 1):
        table.add_column(justify="right", width=_LEVEL_WIDTH, no_wrap=True, overflow="ellipsis")
    table.add_row(
        Text("at", style="dim"),
        *(Text(str(level), style="bold cyan" if level == current else "dim") for level in shown),
    )
    table.add_row(Text("tok/s", style="dim"), *(_level_cell(levels.get(level)) for level in shown))
    return table


def _level_cell(level: LevelView | None) -> Text:
    if level is None:
        return Text("·", style="dim")
    if level.throughput is None:
        return Text("…" if not level.done else NOT_MEASURED)
    return Text(rate(level.throughput)) if level.done else Text(f"{rate(level.throughput)}…", style="italic")
