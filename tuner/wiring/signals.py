"""What Ctrl-C and SIGTERM do to a run."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from typing import Final, Protocol, Self

from tuner.ports import RunObserver

INTERRUPTED: Final = 130
SAME_SIGNAL_S: Final = 0.5
"""`timeout` and some shells send a signal to a process and again to its group: that is one wish, not two."""

_ENDS = "the servers are stopped by their supervisors"


class Stoppable(Protocol):
    """What a signal stops."""

    async def stop(self) -> None:
        """End what runs; whoever runs it returns when it has ended."""


class StopSignals:
    """While inside: the first Ctrl-C or SIGTERM asks for a clean end, the last leaves at once.

    Where hosts are to be restored, one between them restores without waiting for the originals.

    Args:
        observer: is told what happens.
        hurry: cuts the restoring short; False: there is nothing to restore.
        restores: hosts are to be restored at the end, for what is said first.
    """

    def __init__(
        self, observer: RunObserver, hurry: Callable[[], bool] = lambda: False, *, restores: bool = False
    ) -> None:
        self._observer = observer
        self._hurry = hurry
        self._restores = restores
        self._hurried = False
        self._told_quick = False
        # A terminal that is closed; whoever started us with nohup does not want to hear of it.
        hangs_up = signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN
        self._numbers = (signal.SIGINT, signal.SIGTERM, *((signal.SIGHUP,) if hangs_up else ()))
        self._run: Stoppable | None = None
        self._since_s: float | None = None
        self._stopping: asyncio.Task[None] | None = None

    def __enter__(self) -> Self:
        loop = asyncio.get_running_loop()
        for number in self._numbers:
            loop.add_signal_handler(number, self._on_signal)
        return self

    def __exit__(self, *_: object) -> None:
        loop = asyncio.get_running_loop()
        for number in self._numbers:
            loop.remove_signal_handler(number)

    def check(self) -> None:
        """Go no further when a signal came before anything has begun that would need cleaning.

        Raises:
            KeyboardInterrupt: one did.
        """
        if self._since_s is not None:
            raise KeyboardInterrupt

    def begin(self, run: Stoppable) -> None:
        """Name what a signal stops from now on.

        Raises:
            KeyboardInterrupt: a signal came before.
        """
        self.check()
        self._run = run

    def _on_signal(self) -> None:
        now_s = asyncio.get_running_loop().time()
        if self._since_s is None:
            self._since_s = now_s
            self._first()
        elif now_s - self._since_s >= SAME_SIGNAL_S:
            self._since_s, self._told_quick = now_s, False
            self._further()
        elif not self._told_quick:
            self._told_quick = True
            self._observer.remark(f"signals within {SAME_SIGNAL_S:g} s of each other count as one")

    def _further(self) -> None:
        if not self._hurried and self._hurry():
            self._hurried = True
            self._observer.remark("restoring the hosts without waiting for their servers; once more leaves at once")
            return
        ends = "each host restores itself when its lease runs out" if self._hurried else _ENDS
        self._observer.remark(f"leaving at once; {ends}")
        os._exit(INTERRUPTED)

    def _first(self) -> None:
        if self._run is None:
            self._observer.remark("stopping as soon as Ray is up: nothing has begun; once more leaves at once")
            return
        further = (
            "once more does not wait for the originals to answer, a third time leaves at once"
            if self._restores
            else "once more leaves at once"
        )
        self._observer.remark(f"stopping: ending the running trials and cleaning up; {further}")
        self._stopping = asyncio.ensure_future(self._run.stop())
