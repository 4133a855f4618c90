import asyncio
import os
import signal

from tuner.screen.plain import PlainScreen
from tuner.wiring.signals import SAME_SIGNAL_S, StopSignals


class Run:
    """Counts how often it is asked to end."""

    def __init__(self) -> None:
        self.stops = 0

    async def stop(self) -> None:
        self.stops += 1


async def interrupted(*waits_s: float, restores: bool) -> tuple[list[str], Run]:
    """Press Ctrl-C once, and again after each wait; return what was said."""
    lines: list[str] = []
    run = Run()
    with StopSignals(PlainScreen(lines.append), lambda: True, restores=restores) as signals:
        signals.begin(run)
        for wait_s in (0.0, *waits_s):
            await asyncio.sleep(wait_s)
            os.kill(os.getpid(), signal.SIGINT)
            await asyncio.sleep(0.01)
    return [line.partition(" ")[2] for line in lines], run  # without the time of day


def test_the_first_signal_says_what_the_next_ones_do_where_hosts_are_restored() -> None:
    remarks, run = asyncio.run(interrupted(restores=True))
    begun = "stopping: ending the running trials and cleaning up; "
    assert remarks == [f"{begun}once more does not wait for the originals to answer, a third time leaves at once"]
    assert run.stops == 1


def test_the_first_signal_says_that_the_next_one_leaves_where_nothing_is_restored() -> None:
    remarks, _ = asyncio.run(interrupted(restores=False))
    assert remarks == ["stopping: ending the running trials and cleaning up; once more leaves at once"]


def test_signals_in_quick_succession_are_one_and_that_is_said_once() -> None:
    remarks, run = asyncio.run(interrupted(0.0, 0.0, restores=True))
    assert remarks[1:] == ["signals within 0.5 s of each other count as one"]
    assert run.stops == 1


def test_a_later_signal_restores_without_waiting() -> None:
    remarks, _ = asyncio.run(interrupted(SAME_SIGNAL_S + 0.1, 0.0, restores=True))
    assert remarks[1:] == [
        "restoring the hosts without waiting for their servers; once more leaves at once",
        "signals within 0.5 s of each other count as one",
    ]
