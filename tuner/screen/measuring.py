"""How a measurement comes along: redrawn on a terminal, or one line an event."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import tzinfo
from typing import Self

from rich.console import Console, RenderableType
from rich.live import Live
from rich.text import Text

from tuner.model.measurement import LegKind, Level, ServerFacts
from tuner.model.metric import Estimate
from tuner.ports import LoadProgress
from tuner.screen.words import SEPARATOR, counted, duration, rate, time_of_day

_REDRAWS_PER_S = 4


def facts_line(facts: ServerFacts) -> str:
    """Write what the server is: ``http://… · sglang 0.5.9 · Qwen/Qwen3 · 21 requests at once``."""
    engine = facts.engine if facts.version is None else f"{facts.engine} {facts.version}"
    parts = [facts.base_url, engine, facts.model]
    capacity = facts.capacity
    if capacity is not None and capacity.max_running_requests is not None:
        parts.append(f"{counted(capacity.max_running_requests, 'request')} at once")
    if capacity is not None and capacity.max_total_num_tokens is not None:
        parts.append(f"{counted(capacity.max_total_num_tokens, 'token')} of cache")
    return SEPARATOR.join(parts)


def leg_words(concurrency: int, kind: LegKind) -> str:
    """Write ``measuring 16`` or ``holding 16``."""
    return f"{'holding' if kind is LegKind.SOAK else 'measuring'} {concurrency}"


def level_line(level: Level) -> str:
    """Write what became of a level, in one line."""
    words = leg_words(level.concurrency, level.kind)
    result = level.result
    if result is None:
        return f"{words}: no result: {level.why}"
    parts = [
        f"{_estimate(result.aggregate_throughput)} tok/s together",
        f"{_estimate(result.single_request_throughput)} each",
        f"{counted(result.completed, 'request')} in {duration(result.window_s)}",
    ]
    parts += [f"{result.failed} failed"] if result.failed else []
    parts += [] if result.converged else ["not settled" if level.kind is LegKind.LADDER else "still drifts"]
    return f"{words}: {SEPARATOR.join(parts)}"


def _estimate(estimate: Estimate | None) -> str:
    if estimate is None or estimate.half_width is None:
        return rate(None if estimate is None else estimate.value)
    return f"{rate(estimate.value)} ±{100 * estimate.half_width:.1f}%"


class PlainMeasuring:
    """A MeasureObserver that hands each line to ``write``."""

    def __init__(
        self, write: Callable[[str], None], *, now: Callable[[], float] = time.time, zone: tzinfo | None = None
    ) -> None:
        """Write lines with the time by ``now`` (Unix)."""
        self._write = write
        self._now = now
        self._zone = zone

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def found(self, facts: ServerFacts) -> None:
        """Say what the server is."""
        self._line(facts_line(facts))

    def warming_up(self, requests: int) -> None:
        """Say that the warm-up begins."""
        self._line(f"warming up with {counted(requests, 'request')}")

    def level_begins(self, concurrency: int, kind: LegKind, longest_s: float) -> None:
        """Say nothing: the end of each level is a line."""

    def progress(self, progress: LoadProgress) -> None:
        """Say nothing."""

    def level_ended(self, level: Level) -> None:
        """Say what became of it."""
        self._line(level_line(level))

    def remark(self, text: str) -> None:
        """Say it."""
        self._line(text)

    def _line(self, text: str) -> None:
        self._write(f"{time_of_day(self._now(), self._zone)} {' '.join(text.split())}")


@dataclass(slots=True)
class _View:
    lines: list[str] = field(default_factory=list)
    doing: str = "asking the server what it is"
    longest_s: float | None = None
    latest: LoadProgress | None = None


class LiveMeasuring:
    """A MeasureObserver that redraws ``console``: what is done above, what runs below; use it as a context manager."""

    def __init__(self, console: Console) -> None:
        """Draw on ``console``."""
        self._view = _View()
        self._lock = threading.Lock()  # rich redraws in its own thread
        self._live = Live(console=console, get_renderable=self._draw, refresh_per_second=_REDRAWS_PER_S)

    def __enter__(self) -> Self:
        self._live.start()
        self._live.console.show_cursor(True)  # a process that is killed could not bring it back
        return self

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._view.doing = ""  # what was found and said stays, above the table
        self._live.stop()

    def found(self, facts: ServerFacts) -> None:
        """Show what the server is."""
        self._add(facts_line(facts))

    def warming_up(self, requests: int) -> None:
        """Show that the warm-up runs."""
        self._begin(f"warming up with {counted(requests, 'request')}", None)

    def level_begins(self, concurrency: int, kind: LegKind, longest_s: float) -> None:
        """Show the leg that runs."""
        self._begin(leg_words(concurrency, kind), longest_s)

    def progress(self, progress: LoadProgress) -> None:
        """Show how it comes along."""
        with self._lock:
            self._view.latest = progress

    def level_ended(self, level: Level) -> None:
        """Show what became of it."""
        self._add(level_line(level))

    def remark(self, text: str) -> None:
        """Show it."""
        self._add(" ".join(text.split()))

    def _add(self, line: str) -> None:
        with self._lock:
            self._view.lines.append(line)

    def _begin(self, doing: str, longest_s: float | None) -> None:
        with self._lock:
            self._view.doing, self._view.longest_s, self._view.latest = doing, longest_s, None

    def _draw(self) -> RenderableType:
        with self._lock:
            view = self._view
            lines = [Text(line) for line in view.lines]
            if view.doing:
                lines.append(Text(doing_line(view.doing, view.longest_s, view.latest), style="bold cyan"))
            return Text("\n").join(lines)


def doing_line(doing: str, longest_s: float | None, latest: LoadProgress | None) -> str:
    """Write what runs now, how long already, and what it has measured so far."""
    parts = [doing]
    if latest is not None:
        most = "" if longest_s is None else f" of about {duration(longest_s)} at most"
        parts.append(f"{duration(latest.elapsed_s)}{most}")
        parts.append(f"{latest.in_flight} in flight")
        parts += [] if latest.throughput is None else [f"{rate(latest.throughput)} tok/s so far"]
        parts += [f"silent for {duration(latest.silent_s)}"] if latest.silent_s >= 5 else []
    return SEPARATOR.join(parts) + " …"
